"""A Python client of the service. It repeats a call that got no answer: every call may be made twice."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx
import orjson

from daband.errors import DabandError, InvalidInput

_REPEATED = (429, 503)


class ServiceError(DabandError, RuntimeError):
    """The service rejected a call, or did not answer; ``status`` is 0 if it did not answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


@dataclass(frozen=True)
class ServiceDecision:
    """A decision of the service."""

    event_id: str
    arm: int
    arm_name: str
    propensity: float
    model: int
    mode: str
    repeated: bool
    warnings: list[dict[str, str]]


class Client:
    """Calls a service: ``Client("http://127.0.0.1:8000", token="...")``.

    Args:
        address: the URL of the service.
        token: the token for decisions, and for all other calls without a separate token.
        reward_token: the token for rewards.
        timeout: seconds to wait for one answer.
        patience: seconds in which a call is repeated if it got no answer, or an answer to retry later.
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
        self._token, self._reward_token = token, token if reward_token is None else reward_token
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
        """Return an arm for one row.

        Args:
            context: the raw row, a mapping from columns to values, or an array of numbers.
            event_id: names the event; without it the client makes one, so that the call can be repeated.
            eligible: the arms that may be chosen, by name or number; all by default.
            incumbent: the arm that would be played today.
            incumbent_propensity: the probability with which it would be played.
        """
        event: dict[str, Any] = {"context": context, "event_id": event_id or uuid.uuid4().hex}
        options = {"eligible": eligible, "incumbent": incumbent, "incumbent_propensity": incumbent_propensity}
        event |= {name: value for name, value in options.items() if value is not None}
        return ServiceDecision(**self._post("/decide", event, self._token))

    def decide_many(self, events: Sequence[Mapping[str, Any]]) -> list[ServiceDecision]:
        """Return arms for several rows in one call; each event has the form of the body of ``POST /decide``."""
        if not events:
            raise InvalidInput("events must be a list of at least one event")
        named = [{"event_id": uuid.uuid4().hex, **event} for event in events]
        return [ServiceDecision(**one) for one in self._post("/decide", {"events": named}, self._token)["events"]]

    def reward(self, event_id: str, reward: float) -> dict[str, Any]:
        """Record the reward of the event ``event_id``, and return its ``status``."""
        return self._post(f"/events/{event_id}/reward", {"reward": reward}, self._reward_token)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _post(self, path: str, content: Any, token: str) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = orjson.dumps(content, _as_json, orjson.OPT_SERIALIZE_NUMPY)
        until, pause = time.monotonic() + self._patience, 0.05
        while True:
            try:
                response = self._http.post(path, content=body, headers=headers)
                if response.status_code not in _REPEATED or time.monotonic() + pause > until:
                    break
            except httpx.TransportError as error:
                if time.monotonic() + pause > until:
                    raise ServiceError(0, f"the service does not answer: {error}") from None
            time.sleep(pause)
            pause = min(2.0 * pause, 2.0)
        if response.status_code >= 400:
            try:
                message = str(response.json()["error"])
            except (ValueError, KeyError, TypeError):
                message = response.text[:200]
            raise ServiceError(response.status_code, message)
        return dict(response.json())


def _as_json(value: Any) -> Any:
    """Convert a value that JSON cannot hold: a pandas row, a time, a tensor."""
    if str(value) == "NaT":  # the missing time of pandas
        return None
    for name in ("to_dict", "isoformat", "tolist"):
        if hasattr(value, name):
            return getattr(value, name)()
    raise TypeError  # orjson names the type
