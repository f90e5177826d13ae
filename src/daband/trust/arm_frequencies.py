"""How often each arm is expected to be the best one in the target, from predictions and bandit rewards of the source.

``linear/arm_frequencies.py`` says how, and by which papers. The study of ``assess`` was made with a weak prior that
keeps every arm possible, so that is what stands here.
"""

from __future__ import annotations

import numpy as np

from daband.arrays import FloatArray
from daband.evaluation.scores import Scores
from daband.linear.arm_frequencies import calibrated_scale
from daband.trust.single_policy import probabilities

__all__ = ["expected_arm_frequencies", "label_shift"]

_ITERATIONS = 100
_PRIOR_COUNT = 2.0
"""Contexts of each arm that are taken as seen beforehand: no arm's frequency is estimated as exactly 0."""


def label_shift(source: FloatArray, target: FloatArray) -> FloatArray:
    """Frequencies of arms in the target, (K,), from probabilities (N, K) and (L, K) calibrated on the source."""
    before = source.mean(axis=0)
    before = before / before.sum()
    counts = len(target) + _PRIOR_COUNT * len(before)
    after = before
    for _ in range(_ITERATIONS):
        weighted = target * (after / np.maximum(before, 1e-12))
        responsibility = weighted / np.maximum(weighted.sum(axis=1, keepdims=True), 1e-12)
        new = (responsibility.sum(axis=0) + _PRIOR_COUNT * before * len(before)) / counts
        new = new / new.sum()
        if np.abs(new - after).max() < 1e-6:
            return np.asarray(new)
        after = new
    return np.asarray(after)


def expected_arm_frequencies(scores: Scores, member: int = 0) -> tuple[FloatArray, FloatArray]:
    """How often each arm is best, in the source and in the target, as one member's predictions say, (K,) each."""
    scale = calibrated_scale(
        scores.source_mean[member], scores.source_arm[member], scores.reward[member], scores.weight[member]
    )
    here, there = (probabilities(mean[member], scale) for mean in (scores.source_mean, scores.target_mean))
    before = here.mean(axis=0)
    return before / before.sum(), label_shift(here, there)
