"""The loop of one run: rounds, episodes, gradient steps, and the folder it is kept in."""

from daband.training.fit_log import LogWarning, fit_log
from daband.training.loop import continue_on_target, train
from daband.training.profiling import Profile, Stopwatch
from daband.training.run_folder import RunFolder
from daband.training.stacked import Training, train_stacked
from daband.training.trainer import Run

__all__ = [
    "LogWarning",
    "Profile",
    "Run",
    "RunFolder",
    "Stopwatch",
    "Training",
    "continue_on_target",
    "fit_log",
    "train",
    "train_stacked",
]
