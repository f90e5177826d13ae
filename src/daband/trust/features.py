"""What the estimate of target accuracy is calculated from: three numbers about each member, of a committee or alone.

Nothing depends on the names of arms or on any reward of the target. There are few of them on purpose: weights that were
fitted on some data sets have to be right on others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray
from daband.evaluation.scores import Scores
from daband.trust.agreement import balanced_agreement
from daband.trust.committee_confidence import CommitteeProbabilities, committee_probabilities
from daband.trust.single_policy import probabilities

__all__ = ["COMMITTEE_FEATURES", "SINGLE_FEATURES", "Features", "features_of", "log_odds", "source_accuracy"]

_LEAST = 0.01
"""Shares are kept this far from 0 and 1 before their log odds are taken."""
_PRIOR_ROUNDS = 10.0
"""Source rounds at chance that are taken as seen beforehand: a few held-out rounds promise less than many."""

COMMITTEE_FEATURES = ("agreement and confidence", "concentration", "the first x change of predictions")
SINGLE_FEATURES = ("confidence", "concentration", "the first x change of predictions")


@dataclass(frozen=True)
class Features:
    """Of M policies that were scored together."""

    values: FloatArray
    """(M, 3), as ``COMMITTEE_FEATURES`` or ``SINGLE_FEATURES`` name them."""
    chance: float
    """The log odds of a random arm, which the first feature is counted from."""
    source: FloatArray
    """The accuracy in the source, as far as it is known, (M,)."""


def features_of(scores: Scores, calibrated: CommitteeProbabilities | None = None) -> Features:
    """The features of every member; of a committee where there are several policies, else of one alone.

    The first is an estimate by itself: the mean of two, in log odds beyond those of a random arm. One is agreement
    beyond chance; the other is the source's accuracy less the fall in the committee's calibrated probability of the
    member's choices. Members that share errors agree too much, and are too confident where few rounds calibrated them:
    the two fail in different places. One policy alone has the second only.

    The second feature is by how much more the top arm is chosen in the target: contexts that flow to one arm are the
    usual sign of a collapse. The third is the first times the change of the chosen arms' predicted rewards between
    domains. Predictions are calibrated in the source; where they are much lower or higher in the target, the policy is
    somewhere else, and what the first promises beyond chance counts less.
    """
    calibrated = committee_probabilities(scores) if calibrated is None else calibrated
    here, there = calibrated.of_choices(scores)
    right = source_accuracy(scores)
    kept = np.clip(right + there.mean(axis=1) - here.mean(axis=1), 0.0, 1.0)
    chance = float(log_odds(np.asarray(1.0 / scores.n_arms)))
    beyond = log_odds(kept) - chance
    if scores.members > 1:
        beyond = 0.5 * (beyond + log_odds(balanced_agreement(scores, right)) - chance)
    values = np.stack([beyond, _concentration(scores), beyond * _change(scores)], axis=1)
    return Features(values, chance, right)


def source_accuracy(scores: Scores) -> FloatArray:
    """How often each member is right in the source, as far as is known, (M,); a little towards chance.

    Where rewards are 0 or 1 it is the mean reward. Elsewhere no reward tells whether another arm would have paid more:
    how often the choice is the best arm by the mean of the committee's predictions stands in for it. For one policy
    alone it is its confidence.
    """
    if scores.binary:
        known = scores.source_value()
    elif scores.members > 1:
        known = (scores.source_arm == scores.source_mean.mean(axis=0).argmax(axis=1)).mean(axis=1)
    else:
        known = probabilities(scores.source_mean).max(axis=2).mean(axis=1)
    rounds = scores.effective_rounds()
    shrunk: FloatArray = (known * rounds + _PRIOR_ROUNDS / scores.n_arms) / (rounds + _PRIOR_ROUNDS)
    return shrunk


def log_odds(share: FloatArray) -> FloatArray:
    """Log odds of shares, which are kept .01 from 0 and 1."""
    inner = np.clip(share, _LEAST, 1.0 - _LEAST)
    odds: FloatArray = np.log(inner) - np.log1p(-inner)
    return odds


def _concentration(scores: Scores) -> FloatArray:
    """The share of the most chosen arm in the target less that in the source, (M,)."""
    tops = [
        [np.bincount(row, minlength=scores.n_arms).max() / len(row) for row in arms]
        for arms in (scores.source_arm, scores.target_arm)
    ]
    return np.asarray(tops[1]) - np.asarray(tops[0])


def _change(scores: Scores) -> FloatArray:
    """By how much the mean predicted reward of the chosen arms differs between domains, (M,)."""
    here, there = (
        np.take_along_axis(mean, arms[:, :, None], axis=2).mean(axis=(1, 2))
        for mean, arms in ((scores.source_mean, scores.source_arm), (scores.target_mean, scores.target_arm))
    )
    change: FloatArray = np.abs(there - here)
    return change
