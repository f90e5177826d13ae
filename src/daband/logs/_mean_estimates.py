"""Estimate means, with confidence intervals that stay valid for skewed samples.

All estimates from logs use this module.

The mean of a skewed sample is skewed itself. If one buyer in a hundred spends a lot, most samples
have too few such buyers, so the mean and the standard error of the sample are both too small. A
normal interval is then too low. Hall's transformation ("On the removal of skewness by
transformation", 1992) corrects the studentised mean for its estimated skewness. A studentised
bootstrap has the same effect, but needs random draws. If a few rounds have most of the variance,
the variance is uncertain, and its degrees of freedom follow from the kurtosis (Box, 1953).

``estimate_mean`` is for a fixed sample. ``_controlled_trial.py`` is for an experiment that is checked
while it runs.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from daband.base._arrays import FloatArray, IntArray

#: Skewness is corrected only above this absolute value.
_MIN_SKEWNESS = 1e-6


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


def estimate_mean(values: FloatArray, clusters: IntArray | None = None) -> MeanEstimate:
    """Return the estimated mean of values (n,).

    Values are independent, or only values of different clusters are independent: ``clusters`` (n,)
    has the index of each value's cluster. With one value or one cluster, the standard error is
    infinite.
    """
    n = len(values)
    value = float(values.mean())
    deviations: FloatArray = values - value
    if clusters is not None:
        deviations = np.bincount(clusters, deviations).astype(np.float64)
    n_terms = len(deviations)
    if n_terms < 2:
        return MeanEstimate(value, math.inf, 0.0, 0.0)
    error = math.sqrt(float(deviations @ deviations) * n_terms / (n_terms - 1)) / n
    max_deviation = float(np.abs(deviations).max())
    if not max_deviation > 0.0 or not math.isfinite(error):
        return MeanEstimate(value, error, 0.0, n_terms - 1.0)
    scaled_deviations = deviations / max_deviation  # powers of large rewards would overflow
    variance, third_moment, fourth_moment = (
        float((scaled_deviations**power).mean()) for power in (2, 3, 4)
    )
    # The variance of a sample variance is that of 2 n / (kurtosis - 1) normal values.
    kurtosis = max(fourth_moment / variance**2, 3.0)
    skewness = third_moment / variance**1.5 / math.sqrt(n_terms)
    return MeanEstimate(value, error, skewness, 2.0 * (n_terms - 1) / (kurtosis - 1.0))


def estimate_means(values: FloatArray, clusters: IntArray | None = None) -> list[MeanEstimate]:
    """Return the estimated mean of each column of values (n, t)."""
    return [estimate_mean(column, clusters) for column in values.T]


def compute_effective_size(weights: FloatArray) -> float:
    """Return the number of equally weighted rounds that would have the same variance, (sum w)^2 /
    sum w^2 (Kish).
    """
    squares = float(weights @ weights)
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0
