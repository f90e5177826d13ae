"""Estimates with a standard error, and the intervals and sample sizes that follow from weights."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from daband.arrays import FloatArray

__all__ = ["MeanEstimate", "effective_sample_size", "mean_estimate", "normal_interval"]


class MeanEstimate(NamedTuple):
    """A value and its standard error."""

    value: float
    error: float


def mean_estimate(values: FloatArray) -> MeanEstimate:
    """The mean of independent values (n,); with one value its error is infinite."""
    n = len(values)
    return MeanEstimate(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf)


def normal_interval(estimate: MeanEstimate, confidence: float) -> tuple[float, float]:
    """The interval that holds the truth with probability ``confidence`` where the estimate is normal."""
    reach = NormalDist().inv_cdf(0.5 + 0.5 * confidence) * estimate.error
    return estimate.value - reach, estimate.value + reach


def effective_sample_size(weights: FloatArray) -> float:
    """How many equally weighted rounds have the variance of these (Kish): (sum w)^2 / sum w^2; 0 without weight."""
    squares = float(weights @ weights)
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0
