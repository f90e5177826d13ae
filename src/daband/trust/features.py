"""What the estimate of target accuracy is calculated from: numbers about a committee, or about one policy alone.

Each function takes ``Scores`` and returns a row of numbers per member, (M, F). Nothing depends on the names of arms, on
the order of contexts, or on any reward of the target. There are few of them on purpose: weights that were fitted on
some data sets have to be right on others.
"""

from __future__ import annotations

import numpy as np

from daband.arrays import FloatArray
from daband.evaluation.scores import Scores
from daband.trust.agreement import balanced_agreement
from daband.trust.single_policy import difference_of_confidences, optimal_transport

__all__ = ["COMMITTEE_FEATURES", "SINGLE_FEATURES", "committee_features", "single_features"]

_TRANSPORTED = 300
_LEAST = 0.01
"""Shares are kept this far from 0 and 1 before their log odds are taken."""

COMMITTEE_FEATURES = ("lower of agreement and confidence", "change of predictions", "concentration")
SINGLE_FEATURES = ("lower of confidence and transport", "change of predictions", "concentration")


def committee_features(scores: Scores) -> FloatArray:
    """``COMMITTEE_FEATURES`` of every member, (M, 3); M is at least 2.

    Agreement errs upwards where members share errors, and confidence where a policy is sure of them: of the two
    estimates the lower one is taken.
    """
    lower = np.minimum(balanced_agreement(scores), difference_of_confidences(scores))
    return np.stack([_log_odds(lower), *_changes(scores)], axis=1)


def single_features(scores: Scores) -> FloatArray:
    """``SINGLE_FEATURES`` of every member by itself, (M, 3): the lower of the two best estimates for one policy."""
    lower = np.minimum(difference_of_confidences(scores), optimal_transport(scores, most=_TRANSPORTED))
    return np.stack([_log_odds(lower), *_changes(scores)], axis=1)


def _log_odds(share: FloatArray) -> FloatArray:
    inner = np.clip(share, _LEAST, 1.0 - _LEAST)
    odds: FloatArray = np.log(inner) - np.log1p(-inner)
    return odds


def _changes(scores: Scores) -> tuple[FloatArray, FloatArray]:
    """By how much the chosen arms' predicted rewards change between domains, and how much more the top arm is chosen.

    Both are (M,) and not negative. Predictions of rewards are calibrated in the source; where they are much lower or
    higher in the target, the policy is somewhere else. Contexts that flow to one arm are the usual sign of a collapse.
    """
    rows, others = np.arange(scores.source_arm.shape[1]), np.arange(scores.target_arm.shape[1])
    changed, concentrated = [], []
    for member in range(scores.members):
        here, there = scores.source_arm[member], scores.target_arm[member]
        before, after = scores.source_mean[member][rows, here].mean(), scores.target_mean[member][others, there].mean()
        changed.append(abs(float(after - before)))
        tops = [np.bincount(arms, minlength=scores.n_arms).max() / len(arms) for arms in (here, there)]
        concentrated.append(max(0.0, float(tops[1] - tops[0])))
    return np.asarray(changed), np.asarray(concentrated)
