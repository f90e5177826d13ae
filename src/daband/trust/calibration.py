"""The numbers that ``benchmarks/trust_study.py`` fitted, and how they turn features into an estimate with a bound.

The estimate is a logistic function of a few features, its weights shrunk towards the first alone, which is an estimate
by itself. The margin of the bound is a multiple of the spread that is usual at such an estimate, beside the error of
sampling; the multiple is a conformal quantile of errors on data sets that the weights were not fitted on. A test holds
these numbers to those of the record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray
from daband.trust.features import COMMITTEE_FEATURES, SINGLE_FEATURES, Features

__all__ = ["COMMITTEE", "SINGLE", "Calibration", "spread"]


@dataclass(frozen=True)
class Calibration:
    """A fitted estimator."""

    name: str
    features: tuple[str, ...]
    weights: tuple[float, ...]
    quantile: float
    """The margin in units of ``spread``."""

    def accuracy(self, features: Features) -> FloatArray:
        """Estimated accuracies, (M,)."""
        odds = features.chance + features.values @ np.asarray(self.weights)
        share: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(odds, -30.0, 30.0)))
        return share

    def margin(self, features: Features) -> FloatArray:
        """How far below its estimate a bound lies that holds for 95 of 100 policies, before sampling errors, (M,)."""
        return self.quantile * spread(self.accuracy(features), features.source)


def spread(accuracy: FloatArray, source: FloatArray) -> FloatArray:
    """How large errors of an estimate usually are, up to a factor; estimates and accuracies in the source are (M,).

    Less where nearly every choice is right or wrong; more, the further the estimate lies below what the source showed:
    that nothing is lost can be seen, and how much is lost can be estimated only.
    """
    lost = np.maximum(source - accuracy, 0.0)
    found: FloatArray = (0.02 + accuracy * (1.0 - accuracy)) * (0.1 + lost)
    return found


COMMITTEE = Calibration(
    name="agreement beyond chance and calibrated confidence",
    features=COMMITTEE_FEATURES,
    weights=(0.9699, -0.7578, -0.6171),
    quantile=1.619,
)

SINGLE = Calibration(
    name="calibrated confidence",
    features=SINGLE_FEATURES,
    weights=(0.8759, -0.8786, -1.0668),
    quantile=2.6008,
)
