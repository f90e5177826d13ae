"""Evaluate fixed policies, estimate their values from logs, and watch training runs.

``evaluate`` needs the expected reward of every arm, and ``evaluate_log`` only logged rounds.
``BoundTerms`` and ``CollapseWarning`` are about a training run.
"""

from daband.evaluation._collapse_watch import CollapseWarning
from daband.evaluation._off_policy import LogEstimate, evaluate_log
from daband.evaluation._regret_bound import BoundTerms
from daband.evaluation._zero_shot import Evaluation, evaluate

__all__ = ["BoundTerms", "CollapseWarning", "Evaluation", "LogEstimate", "evaluate", "evaluate_log"]
