"""The estimate of target accuracy and value that ``assess`` reports, with its bound: for a committee, or one policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray
from daband.evaluation.scores import Scores
from daband.trust.agreement import agreement_by_context, corrected_agreement
from daband.trust.single_policy import average_thresholded_confidence, probabilities

__all__ = ["Estimate", "estimate_accuracy"]


@dataclass(frozen=True)
class Estimate:
    """Of the first policy, scaled to [0, 1]."""

    name: str
    accuracy: float
    accuracy_low: float
    value: float
    value_low: float
    members: FloatArray
    """The estimated accuracy of every policy, (M,)."""
    by_context: FloatArray
    """An estimated value for every target context, (L,), whose mean is ``value``."""


def estimate_accuracy(scores: Scores) -> Estimate:
    """Estimate accuracy and value of the first policy in the target."""
    raise NotImplementedError
