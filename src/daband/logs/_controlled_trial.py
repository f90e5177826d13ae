"""Compare a policy with the incumbent by rounds in which one of the two was drawn at random.

``TrialRule`` has the settings of a trial: the limit of its cost, the evidence from before, and the
error of its decision. Its methods take ``Moments``, the sums of rewards so far. They work on one
trial, or on arrays of simulated trials.

Only rounds in which the two choose different arms are counted, because all others have the same
reward under both. A round's policy is drawn with a known probability f, the fraction. If A is 1 for
the policy and 0 for the incumbent, r is the reward and m a centre, then the expectation of (A - f)
(r - m) is f (1 - f) times the effect, which is the difference between the expected rewards. The
estimated effect is the ratio of the two sums, also if f or the rewards change over time.

The decision is an e-process (Ramdas, Grünwald, Vovk, Shafer: "Game-theoretic statistics and safe
anytime-valid inference", 2023): the likelihood ratio of a mixture of alternatives and no effect.
If there is no effect, it exceeds 1 / alpha with probability at most alpha, however often it is
checked and whatever the mixture is. Half of the mixture are effects that are expected from earlier
evidence, so a right expectation decides sooner, and a wrong one later.
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
#: The one-sided normal quantile z of the limit of the cost. The policy's rounds at most double
#: between two checks, so the limit can only be broken at a check in the last doubling before it. A
#: Brownian motion B(t) exceeds z sqrt(t) at any t in (1/2, 1) with probability
#: 1 - Phi(z) + phi(z) z log(2) / 2, which is 5% for this z.
_COST_QUANTILE = 2.1
#: Smallest number of rewards of each group for a decision.
_MIN_DECISION_REWARDS = 50
#: Smallest number of rewards of each group for a limit of the cost. A limit from few rewards is
#: too low only if the policy's rewards happen to be high, and high rewards are spread widely.
_MIN_LIMIT_REWARDS = 20
#: Largest fraction of rounds that get the policy's arm. More would be slower.
_MAX_FRACTION = 0.5
#: A number of rounds that no trial has.
_MANY_ROUNDS = 1e15
#: Alternatives without earlier evidence, in standard errors after the reference number of rounds.
#: Two is the smallest effect that can be found in that time.
_VAGUE_EFFECTS = (2.0, 4.0, 8.0, 16.0, 32.0)
#: Number of alternatives from earlier evidence.
_N_EXPECTED = 8
#: Largest distance of a limit from the estimate, in standard errors, and the number of distances.
_MAX_LIMIT_ERRORS = 10.0
_N_LIMITS = 1001
#: The reference number of rounds of a trial without a plan.
_REFERENCE_ROUNDS = 2000


class Moments(NamedTuple):
    """Sums of the rewards of G groups of rounds with the same fraction.

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
    centre = (1.0 - f) * means[..., :1] + f * means[..., 1:]
    centre = centre[..., None]
    differences = moments.sums - centre * moments.counts
    squares = moments.squares - 2.0 * centre * moments.sums + centre**2 * moments.counts
    squares = np.maximum(squares, 0.0)
    factors = np.stack([1.0 - f, -f], axis=-1)
    weight = (f * (1.0 - f) * moments.counts.sum(axis=-1)).sum(axis=-1)
    pooled_variance = (f * (1.0 - f) * squares.sum(axis=-1)).sum(axis=-1)
    variance = np.maximum((factors**2 * squares).sum(axis=(-2, -1)), pooled_variance)
    safe_weight = np.where(weight > 0.0, weight, 1.0)
    # equal rewards do not show how much rewards differ
    is_small = (counts.min(axis=-1) < _MIN_LIMIT_REWARDS) | (variance <= 0.0)
    return Effect(
        value=(factors * differences).sum(axis=(-2, -1)) / safe_weight,
        error=np.where(is_small, np.inf, np.sqrt(variance) / safe_weight),
        weight=weight,
        counts=counts,
        means=means,
        mean_errors=np.sqrt(variances / np.maximum(counts - 1.0, 1.0)),
    )


class TrialCounts:
    """The rounds of a trial that are added one by one."""

    def __init__(self) -> None:
        #: The policy's rounds, and the counts, sums and squares of rewards (3, 2), by fraction.
        self._n_policy: dict[float, float] = {}
        self._rewards: dict[float, FloatArray] = {}
        #: The number of rounds, and of rounds in which policy and incumbent differ.
        self.n_rounds = 0
        self.n_differing = 0
        #: The first reward, which is subtracted from all, because large squares lose digits.
        self.offset: float | None = None

    def add_round(self, fraction: float, *, is_policy: bool, differs: bool) -> None:
        """Add a round in which the policy had the probability ``fraction``."""
        self.n_rounds += 1
        if differs:
            self.n_differing += 1
            self._n_policy[fraction] = self._n_policy.get(fraction, 0.0) + is_policy
            self._rewards.setdefault(fraction, np.zeros((3, 2)))

    def add_reward(self, fraction: float, reward: float, *, is_policy: bool) -> None:
        """Add the reward of a round that was added, in which policy and incumbent differ."""
        if self.offset is None:
            self.offset = reward
        reward -= self.offset
        self._rewards[fraction][:, 0 if is_policy else 1] += 1.0, reward, reward * reward

    @property
    def moments(self) -> Moments:
        """The sums so far; rewards are relative to ``offset``."""
        if not self._rewards:
            return Moments(np.zeros(1), np.zeros(1), *np.zeros((3, 1, 2)))
        counts, sums, squares = np.stack(list(self._rewards.values()), axis=1)
        fractions = np.array(list(self._rewards))
        return Moments(fractions, np.array(list(self._n_policy.values())), counts, sums, squares)


