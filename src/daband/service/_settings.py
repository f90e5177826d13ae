"""Define the settings of a service: ``Settings``, with ``Tokens``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from daband.base._arguments import (
    check_finite,
    check_fraction,
    check_int,
    check_one_of,
    check_probability,
)
from daband.base._arrays import MAX_REWARD
from daband.errors import InvalidInput

#: "keep" if contexts are stored in the log, else "drop".
ContextStorage = Literal["keep", "drop"]
#: The roles of tokens.
ROLES = ("decide", "reward", "watch", "admin")


@dataclass(frozen=True)
class Tokens:
    """A token for each role. A role without a token is open to every client that reaches the port.

    A role may have several tokens, separated by commas, so that one can be replaced without
    interruption.
    """

    #: For POST /decide.
    decide: str = field(default="", repr=False)
    #: For POST /events/ID/reward.
    reward: str = field(default="", repr=False)
    #: For the page, GET /models and /metrics.
    watch: str = field(default="", repr=False)
    #: For POST /models, /arms and /watch/reset, and all calls of ``watch``.
    admin: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for role in ROLES:
            if not all(self.split(role)):
                raise InvalidInput(
                    f"{role} has an empty token (DABAND_{role.upper()}_TOKEN); tokens are separated"
                    " by commas"
                )

    def split(self, role: str) -> tuple[bytes, ...]:
        """Return the tokens of a role."""
        tokens = getattr(self, role)
        return tuple(token.strip().encode() for token in tokens.split(",")) if tokens else ()

    @property
    def is_complete(self) -> bool:
        """True if every role has a token."""
        return all((self.decide, self.reward, self.watch or self.admin, self.admin))


@dataclass(frozen=True)
class Settings:
    """The behaviour of a service.

    ``wait`` and ``control`` are options of ``daband serve``.

    Args:
        contexts: "keep" to store contexts in the log, "drop" to store none.
        wait: the number of seconds after which an event without a reward gets ``default_reward``;
            None for never. Only seconds in which the worker runs are counted.
        default_reward: the reward of such an event, in the unit of the policy's rewards.
        max_reward: larger rewards, in absolute value, are rejected; by default those that no policy
            can learn.
        incumbent: the arm, by name or index, that was always played before the policy; by default
            the incumbent in the exported file.
        control: the fraction of events, drawn at random, for which the incumbent's arm is played
            (the control group). If the policy is proven to be worse, the incumbent's arm is played
            for all events.
        false_alarms: an upper bound on the probability of ever raising an alarm while nothing has
            changed.
        hosts: the host names of the service in requests, in addition to localhost and its address;
            "*" for any.
        tokens: the tokens of each role.
        body_bytes: the maximum size of a request's body, in bytes.
    """

    contexts: ContextStorage = "keep"
    wait: float | None = None
    default_reward: float = 0.0
    max_reward: float = MAX_REWARD
    incumbent: str | None = None
    control: float = 0.0
    false_alarms: float = 0.01
    hosts: tuple[str, ...] = ()
    tokens: Tokens = Tokens()
    body_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        check_one_of("contexts", self.contexts, get_args(ContextStorage))
        if self.wait is not None and not check_finite("wait", self.wait) > 0:
            raise InvalidInput(f"wait must be more than 0 seconds, got {self.wait}")
        if not 0 < check_finite("max_reward", self.max_reward) <= MAX_REWARD:
            raise InvalidInput(f"max_reward must be in (0, {MAX_REWARD:g}], got {self.max_reward}")
        if abs(check_finite("default_reward", self.default_reward)) > self.max_reward:
            raise InvalidInput(
                f"default_reward must be at most max_reward, {self.max_reward:g}, in absolute value,"
                f" got {self.default_reward}"
            )
        check_probability("false_alarms", self.false_alarms)
        check_int("body_bytes", self.body_bytes, minimum=1)
        check_fraction("control", self.control)
        if isinstance(self.hosts, str) or not all(isinstance(host, str) for host in self.hosts):
            raise InvalidInput(f"hosts must be a list of names, got {self.hosts!r}")
