"""Compare a policy with the incumbent by rounds in which one of the two was drawn at random.

``TrialRule`` has the settings of a trial: the limit of its cost, the evidence from before, and the
error of its decision. Its methods take ``Moments``, the sums of rewards so far. They work on one
trial, or on arrays of simulated trials.

Only rounds in which the two choose different arms are counted, because all others have the same
reward under both. A round's policy is drawn with a known probability f, the fraction. If A is 1 for
the policy and 0 for the incumbent, r is the reward and m a centre, then the expectation of (A - f)
(r - m) is f (1 - f) times the effect, which is the difference between the expected rewards. The
estimated effect is the ratio of the two sums, also if f or the rewards change over time.

The cost is the sum of f times the loss over the rounds. (f - A) (r - m) / (1 - f) is an unbiased
estimate of a round's term, whatever the fractions, rewards and losses of other rounds are. So the
limit of the cost does not assume that weeks are alike: its interval is valid at all times (Robbins'
normal mixture), and the next rounds are as many as remain below the limit if each has the largest
loss that the user expects: the mean loss so far, at its limit, and a drift.

The decision is an e-process (Ramdas, Grünwald, Vovk, Shafer: "Game-theoretic statistics and safe
anytime-valid inference", 2023): the likelihood ratio of a mixture of alternatives and no effect.
If there is no effect, it exceeds 1 / alpha with probability at most alpha, however often it is
checked and whatever the mixture is. This is also valid if effects change: a decision is about the
mean effect of the rounds so far, with the weights f (1 - f). Most of the mixture are effects that
are expected from earlier evidence, so a right expectation decides sooner. Expected effects on the
other side of zero are left out, so proof that the policy is worse does not take longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from daband.base._arrays import BoolArray, FloatArray

#: Probability of deploying a policy without an advantage, and of rejecting one that is better.
ERROR = 0.04
#: Probability that the cost exceeds its limit at any time.
_COST_ERROR = 0.05
#: The interval of the cost is the narrowest, in standard errors, where its width is half of the
#: limit. The variance of the normal mixture is then the square of the limit divided by this number.
_MIXTURE_SCALE = 11.0
#: Standard deviations that are left for the number of the policy's rounds, which is drawn.
_DRAW_ERRORS = 1.645
#: A trial is futile if the predicted probability of a proof is below 1%, with this quantile.
_FUTILITY_QUANTILE = 2.33
#: Standard errors that a proof usually needs.
PROOF_ERRORS = 3.0
#: Effects in both halves of the trial that differ by more standard errors differ beyond noise.
_CHANGE_ERRORS = 3.0
#: Smallest number of rewards of each group for a decision.
_MIN_DECISION_REWARDS = 50
#: Smallest number of rewards of each group for an estimate.
_MIN_REWARDS = 20
#: Largest fraction of rounds that get the policy's arm. More would be slower.
_MAX_FRACTION = 0.5
#: Alternatives without earlier evidence, in standard errors after the reference number of rounds.
#: Two is the smallest effect that can be found in that time.
_VAGUE_EFFECTS = (2.0, 4.0, 8.0, 16.0, 32.0)
#: Weight of alternatives from earlier evidence, if all are on the side that is tested.
_EXPECTED_WEIGHT = 0.8
#: Number of alternatives from earlier evidence.
_N_EXPECTED = 8
#: Largest distance of a limit from the estimate, in standard errors, and the number of distances.
_MAX_LIMIT_ERRORS = 10.0
_N_LIMITS = 1001
#: Avoids a division by 0.
_TINY = 1e-12
#: The reference number of rounds of a trial without a plan.
_REFERENCE_ROUNDS = 2000


class Moments(NamedTuple):
    """Sums of the rewards of G groups of rounds with the same fraction, in the order of time.

    Arrays may have further leading axes, one trial each.
    """

    #: Probability of the policy in each group, (G,).
    fractions: FloatArray
    #: Number of rounds of the policy, with and without rewards, (G,).
    n_policy: FloatArray
    #: Number of rewards of the policy and of the incumbent, (G, 2).
    counts: FloatArray
    #: Sums of these rewards, (G, 2).
    sums: FloatArray
    #: Sums of their squares, (G, 2).
    squares: FloatArray

    def select(self, groups: slice) -> Moments:
        """Return the sums of a part of the groups."""
        parts = (sums[..., groups, :] for sums in self[2:])
        return Moments(self.fractions[..., groups], self.n_policy[..., groups], *parts)


class Effect(NamedTuple):
    """The estimated effect in rounds in which policy and incumbent differ."""

    #: Mean reward of the policy minus mean reward of the incumbent; 0 without rewards.
    value: FloatArray
    #: Its standard error; infinite while a group is small.
    error: FloatArray
    #: Sum of f (1 - f) over rounds with rewards.
    weight: FloatArray
    #: Number of rewards of the policy and of the incumbent, (2,).
    counts: FloatArray
    #: Their mean rewards, (2,).
    means: FloatArray
    #: Standard errors of these means, (2,).
    mean_errors: FloatArray


def estimate_effect(moments: Moments) -> Effect:
    """Return the estimated effect.

    Its variance is the larger of two: the variance of the terms, and their variance if both groups
    had the same rewards. Otherwise it would be too small if rare rewards are missing in a group by
    chance.
    """
    f = np.asarray(moments.fractions, np.float64)
    counts = moments.counts.sum(axis=-2)
    means = moments.sums.sum(axis=-2) / np.maximum(counts, 1.0)
    second_moments = moments.squares.sum(axis=-2) / np.maximum(counts, 1.0)
    variances = np.maximum(second_moments - means**2, 0.0)
    terms, term_variances = _sum_terms(moments)
    weight = (f * (1.0 - f) * moments.counts.sum(axis=-1)).sum(axis=-1)
    variance = term_variances.sum(axis=-2).max(axis=-1)
    safe_weight = np.where(weight > 0.0, weight, 1.0)
    # equal rewards do not show how much rewards differ
    is_small = (counts.min(axis=-1) < _MIN_REWARDS) | (variance <= 0.0)
    return Effect(
        value=terms.sum(axis=-1) / safe_weight,
        error=np.where(is_small, np.inf, np.sqrt(variance) / safe_weight),
        weight=weight,
        counts=counts,
        means=means,
        mean_errors=np.sqrt(variances / np.maximum(counts - 1.0, 1.0)),
    )


def _sum_terms(moments: Moments) -> tuple[FloatArray, FloatArray]:
    """Return the sums of (A - f) (r - m) of each group, and both estimates of their variances,
    (G, 2).
    """
    f = np.asarray(moments.fractions, np.float64)
    means = moments.sums.sum(axis=-2) / np.maximum(moments.counts.sum(axis=-2), 1.0)
    centre = ((1.0 - f) * means[..., :1] + f * means[..., 1:])[..., None]
    differences = moments.sums - centre * moments.counts
    squares = moments.squares - 2.0 * centre * moments.sums + centre**2 * moments.counts
    squares = np.maximum(squares, 0.0)
    factors = np.stack([1.0 - f, -f], axis=-1)
    variances = [(factors**2 * squares).sum(axis=-1), f * (1.0 - f) * squares.sum(axis=-1)]
    return (factors * differences).sum(axis=-1), np.stack(variances, axis=-1)


def estimate_cost(
    moments: Moments, min_deviation: float = 0.0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the estimated cost, its variance, and the number of the policy's rounds without it.

    The rewards that are missing in a group are assumed to be like the others. A group in which no
    reward of the policy has arrived is left out. ``min_deviation`` is the smallest standard
    deviation of a reward from which the variance is computed.
    """
    n_rewards = moments.counts[..., 0]
    is_known = (n_rewards > 0.0) & (moments.counts[..., 1] > 0.0)
    scale = np.where(is_known, moments.n_policy / np.maximum(n_rewards, 1.0), 0.0)
    scale = scale / (1.0 - moments.fractions)
    terms, variances = _sum_terms(moments)
    f = moments.fractions
    floor = f * (1.0 - f) * moments.counts.sum(axis=-1) * min_deviation**2
    variances = np.concatenate([variances, floor[..., None]], axis=-1)
    variance = (scale[..., None] ** 2 * variances).sum(axis=-2).max(axis=-1)
    n_unknown = np.where(is_known, 0.0, moments.n_policy).sum(axis=-1)
    return -(scale * terms).sum(axis=-1), variance, n_unknown


