"""Evaluation: a fixed policy's value, regret and accuracy; estimates from logs; paired tests; bounds; collapse."""

from daband.evaluation._collapse_watch import CollapseWarning, CollapseWatch
from daband.evaluation._model_selection import CRITERIA, SourceHistory, criteria
from daband.evaluation._off_policy import ESTIMATORS, LogEstimate, compare_estimators, evaluate_log
from daband.evaluation._paired_test import Paired, compare_paired, holm
from daband.evaluation._regret_bound import BoundTerms, LiveBound, discriminator_divergence, observable_bound
from daband.evaluation._zero_shot import Evaluation, best_arms, count_arms, evaluate

__all__ = [
    "CRITERIA", "ESTIMATORS", "BoundTerms", "CollapseWarning", "CollapseWatch", "Evaluation", "LiveBound",
    "LogEstimate", "Paired", "SourceHistory", "best_arms",
    "compare_estimators", "compare_paired", "count_arms", "criteria", "discriminator_divergence", "evaluate",
    "evaluate_log", "holm", "observable_bound",
]  # fmt: skip
