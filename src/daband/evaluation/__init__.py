"""Evaluation: zero-shot regret and accuracy of a fixed policy, the bound's terms, and signs of collapse."""

from daband.evaluation.bound import (
    BoundTerms,
    LiveBound,
    Seen,
    best_joint_error,
    discriminator_divergence,
    hypothesis_divergence,
    observable_bound,
)
from daband.evaluation.diagnostics import CollapseWarning, CollapseWatch
from daband.evaluation.zero_shot import Evaluation, evaluate

__all__ = [
    "BoundTerms",
    "CollapseWarning",
    "CollapseWatch",
    "Evaluation",
    "LiveBound",
    "Seen",
    "best_joint_error",
    "discriminator_divergence",
    "evaluate",
    "hypothesis_divergence",
    "observable_bound",
]