class TrialCounts:
    """The rounds of a trial that are added one by one, in the order of their periods.

    A period is a part of the trial, e.g. a log or a day. Fractions may change in a period.
    """

    def __init__(self) -> None:
        #: The policy's rounds, and the counts, sums and squares of rewards (3, 2), by period and
        #: fraction.
        self._n_policy: dict[tuple[int, float], float] = {}
        self._rewards: dict[tuple[int, float], FloatArray] = {}
        #: The number of rounds, and of rounds in which policy and incumbent differ.
        self.n_rounds = 0
        self.n_differing = 0
        #: The first reward, which is subtracted from all, because large squares lose digits.
        self.offset: float | None = None

    def add_round(
        self, fraction: float, *, is_policy: bool, differs: bool, period: int = 0
    ) -> None:
        """Add a round in which the policy had the probability ``fraction``."""
        self.n_rounds += 1
        if differs:
            self.n_differing += 1
            group = period, fraction
            self._n_policy[group] = self._n_policy.get(group, 0.0) + is_policy
            self._rewards.setdefault(group, np.zeros((3, 2)))

    def add_reward(
        self, fraction: float, reward: float, *, is_policy: bool, period: int = 0
    ) -> None:
        """Add the reward of a round that was added, in which policy and incumbent differ."""
        if self.offset is None:
            self.offset = reward
        reward -= self.offset
        sums = self._rewards[period, fraction]
        sums[:, 0 if is_policy else 1] += 1.0, reward, reward * reward

    @property
    def n_missing(self) -> int:
        """The number of rounds in which policy and incumbent differ, without a reward."""
        return self.n_differing - int(self.moments.counts.sum())

    @property
    def moments(self) -> Moments:
        """The sums so far; rewards are relative to ``offset``."""
        if not self._rewards:
            return Moments(np.zeros(1), np.zeros(1), *np.zeros((3, 1, 2)))
        counts, sums, squares = np.stack(list(self._rewards.values()), axis=1)
        fractions = np.array([fraction for _, fraction in self._rewards])
        return Moments(fractions, np.array(list(self._n_policy.values())), counts, sums, squares)


