"""The numbers that ``benchmarks/trust_study.py`` fitted, and how they turn features into an estimate with a bound.

The estimate is a logistic function of the features, its weights shrunk towards agreement on the line (Baek et al.,
NeurIPS 2022): the log odds of accuracy change between domains as those of agreement do. The margin of the bound is a
multiple of the spread that is usual at such an estimate; the multiple is a conformal quantile of errors on data sets
that the weights were not fitted on. A test holds these numbers to those of the record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray
from daband.trust.features import COMMITTEE_FEATURES, SINGLE_FEATURES

__all__ = ["COMMITTEE", "SINGLE", "Calibration"]


@dataclass(frozen=True)
class Calibration:
    """A fitted estimator."""

    name: str
    features: tuple[str, ...]
    weights: tuple[float, ...]
    quantile: float
    """The margin in units of ``spread``."""
    floor: float
    """The spread where an estimate is 0 or 1."""

    def accuracy(self, features: FloatArray) -> FloatArray:
        """Estimated accuracies, (M,), of features (M, F)."""
        odds = features @ np.asarray(self.weights)
        share: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(odds, -30.0, 30.0)))
        return share

    def margin(self, accuracy: FloatArray) -> FloatArray:
        """How far below its estimate a bound lies that holds for 95 of 100 policies, before sampling errors, (M,)."""
        return self.quantile * spread(accuracy, self.floor)


def spread(accuracy: FloatArray, floor: float) -> FloatArray:
    """How large errors of an estimate usually are, up to a factor: less where nearly every choice is right."""
    found: FloatArray = floor + 4.0 * accuracy * (1.0 - accuracy)
    return found


COMMITTEE = Calibration(
    name="corrected agreement",
    features=COMMITTEE_FEATURES,
    weights=(1.0, 1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0),
    quantile=0.2,
    floor=0.1,
)

SINGLE = Calibration(
    name="corrected thresholded confidence",
    features=SINGLE_FEATURES,
    weights=(1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0),
    quantile=0.35,
    floor=0.1,
)
