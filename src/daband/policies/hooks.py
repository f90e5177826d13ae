"""What a policy of one's own fills in.

Contexts arrive checked and transformed, rewards scaled to [0, 1]; means and widths are returned on that scale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband.errors import InvalidInput
from daband.image_layout import ImageLayout
from daband.linear import Decision, Exploration
from daband.policies.decisions import joined
from daband.policies.saving import Saved
from daband.serving import Member

__all__ = ["FrozenParts", "PolicyHooks"]


class FrozenParts(NamedTuple):
    """What a policy decides with: the part of a ``FrozenPolicy`` that differs from policy to policy."""

    members: tuple[Member, ...]
    exploration: Exploration
    counts: IntArray | None = None
    """How many rounds each regression rests on."""
    layout: ImageLayout | None = None
    reference: AnyArray | None = None
    seen_target: bool = False


class PolicyHooks(Saved, ABC):
    """The hooks; those that are not abstract have a default."""

    @abstractmethod
    def _decide(
        self, contexts: AnyArray, domain: str, available: BoolArray | None, first_round: int, rule: str | None
    ) -> Decision:
        """Choose; change nothing. Random numbers may depend on seed and round number only."""

    @abstractmethod
    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> None:
        """Learn from a batch of rounds."""

    @property
    def propensity_weightings(self) -> tuple[str, ...]:
        """Which values of ``propensity_weighting`` the policy offers, the default first.

        All but "none" take ``_learn_weighted``.
        """
        return ("none",)

    def _learn_weighted(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str, weights: FloatArray
    ) -> None:
        """Learn from a batch of rounds, each counted by its weight (B,)."""
        raise NotImplementedError

    def _probabilities(
        self, contexts: AnyArray, domain: str, available: BoolArray | None, rule: str | None
    ) -> FloatArray:
        """The probability of each arm, (B, K); change nothing. A policy that draws arms at random must say it."""
        decision = self._decide(contexts, domain, available, self.rounds_decided, rule)
        if not (decision.propensity == 1.0).all():
            raise InvalidInput(f"{self.name} chooses at random and does not say the probability of every arm")
        certain = np.zeros(decision.mean.shape)
        certain[np.arange(len(certain)), decision.arm] = 1.0
        return certain

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

    def _prepare(self, contexts: Sequence[AnyArray]) -> None:
        """Look at batches of unlabelled contexts, behind the transform, before the first round."""

    def _observe(self, contexts: AnyArray) -> None:
        """See unlabelled target contexts."""

    def _adapt(self, steps: int | None) -> dict[str, float]:  # noqa: ARG002
        return {}

    @property
    def can_discount(self) -> bool:
        """Whether ``trust_prior`` is offered."""
        return False

    def _trust_prior(self, discounts: tuple[float, ...]) -> None:
        """Count what was learned so far by the best of these factors."""
        raise NotImplementedError

    def _check_unit_rewards(self, rewards: FloatArray) -> None:
        """Raise where the method cannot learn from these rewards, which are scaled to [0, 1] already."""

    def _freeze(self, domain: str) -> FrozenParts:  # noqa: ARG002
        """What decides in this domain, as copies of arrays: with this method a policy can be exported.

        A class that decides by other means than its parent's has one of its own.
        """
        raise InvalidInput(
            f"the policy {self.name!r} ({type(self).__name__}) cannot be exported: it has no method _freeze, which "
            "returns what it decides with"
        )

    def timed_parts(self) -> list[tuple[str, object, str]]:
        """What a stopwatch may time: (part, object, name of its method), parts being "step", "features" and "head"."""
        return []
