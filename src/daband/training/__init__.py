"""Train policies: on a pair of domains, or on logs of any size."""

from daband.training._fit_log import LogWarning, fit_log, learn_log
from daband.training._loop import CandidateProgress, continue_on_target, train
from daband.training._trainer import Run

__all__ = [
    "CandidateProgress",
    "LogWarning",
    "Run",
    "continue_on_target",
    "fit_log",
    "learn_log",
    "train",
]
