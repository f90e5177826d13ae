"""Choosing evenly at random: the floor under every comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daband._arguments import RewardRange
from daband._arrays import AnyArray, FloatArray, IntArray, Mask, Weights
from daband._shift import ShiftLike
from daband.linear._exploration import Decision, Exploration, seeded_draws
from daband.linear._kernels import draw_key
from daband.policies._incoming_rounds import LARGEST_RAW_NORM, WEIGHTINGS
from daband.policies._policy import Policy, policies
from daband.serving._frozen_policy import FrozenParts
from daband.serving._members import Member

_EVENLY = Exploration("greedy", alpha=0.0, epsilon=1.0)


@policies.register("random")
class Random(Policy):
    """Every available arm is equally likely; nothing is learned.

    Its predicted reward is the middle of ``reward_range`` for every arm, its width half of that range.

    >>> policy = daband.Random(context_shape=(1,), n_arms=4, seed=0)
    >>> policy.select([[0.0]]).propensity.tolist()
    [0.25]
    """

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        arms: str = "disjoint",
        reward_range: RewardRange = (0.0, 1.0),
        transform: Any = None,
        shift: ShiftLike = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            arms=arms,
            reward_range=reward_range,
            transform=transform,
            shift=shift,
            seed=seed,
        )
        self._key = draw_key(self.seed)
        self.largest_norm = LARGEST_RAW_NORM  # contexts are not looked at

    def _decide(self, contexts: AnyArray, domain: int, available: Mask, first_round: int, rule: str | None) -> Decision:
        mean, width = np.full((2, len(contexts), self.n_arms), 0.5)
        return _EVENLY.decide(mean, width, seeded_draws(self._key, first_round), available)

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: Weights) -> None:
        """Nothing is learned."""

    @property
    def propensity_weightings(self) -> tuple[str, ...]:
        return WEIGHTINGS

    def _probabilities(self, contexts: AnyArray, domain: int, available: Mask, rule: str | None) -> FloatArray:
        mask = np.ones((len(contexts), self.n_arms), np.bool_) if available is None else available
        return mask / mask.sum(axis=1, keepdims=True)

    def _play(
        self, contexts: AnyArray, rewards: FloatArray, domain: int, available: Mask, first_round: int
    ) -> Decision:
        return self._decide(contexts, domain, available, first_round, None)

    def _freeze(self, domain: int) -> FrozenParts:
        even = Member(np.full((self.n_arms, 1), 0.5), np.full((self.n_arms, 1, 1), 0.25), constant=True)
        return FrozenParts((even,), _EVENLY)

    def _grow(self) -> None:
        """The next choice is among one more."""

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        return {}

    def _restore(self, state: dict[str, AnyArray]) -> None:
        """There is nothing to restore."""
