"""Which of several candidates to hand over, from what they choose in both domains and what the source paid for it.

The estimate of a candidate's target accuracy is its reward on held-out source rounds, times how much less it agrees
with others in the target than in the source. Two networks of one recipe and different seeds agree about as often as
they are right, so a network's others are its own members. Linear policies of different seeds make the same errors:
their others are all other candidates. Candidates stand from the simplest to the most complex. The best estimate wins,
unless a simpler candidate has nearly the same; the constant arm wins where contexts have not shown that they help in
the source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray, IntArray

__all__ = ["RULE", "Ballot", "chosen", "estimates"]

RULE = (
    "source value times kept agreement; the simplest within .02 of the best; a constant within one standard error "
    "of it in the source"
)
"""The rule in words, as records have it."""
_MARGIN = 0.02
_STANDARD_ERRORS = 1.0


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
    seed_matters: bool = True
    """Whether members differ by more than the order of rounds: where a network acts."""
    weight: FloatArray | None = None
    """How much each reward counts, (M, N); None for all alike. Of a log, the inverse propensity where the choice was
    the logged arm, and 0 elsewhere: there the reward is another arm's."""

    @property
    def source_value(self) -> float:
        """Mean reward over members and contexts; 0 where no reward counts."""
        weight = self._weight
        total = weight.sum(axis=1)
        known = total > 0
        return float(((weight * self.reward).sum(axis=1)[known] / total[known]).mean()) if known.any() else 0.0

    @property
    def standard_error(self) -> float:
        """That of the first member's mean reward; infinite where no reward counts."""
        weight, reward = self._weight[0], self.reward[0]
        total = float(weight.sum())
        if total == 0:
            return math.inf
        return math.sqrt(float(np.square(weight * (reward - (weight @ reward) / total)).sum())) / total

    @property
    def _weight(self) -> FloatArray:
        return np.ones_like(self.reward) if self.weight is None else self.weight


def estimates(ballots: Sequence[Ballot]) -> FloatArray:
    """Estimated target values of all candidates, scaled to [0, 1], (C,); of one without contexts its source value."""
    found = [ballot.source_value * _kept_agreement(i, ballots) for i, ballot in enumerate(ballots)]
    return np.asarray(np.clip(found, 0.0, 1.0), np.float64)


def chosen(ballots: Sequence[Ballot]) -> tuple[int, FloatArray]:
    """The place of the candidate to hand over, and every candidate's estimate; candidates stand simplest first."""
    values = estimates(ballots)
    uses = np.array([ballot.uses_contexts for ballot in ballots])
    if not uses.any():
        return int(values.argmax()), values
    place = int(np.flatnonzero(uses & (values >= values[uses].max() - _MARGIN))[0])
    needed = ballots[place].source_value - _STANDARD_ERRORS * ballots[place].standard_error
    for i, ballot in enumerate(ballots):
        if not ballot.uses_contexts and ballot.source_value >= needed:
            return i, values
    return place, values


def _kept_agreement(place: int, ballots: Sequence[Ballot]) -> float:
    """How often a candidate agrees with others in the target, as a share of how often it does in the source."""
    own = ballots[place]
    if not own.uses_contexts:
        return 1.0
    if own.seed_matters and len(own.source_arm) > 1:
        pairs = [((i, own), (j, own)) for i in range(len(own.source_arm)) for j in range(i)]
    else:
        others = [ballot for i, ballot in enumerate(ballots) if i != place and ballot.uses_contexts]
        pairs = [((0, own), (0, other)) for other in others]
    ratios = []
    for (i, one), (j, other) in pairs:
        here = float((one.source_arm[i] == other.source_arm[j]).mean())
        there = float((one.target_arm[i] == other.target_arm[j]).mean())
        ratios.append(there / max(here, 1e-9))
    return float(np.mean(ratios)) if ratios else 1.0