@dataclass(frozen=True)
class TrialRule:
    """The settings of a trial. Effects are per round in which policy and incumbent differ.

    Args:
        max_cost: limit of the sum of expected rewards that the trial loses, in the unit of the
            rewards.
        worst_loss: largest possible expected loss in one round of the policy.
        expected_effect: the effect according to earlier evidence; None without evidence.
        expected_error: its standard deviation.
        min_effect: the smallest effect for which the policy should be deployed.
        reference_rounds: number of rounds in which the trial should decide.
        error: largest probability of each wrong decision.
    """

    max_cost: float = math.inf
    worst_loss: float = math.inf
    expected_effect: float | None = None
    expected_error: float = 0.0
    min_effect: float = 0.0
    reference_rounds: float = _REFERENCE_ROUNDS
    error: float = ERROR

    def limit_loss(self, effect: Effect) -> FloatArray:
        """Return the upper limit of the expected loss in a round of the policy."""
        return np.minimum(_COST_QUANTILE * effect.error - effect.value, self.worst_loss)

    def limit_cost(self, moments: Moments) -> FloatArray:
        """Return the upper limit of the cost so far, with rounds whose rewards are missing."""
        n_policy = moments.n_policy.sum(axis=-1)
        loss = self.limit_loss(estimate_effect(moments))
        return np.where(n_policy > 0.0, n_policy * np.maximum(loss, 0.0), 0.0)

    def choose_fraction(self, moments: Moments, n_rounds: float) -> FloatArray:
        """Return the probability of the policy in the next ``n_rounds``, for which the cost remains
        below its limit.

        Without rewards, the loss of a round is assumed to be ``worst_loss``.
        """
        effect = estimate_effect(moments)
        loss = self.limit_loss(effect)
        allowed = np.full(loss.shape, _MANY_ROUNDS)
        np.divide(self.max_cost, loss, out=allowed, where=loss > 0.0)
        surely_allowed = _MANY_ROUNDS
        if self.max_cost < math.inf:
            surely_allowed = self.max_cost / self.worst_loss
        allowed = np.maximum(np.minimum(allowed, 2.0 * effect.counts[..., 0]), surely_allowed)
        free = np.maximum(allowed - moments.n_policy.sum(axis=-1), 0.0)
        # the number of drawn rounds has the variance of its expectation
        expected = free - _COST_QUANTILE * np.sqrt(free)
        fraction: FloatArray = np.clip(expected / max(n_rounds, 1.0), 0.0, _MAX_FRACTION)
        return fraction

    def is_better(self, effect: Effect, than: float | FloatArray | None = None) -> BoolArray:
        """Return True if the effect is proven to be above ``than``, by default ``min_effect``."""
        limit = self.min_effect if than is None else than
        return self._find_evidence(effect, limit, 1.0) >= -math.log(self.error)

    def is_worse(self, effect: Effect, than: float | FloatArray | None = None) -> BoolArray:
        """Return True if the effect is proven to be below ``than``, by default ``min_effect``."""
        limit = self.min_effect if than is None else than
        return self._find_evidence(effect, limit, -1.0) >= -math.log(self.error)

    def compute_interval(self, effect: Effect) -> tuple[float, float]:
        """Return the limits of the effect: what ``is_better`` and ``is_worse`` have not excluded.

        Each limit is valid at all times simultaneously, with probability ``1 - error``.
        """
        if not math.isfinite(effect.error):
            return -math.inf, math.inf
        steps = effect.error * np.linspace(0.0, _MAX_LIMIT_ERRORS, _N_LIMITS)
        is_excluded = self.is_better(effect, effect.value - steps)
        low = effect.value - steps[int(np.argmax(is_excluded))] if is_excluded.any() else -math.inf
        is_excluded = self.is_worse(effect, effect.value + steps)
        high = effect.value + steps[int(np.argmax(is_excluded))] if is_excluded.any() else math.inf
        return float(low), float(high)

    def _find_evidence(self, effect: Effect, limit: float | FloatArray, sign: float) -> FloatArray:
        """Return the logarithm of the e-process against effects at or below ``limit`` (above it for
        the sign -1).
        """
        z = sign * (effect.value - limit) / effect.error
        growth = np.sqrt(effect.weight / (0.25 * self.reference_rounds))
        alternatives = [factor * growth for factor in _VAGUE_EFFECTS]
        weights = [1.0 / len(alternatives)] * len(alternatives)
        if self.expected_effect is not None:
            expected = _draw_quantiles(self.expected_effect, self.expected_error)
            # an effect on the other side of the limit is an alternative of size 0
            alternatives += [
                np.maximum(sign * (value - limit), 0.0) / effect.error for value in expected
            ]
            weights = [0.5 * weight for weight in weights]
            weights += [0.5 / len(expected)] * len(expected)
        sizes = np.stack([np.broadcast_to(size, np.shape(z)) for size in alternatives])
        terms = sizes * z - 0.5 * sizes**2
        terms = terms + np.log(weights).reshape(-1, *[1] * (terms.ndim - 1))
        evidence: FloatArray = np.logaddexp.reduce(terms, axis=0)
        is_small = effect.counts.min(axis=-1) < _MIN_DECISION_REWARDS
        return np.where(np.isfinite(effect.error) & ~is_small, evidence, 0.0)


def _draw_quantiles(mean: float, deviation: float) -> Sequence[float]:
    """Return equally likely values of a normal distribution."""
    if not deviation > 0.0:
        return [mean]
    normal = NormalDist(mean, deviation)
    return [normal.inv_cdf((index + 0.5) / _N_EXPECTED) for index in range(_N_EXPECTED)]
