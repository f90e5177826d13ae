"""What a policy of one's own fills in: the hooks that ``Policy`` calls."""

from __future__ import annotations

from abc import ABC, abstractmethod

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband.linear import Decision
from daband.policies.decisions import joined

__all__ = ["PolicyHooks"]


class PolicyHooks(ABC):
    """Contexts arrive checked and transformed, rewards scaled to [0, 1]; means and widths are returned on that scale.

    ``Policy`` holds the write lock around all that changes it, and the state lock around ``_decide``, ``_learn``
    and ``_play`` unless ``locks_state`` is False.
    """

    @abstractmethod
    def _decide(
        self, contexts: AnyArray, domain: str, available: BoolArray | None, first_round: int, rule: str | None
    ) -> Decision:
        """Choose; change nothing. Random numbers may depend on seed and round number only."""

    @abstractmethod
    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> None:
        """Learn from a batch of rounds."""

    @abstractmethod
    def _grow(self) -> None:
        """Make room for one more arm; ``n_arms`` is raised afterwards."""

    @abstractmethod
    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        """All that was learned, as arrays; without ``replay`` no context, arm or reward of a round is among them."""

    @abstractmethod
    def _restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``_state`` returned."""

    def _play(
        self, contexts: AnyArray, rewards: FloatArray, domain: str, available: BoolArray | None, first_round: int
    ) -> Decision:
        """Decide and learn round by round; a policy whose rounds can be played in one call does better."""
        decisions = []
        for i in range(len(contexts)):
            mask = None if available is None else available[i : i + 1]
            decision = self._decide(contexts[i : i + 1], domain, mask, first_round + i, None)
            self._learn(contexts[i : i + 1], decision.arm, rewards[i, decision.arm], domain)
            decisions.append(decision)
        return joined(decisions)

    def _observe(self, contexts: AnyArray) -> None:  # noqa: B027 - most policies have no use for it
        """See unlabelled target contexts."""

    def _adapt(self, steps: int | None) -> dict[str, float]:  # noqa: ARG002
        return {}

    def _check_unit_rewards(self, rewards: FloatArray) -> None:  # noqa: B027 - most learn from any
        """Raise where the method cannot learn from these rewards, which are scaled to [0, 1] already."""
