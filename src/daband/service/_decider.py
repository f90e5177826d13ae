"""Check the JSON of a request, decide with the deployed policy, and return the events for the log.

``Decider.decide`` does all of this. ``Model`` is the policy that decides, and the first functions
add arms to it.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from daband.errors import InvalidInput, did_you_mean
from daband.features._image_layout import measure_image, read_image_bytes
from daband.ledger._store import Event
from daband.service._settings import Settings
from daband.serving._deployed_policy import DeployedDecision, DeployedPolicy, load_deployed_bytes

#: The allowed fields of an event in a request.
_EVENT_FIELDS = (
    "event_id",
    "context",
    "eligible",
    "arms",
    "incumbent",
)
#: The allowed ids of events.
_EVENT_ID_PATTERN = re.compile(r"[A-Za-z0-9._:~-]{1,128}")
#: Maximum number of columns of a row in addition to the policy's columns. More would slow down the
#: service.
_MAX_EXTRA_COLUMNS = 1000
#: Maximum number of characters of an unknown name in an error.
_MAX_SHOWN_CHARACTERS = 80
#: Maximum ratio of the sides of an image. The shorter side is resized to a fixed length, so the
#: resized image of a larger ratio could need much memory.
_MAX_SIDE_RATIO = 16
#: Maximum number of images in an error.
_MAX_SHOWN_IMAGES = 5
#: Maximum number of events in one request.
_MAX_EVENTS = 1000
#: Maximum number of pixels of all images in one request.
_MAX_PIXELS = 1 << 24
#: Maximum number of arms of a service.
_MAX_ARMS = 10_000


@dataclass(frozen=True)
class Model:
    """A deployed policy with its number in the log."""

    number: int
    deployed: DeployedPolicy


def load_model(content: bytes, number: int) -> Model:
    """Return the model with this number from the content of an exported file."""
    return Model(number, load_deployed_bytes(content))


def continue_counts(model: Model, old: Model) -> Model:
    """Return a model that continues the counts of the limits of an old one."""
    limiter = model.deployed.limiter
    if limiter is None:
        return model
    limiter = limiter.continue_from(old.deployed.limiter)
    return replace(model, deployed=replace(model.deployed, limiter=limiter))


def with_added_arms(model: Model, note_json: str | None) -> Model:
    """Return the model with the arms in the log's note ``arms``, in addition to the arms of its
    file.

    ``note_json`` is the note: {"arms": [...], "offered": [...]}. The first list has added arms with
    their features, in the order of their indices. The second list has the names of the arms that
    may be chosen.
    """
    catalogue = model.deployed.frozen.catalogue
    if note_json is None or catalogue is None:
        return model
    note = orjson.loads(note_json)
    new_arms = [arm for arm in note["arms"] if arm["id"] not in catalogue.index_by_name]
    deployed = model.deployed.with_arms([*catalogue.names, *new_arms])
    all_names = set(deployed.arm_names)
    offered_names = [name for name in note["offered"] if name in all_names]
    return Model(model.number, deployed.with_arms(offered_names))


def replace_arms(note_json: str | None, arms: list[Any], deployed: DeployedPolicy) -> str:
    """Return the note ``arms`` (see ``with_added_arms``) after which only these arms may be chosen.

    Arms that the policy does not have are added.
    """
    old_arms = [] if note_json is None else orjson.loads(note_json)["arms"]
    catalogue = deployed.frozen.catalogue
    if catalogue is None:
        raise InvalidInput("the policy was trained without a catalogue of arms")
    names, _, _ = catalogue.look_up(arms)  # raises an error for invalid features
    known_names = {*catalogue.names, *(arm["id"] for arm in old_arms)}
    new_arms = [
        {**arm, "id": name}
        for name, arm in zip(names, arms, strict=True)
        if name not in known_names
    ]
    if len(known_names) + len(new_arms) > _MAX_ARMS:
        raise InvalidInput(f"a service has at most {_MAX_ARMS:,} arms")
    return orjson.dumps({"arms": [*old_arms, *new_arms], "offered": names}).decode()


@dataclass(frozen=True, slots=True)
class _EventRequest:
    """A request for a decision on one event, after all checks."""

    #: The id of the event, which may be chosen by the client.
    event_id: str
    #: The context as JSON.
    context: Any
    #: The context for ``decide``: a mapping, or an array of the policy's shape.
    row: Any
    #: The indices of the arms that may be chosen; None for all.
    eligible: list[int] | None
    #: The index of the incumbent's arm; None if it is not known.
    incumbent: int | None
    #: The arms of the request as in ``DeployedPolicy.decide``; None if it has none.
    arms: list[Any] | None = None


class Decider:
    """Decides on the events of requests.

    ``model`` may be replaced at any time, but each request uses one model.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model = model
        self._settings = settings
        self._incumbent = model.deployed.incumbent
        if settings.incumbent is not None:
            self._incumbent = model.deployed.find_arm_index(settings.incumbent, "incumbent")
        #: The fraction of events for which the incumbent's arm is played at first.
        self.initial_control = settings.control or model.deployed.control
        if self.initial_control and not self.incumbent_name:
            raise InvalidInput(
                "control needs an incumbent: use --incumbent, or export the policy with one"
            )
        #: The fraction of events for which the incumbent's arm is played.
        self.control_fraction = self.initial_control

    @property
    def incumbent_name(self) -> str:
        """The name of the incumbent's arm, or of the column with it; "" if it is not known."""
        deployed = self.model.deployed
        if self._incumbent is None:
            column = deployed.incumbent_column
            return "" if column is None else f"column {column}"
        return deployed.arm_names[self._incumbent]

    def decide(self, body: Any, now: float) -> list[tuple[Event, DeployedDecision]]:
        """Return each event of a request with the decision of the policy.

        ``body`` is the parsed JSON of the request, and ``now`` the time of the events. Nothing is
        written to the log.
        """
        model = self.model
        control_fraction = self.control_fraction
        requests = self._read_events(body, model.deployed)
        _check_images([request.row for request in requests])
        events = []
        for index, request in enumerate(requests):
            try:
                decision = self._choose(model.deployed, request, control_fraction)
                events.append((self._build_event(model, request, decision, now), decision))
            except InvalidInput as error:
                prefix = f"event {index}: " if "events" in body else ""
                raise InvalidInput(f"{prefix}{error}") from None
        return events

    def _choose(
        self, deployed: DeployedPolicy, request: _EventRequest, control_fraction: float
    ) -> DeployedDecision:
        """Return the decision on one event. Its ``arm`` is the index among all arms."""
        arms: Any = request.arms
        if arms is None and request.eligible is not None:
            arms = np.isin(np.arange(deployed.n_arms), request.eligible)
        decision = deployed.decide(
            request.row,
            arms=arms,
            control=control_fraction,
            incumbents=None if request.incumbent is None else np.array([request.incumbent]),
        )
        if request.arms is None:
            return decision
        return decision._replace(arm=deployed.arm_names.index(str(decision.arm_name)))

    def _build_event(
        self, model: Model, request: _EventRequest, decision: DeployedDecision, now: float
    ) -> Event:
        """Return the log entry of a decision."""
        role = "policy" if model.deployed.pilot is None else "pilot"
        control = float(decision.control)
        is_free = request.eligible is None and model.deployed.limiter is None
        exploration = model.deployed.frozen.exploration
        if not exploration.is_deterministic and is_free:
            scores = decision.mean + exploration.bonus_factor * decision.bonus
            role = role if scores[int(decision.arm)] == scores.max() else "exploration"
        if decision.in_control:
            role = "control" if control < 1.0 else "fallback"
        return Event(
            event_id=request.event_id,
            time=now,
            role=role,
            domain=model.deployed.domain,
            model=model.number,
            arm=int(decision.arm),
            propensity=float(decision.propensity),
            control=control if 0.0 < control < 1.0 else None,
            **self._get_log_fields(request),
        )

    def _get_log_fields(self, request: _EventRequest) -> dict[str, Any]:
        """Return an event's ``context``, ``eligible`` and ``digest``, as far as
        ``Settings.contexts`` allows.
        """
        eligible = None if request.eligible is None else str(request.eligible)
        if self._settings.contexts == "drop":
            return {"context": None, "eligible": eligible, "digest": None}
        context_json = orjson.dumps(request.context)
        # programs write 41 or 41.0 alike
        context = json.loads(context_json, parse_int=float)
        request_json = json.dumps([context, eligible, request.incumbent], sort_keys=True)
        digest = hashlib.blake2b(request_json.encode(), digest_size=16).hexdigest()
        return {"context": context_json.decode(), "eligible": eligible, "digest": digest}

    def _read_events(self, body: Any, deployed: DeployedPolicy) -> list[_EventRequest]:
        """Return the events in the body of a request. Raise an error if one is invalid."""
        if not isinstance(body, dict):
            raise InvalidInput(
                "the body must be an object with a context, or with events, a list of such objects"
            )
        if "events" not in body:
            return [self._read_event(body, deployed)]
        events = body["events"]
        if len(body) > 1:
            raise InvalidInput(
                "events must be the only field of the body; put other fields into each event"
            )
        if not isinstance(events, list) or not events:
            raise InvalidInput("events must be a list of at least one object")
        if len(events) > _MAX_EVENTS:
            raise InvalidInput(f"events must have at most {_MAX_EVENTS} objects, got {len(events)}")
        requests = []
        for index, event in enumerate(events):
            try:
                requests.append(self._read_event(event, deployed))
            except InvalidInput as error:
                raise InvalidInput(f"event {index}: {error}") from None
        if len({request.event_id for request in requests}) < len(requests):
            raise InvalidInput("events must have different values of event_id")
        return requests

    def _read_event(self, event: Any, deployed: DeployedPolicy) -> _EventRequest:
        """Return one event of a request. Raise an error if it is invalid."""
        if not isinstance(event, dict):
            raise InvalidInput(f"an event must be an object, got {type(event).__name__}")
        for name in event:
            if name not in _EVENT_FIELDS:
                hint = did_you_mean(name[:_MAX_SHOWN_CHARACTERS], _EVENT_FIELDS)
                raise InvalidInput(
                    f"{name[:_MAX_SHOWN_CHARACTERS]!r} is not a field of an event{hint}"
                    f" ({', '.join(_EVENT_FIELDS)})"
                )
        context = event.get("context")
        if not isinstance(context, dict | list):
            raise InvalidInput(
                "context must be an object with the row's columns, or an array of numbers"
            )
        event_id = event.get("event_id")
        eligible = event.get("eligible")
        if eligible is not None:
            if not isinstance(eligible, list) or not 1 <= len(eligible) <= deployed.n_arms:
                raise InvalidInput(f"eligible must be a list of 1 to {deployed.n_arms} arms")
            eligible = sorted({deployed.find_arm_index(arm, "eligible") for arm in eligible})
        arms = event.get("arms")
        if arms is not None:
            if eligible is not None:
                raise InvalidInput("arms and eligible cannot both be given")
            names, indices, _ = deployed.look_up_arms(arms)
            if min(indices) < 0:
                name = names[int(np.argmin(indices))]
                raise InvalidInput(
                    f"arms: {name[:_MAX_SHOWN_CHARACTERS]!r} is not an arm of the service; POST"
                    " /arms (token: admin) adds arms"
                )
            eligible = sorted(indices.tolist())
        incumbent = event.get("incumbent")
        return _EventRequest(
            event_id=uuid.uuid4().hex if event_id is None else check_event_id(event_id),
            context=context,
            row=_read_context(context, deployed),
            eligible=eligible,
            incumbent=(
                self._incumbent
                if incumbent is None
                else deployed.find_arm_index(incumbent, "incumbent")
            ),
            arms=arms,
        )


