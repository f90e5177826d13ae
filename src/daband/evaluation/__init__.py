"""Evaluation: a fixed policy's value, regret and accuracy; estimates from logs; paired tests; bounds; collapse."""

from daband.evaluation.bound import (
    BoundTerms,
    LiveBound,
    best_joint_error,
    discriminator_divergence,
    hypothesis_divergence,
    observable_bound,
)
from daband.evaluation.collapse import CollapseWarning, CollapseWatch
from daband.evaluation.off_policy import ESTIMATORS, LogEstimate, compare_estimators, evaluate_log
from daband.evaluation.paired_test import Paired, compare_paired, holm
from daband.evaluation.zero_shot import Evaluation, best_arms, count_arms, evaluate

__all__ = [
    "ESTIMATORS",
    "BoundTerms",
    "CollapseWarning",
    "CollapseWatch",
    "Evaluation",
    "LiveBound",
    "LogEstimate",
    "Paired",
    "best_arms",
    "best_joint_error",
    "compare_estimators",
    "compare_paired",
    "count_arms",
    "discriminator_divergence",
    "evaluate",
    "evaluate_log",
    "holm",
    "hypothesis_divergence",
    "observable_bound",
]
