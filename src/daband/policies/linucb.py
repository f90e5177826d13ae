"""LinUCB: ridge regression of rewards on contexts, explored by its confidence width.

Li, Chu, Langford, Schapire: "A contextual-bandit approach to personalized news article recommendation" (2010). With
``transform=daband.PCA(64)`` in front it is the LinUCB-P of the DABand paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray, checked_number
from daband.linear import ArmModel, Decision, Exploration, RidgeHead
from daband.linear.norm_limit import LARGEST_SQUARE
from daband.policies.contract import policies
from daband.policies.hooks import FrozenParts
from daband.policies.propensities import WEIGHTINGS
from daband.policies.reward_scale import RewardRange
from daband.policies.summed import SummedPolicy
from daband.serving import Member

__all__ = ["LinUCB"]


@policies.register("linucb")
class LinUCB(SummedPolicy):
    """LinUCB, exact.

    Args:
        context_shape: the shape of one context; it is flattened. Widths grow with the scale of contexts: standardise
            them, as ``LinUCB.for_pair`` does, or choose ``alpha`` and ``ridge`` for their scale.
        n_arms: how many arms there are; more can be added later.
        alpha: how much of the width is added to the predicted reward.
        ridge: the weight of the penalty on the regression's coefficients; A starts as ``ridge * I``.
        arms: "disjoint" (one context a round, a regression per arm) or "shared" (one context per arm, one regression).
        explore: "ucb", "greedy", or "thompson" (disjoint arms only).
        epsilon: the probability with which an arm is drawn evenly instead, so that logs serve off-policy evaluation.
        reward_range: the smallest and largest reward, in any unit; others are refused. "auto" estimates it.
        transform: put in front of the regression: a ``daband.Standardise()``, a ``daband.PCA(64)``, or anything with
            ``fit`` and ``transform``; fitted by ``prepare``.
        form: "primal" keeps a d x d matrix per arm, "dual" one row per round; "auto" takes the cheaper.
        seed: decides ties and draws. Every whole number is a seed, 0 too.

    >>> policy = daband.LinUCB(context_shape=(2,), n_arms=3, seed=0)
    >>> contexts = [[1.0, 0.0], [0.0, 1.0]]
    >>> decision = policy.select(contexts)
    >>> decision.arm.shape, decision.mean.shape
    ((2,), (2, 3))
    >>> skipped = policy.update(contexts, decision.arm, [1.0, 0.0], ids=["monday-1", "monday-2"])
    >>> policy.rounds_learned
    2
    """

    scale_matters = True

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        alpha: float = Exploration.alpha,
        ridge: float = 1.0,
        arms: ArmModel = "disjoint",
        explore: Literal["ucb", "greedy", "thompson"] = "ucb",
        epsilon: float = 0.0,
        reward_range: RewardRange = (0.0, 1.0),
        transform: Any = None,
        form: Literal["auto", "primal", "dual"] = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            arms=arms,
            reward_range=reward_range,
            transform=transform,
            seed=seed,
        )
        ridge = checked_number("ridge", ridge)
        self._head = RidgeHead(
            n_arms=self.n_arms,
            dim=math.prod(self.feature_shape),
            arms=arms,
            ridge=ridge,
            exploration=Exploration(explore, checked_number("alpha", alpha), checked_number("epsilon", epsilon)),
            seed=self.seed,
            form=form,
        )
        self.largest_norm = math.sqrt(LARGEST_SQUARE * ridge)  # beyond it the arithmetic is no longer accurate

    @property
    def counts(self) -> IntArray:
        """How many rounds each regression has learned from: (K,), or (1,) with shared arms."""
        return self._head.statistics.counts

    def settings(self) -> dict[str, Any]:
        exploration = self._head.exploration
        return {
            **super().settings(),
            "alpha": exploration.alpha,
            "ridge": self._head.ridge,
            "explore": exploration.rule,
            "epsilon": exploration.epsilon,
            "form": self._head.form,
        }

    def timed_parts(self) -> list[tuple[str, object, str]]:
        return [("head", self._head, method) for method in ("decide", "learn", "play")]

    def _decide(
        self,
        contexts: AnyArray,
        domain: str,  # noqa: ARG002 - one regression serves both domains
        available: BoolArray | None,
        first_round: int,
        rule: str | None,
    ) -> Decision:
        return self._head.decide(self._flat(contexts), first_round=first_round, available=available, rule=rule)

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> None:  # noqa: ARG002
        self._head.learn(self._flat(contexts), arms, rewards)

    @property
    def propensity_weightings(self) -> tuple[str, ...]:
        return WEIGHTINGS

    def _learn_weighted(
        self,
        contexts: AnyArray,
        arms: IntArray,
        rewards: FloatArray,
        domain: str,  # noqa: ARG002
        weights: FloatArray,
    ) -> None:
        self._head.learn(self._flat(contexts), arms, rewards, weights)

    def _probabilities(
        self,
        contexts: AnyArray,
        domain: str,  # noqa: ARG002
        available: BoolArray | None,
        rule: str | None,
    ) -> FloatArray:
        return self._head.probabilities(self._flat(contexts), available=available, rule=rule)

    def _play(
        self,
        contexts: AnyArray,
        rewards: FloatArray,
        domain: str,  # noqa: ARG002
        available: BoolArray | None,
        first_round: int,
    ) -> Decision:
        return self._head.play(self._flat(contexts), rewards, first_round=first_round, available=available)

    def _grow(self) -> None:
        self._head.add_arm()

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        return self._head.state(rounds=replay)

    def _restore(self, state: dict[str, AnyArray]) -> None:
        self._head.restore(state)

    def _freeze(self, domain: str) -> FrozenParts:  # noqa: ARG002
        return FrozenParts((Member(*self._head.frozen()),), self._head.exploration, self.counts.copy())

    def _features(self, contexts: AnyArray) -> AnyArray:
        return self._flat(contexts)

    def _flat(self, contexts: AnyArray) -> AnyArray:
        if contexts.ndim == 2 and self.arms == "disjoint":
            return contexts
        lead = contexts.shape[:2] if self.arms == "shared" else contexts.shape[:1]
        return contexts.reshape(*lead, -1)