def _read_context(context: Any, deployed: DeployedPolicy) -> Any:
    """Return the context of a request as a row for ``DeployedPolicy.decide``: a mapping or an array
    of floats.

    Lists become arrays here, because ``decide`` would read strings in a list as file names.
    """
    if isinstance(context, Mapping):
        if deployed.columns is None:
            raise InvalidInput(
                "context must be an array of numbers, because the policy was exported without a"
                " table"
            )
        max_columns = len(deployed.columns) + _MAX_EXTRA_COLUMNS
        if len(context) > max_columns:
            raise InvalidInput(
                f"context must have at most {max_columns:,} columns, got {len(context):,}"
            )
        encoded_columns = {} if deployed.reader.table is None else deployed.reader.table.encoded
        image_columns = [
            name for name, kind in encoded_columns.items() if kind == "image" and name in context
        ]
        # Paths are not allowed, because a request must not read files of the service.
        image_contents = {
            name: read_image_bytes(context[name], allow_paths=False) for name in image_columns
        }
        return {**context, **image_contents} if image_columns else context
    if deployed.columns is not None:  # a log has either mappings or arrays
        raise InvalidInput(
            f"context must be an object with the columns {', '.join(deployed.columns)}"
        )
    try:
        array = np.array(context)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "iuf":
        raise InvalidInput("context must be an array of numbers with rows of equal length")
    if array.shape != deployed.reader.shape:
        raise InvalidInput(f"context must have shape {deployed.reader.shape}, got {array.shape}")
    return array.astype(np.float64)