@dataclass(frozen=True)
class TrialRule:
    """The settings of a trial. Effects are per round in which policy and incumbent differ.

    Args:
        max_cost: limit of the sum of expected rewards that the trial loses, in the unit of the
            rewards.
        worst_loss: largest mean loss in a round of the policy, in any part of the trial.
        drift: largest increase of the mean loss in a round of the policy, from the trial so far to
            the rounds until the next check.
        expected_effect: the effect according to earlier evidence; None without evidence.
        expected_error: its standard deviation.
        min_effect: the smallest effect for which the policy should be deployed.
        reference_rounds: number of rounds in which the trial should decide.
        reward_deviation: the standard deviation of rewards that is expected. The limit of the cost
            assumes that rewards vary at least as much: if large rewards are rare, the first ones do
            not show how much they vary.
        error: largest probability of each wrong decision.
    """

    max_cost: float = math.inf
    worst_loss: float = math.inf
    drift: float = math.inf
    expected_effect: float | None = None
    expected_error: float = 0.0
    min_effect: float = 0.0
    reference_rounds: float = _REFERENCE_ROUNDS
    reward_deviation: float = 0.0
    error: float = ERROR

    def limit_cost(self, moments: Moments) -> FloatArray:
        """Return the upper limit of the cost so far, which is valid at all times simultaneously.

        Rounds without any reward in their group lose ``worst_loss``.
        """
        n_policy = moments.n_policy.sum(axis=-1)
        cost, variance, n_unknown = estimate_cost(moments, self.reward_deviation)
        is_small = moments.counts.sum(axis=-2).min(axis=-1) < _MIN_REWARDS
        worst = n_policy * self.worst_loss
        scale = max((self.max_cost / _MIXTURE_SCALE) ** 2, _TINY)
        logarithm = np.log1p(variance / scale) - 2.0 * math.log(2.0 * _COST_ERROR)
        limit = cost + np.sqrt((variance + scale) * logarithm) + n_unknown * self.worst_loss
        return np.where(is_small | (variance <= 0.0), worst, np.minimum(limit, worst))

    def choose_fraction(self, moments: Moments, n_rounds: float) -> FloatArray:
        """Return the probability of the policy in the next ``n_rounds``, for which the cost remains
        below its limit if its loss increases by ``drift``, to at most ``worst_loss``.
        """
        cost = self.limit_cost(moments)
        loss = cost / np.maximum(moments.n_policy.sum(axis=-1), _TINY) + self.drift
        loss = np.where(moments.n_policy.any(axis=-1), loss, self.worst_loss)
        loss = np.clip(loss, _TINY, self.worst_loss)
        free = np.maximum(self.max_cost - cost, 0.0) / loss
        # the number of drawn rounds has the variance of its expectation
        expected = free - _DRAW_ERRORS * np.sqrt(free)
        fraction: FloatArray = np.clip(expected / max(n_rounds, 1.0), 0.0, _MAX_FRACTION)
        return fraction

    def is_futile(self, moments: Moments, fraction: FloatArray | float, n_left: float) -> BoolArray:
        """Return True if ``n_left`` further rounds with this fraction are not expected to prove
        that the policy is better.
        """
        effect = estimate_effect(moments)
        further = np.asarray(fraction) * (1.0 - np.asarray(fraction)) * n_left
        share = further / np.maximum(effect.weight + further, _TINY)
        # the final estimate has the variance share * error**2 around the estimate, and its error is
        # sqrt(1 - share) * error
        needed = PROOF_ERRORS * np.sqrt(1.0 - share) - _FUTILITY_QUANTILE * np.sqrt(share)
        needed = np.minimum(needed, 0.0)
        is_known = np.isfinite(effect.error)
        z = np.where(is_known, (effect.value - self.min_effect) / effect.error, 0.0)
        return (share <= 0.0) | (is_known & (z < needed))

    def decide_next(self, counts: TrialCounts, n_next: float, n_left: float) -> tuple[str, float]:
        """Return the verdict, and the probability of the policy in the next ``n_next`` rounds.

        The verdict is "better" or "worse" if this is proven, "over" if ``n_left`` further rounds
        are not expected to prove that the policy is better, and otherwise "". A trial that is over
        waits for missing rewards, with a probability of 0.
        """
        moments = counts.moments
        is_better, is_worse = self.decide(moments)
        if is_better:
            return "better", 1.0
        if is_worse:
            return "worse", 0.0
        fraction = float(self.choose_fraction(moments, n_next))
        if not self.is_futile(moments, fraction, n_left):
            return "", fraction
        return "" if counts.n_missing else "over", 0.0

    def decide(self, moments: Moments) -> tuple[BoolArray, BoolArray]:
        """Return whether the policy is proven to be better, and whether it is proven to be worse.

        If the effects in both halves of the groups differ beyond noise, the later half must prove
        it, too.
        """
        half = np.shape(moments.fractions)[-1] // 2
        effect = estimate_effect(moments)
        better, worse = self.is_better(effect), self.is_worse(effect)
        if half:
            earlier, later = (
                estimate_effect(moments.select(part)) for part in (slice(half), slice(half, None))
            )
            change = np.abs(later.value - earlier.value)
            is_alike = ~(change > _CHANGE_ERRORS * np.hypot(later.error, earlier.error))
            better = better & (is_alike | self.is_better(later))
            worse = worse & (is_alike | self.is_worse(later))
        return better, worse

    def is_better(self, effect: Effect, than: float | FloatArray | None = None) -> BoolArray:
        """Return True if the effect is proven to be above ``than``, by default ``min_effect``."""
        return self._find_evidence(effect, than, 1.0) >= -math.log(self.error)

    def is_worse(self, effect: Effect, than: float | FloatArray | None = None) -> BoolArray:
        """Return True if the effect is proven to be below ``than``, by default ``min_effect``."""
        return self._find_evidence(effect, than, -1.0) >= -math.log(self.error)

    def compute_interval(self, effect: Effect) -> tuple[float, float]:
        """Return the limits of the effect: what ``is_better`` and ``is_worse`` have not excluded.

        Each limit is valid at all times simultaneously, with probability ``1 - error``.
        """
        if not math.isfinite(effect.error):
            return -math.inf, math.inf
        steps = effect.error * np.linspace(0.0, _MAX_LIMIT_ERRORS, _N_LIMITS)
        limits = []
        for sign, prove in ((-1.0, self.is_better), (1.0, self.is_worse)):
            values = effect.value + sign * steps
            excluded = values[prove(effect, values)]
            limits.append(float(excluded[0]) if len(excluded) else sign * math.inf)
        return limits[0], limits[1]

    def _find_evidence(
        self, effect: Effect, than: float | FloatArray | None, sign: float
    ) -> FloatArray:
        """Return the logarithm of the e-process against effects at or below ``than`` (above it for
        the sign -1).
        """
        limit = self.min_effect if than is None else than
        z = sign * (effect.value - limit) / effect.error
        growth = np.sqrt(effect.weight / (0.25 * self.reference_rounds))
        sizes = np.stack([factor * growth + 0.0 * z for factor in _VAGUE_EFFECTS])
        weights = np.full(sizes.shape, 1.0 / len(sizes))
        if self.expected_effect is not None:
            expected = _draw_quantiles(self.expected_effect, self.expected_error)
            distances = [sign * (value - limit) / effect.error + 0.0 * z for value in expected]
            sizes = np.concatenate([distances, sizes])
            on_side = _EXPECTED_WEIGHT / len(expected) * (np.stack(distances) > 0.0)
            weights = np.concatenate([on_side, weights * (1.0 - on_side.sum(axis=0))])
        with np.errstate(divide="ignore"):
            terms = sizes * z - 0.5 * sizes**2 + np.log(weights)
        evidence: FloatArray = np.logaddexp.reduce(terms, axis=0)
        is_small = effect.counts.min(axis=-1) < _MIN_DECISION_REWARDS
        return np.where(np.isfinite(effect.error) & ~is_small, evidence, 0.0)


def _draw_quantiles(mean: float, deviation: float) -> Sequence[float]:
    """Return equally likely values of a normal distribution."""
    if not deviation > 0.0:
        return [mean]
    normal = NormalDist(mean, deviation)
    return [normal.inv_cdf((index + 0.5) / _N_EXPECTED) for index in range(_N_EXPECTED)]
