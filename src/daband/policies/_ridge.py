"""Ridge regression of rewards, explored by its confidence width: LinUCB on contexts, and Constant on a constant.

Li, Chu, Langford, Schapire: "A contextual-bandit approach to personalized news article recommendation" (2010). With
``transform=daband.PCA(64)`` in front LinUCB is the LinUCB-P of the DABand paper.

Both learn by sums over rounds, so that parts of a log can be learned apart and put together: ``empty_sums`` starts a
sum, ``add_to_sums`` adds rounds to it and leaves the policy as it is, ``learn_sums`` makes the policy learn what was
summed. The order of parts does not matter, nor who sums them.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np

from daband._arguments import RewardRange
from daband._arrays import AnyArray, ArrayLike, FloatArray, IntArray, Mask, Weights, checked_number
from daband._shift import ShiftLike
from daband.errors import InvalidInput
from daband.linear._exploration import Decision, Exploration
from daband.linear._primal_ridge import LARGEST_SQUARE, RidgeSums
from daband.linear._ridge_head import ArmModel, RidgeHead
from daband.policies._incoming_rounds import (
    LARGEST_RAW_NORM,
    WEIGHTINGS,
    RoundIds,
    check_arms,
    check_propensities,
    check_rewards,
    resolve_weighting,
    round_weights,
)
from daband.policies._policy import Policy, exploration_setting, policies
from daband.serving._frozen_policy import FrozenParts
from daband.serving._members import Member


class RidgePolicy(Policy):
    """A policy that is a ``RidgeHead`` on features of its contexts, which learning does not change."""

    _head: RidgeHead
    _ignores_contexts: ClassVar[bool] = False

    @abstractmethod
    def _features(self, contexts: AnyArray) -> AnyArray:
        """What the head works on: (B, d), or (B, K, d) with a context per arm."""

    @property
    def counts(self) -> IntArray:
        """How many rounds each regression has learned from: (K,), or (1,) with shared arms."""
        return self._head.statistics.counts

    @property
    def exploration(self) -> Exploration:
        """How arms are chosen from predicted means and widths."""
        return self._head.exploration

    @exploration.setter
    def exploration(self, exploration: Exploration) -> None:
        with self._locks.write, self._locks.state:
            self._head.exploration = exploration

    def timed_parts(self) -> list[tuple[str, object, str]]:
        return [("head", self._head, method) for method in ("decide", "learn", "play")]

    def _decide(self, contexts: AnyArray, domain: int, available: Mask, first_round: int, rule: str | None) -> Decision:
        return self._head.decide(self._features(contexts), first_round=first_round, available=available, rule=rule)

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: Weights) -> None:
        self._head.learn(self._features(contexts), arms, rewards, weights)

    def _freeze(self, domain: int) -> FrozenParts:
        member = Member(*self._head.frozen(), constant=self._ignores_contexts)
        return FrozenParts((member,), self._head.exploration, self.counts.copy())

    @property
    def propensity_weightings(self) -> tuple[str, ...]:
        return WEIGHTINGS

    def _probabilities(self, contexts: AnyArray, domain: int, available: Mask, rule: str | None) -> FloatArray:
        return self._head.probabilities(self._features(contexts), available=available, rule=rule)

    def _play(
        self, contexts: AnyArray, rewards: FloatArray, domain: int, available: Mask, first_round: int
    ) -> Decision:
        return self._head.play(self._features(contexts), rewards, first_round=first_round, available=available)

    def _grow(self) -> None:
        self._head.add_arm()

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        return self._head.state(rounds=replay)

    def _restore(self, state: dict[str, AnyArray]) -> None:
        self._head.restore(state)

    @property
    def can_discount(self) -> bool:
        return self._head.can_discount and self.half_life is None  # which discounts what was learned before

    def _fade(self, factor: float) -> None:
        self._head.fade(factor)

    def _trust_prior(self, discounts: tuple[float, ...]) -> None:
        with self._locks.state:
            self._head.trust_prior(discounts)

    # Sums over the rounds of a log.

    def empty_sums(self) -> RidgeSums:
        """Sums without a round."""
        return RidgeSums(self._head.statistics.n_heads, self._head.dim)

    def without_rounds(self) -> Self:
        """A copy without rounds that keeps the transform and the reward range: small enough to send around."""
        if self._pending.n_rounds:
            raise InvalidInput(
                f"the policy keeps back {self._pending.n_rounds} rounds until reward_range='auto' knows the range; "
                "update it with more rounds first, or give the range"
            )
        if self.half_life is not None:
            raise InvalidInput("a half_life fades rounds in their order, which sums over parts of a log do not have")
        if self._head.trust is not None:
            raise InvalidInput("the policy discounts what it learned before (trust_prior): fit it to logs before that")
        self._head.check_primal_fits()
        blank = copy.copy(self)  # which copies all parts
        blank._head = blank._head.without_rounds()
        blank._ids = RoundIds(self.id_window)
        blank.rounds_decided = blank.rounds_learned = 0
        return blank

    @property
    def needs_sample(self) -> bool:
        """Whether ``prepare_for_log`` has something to fix."""
        return not self._scale.known or (self.transform is not None and not self.transform.fitted)

    def prepare_for_log(self, contexts: ArrayLike, rewards: ArrayLike) -> None:
        """Fit what must be fixed before rounds can be summed: the transform, and ``reward_range="auto"``.

        Args:
            contexts: a sample of the log's contexts, (B, *context_shape).
            rewards: a sample of its rewards, (B,).
        """
        with self._locks.write:
            sample = check_rewards(rewards, (len(np.asarray(rewards)),))
            self._scale.check(sample)
            if self.transform is not None and not self.transform.fitted:
                self.prepare(contexts)
            if not self._scale.known and not self._scale.estimate(sample):
                raise InvalidInput(
                    f"reward_range='auto' cannot tell a range from the {len(sample)} rewards at the beginning of the "
                    "log; give the policy reward_range=(low, high)"
                )

    def add_to_sums(
        self,
        sums: RidgeSums,
        contexts: ArrayLike,
        arm: ArrayLike,
        reward: ArrayLike,
        *,
        propensity: ArrayLike | None = None,
        propensity_weighting: str | None = None,
    ) -> None:
        """Add rounds to ``sums``: arguments as of ``update``. Pseudo-rewards ("doubly_robust") are not offered here.

        Rounds that ``update`` would refuse are refused here, and ``sums`` stays as it was.
        """
        checked = self._check_contexts(contexts)
        n = len(checked)
        arms, rewards = check_arms(arm, n, self.n_arms), check_rewards(reward, (n,))
        self._scale.check(rewards)
        unit = self._scale.to_unit(rewards)
        self._check_unit_rewards(unit)
        weighting = self.check_sum_weighting(propensity_weighting)
        weights = None
        if propensity is not None:
            weights = round_weights(check_propensities(propensity, n), self.n_arms, weighting=weighting)
        features, heads = self._head.of_chosen(self._features(self._transform_contexts(checked, self._domain)), arms)
        if features.dtype == np.uint8:
            features = features / np.float32(255.0)
        sums.add(features, heads, unit, weights)

    def check_sum_weighting(self, weighting: str | None) -> str:
        """The weighting to use for sums; pseudo-rewards need predictions, which sums do not give."""
        offered = tuple(name for name in self.propensity_weightings if name != "doubly_robust")
        return resolve_weighting(weighting, offered, "learning from sums")

    def learn_sums(self, sums: RidgeSums, prepared: RidgePolicy, log_parts: Iterable[str] = ()) -> None:
        """Learn rounds that were summed; where that cannot be, an error is raised and nothing changes.

        ``prepared`` is the copy that summed them: its transform and its reward range become this policy's.
        ``log_parts`` are the digests of the parts of a log that the sums are of.
        """
        with self._locks.write:
            statistics = copy.deepcopy(self._head.primal("the log cannot be learned"))
            statistics.add_sums(sums)
            with self._locks.state:
                self.__dict__["transform"], self._scale = prepared.transform, prepared._scale
                self._head.statistics = statistics
                self.rounds_learned += int(sums.counts.sum())
                self.log_parts |= frozenset(log_parts)


@policies.register("linucb")
class LinUCB(RidgePolicy):
    """LinUCB, exact.

    Args:
        context_shape: the shape of one context; it is flattened. Widths grow with the scale of contexts, and there is
            no intercept: take ``transform=daband.Standardise()``, which appends a 1, as ``LinUCB.for_pair`` does, or
            append a 1 yourself and choose ``alpha`` and ``ridge`` for their scale.
        n_arms: how many arms there are; more can be added later.
        alpha: how much of the width is added to the predicted reward.
        ridge: the weight of the penalty on the regression's coefficients; A starts as ``ridge * I``.
        arms: "disjoint" (one context a round, a regression per arm) or "shared" (one context per arm, one regression).
        explore: "ucb", "greedy", or "thompson" (disjoint arms only).
        epsilon: the probability with which an arm is drawn evenly instead, so that logs serve off-policy evaluation.
        reward_range: the smallest and largest reward, in any unit; others are refused. "auto" estimates it.
        transform: put in front of the regression: a ``daband.Standardise()``, a ``daband.PCA(64)``, or anything with
            ``fit`` and ``transform``; fitted by ``prepare``.
        shift: what may differ between the domains (``daband.Shift``); ``LinUCB.for_pair`` standardises accordingly.
        form: "primal" keeps a d x d matrix per arm, "dual" one row per round; "auto" takes the cheaper.
        seed: decides ties and draws. Every whole number is a seed, 0 too.
        half_life: after how many rounds, or how much of the ``time`` that ``update`` is told, a round counts half. The
            ridge does not fade, so that this is the least squares of the weighted rounds; each round costs an
            inversion per arm.

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
    alpha = exploration_setting("alpha")
    epsilon = exploration_setting("epsilon")
    explore = exploration_setting("rule")

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
        shift: ShiftLike = None,
        form: Literal["auto", "primal", "dual"] = "auto",
        seed: int = 0,
        half_life: float | None = None,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            arms=arms,
            reward_range=reward_range,
            transform=transform,
            shift=shift,
            seed=seed,
            half_life=half_life,
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
            fades=self.half_life is not None,
        )
        self.largest_norm = math.sqrt(LARGEST_SQUARE * ridge)  # beyond it the arithmetic is no longer accurate

    def settings(self) -> dict[str, Any]:
        exploration = self._head.exploration
        return {
            **super().settings(), "alpha": exploration.alpha, "ridge": self._head.ridge, "explore": exploration.rule,
            "epsilon": exploration.epsilon, "form": self._head.form,
        }  # fmt: skip

    def _features(self, contexts: AnyArray) -> AnyArray:
        if contexts.ndim == 2 and self.arms == "disjoint":
            return contexts
        lead = contexts.shape[:2] if self.arms == "shared" else contexts.shape[:1]
        return contexts.reshape(*lead, -1)


