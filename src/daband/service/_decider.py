"""Turns the JSON of a request into events of the log: reads and checks it, and lets the model choose."""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from daband._arrays import Mask
from daband._image_layout import image_bytes
from daband.errors import InvalidInput, did_you_mean
from daband.service._event_log import Event
from daband.service._settings import Settings
from daband.serving._deployed_policy import DeployedPolicy, load_deployed

_FIELDS = ("event_id", "context", "eligible", "arms", "top", "domain", "incumbent", "incumbent_propensity")
_EVENT_ID = re.compile(r"[A-Za-z0-9._:~-]{1,128}")
_MAX_UNKNOWN = 1000  # columns of a row in addition to the policy's: more would slow down every later step
_MAX_SHOWN = 80  # characters of an unknown name that an error repeats
_MAX_ARMS = 10_000  # arms of a service
_EXACT = 2.0**53  # floats below it hold every integer


@dataclass(frozen=True)
class Model:
    """A deployed policy under the number that decisions name."""

    number: int
    deployed: DeployedPolicy


def model_from(content: bytes, number: int) -> Model:
    """Return a model of the log, ready to decide."""
    with tempfile.NamedTemporaryFile(suffix=".daband") as file:
        file.write(content)
        file.flush()
        return Model(number, load_deployed(file.name))


def with_listed(model: Model, text: str | None) -> Model:
    """Return a model with the arms that the log's note ``arms`` lists in addition to those of its file.

    The note is {"arms": [...], "offered": [...]}: arms with their features in the order of their index, and the names
    of those that may be chosen, or null for the file's and all of the note.
    """
    catalogue = model.deployed.frozen.catalogue
    if text is None or catalogue is None:
        return model
    note = orjson.loads(text)
    new = [arm for arm in note["arms"] if arm["id"] not in catalogue.index]
    listed = note["offered"]
    if listed is None:
        shown = catalogue.offered[0]
        listed = [*(name for name, one in zip(catalogue.names, shown, strict=True) if one), *(one["id"] for one in new)]
    extended = model.deployed.with_arms([*catalogue.names, *new]) if new else model.deployed
    return Model(model.number, extended.with_arms([name for name in listed if name in extended.frozen.catalogue.index]))  # type: ignore[union-attr]


def list_arms(text: str | None, arms: list[Any], deployed: DeployedPolicy, *, replace: bool) -> str:
    """Return the note ``arms`` with further arms; with ``replace`` only the given arms may be chosen from now on."""
    note = {"arms": [], "offered": None} if text is None else orjson.loads(text)
    catalogue = deployed.frozen.catalogue
    if catalogue is None:
        raise InvalidInput("the policy was trained without a catalogue of arms")
    names, _, _ = catalogue.look_up(arms)  # raises an error for features that cannot be read
    known = {*catalogue.names, *(one["id"] for one in note["arms"])}
    new = [{**arm, "id": name} for name, arm in zip(names, arms, strict=True) if name not in known]
    if len(known) + len(new) > _MAX_ARMS:
        raise InvalidInput(f"a service has at most {_MAX_ARMS:,} arms")
    offered = names if replace else None if note["offered"] is None else [*note["offered"], *(one["id"] for one in new)]
    return orjson.dumps({"arms": [*note["arms"], *new], "offered": offered}).decode()


@dataclass(frozen=True, slots=True)
class _Request:
    """One checked event of a request."""

    event_id: str
    context: Any
    row: Any  # the context for ``decide``: a mapping, or an array of the policy's shape
    eligible: list[int] | None
    incumbent: int | None
    incumbent_propensity: float
    arms: list[Any] | None = None
    top: int | None = None


