"""The numbers that ``benchmarks/trust_study.py`` fitted, and how they turn features into an estimate with a bound.

The estimate is a logistic function of a few features, its weights shrunk towards the first alone, which is an
estimate by itself. The margin of the bound is a multiple of the spread that is usual at
such an estimate; the multiple is a conformal quantile of errors on data sets that the weights were not fitted on. A
test holds these numbers to those of the record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray
from daband.trust.features import COMMITTEE_FEATURES, SINGLE_FEATURES

__all__ = ["COMMITTEE", "SINGLE", "Calibration", "spread"]


@dataclass(frozen=True)
class Calibration:
    """A fitted estimator."""

    name: str
    features: tuple[str, ...]
    weights: tuple[float, ...]
    quantile: float
    """The margin in units of ``spread``."""

    def accuracy(self, features: FloatArray) -> FloatArray:
        """Estimated accuracies, (M,), of features (M, F)."""
        odds = features @ np.asarray(self.weights)
        share: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(odds, -30.0, 30.0)))
        return share

    def margin(self, features: FloatArray) -> FloatArray:
        """How far below its estimate a bound lies that holds for 95 of 100 policies, before sampling errors, (M,)."""
        return self.quantile * spread(self.accuracy(features), features)


def spread(accuracy: FloatArray, features: FloatArray) -> FloatArray:
    """How large errors of an estimate usually are, up to a factor, (M,).

    Less where nearly every choice is right or wrong; more where predictions have changed and choices flow to one arm,
    which are the last two features.
    """
    found: FloatArray = 0.05 + accuracy * (1.0 - accuracy) + features[:, -2] + features[:, -1]
    return found


COMMITTEE = Calibration(
    name="agreement beyond chance and change of confidence",
    features=COMMITTEE_FEATURES,
    weights=(0.9361, -0.5592, -0.8056),
    quantile=0.3127,
)

SINGLE = Calibration(
    name="change of confidence and optimal transport",
    features=SINGLE_FEATURES,
    weights=(0.8677, -1.0264, -0.8467),
    quantile=0.4645,
)
