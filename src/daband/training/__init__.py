"""The loop of one run: rounds, episodes, gradient steps, and the folder it is kept in."""

from daband.training.loop import continue_on_target, train
from daband.training.profiling import Profile, Stopwatch
from daband.training.run_folder import RunFolder
from daband.training.stacked import Training, train_stacked
from daband.training.trainer import Run

__all__ = [
    "Profile",
    "Run",
    "RunFolder",
    "Stopwatch",
    "Training",
    "continue_on_target",
    "train",
    "train_stacked",
]
