"""Define what the functions on logs need of a policy, which is in a package above them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from daband.base._arrays import ArrayLike, FloatArray


@runtime_checkable
class Policy(Protocol):
    """A policy that can learn: every ``daband.Policy``."""

    #: The number of arms, K.
    n_arms: int
    #: "disjoint", or "shared" if each arm has its own context.
    arms: str
    #: The transform of tables; None if the policy takes arrays.
    table: Any
    #: The parts of log files that the policy has learned.
    log_parts: frozenset[str]
    #: The ids of the learned rounds.
    _round_ids: Any

    @property
    def domain(self) -> str:
        """The domain in which the policy acts."""

    def probabilities(
        self,
        contexts: ArrayLike,
        domain: str | None = None,
        available: ArrayLike | None = None,
        *,
        rule: str | None = None,
    ) -> FloatArray:
        """Return the probability with which the policy would choose each arm, (B, K)."""

    def update(self, *arguments: Any, **settings: Any) -> Any:
        """Learn rounds."""