class Decider:
    """Decides on the events of a request. ``model`` may be replaced at any time; one request uses one model."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model = model
        self._settings = settings
        self._incumbent = model.deployed.incumbent
        if settings.incumbent is not None:
            self._incumbent = model.deployed.arm_number(settings.incumbent, "incumbent")
        if settings.control and self._incumbent is None:
            raise InvalidInput("control needs an incumbent: give --incumbent, or export the policy with one")
        #: The fraction of events that keep the incumbent.
        self.control = settings.control

    def new_arms(self, body: Any) -> list[Any]:
        """Return the arms of a request that have features and are not in the catalogue."""
        catalogue = self.model.deployed.frozen.catalogue
        events = body.get("events", [body]) if isinstance(body, dict) else []
        listed = [one.get("arms") for one in events if isinstance(one, dict)] if isinstance(events, list) else []
        arms = [arm for some in listed if isinstance(some, list) for arm in some if isinstance(arm, dict)]
        new = {str(arm.get("id")): arm for arm in arms if len(arm) > 1} if catalogue is not None else {}
        return [arm for name, arm in new.items() if catalogue is not None and name not in catalogue.index]

    def decide(self, body: Any, now: float) -> tuple[list[Event], list[tuple[Any, ...]], list[tuple[str, ...]]]:
        """Return the events of a request as the log keeps them, the warnings on each row, and rankings."""
        model, settings = self.model, self._settings
        requests = self._read_events(body, model.deployed)
        choices, warnings, rankings = self._choose(model.deployed, requests, self.control)
        events = []
        for one, (arm, propensity, control, in_control) in zip(requests, choices, strict=True):
            mode: str = settings.mode
            played = arm, propensity
            if in_control:
                mode = "control" if control < 1.0 else "fallback"
            elif mode == "apprentice":
                if one.incumbent is None:
                    raise InvalidInput(f"mode {mode}: incumbent is missing, the arm that is played")
                played = one.incumbent, one.incumbent_propensity
            events.append(
                Event(
                    event_id=one.event_id,
                    time=now,
                    mode=mode,
                    domain=model.deployed.domain,
                    model=model.number,
                    arm=played[0],
                    propensity=played[1],
                    own_arm=None if in_control else arm,
                    incumbent_arm=one.incumbent,
                    control=control if 0.0 < control < 1.0 else None,
                    **self._kept(one),
                )
            )
        return events, warnings, rankings

    def _kept(self, one: _Request) -> dict[str, str | None]:
        """Return the fields of an event that depend on ``Settings.contexts``."""
        eligible = None if one.eligible is None else str(one.eligible)
        if self._settings.contexts == "drop":
            return {"context": None, "eligible": eligible, "digest": None}
        text = orjson.dumps(one.context)
        same = orjson.dumps(_same_numbers(one.context), option=orjson.OPT_SORT_KEYS)
        identity = b"%b|%b|%d" % (same, (eligible or "").encode(), -1 if one.incumbent is None else one.incumbent)
        digest = hashlib.blake2b(identity, digest_size=16).hexdigest()
        return {"context": text.decode(), "eligible": eligible, "digest": digest}

    def _choose(
        self, deployed: DeployedPolicy, requests: list[_Request], control: float
    ) -> tuple[list[tuple[int, float, float, bool]], list[tuple[Any, ...]], list[tuple[str, ...]]]:
        """Return arm, propensity, probability of the control group and group for each request, warnings, rankings."""
        incumbents = np.array([-1 if one.incumbent is None else one.incumbent for one in requests])
        common: dict[str, Any] = {"control": control, "incumbents": incumbents, "new_arms": self._settings.new_arms}
        if len(requests) > 1 and any(one.arms is not None or one.top is not None for one in requests):
            each = [self._choose(deployed, [one], control) for one in requests]
            return [one[0][0] for one in each], [one[1][0] for one in each], [one[2][0] for one in each]
        if len(requests) == 1:
            one = requests[0]
            among = one.eligible if one.arms is None else None
            more: dict[str, Any] = {"arms": one.arms, "top": one.top, **common}
            decision = deployed.decide_with(one.row, None, among, **more)[0]
            arm, propensity = int(decision.arm), float(decision.propensity)
            if one.arms is not None:
                arm = deployed.arm_names.index(str(decision.arm_name))
            chosen = arm, propensity, float(decision.control), bool(decision.in_control)
            return [chosen], [decision.warnings], [decision.ranking]
        batch: Any = [one.row for one in requests]
        if isinstance(batch[0], np.ndarray):
            batch = np.stack(batch)
        available: Mask = None
        if any(one.eligible is not None for one in requests):
            available = np.zeros((len(requests), deployed.n_arms), np.bool_)
            for row, one in zip(available, requests, strict=True):
                row[slice(None) if one.eligible is None else one.eligible] = True
        decision = deployed.decide_with(batch, available, **common)[0]
        parts = (decision.arm, decision.propensity, decision.control, decision.in_control)
        columns = (np.broadcast_to(part, len(requests)).tolist() for part in parts)
        return list(zip(*columns, strict=True)), list(decision.warnings), [()] * len(requests)

    def _read_events(self, body: Any, deployed: DeployedPolicy) -> list[_Request]:
        if not isinstance(body, dict):
            raise InvalidInput("the body must be an object with a context, or with events, a list of such objects")
        if "events" not in body:
            return [self._read_event(body, deployed)]
        listed = body["events"]
        if len(body) > 1:
            raise InvalidInput("events must be the only field of the body: other fields belong to each event")
        if not isinstance(listed, list) or not listed:
            raise InvalidInput("events must be a list of objects, at least one")
        if len(listed) > self._settings.limits.batch:
            raise InvalidInput(f"{len(listed)} events in one request, the limit is {self._settings.limits.batch}")
        requests = []
        for number, one in enumerate(listed):
            try:
                requests.append(self._read_event(one, deployed))
            except InvalidInput as error:
                raise InvalidInput(f"event {number}: {error}") from None
        if len({one.event_id for one in requests}) < len(requests):
            raise InvalidInput("events has an event_id twice")
        return requests

    def _read_event(self, body: Any, deployed: DeployedPolicy) -> _Request:
        if not isinstance(body, dict):
            raise InvalidInput(f"an event must be an object, got {type(body).__name__}")
        for name in body:
            if name not in _FIELDS:
                hint = did_you_mean(name[:_MAX_SHOWN], _FIELDS)
                raise InvalidInput(f"{name[:_MAX_SHOWN]!r} is not known{hint} ({', '.join(_FIELDS)})")
        context = body.get("context")
        if not isinstance(context, dict | list):
            raise InvalidInput("context must be an object with the row's columns, or an array of numbers")
        event_id = body.get("event_id")
        domain = body.get("domain")
        if domain is not None and domain != deployed.domain:
            raise InvalidInput(f"domain is {domain!r}, but the model acts in {deployed.domain!r}")
        eligible = body.get("eligible")
        if eligible is not None:
            if not isinstance(eligible, list) or not 1 <= len(eligible) <= deployed.n_arms:
                raise InvalidInput(f"eligible must be a list of 1 to {deployed.n_arms} arms")
            eligible = sorted({deployed.arm_number(arm, "eligible") for arm in eligible})
        arms, top = body.get("arms"), body.get("top")
        if arms is not None:
            if eligible is not None:
                raise InvalidInput("arms and eligible both list the arms of a request: give one of them")
            eligible = sorted(deployed.request_arms(arms)[1].tolist())
        if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
            raise InvalidInput(f"top must be an integer of at least 1, got {top!r}")
        incumbent = body.get("incumbent")
        propensity = body.get("incumbent_propensity", 1.0)
        if isinstance(propensity, bool) or not isinstance(propensity, int | float) or not 0 < propensity <= 1:
            raise InvalidInput(f"incumbent_propensity must lie in (0, 1], got {propensity!r}")
        return _Request(
            event_id=uuid.uuid4().hex if event_id is None else checked_id(event_id),
            context=context,
            row=_as_row(context, deployed),
            eligible=eligible,
            incumbent=self._incumbent if incumbent is None else deployed.arm_number(incumbent, "incumbent"),
            incumbent_propensity=float(propensity),
            arms=arms,
            top=top,
        )


def _same_numbers(value: Any) -> Any:
    """Return JSON with integers for floats such as 41.0: programs write both for the same number."""
    if type(value) is float:
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if type(value) is dict:
        return {name: _same_numbers(one) for name, one in value.items()}
    return [_same_numbers(one) for one in value] if type(value) is list else value


def _as_row(context: Any, deployed: DeployedPolicy) -> Any:
    """Return one row for ``decide``. Arrays are made here: ``decide`` would take strings for file names."""
    if isinstance(context, Mapping):
        if deployed.columns is None:
            raise InvalidInput("context must be an array of numbers: the policy was exported without a table")
        most = len(deployed.columns) + _MAX_UNKNOWN
        if len(context) > most:
            raise InvalidInput(f"context has {len(context):,} columns, and at most {most:,} are read")
        encoded = {} if deployed.reader.table is None else deployed.reader.table.encoded
        images = [name for name, takes in encoded.items() if takes == "image" and name in context]
        # A request must not make the service read its own files.
        return {**context, **{name: image_bytes(context[name], paths=False) for name in images}} if images else context
    if deployed.columns is not None:  # the log has one kind of context
        raise InvalidInput(f"context must be an object with the columns {', '.join(deployed.columns)}")
    try:
        array = np.array(context)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "iuf":
        raise InvalidInput("a context that is an array must hold numbers, in rows of one length")
    if array.shape != deployed.reader.shape:
        raise InvalidInput(f"context must have shape {deployed.reader.shape}, got {array.shape}")
    return array.astype(np.float64)


def checked_id(event_id: Any) -> str:
    """Return an event id. Raise an error if paths or logs cannot hold it."""
    if not isinstance(event_id, str) or not _EVENT_ID.fullmatch(event_id):
        raise InvalidInput("event_id must be 1 to 128 letters, digits or . _ : ~ -")
    return event_id


def checked_reward(reward: Any, name: str = "reward") -> float:
    """Return a reward as a float. Raise an error if it is not a finite number."""
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise InvalidInput(f"{name} must be a number, got {str(reward)[:_MAX_SHOWN]!r}")
    return float(reward)