def _check_images(rows: list[Any]) -> None:
    """Raise an error if the images of a request have too many pixels, or one is too long."""
    values = (value for row in rows if isinstance(row, dict) for value in row.values())
    sizes = [measure_image(value) for value in values if isinstance(value, bytes)]
    n_pixels = sum(width * height for width, height in sizes)
    if n_pixels > _MAX_PIXELS or any(max(size) > _MAX_SIDE_RATIO * min(size) for size in sizes):
        raise InvalidInput(
            f"the images of a request may have {_MAX_PIXELS:,} pixels in total, and one side may be"
            f" at most {_MAX_SIDE_RATIO} times as long as the other, got"
            f" {', '.join(f'{width} x {height}' for width, height in sizes[:_MAX_SHOWN_IMAGES])}"
        )


def check_event_id(event_id: Any) -> str:
    """Return the event id.

    Raise an error if it has characters that are not allowed in paths or logs.
    """
    if not isinstance(event_id, str) or not _EVENT_ID_PATTERN.fullmatch(event_id):
        raise InvalidInput("event_id must be 1 to 128 letters, digits or . _ : ~ -")
    return event_id


def check_reward(reward: Any, max_reward: float) -> float:
    """Return a reward as a float. Raise an error unless it is a number in [-max_reward,
    max_reward].
    """
    is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
    if not is_number or not abs(reward) <= max_reward:
        raise InvalidInput(
            f"reward must be a number of at most {max_reward:g} in absolute value, got"
            f" {str(reward)[:_MAX_SHOWN_CHARACTERS]!r}"
        )
    return float(reward)
