"""How probable the committee thinks each arm to be the best one, calibrated on the source's rewards.

The mean of the members' probabilities, as of a deep ensemble (Lakshminarayanan, Pritzel, Blundell, NeurIPS 2017): it is
high where members agree and each is confident, so that agreement counts by how close a decision was. One factor before
the softmax makes the rewards of the members' choices on held-out source rounds likeliest. Of one policy alone these are
its own probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray, IntArray
from daband.evaluation.scores import Scores
from daband.linear.arm_frequencies import arm_probabilities, calibrated_scale

__all__ = ["CommitteeProbabilities", "committee_probabilities"]

_MOST_ROUNDS = 500
"""Source rounds that the factor is fitted on at most: more change it by less than the grid's step."""


@dataclass(frozen=True)
class CommitteeProbabilities:
    """That each arm is the best one, on held-out source contexts (N, K) and on target contexts (L, K)."""

    source: FloatArray
    target: FloatArray

    def of_choices(self, scores: Scores) -> tuple[FloatArray, FloatArray]:
        """That each member's choice is the best arm: on source contexts (M, N), and on target contexts (M, L)."""
        return _chosen(self.source, scores.source_arm), _chosen(self.target, scores.target_arm)


def committee_probabilities(scores: Scores) -> CommitteeProbabilities:
    """Calibrated probabilities in both domains."""
    rounds = scores.source_arm.shape[1]
    rows = np.linspace(0, rounds - 1, min(rounds, _MOST_ROUNDS)).astype(np.int64)
    scale = calibrated_scale(
        scores.source_mean[:, rows], scores.source_arm[:, rows], scores.reward[:, rows], scores.weight[:, rows]
    )
    here, there = (_mean_probabilities(mean, scale) for mean in (scores.source_mean, scores.target_mean))
    return CommitteeProbabilities(here, there)


def _mean_probabilities(mean: FloatArray, scale: float) -> FloatArray:
    total = arm_probabilities(mean[0], scale)
    for member in mean[1:]:
        total += arm_probabilities(member, scale)
    return total / len(mean)


def _chosen(probability: FloatArray, arms: IntArray) -> FloatArray:
    chosen: FloatArray = probability[np.arange(len(probability)), arms]
    return chosen
