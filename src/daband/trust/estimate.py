"""The estimate of target accuracy and value that ``assess`` reports, with its bound: for a committee, or one policy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray
from daband.evaluation.scores import Scores
from daband.trust.agreement import agreement_by_context
from daband.trust.calibration import COMMITTEE, SINGLE
from daband.trust.committee_confidence import CommitteeProbabilities
from daband.trust.features import features_of, source_accuracy
from daband.trust.single_policy import probabilities

__all__ = ["Estimate", "constant_value", "estimate_target", "sampling_error"]

_NORMAL_95 = 1.645


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


def estimate_target(scores: Scores, calibrated: CommitteeProbabilities | None = None) -> Estimate:
    """Estimate accuracy and value of the first policy in the target.

    Where rewards are 0 or 1, the accuracy is the share of choices that pay, and the value is the same. Elsewhere the
    source tells no accuracy, and agreement there stands in for it; the value lies as far between that of a random arm
    and that in the source as the accuracy does. ``calibrated`` are the committee's probabilities, where they are known.
    """
    calibration = COMMITTEE if scores.members > 1 else SINGLE
    features = features_of(scores, calibrated)
    members = calibration.accuracy(features)
    accuracy = float(members[0])
    rounds, value = max(1.0, float(scores.effective_rounds()[0])), float(features.source[0])
    noise = sampling_error(rounds, value, scores.target_arm.shape[1], accuracy)
    margin = math.hypot(float(calibration.margin(features)[0]), _NORMAL_95 * noise)
    low = max(0.0, accuracy - margin)
    if scores.binary:
        value, value_low = accuracy, low
    else:
        at_chance, in_source, best_in_source = _anchors(scores)
        value, value_low = (
            float(np.clip(_between(share, scores.n_arms, at_chance, in_source, best_in_source), 0.0, 1.0))
            for share in (accuracy, low)
        )
    return Estimate(
        name=calibration.name,
        accuracy=accuracy,
        accuracy_low=low,
        value=value,
        value_low=value_low,
        members=members,
        by_context=_by_context(scores, value),
    )


def sampling_error(rounds: float, source: float, contexts: int, accuracy: float) -> float:
    """The standard error of an estimate by the numbers of source rounds and target contexts alone.

    ``source`` is the accuracy in the source, ``accuracy`` the estimate.
    """
    value = (source * rounds + 1.0) / (rounds + 2.0)
    relative = math.sqrt((1.0 - value) / (value * rounds))
    there = math.sqrt(max(accuracy * (1.0 - accuracy), 0.01) / contexts)
    return math.hypot(accuracy * relative, there)


def constant_value(scores: Scores, frequencies: FloatArray) -> float:
    """What the best constant arm is worth in the target, scaled to [0, 1]; frequencies of best arms there are (K,).

    Where rewards are 0 or 1 and the predictions for all arms add up to about 1, one arm pays: a constant arm is worth
    as much as it is often the best one. Elsewhere it is worth what is predicted of it.
    """
    if scores.binary and 0.5 < float(scores.source_mean.sum(axis=2).mean()) < 1.5:
        return float(frequencies.max())
    return float(np.clip(scores.target_mean.mean(axis=(0, 1)).max(), 0.0, 1.0))


def _anchors(scores: Scores) -> tuple[float, float, float]:
    """The value of a random arm in the source, of the policy there, and how often it is right, as far as is known."""
    at_chance = float(scores.source_mean[0].mean())
    in_source = float(scores.source_value()[0])
    return at_chance, in_source, float(source_accuracy(scores)[0])


def _between(accuracy: float, n_arms: int, at_chance: float, in_source: float, best_in_source: float) -> float:
    chance = 1.0 / n_arms
    share = (accuracy - chance) / max(best_in_source - chance, 0.05)
    return at_chance + share * (in_source - at_chance)


def _by_context(scores: Scores, value: float) -> FloatArray:
    """The estimate spread over contexts: more where members agree, or where one policy alone is confident."""
    if scores.members > 1:
        weight = 0.1 + agreement_by_context(scores.target_arm)
    else:
        weight = probabilities(scores.target_mean[0]).max(axis=1)
    return rescaled(weight / weight.max(), value)


def rescaled(share: FloatArray, mean: float) -> FloatArray:
    """Shares in [0, 1], (N,), raised or lowered in their log odds until they have this mean."""
    inner = np.clip(share, 0.02, 0.98)
    odds = np.log(inner) - np.log1p(-inner)
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if float((1.0 / (1.0 + np.exp(-odds - middle))).mean()) < mean:
            low = middle
        else:
            high = middle
    found: FloatArray = 1.0 / (1.0 + np.exp(-odds - 0.5 * (low + high)))
    return found
