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

_MOST_REWARDS, _MOST_CONTEXTS = 1000, 1000
"""Rewards of all members together that the factor is fitted on, and contexts of each domain that get probabilities, at
the most: more take time, and change the factor by less than a step of its grid."""


@dataclass(frozen=True)
class CommitteeProbabilities:
    """That each arm is the best one, on some held-out source contexts (N', K) and some target contexts (L', K)."""

    source: FloatArray
    target: FloatArray
    source_rows: IntArray
    """Which contexts of the scores they are, (N',) and (L',)."""
    target_rows: IntArray

    def of_choices(self, scores: Scores) -> tuple[FloatArray, FloatArray]:
        """That each member's choice is the best arm: on source contexts (M, N'), and on target contexts (M, L')."""
        return (
            _chosen(self.source, scores.source_arm[:, self.source_rows]),
            _chosen(self.target, scores.target_arm[:, self.target_rows]),
        )


def committee_probabilities(scores: Scores) -> CommitteeProbabilities:
    """Calibrated probabilities in both domains."""
    rows = _spread(scores.source_arm.shape[1], _MOST_REWARDS // scores.members)
    scale = calibrated_scale(
        scores.source_mean[:, rows], scores.source_arm[:, rows], scores.reward[:, rows], scores.weight[:, rows]
    )
    here, there = (_spread(arms.shape[1], _MOST_CONTEXTS) for arms in (scores.source_arm, scores.target_arm))
    return CommitteeProbabilities(
        arm_probabilities(scores.source_mean[:, here], scale).mean(axis=0),
        arm_probabilities(scores.target_mean[:, there], scale).mean(axis=0),
        here,
        there,
    )


def _spread(total: int, most: int) -> IntArray:
    """At most so many rows, spread evenly over all of them."""
    return np.linspace(0, total - 1, min(total, most)).astype(np.int64)


def _chosen(probability: FloatArray, arms: IntArray) -> FloatArray:
    chosen: FloatArray = probability[np.arange(len(probability)), arms]
    return chosen
