"""Estimate means, with confidence intervals that stay valid for skewed samples.

All estimates from logs use this module.

The mean of a skewed sample is skewed itself. If one buyer in a hundred spends a lot, most samples
have too few such buyers, so the mean and the standard error of the sample are both too small. A
normal interval is then too low. Hall's transformation ("On the removal of skewness by
transformation", 1992) corrects the studentised mean for its estimated skewness. A studentised
bootstrap has the same effect, but needs random draws. If a few rounds have most of the variance,
the variance is uncertain, and its degrees of freedom follow from the kurtosis (Box, 1953).

``estimate_mean`` is for a fixed sample. ``LiftSequence`` is for an experiment that is checked while
it runs.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from daband.base._arrays import FloatArray

#: Skewness is corrected only above this absolute value.
_MIN_SKEWNESS = 1e-6
#: Minimum number of rewards in each group, policy and control, for an interval of the lift.
_MIN_GROUP_REWARDS = 50
#: The number of rounds for which the interval of a lift is optimised. It is wider than needed for
#: more or fewer rounds.
_OPTIMAL_ROUNDS = 2000


class MeanEstimate(NamedTuple):
    """An estimated mean, with statistics of its sampling distribution."""

    #: The estimated mean.
    value: float
    #: The standard error.
    standard_error: float
    #: The skewness of the estimate, which is the skewness of one value divided by the square root
    #: of their number.
    skewness: float = 0.0
    #: The degrees of freedom of the standard error.
    dof: float = math.inf

    def compute_interval(self, confidence: float) -> tuple[float, float]:
        """Return the lower and upper limit of the interval that contains the mean with probability
        ``confidence``.
        """
        if math.isinf(self.dof):  # the service runs without scipy
            quantile = NormalDist().inv_cdf(0.5 + 0.5 * confidence)
        else:
            from scipy.special import stdtrit

            quantile = (
                float(stdtrit(self.dof, 0.5 + 0.5 * confidence)) if self.dof > 0 else math.inf
            )
        return self.compute_limit(-quantile), self.compute_limit(quantile)

    def compute_limit(self, quantile: float) -> float:
        """Return the estimate plus ``quantile`` standard errors, corrected for skewness."""
        if not math.isfinite(self.standard_error) or not math.isfinite(quantile):
            return math.copysign(math.inf, quantile)
        if abs(self.skewness) > _MIN_SKEWNESS:
            cube_root = float(np.cbrt(1.0 - self.skewness * (quantile + self.skewness / 6.0)))
            quantile = 3.0 * (1.0 - cube_root) / self.skewness
        return self.value + quantile * self.standard_error

    def plus(self, other: MeanEstimate) -> MeanEstimate:
        """Return the estimate of the sum of two means from independent samples."""
        error = math.hypot(self.standard_error, other.standard_error)
        third_moments = (
            estimate.skewness * estimate.standard_error**3 for estimate in (self, other)
        )
        skewness = sum(third_moments) / error**3 if 0 < error < math.inf else 0.0
        return MeanEstimate(self.value + other.value, error, skewness, min(self.dof, other.dof))


def estimate_mean(values: FloatArray) -> MeanEstimate:
    """Return the estimated mean of independent values (n,).

    With one value, the standard error is infinite.
    """
    n = len(values)
    value = float(values.mean())
    if n < 2:
        return MeanEstimate(value, math.inf, 0.0, 0.0)
    deviations = values - value
    error = math.sqrt(float(deviations @ deviations) / (n - 1) / n)
    max_deviation = float(np.abs(deviations).max())
    if not max_deviation > 0.0 or not math.isfinite(error):
        return MeanEstimate(value, error, 0.0, n - 1.0)
    scaled_deviations = deviations / max_deviation  # powers of large rewards would overflow
    variance, third_moment, fourth_moment = (
        float((scaled_deviations**power).mean()) for power in (2, 3, 4)
    )
    # The variance of a sample variance is that of 2 n / (kurtosis - 1) normal values.
    kurtosis = max(fourth_moment / variance**2, 3.0)
    return MeanEstimate(
        value, error, third_moment / variance**1.5 / math.sqrt(n), 2.0 * (n - 1) / (kurtosis - 1.0)
    )


def estimate_weighted_mean(rewards: FloatArray, weights: FloatArray) -> MeanEstimate:
    """Return the weighted mean of rewards (n,), with the standard error of a ratio (Swaminathan,
    Joachims 2015).
    """
    total_weight = float(weights.sum())
    if total_weight == 0.0:
        return MeanEstimate(math.nan, math.inf)
    value = float(weights @ rewards) / total_weight
    return estimate_mean(weights * (rewards - value) / weights.mean())._replace(value=value)


def compute_effective_size(weights: FloatArray) -> float:
    """Return the number of equally weighted rounds that would have the same variance, (sum w)^2 /
    sum w^2 (Kish).
    """
    squares = float(weights @ weights)
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


class LiftSequence:
    """The lift of a policy over a control group, with an interval that is valid at all times
    simultaneously.

    The lift is the mean reward of the policy minus the mean reward of the control group.

    A round belongs to the control group with a known probability c. Its term is (r - m) / (1 - c)
    for the policy and -(r - m) / c for the control group, where r is the reward. m is (1 - c) times
    the mean of the control group plus c times the mean of the policy, over earlier rewards only.
    The expectation of the term is the lift, for any c and also if rewards change over time.

    Limits are an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas:
    "Time-uniform central limit theory and asymptotic confidence sequences", 2024). The probability
    that the interval ever misses the mean lift is at most ``1 - confidence``, however often it is
    checked, up to an error that vanishes as the groups grow. Limits use the larger of two
    variances: the variance of the terms, and their variance if both groups had the same rewards.
    Otherwise the interval would be too narrow if rare rewards are missing in the control group by
    chance.
    """

    def __init__(self, confidence: float = 0.95) -> None:
        self._alpha = 1.0 - confidence
        log_term = -2.0 * math.log(self._alpha)
        #: The square of the parameter rho of the confidence sequence; it determines where the
        #: interval is tightest.
        self._rho_squared = (log_term + math.log(log_term + 1.0)) / _OPTIMAL_ROUNDS
        #: The number of rewards of the policy, and of the control group.
        self._counts = [0, 0]
        #: The sum of the rewards of the policy, and of the control group.
        self._reward_sums = [0.0, 0.0]
        self._n_terms = 0
        #: The sum of the terms, of their squares, and of their expected squares if both groups had
        #: the same rewards.
        self._sum_terms = self._sum_squares = self._sum_pooled_squares = 0.0
        #: True once the upper limit was below 0.
        self.is_worse = False
        #: True once the lower limit was above 0.
        self.is_better = False

    @property
    def counts(self) -> tuple[int, int]:
        """The number of rewards of the policy, and of the control group."""
        return self._counts[0], self._counts[1]

    def add(self, reward: float, control_probability: float, *, in_control: bool) -> None:
        """Add the reward of a round, which was in the control group with
        ``control_probability``.
        """
        if any(self._counts):  # the first reward has no earlier rewards to compare with
            overall_mean = sum(self._reward_sums) / sum(self._counts)
            groups = zip(self._reward_sums, self._counts, strict=True)
            policy_mean, control_mean = (
                total / count if count else overall_mean for total, count in groups
            )
            centre = (1.0 - control_probability) * control_mean + control_probability * policy_mean
            term = (reward - centre) * (
                -1.0 / control_probability if in_control else 1.0 / (1.0 - control_probability)
            )
            self._n_terms += 1
            self._sum_terms += term
            self._sum_squares += term * term
            self._sum_pooled_squares += (reward - centre) ** 2 / (
                control_probability * (1.0 - control_probability)
            )
        self._counts[in_control] += 1
        self._reward_sums[in_control] += reward
        _, low, high = self.compute_lift()
        self.is_worse |= high < 0.0
        self.is_better |= low > 0.0

    def compute_lift(self) -> tuple[float, float, float]:
        """Return the estimated lift and its lower and upper limit.

        Limits are infinite while a group is small.
        """
        n = self._n_terms
        if not n:
            return math.nan, -math.inf, math.inf
        value = self._sum_terms / n
        if min(self.counts) < _MIN_GROUP_REWARDS:
            return value, -math.inf, math.inf
        variance = max(self._sum_squares / n - value * value, self._sum_pooled_squares / n)
        rho_squared = self._rho_squared
        growth = n * self._rho_squared + 1.0
        half_width = math.sqrt(
            2.0 * variance * growth / (n * n * rho_squared) * math.log(growth**0.5 / self._alpha)
        )
        return value, value - half_width, value + half_width
