"""Which of several candidates to hand over, from what they choose in both domains and what the source paid for it.

The estimate of a candidate's target accuracy is its reward on held-out source rounds, times how much less it agrees
with others in the target than in the source: with its own members (other seeds), and with the other candidates.
Candidates stand from the simplest to the most complex. The best estimate wins, unless a simpler candidate has nearly
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray, IntArray

__all__ = ["RULE", "Ballot", "chosen", "estimates"]

RULE = "corrected agreement, and the simplest within .02 of the best"
"""The name of the rule, as records have it."""
_MARGIN = 0.02


@dataclass(frozen=True)
class Ballot:
    """One candidate: M members of it on N held-out source contexts and L target contexts."""

    source_arm: IntArray
    """Chosen arms, (M, N)."""
    reward: FloatArray
    """What the source paid for each choice, scaled to [0, 1], (M, N)."""
    target_arm: IntArray
    """Chosen arms, (M, L)."""
    uses_contexts: bool = True

    @property
    def source_value(self) -> float:
        """Mean reward over members and contexts."""
        return float(self.reward.mean())


def _agreement(one: IntArray, other: IntArray, *, same: bool) -> float:
    """How often members of two candidates choose the same arm; of one candidate, two different members."""
    shares = [
        float((first == second).mean())
        for i, first in enumerate(one)
        for j, second in enumerate(other)
        if not (same and i >= j)
    ]
    return float(np.mean(shares)) if shares else float("nan")


def estimates(ballots: Sequence[Ballot]) -> FloatArray:
    """The estimated target accuracy of every candidate, (C,)."""
    found = np.empty(len(ballots))
    for i, own in enumerate(ballots):
        ratios = []
        for j, other in enumerate(ballots):
            if not (own.uses_contexts and other.uses_contexts):
                continue
            here = _agreement(own.source_arm, other.source_arm, same=i == j)
            there = _agreement(own.target_arm, other.target_arm, same=i == j)
            if np.isfinite(here) and here > 0:
                ratios.append(there / here)
        found[i] = own.source_value * (float(np.mean(ratios)) if ratios else 1.0)
    return np.clip(found, 0.0, 1.0)


def chosen(ballots: Sequence[Ballot]) -> tuple[int, FloatArray]:
    """The place of the candidate to hand over, and every candidate's estimate; candidates stand simplest first."""
    values = estimates(ballots)
    good = np.flatnonzero(values >= values.max() - _MARGIN)
    return int(good[0]), values
