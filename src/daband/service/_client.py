"""Call the service from Python.

``Client`` repeats calls that get no answer. This is safe, because every call has an id that the
service remembers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx
import orjson

from daband.errors import DabandError, InvalidInput

#: HTTP status codes after which a call is repeated.
_RETRY_STATUS_CODES = (429, 503)


class ServiceError(DabandError, RuntimeError):
    """The service rejected a call or did not answer.

    ``status`` is the HTTP status, or 0 without an answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


@dataclass(frozen=True)
class ServiceDecision:
    """A decision of the service."""

    #: The id of the event, with which its reward is reported.
    event_id: str
    #: The index of the arm to play.
    arm: int
    #: The name of the arm to play.
    arm_name: str
    #: The probability with which the arm was chosen.
    propensity: float
    #: The number of the model that decided.
    model: int
    #: "online" or "apprentice", the mode of the service; "control" or "fallback" if the incumbent's
    #: arm is played.
    mode: str
    #: True if an earlier call had the same event id. The decision is that of the first call.
    repeated: bool
    #: The warnings about the row, with the keys ``kind``, ``column`` and ``message``.
    warnings: list[dict[str, str]]


class Client:
    """A client of a service, e.g. ``Client("http://127.0.0.1:8000", token="...")``.

    Args:
        address: the URL of the service.
        token: the token for decisions.
        reward_token: the token for rewards; by default ``token``.
        timeout: the number of seconds to wait for the answer to one request.
        patience: the number of seconds for which a call is repeated if the service does not answer
            or is overloaded.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        reward_token: str | None = None,
        timeout: float = 10.0,
        patience: float = 30.0,
    ) -> None:
        self._http = httpx.Client(base_url=address, timeout=timeout)
        self._token = token
        self._reward_token = token if reward_token is None else reward_token
        self._patience = patience

    def decide(
        self,
        context: Mapping[str, Any] | Sequence[Any],
        *,
        event_id: str | None = None,
        eligible: Sequence[str | int] | None = None,
        incumbent: str | int | None = None,
        incumbent_propensity: float | None = None,
    ) -> ServiceDecision:
        """Return the decision on one row.

        Args:
            context: the raw row, a mapping from columns to values, or an array of numbers.
            event_id: the id of the event; random by default.
            eligible: the arms that may be chosen, by name or index; all by default.
            incumbent: the arm that would be played today.
            incumbent_propensity: the probability with which the incumbent's arm would be played.
        """
        event: dict[str, Any] = {"context": context, "event_id": event_id or uuid.uuid4().hex}
        optional_fields = {
            "eligible": eligible,
            "incumbent": incumbent,
            "incumbent_propensity": incumbent_propensity,
        }
        event |= {name: value for name, value in optional_fields.items() if value is not None}
        return ServiceDecision(**self._post("/decide", event, self._token))

    def decide_many(self, events: Sequence[Mapping[str, Any]]) -> list[ServiceDecision]:
        """Return decisions on several rows in one call.

        Each event is a mapping as in the body of ``POST /decide``.
        """
        if not events:
            raise InvalidInput("events must be a list of at least one event")
        events_with_ids = [{"event_id": uuid.uuid4().hex, **event} for event in events]
        answer = self._post("/decide", {"events": events_with_ids}, self._token)
        return [ServiceDecision(**decision) for decision in answer["events"]]

    def reward(self, event_id: str, reward: float) -> dict[str, Any]:
        """Record the reward of the event ``event_id``, and return the service's answer, with the
        key ``status``.
        """
        return self._post(f"/events/{event_id}/reward", {"reward": reward}, self._reward_token)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception_info: object) -> None:
        self.close()

    def _post(self, path: str, content: Any, token: str) -> dict[str, Any]:
        """Return the answer to a POST request.

        Repeat the request if the service does not answer or is overloaded.
        """
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = orjson.dumps(content, _to_json_types, orjson.OPT_SERIALIZE_NUMPY)
        deadline = time.monotonic() + self._patience
        pause_seconds = 0.05
        while True:
            try:
                response = self._http.post(path, content=body, headers=headers)
                if (
                    response.status_code not in _RETRY_STATUS_CODES
                    or time.monotonic() + pause_seconds > deadline
                ):
                    break
            except httpx.TransportError as error:
                if time.monotonic() + pause_seconds > deadline:
                    raise ServiceError(0, f"the service does not answer: {error}") from None
            time.sleep(pause_seconds)
            pause_seconds = min(2.0 * pause_seconds, 2.0)
        if response.status_code >= 400:
            try:
                message = str(response.json()["error"])
            except (ValueError, KeyError, TypeError):
                message = response.text[:200]
            raise ServiceError(response.status_code, message)
        return dict(response.json())


def _to_json_types(value: Any) -> Any:
    """Return a pandas row, a time or a tensor in JSON types. orjson calls this for types that it
    does not know.
    """
    if str(value) == "NaT":  # a missing time in pandas
        return None
    for method_name in ("to_dict", "isoformat", "tolist"):
        if hasattr(value, method_name):
            return getattr(value, method_name)()
    raise TypeError  # orjson adds the type to the message