@policies.register("constant")
class Constant(RidgePolicy):
    """The best constant arm, the baseline that any use of contexts must beat: every arm's mean reward.

    Args:
        context_shape: the shape of one context, which is not looked at.
        n_arms: how many arms there are; more can be added later.
        alpha: how much of the width is added to the mean reward of an arm. With 2, as rewards are scaled to [0, 1], an
            arm is played some ten times at least before another is preferred; with much less the first arm that has a
            reward may be the only one ever played.
        arms: "disjoint" or "shared": how contexts arrive.
        reward_range: the smallest and largest reward, in any unit; others are refused. "auto" estimates it.
        shift: what may differ between the domains, which makes no difference here.
        seed: decides ties.

    >>> policy = daband.Constant(context_shape=(1,), n_arms=2, alpha=0.0)
    >>> skipped = policy.update([[0.0]] * 4, [0, 0, 1, 1], [0, 1, 1, 1])
    >>> policy.select([[5.0]]).arm.tolist()
    [1]
    """

    _ignores_contexts = True
    alpha = exploration_setting("alpha")

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        alpha: float = 2.0,
        arms: str = "disjoint",
        reward_range: RewardRange = (0.0, 1.0),
        shift: ShiftLike = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            arms=arms,
            reward_range=reward_range,
            transform=None,
            shift=shift,
            seed=seed,
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
        self.largest_norm = LARGEST_RAW_NORM  # contexts are not looked at

    @property
    def propensity_weightings(self) -> tuple[str, ...]:
        # A mean over the rounds of an arm is as misspecified as a regression can be: it needs the weights in full.
        return ("importance", *[name for name in WEIGHTINGS if name != "importance"])

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "alpha": self._head.exploration.alpha}

    def _features(self, contexts: AnyArray) -> AnyArray:
        return np.ones((len(contexts), 1))
