"""Train policies on a pair of domains or on logs of any size, and evaluate them.

``evaluate`` needs the expected reward of every arm.
"""

from daband.training._candidates import CandidateProgress
from daband.training._fit_log import LogWarning, fit_log, learn_log
from daband.training._loop import continue_on_target, train
from daband.training._trainer import Run
from daband.training._zero_shot import Evaluation, evaluate

__all__ = [
    "CandidateProgress",
    "Evaluation",
    "LogWarning",
    "Run",
    "continue_on_target",
    "evaluate",
    "fit_log",
    "learn_log",
    "train",
]
