"""Evaluation: value, regret and accuracy of a fixed policy, paired tests, the bound's terms, signs of collapse."""

from daband.evaluation.bound import (
    BoundTerms,
    LiveBound,
    best_joint_error,
    discriminator_divergence,
    hypothesis_divergence,
    observable_bound,
)
from daband.evaluation.collapse import CollapseWarning, CollapseWatch
from daband.evaluation.paired_test import Paired, compare_paired, holm
from daband.evaluation.zero_shot import Evaluation, best_arms, count_arms, evaluate

__all__ = [
    "BoundTerms",
    "CollapseWarning",
    "CollapseWatch",
    "Evaluation",
    "LiveBound",
    "Paired",
    "best_arms",
    "best_joint_error",
    "compare_paired",
    "count_arms",
    "discriminator_divergence",
    "evaluate",
    "holm",
    "hypothesis_divergence",
    "observable_bound",
]
