"""The best constant arm: the baseline that any use of contexts must beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray, checked_number
from daband.linear import Decision, Exploration, RidgeHead
from daband.policies.contract import policies
from daband.policies.hooks import FrozenParts
from daband.policies.propensities import WEIGHTINGS
from daband.policies.reward_scale import RewardRange
from daband.policies.summed import SummedPolicy
from daband.serving import Member

__all__ = ["Constant"]


@policies.register("constant")
class Constant(SummedPolicy):
    """Learns every arm's mean reward and ignores contexts: LinUCB on a constant.

    Args:
        context_shape: the shape of one context, which is not looked at.
        n_arms: how many arms there are; more can be added later.
        alpha: how much of the width is added to the mean reward of an arm.
        arms: "disjoint" or "shared": how contexts arrive.
        reward_range: the smallest and largest reward, in any unit; others are refused. "auto" estimates it.
        seed: decides ties.

    >>> policy = daband.Constant(context_shape=(1,), n_arms=2, alpha=0.0)
    >>> skipped = policy.update([[0.0]] * 4, [0, 0, 1, 1], [0, 1, 1, 1])
    >>> policy.select([[5.0]]).arm.tolist()
    [1]
    """

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        alpha: float = Exploration.alpha,
        arms: str = "disjoint",
        reward_range: RewardRange = (0.0, 1.0),
        seed: int = 0,
    ) -> None:
        super().__init__(
            context_shape=context_shape, n_arms=n_arms, arms=arms, reward_range=reward_range, transform=None, seed=seed
        )
        self._head = RidgeHead(
            n_arms=self.n_arms,
            dim=1,
            arms="disjoint",
            ridge=1.0,
            exploration=Exploration("ucb", checked_number("alpha", alpha)),
            seed=self.seed,
            form="primal",
        )

    @property
    def counts(self) -> IntArray:
        """How many rounds each arm's mean rests on, (K,)."""
        return self._head.statistics.counts

    def settings(self) -> dict[str, Any]:
        settings = {**super().settings(), "alpha": self._head.exploration.alpha}
        del settings["transform"]
        return settings

    def _decide(
        self,
        contexts: AnyArray,
        domain: str,  # noqa: ARG002 - a constant is the same in both
        available: BoolArray | None,
        first_round: int,
        rule: str | None,
    ) -> Decision:
        return self._head.decide(_ones(contexts), first_round=first_round, available=available, rule=rule)

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> None:  # noqa: ARG002
        self._head.learn(_ones(contexts), arms, rewards)

    @property
    def propensity_weightings(self) -> tuple[str, ...]:
        # A mean over the rounds of an arm is as misspecified as a regression can be: it needs the weights in full.
        return ("importance", *[name for name in WEIGHTINGS if name != "importance"])

    def _learn_weighted(
        self,
        contexts: AnyArray,
        arms: IntArray,
        rewards: FloatArray,
        domain: str,  # noqa: ARG002
        weights: FloatArray,
    ) -> None:
        self._head.learn(_ones(contexts), arms, rewards, weights)

    def _probabilities(
        self,
        contexts: AnyArray,
        domain: str,  # noqa: ARG002
        available: BoolArray | None,
        rule: str | None,
    ) -> FloatArray:
        return self._head.probabilities(_ones(contexts), available=available, rule=rule)

    def _play(
        self,
        contexts: AnyArray,
        rewards: FloatArray,
        domain: str,  # noqa: ARG002
        available: BoolArray | None,
        first_round: int,
    ) -> Decision:
        return self._head.play(_ones(contexts), rewards, first_round=first_round, available=available)

    def _freeze(self, domain: str) -> FrozenParts:  # noqa: ARG002
        member = Member(*self._head.frozen(), constant=True)
        return FrozenParts((member,), self._head.exploration, self.counts.copy())

    def _grow(self) -> None:
        self._head.add_arm()

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        return self._head.state(rounds=replay)

    def _restore(self, state: dict[str, AnyArray]) -> None:
        self._head.restore(state)

    def _features(self, contexts: AnyArray) -> AnyArray:
        return _ones(contexts)


def _ones(contexts: AnyArray) -> FloatArray:
    return np.ones((len(contexts), 1))
