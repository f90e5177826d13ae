"""What the estimate of target accuracy is calculated from: numbers about a committee, or about one policy alone.

Each function takes ``Scores`` and returns a row of numbers per member, (M, F). Nothing depends on the names of arms, on
the order of contexts, or on any reward of the target.
"""

from __future__ import annotations

import numpy as np

from daband.arrays import FloatArray
from daband.evaluation.scores import Scores
from daband.trust.agreement import agreement
from daband.trust.single_policy import average_thresholded_confidence, probabilities
from daband.trust.support import outside_support

__all__ = ["COMMITTEE_FEATURES", "SINGLE_FEATURES", "committee_features", "logit", "single_features"]

_ROUNDS_BEFOREHAND = 4.0
"""Shares are shrunk as if so many more rounds had been seen, half of them right: no logit is infinite."""
_MOST = 600

COMMITTEE_FEATURES = (
    "source accuracy",
    "fall of agreement",
    "disagreement",
    "own agreement",
    "fall of predictions",
    "fall of confidence",
    "outside",
    "arms",
    "fall of reference",
    "no encoder",
    "one",
)
SINGLE_FEATURES = (
    "source accuracy",
    "fall above threshold",
    "fall of predictions",
    "fall of confidence",
    "outside",
    "arms",
    "fall of reference",
    "no encoder",
    "one",
)


def logit(share: FloatArray, n: float) -> FloatArray:
    """Log odds of a share of ``n`` cases, shrunk towards one half."""
    shrunk = (share * n + 0.5 * _ROUNDS_BEFOREHAND) / (n + _ROUNDS_BEFOREHAND)
    odds: FloatArray = np.log(shrunk) - np.log1p(-shrunk)
    return odds


def committee_features(scores: Scores, reference: FloatArray | None = None) -> FloatArray:
    """``COMMITTEE_FEATURES`` of every member, (M, F); M is at least 2.

    ``reference`` is what ``reference_agreement`` returns, (M, 2), for policies without an encoder; None for others.
    """
    here, there = agreement(scores.source_arm), agreement(scores.target_arm)
    n, m = scores.source_arm.shape[1], scores.target_arm.shape[1]
    source, target = logit(here.mean(), n), logit(there.mean(), m)
    right = logit(scores.source_value().mean(), float(scores.effective_rounds().mean())) if scores.binary else source
    columns = [right, target - source, 1.0 - there.mean(), there - there.mean(), *_common(scores, reference)]
    return np.stack([np.broadcast_to(column, (scores.members,)) for column in columns], axis=1)


def single_features(scores: Scores, reference: FloatArray | None = None) -> FloatArray:
    """``SINGLE_FEATURES`` of every member by itself, (M, F); ``reference`` as for a committee."""
    n, m = scores.source_arm.shape[1], scores.target_arm.shape[1]
    value = scores.source_value()
    if not scores.binary:  # how often a best arm is chosen is not known; as often as its own predictions say
        value = probabilities(scores.source_mean).max(axis=2).mean(axis=1)
    above = logit(average_thresholded_confidence(scores, "entropy"), m)
    columns = [logit(value, n), above - logit(scores.source_value(), n), *_common(scores, reference)]
    return np.stack([np.broadcast_to(column, (scores.members,)) for column in columns], axis=1)


def _common(scores: Scores, reference: FloatArray | None) -> list[FloatArray | float]:
    """Of every member: by how much predicted rewards and confidence fall, how much lies outside, how many arms."""
    rows, others = np.arange(scores.source_arm.shape[1]), np.arange(scores.target_arm.shape[1])
    predicted, confident, outside = [], [], []
    for member in range(scores.members):
        here, there = scores.source_mean[member], scores.target_mean[member]
        fall = there[others, scores.target_arm[member]].mean() - here[rows, scores.source_arm[member]].mean()
        predicted.append(fall)
        confident.append(probabilities(there).max(axis=1).mean() - probabilities(here).max(axis=1).mean())
        outside.append(outside_support(here[:_MOST], there[:_MOST]))
    less: FloatArray | float = 0.0
    if reference is not None:
        known = np.asarray(np.isfinite(reference).all(axis=1))
        share = np.where(known[:, None], reference, 0.5)
        less = np.where(known, logit(share[:, 1], len(others)) - logit(share[:, 0], len(rows)), 0.0)
    return [
        np.asarray(predicted),
        np.asarray(confident),
        np.asarray(outside),
        float(np.log(scores.n_arms)),
        less,
        float(reference is not None),
        1.0,
    ]
