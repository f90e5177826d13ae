"""How often each arm is expected to be the best one in the target, from predictions and bandit rewards of the source.

``linear/arm_frequencies.py`` says how, and by which papers; probabilities are the committee's.
"""

from __future__ import annotations

from daband.arrays import FloatArray
from daband.linear.arm_frequencies import label_shift
from daband.trust.committee_confidence import CommitteeProbabilities

__all__ = ["expected_arm_frequencies"]


def expected_arm_frequencies(probabilities: CommitteeProbabilities) -> tuple[FloatArray, FloatArray]:
    """How often each arm is best, in the source and in the target, as the committee's predictions say, (K,) each."""
    before = probabilities.source.mean(axis=0)
    return before / before.sum(), label_shift(probabilities.source, probabilities.target)
