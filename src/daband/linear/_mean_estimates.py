"""Estimated means with intervals that allow for skewed terms: the statistics of everything estimated from a log.

The mean of skewed terms is skewed itself: if one buyer in a hundred spends a lot, most samples have too few of them,
and their standard error is too small at the same time. A normal interval then misses on the high side. Hall's
transformation ("On the removal of skewness by transformation", 1992) corrects the studentised mean for its estimated
skewness, like a studentised bootstrap does, and without random draws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from daband._arrays import FloatArray

_NEGLIGIBLE_SKEWNESS = 1e-6


class MeanEstimate(NamedTuple):
    """An estimated mean, and what is known of its sampling distribution."""

    value: float
    #: The standard error.
    error: float
    #: The skewness of the estimate: that of one term over the root of their number.
    skewness: float = 0.0
    #: Degrees of freedom of the standard error.
    freedom: float = math.inf

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the interval that contains the mean with probability ``confidence``."""
        from scipy.special import stdtrit  # policies run without scipy

        reach = float(stdtrit(self.freedom, 0.5 + 0.5 * confidence)) if self.freedom > 0 else math.inf
        return self.limit(reach), self.limit(-reach)

    def limit(self, quantile: float) -> float:
        """Return the limit that is this many standard errors below the estimate, corrected for skewness."""
        if not math.isfinite(self.error) or not math.isfinite(quantile):
            return math.copysign(math.inf, -quantile)
        if abs(self.skewness) > _NEGLIGIBLE_SKEWNESS:
            root = float(np.cbrt(1.0 + self.skewness * (quantile - self.skewness / 6.0)))
            quantile = 3.0 * (root - 1.0) / self.skewness
        return self.value - quantile * self.error

    def plus(self, other: MeanEstimate) -> MeanEstimate:
        """Return the estimate of the sum of two means from independent samples."""
        error = math.hypot(self.error, other.error)
        cubes = self.skewness * self.error**3 + other.skewness * other.error**3 if math.isfinite(error) else 0.0
        skewness = cubes / error**3 if error > 0 else 0.0
        return MeanEstimate(self.value + other.value, error, skewness, min(self.freedom, other.freedom))


def mean_estimate(terms: FloatArray) -> MeanEstimate:
    """Return the estimated mean of independent terms (n,); the error of one term is infinite."""
    n, value = len(terms), float(terms.mean())
    if n < 2:
        return MeanEstimate(value, math.inf, 0.0, 0.0)
    deviations = terms - value
    error = math.sqrt(float(deviations @ deviations) / (n - 1) / n)
    scale = float(np.abs(deviations).max())
    if not scale > 0.0 or not math.isfinite(error):
        return MeanEstimate(value, error, 0.0, n - 1.0)
    units = deviations / scale  # cubes of large rewards would overflow
    skewness = float((units**3).mean()) / float((units**2).mean()) ** 1.5 / math.sqrt(n)
    return MeanEstimate(value, error, skewness, n - 1.0)


def self_normalised(rewards: FloatArray, weights: FloatArray) -> MeanEstimate:
    """Return the weighted mean of rewards, with the error of a ratio (Swaminathan, Joachims 2015)."""
    total = float(weights.sum())
    if total == 0.0:
        return MeanEstimate(math.nan, math.inf)
    value = float(weights @ rewards) / total
    return mean_estimate(weights * (rewards - value) / weights.mean())._replace(value=value)


def effective_sample_size(weights: FloatArray) -> float:
    """Return how many rounds of equal weight have the variance of these (Kish): (sum w)^2 / sum w^2."""
    squares = float(weights @ weights)
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0
