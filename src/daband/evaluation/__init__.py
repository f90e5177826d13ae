"""Evaluation: a fixed policy's value, regret and accuracy; estimates from logs; paired tests; bounds; collapse."""

from daband.evaluation._collapse_watch import CollapseWarning
from daband.evaluation._off_policy import LogEstimate, evaluate_log
from daband.evaluation._regret_bound import BoundTerms
from daband.evaluation._zero_shot import Evaluation, evaluate

__all__ = ["BoundTerms", "CollapseWarning", "Evaluation", "LogEstimate", "evaluate", "evaluate_log"]
