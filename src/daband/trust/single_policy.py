"""Estimates of target accuracy for one policy alone, from the literature.

* ``confidence``: mean confidence in the target (Hendrycks, Gimpel, ICLR 2017).
* ``difference_of_confidences``: source accuracy less the fall in confidence (DoC: Guillory et al., ICCV 2021).
* ``average_thresholded_confidence``: the share of target contexts whose score is above the threshold that as many
  source contexts exceed as are right there (ATC: Garg et al., ICLR 2022); by largest probability, negative entropy or
  margin.
* ``optimal_transport``: one less the distance between predictions in the target and labels drawn as often as in the
  source (COT: Lu et al., "Characterizing out-of-distribution error via optimal transport", NeurIPS 2023), with the
  arms' frequencies as predicted in the source, because bandit rewards tell of no label.
* ``neighbours``: mean reward of the nearest source predictions of each target context.

Every function takes ``Scores`` and returns an estimate per member, (M,). Probabilities are a softmax of ten times the
predicted rewards, as in training.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from daband.arrays import FloatArray, IntArray
from daband.evaluation.scores import Scores
from daband.linear.arm_frequencies import arm_probabilities

__all__ = [
    "average_thresholded_confidence",
    "confidence",
    "difference_of_confidences",
    "neighbours",
    "optimal_transport",
    "probabilities",
    "source_accuracy",
]

SCALE = 10.0
_NEIGHBOURS = 10


def probabilities(mean: FloatArray, scale: float = SCALE) -> FloatArray:
    """A softmax over arms, the last axis, of predicted rewards times ``scale``."""
    return arm_probabilities(mean, scale)


def source_accuracy(scores: Scores) -> FloatArray:
    """The source's mean reward, as if nothing had changed, (M,)."""
    return scores.source_value()


def confidence(scores: Scores) -> FloatArray:
    """Mean largest probability in the target, (M,)."""
    mean: FloatArray = probabilities(scores.target_mean).max(axis=2).mean(axis=1)
    return mean


def difference_of_confidences(scores: Scores) -> FloatArray:
    """DoC, (M,)."""
    here = probabilities(scores.source_mean).max(axis=2).mean(axis=1)
    estimate: FloatArray = np.clip(scores.source_value() + confidence(scores) - here, 0.0, 1.0)
    return estimate


def average_thresholded_confidence(scores: Scores, by: Literal["max", "entropy", "margin"] = "entropy") -> FloatArray:
    """ATC, (M,)."""
    here, there = (_score(probabilities(mean), by) for mean in (scores.source_mean, scores.target_mean))
    found = []
    for member, value in enumerate(scores.source_value()):
        threshold = np.quantile(here[member], float(np.clip(1.0 - value, 0.0, 1.0)))
        found.append(float((there[member] > threshold).mean()))
    return np.asarray(found)


def _score(probability: FloatArray, by: str) -> FloatArray:
    if by == "max":
        largest: FloatArray = probability.max(axis=2)
        return largest
    if by == "entropy":
        surprise: FloatArray = (probability * np.log(np.maximum(probability, 1e-12))).sum(axis=2)
        return surprise
    two = np.partition(probability, -2, axis=2)
    margin: FloatArray = two[..., -1] - two[..., -2]
    return margin


def optimal_transport(scores: Scores, *, most: int = 500) -> FloatArray:
    """COT, (M,)."""
    from scipy.optimize import linear_sum_assignment

    found = []
    for member in range(scores.members):
        there = probabilities(scores.target_mean[member, :most])
        frequencies = probabilities(scores.source_mean[member]).mean(axis=0)
        counts = _rounded(frequencies * len(there), len(there))
        labels = np.repeat(np.arange(scores.n_arms), counts)
        cost = 1.0 - there[:, labels]  # half the L1 distance to a one-hot label
        rows, columns = linear_sum_assignment(cost)
        found.append(1.0 - float(cost[rows, columns].mean()))
    return np.asarray(found)


def _rounded(shares: FloatArray, total: int) -> IntArray:
    """Whole numbers near ``shares`` with this sum."""
    counts = np.floor(shares).astype(np.int64)
    left = total - int(counts.sum())
    counts[np.argsort(counts - shares)[:left]] += 1
    return counts


def neighbours(scores: Scores, *, most: int = 1000) -> FloatArray:
    """Mean reward of the nearest source contexts by predicted rewards, with the same choice or not, (M,)."""
    found = []
    for member in range(scores.members):
        here, there = scores.source_mean[member, :most], scores.target_mean[member, :most]
        distance = np.square(there).sum(1)[:, None] - 2.0 * there @ here.T + np.square(here).sum(1)[None, :]
        count = min(_NEIGHBOURS, len(here))
        nearest = np.argpartition(distance, count - 1, axis=1)[:, :count]
        weight = scores.weight[member, :most][nearest]
        reward = scores.reward[member, :most][nearest]
        total = weight.sum(axis=1)
        known = total > 0
        mean = (weight * reward).sum(axis=1)[known] / total[known]
        found.append(float(mean.mean()) if known.any() else float(scores.source_value()[member]))
    return np.asarray(found)
