"""Estimates with a standard error, and the intervals and sample sizes that follow from weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from daband.arrays import FloatArray

__all__ = ["MeanEstimate", "RunningMean", "WeightSums", "effective_sample_size", "mean_estimate", "normal_interval"]


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


@dataclass
class RunningMean:
    """``mean_estimate`` of values that come in batches (Chan, Golub, LeVeque 1983)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of squared distances from the mean."""

    def add(self, values: FloatArray) -> None:
        """Add values (n,)."""
        n, mean = len(values), float(values.mean())
        apart = mean - self.mean
        together = self.n + n
        self.squares += float(((values - mean) ** 2).sum()) + apart * apart * self.n * n / together
        self.mean += apart * n / together
        self.n = together

    @property
    def estimate(self) -> MeanEstimate:
        """The mean and its standard error."""
        return MeanEstimate(self.mean, math.sqrt(self.squares / (self.n - 1) / self.n) if self.n > 1 else math.inf)


@dataclass(frozen=True)
class WeightSums:
    """What is to be known of weights, whether they are in memory or not."""

    total: float
    squares: float
    largest: float
    row: int
    """Where the largest one is."""

    @classmethod
    def of(cls, weights: FloatArray) -> WeightSums:
        """Those of weights (n,)."""
        row = int(weights.argmax())
        return cls(float(weights.sum()), float(weights @ weights), float(weights[row]), row)

    @property
    def effective_sample_size(self) -> float:
        """As the function of that name."""
        return self.total**2 / self.squares if self.squares > 0 else 0.0
