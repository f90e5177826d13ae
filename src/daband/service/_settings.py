"""The settings of a service, and the clock of its events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from daband._arguments import check_finite, check_fraction, check_int, check_one_of, check_probability
from daband.errors import InvalidInput

Mode = Literal["online", "apprentice"]
Contexts = Literal["keep", "drop"]
#: Difference of the two clocks in seconds, above which a warning is given.
_MAX_CLOCK_DIFFERENCE = 5.0


@dataclass(frozen=True)
class Tokens:
    """A token for each role. A role without a token is open to every client that reaches the port.

    A role may have several tokens, separated by commas, so that one can be replaced without interruption.
    """

    #: POST /decide.
    decide: str = field(default="", repr=False)
    #: POST /events/ID/reward.
    reward: str = field(default="", repr=False)
    #: The page, GET /models and /metrics.
    watch: str = field(default="", repr=False)
    #: POST /models, /arms and /watch/reset, and the calls of ``watch``.
    admin: str = field(default="", repr=False)

    @property
    def complete(self) -> bool:
        """True if every role has a token."""
        return all((self.decide, self.reward, self.watch or self.admin, self.admin))


@dataclass(frozen=True)
class Limits:
    """Limits on requests, clients and connections."""

    #: Maximum number of bytes of a request's body.
    body_bytes: int = 1 << 20
    #: Maximum number of events in one request.
    batch: int = 1000
    #: Maximum number of entries that wait to be written; further requests are answered with 503.
    waiting: int = 20_000
    #: Maximum number of open connections, or fewer if the process may open few files. A new connection replaces the
    #: one that is idle longest.
    connections: int = 512
    #: Maximum number of seconds in which a request must arrive; as many again for each MiB of a large body.
    request_seconds: float = 15.0

    def __post_init__(self) -> None:
        for name in ("body_bytes", "batch", "waiting", "connections"):
            check_int(name, getattr(self, name), minimum=1)
        if check_finite("request_seconds", self.request_seconds) <= 0:
            raise InvalidInput(f"request_seconds must be more than 0, got {self.request_seconds}")


@dataclass(frozen=True)
class Settings:
    """The behaviour of a service.

    Args:
        mode: "online" (the model's arm is played) or "apprentice" (the incumbent's arm is played, the model's arm is
            logged).
        contexts: "keep" stores contexts in the log, "drop" does not.
        wait: seconds after which an event without a reward gets ``default_reward``; None for never.
        default_reward: the reward of such an event, in the unit of the policy's rewards.
        incumbent: the arm, by name or index, that was always played before the policy; by default the one in the
            exported file.
        control: the fraction of events, drawn at random, for which the incumbent's arm is played. If the policy is
            proven to be worse, it is played for all events.
        widen: this fraction once the policy is proven to be better; None for ``control``.
        new_arms: the largest fraction of events that choose an arm without any reward; None for the file's.
        false_alarms: bound on the probability that an alarm is ever raised while nothing has changed.
        hosts: host names of the service in requests, in addition to localhost and its address; "*" for any.
        tokens: the tokens of each role.
        limits: limits on requests, clients and connections.
    """

    mode: Mode = "online"
    contexts: Contexts = "keep"
    wait: float | None = None
    default_reward: float = 0.0
    incumbent: str | None = None
    control: float = 0.0
    widen: float | None = None
    new_arms: float | None = None
    false_alarms: float = 0.01
    hosts: tuple[str, ...] = ()
    tokens: Tokens = Tokens()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        check_one_of("mode", self.mode, get_args(Mode))
        check_one_of("contexts", self.contexts, get_args(Contexts))
        if self.wait is not None and not check_finite("wait", self.wait) > 0:
            raise InvalidInput(f"wait must be more than 0 seconds, got {self.wait}")
        check_finite("default_reward", self.default_reward)
        check_probability("false_alarms", self.false_alarms)
        if self.new_arms is not None:
            check_fraction("new_arms", self.new_arms, allow_one=True)
        for name in ("control", "widen"):
            if not 0.0 <= check_finite(name, getattr(self, name) or 0.0) < 1.0:
                raise InvalidInput(f"{name} must be at least 0 and below 1, got {getattr(self, name)!r}")
        if self.control and self.mode != "online":
            raise InvalidInput(
                f"control needs mode 'online', because mode {self.mode!r} always plays the incumbent's arm"
            )
        if isinstance(self.hosts, str) or not all(isinstance(host, str) for host in self.hosts):
            raise InvalidInput(f"hosts must be a list of names, got {self.hosts!r}")


class Clock:
    """A clock that reads the time of day once, and continues by a steady clock, so that it never jumps or goes back.

    ``newest`` is the time of the newest entry of the log; the clock does not start before it.
    """

    def __init__(
        self,
        newest: float = 0.0,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._steady = wall, steady
        self._base = max(wall(), newest) - steady()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._base + self._steady()

    @property
    def warning(self) -> str:
        """A warning if the machine's clock was changed since; empty otherwise."""
        difference = self._wall() - self.now()
        if math.fabs(difference) < _MAX_CLOCK_DIFFERENCE:
            return ""
        side = "ahead of" if difference > 0 else "behind"
        return (
            f"the machine's clock is {math.fabs(difference):.0f} s {side} the service's; events keep the service's time"
        )
