"""The loop of one run: rounds, episodes, gradient steps, and the folder it is kept in."""

from daband.training.loop import Run, Training, continue_on_target, train, train_together
from daband.training.profiling import Profile, Stopwatch
from daband.training.run_folder import RunFolder

__all__ = [
    "Profile",
    "Run",
    "RunFolder",
    "Stopwatch",
    "Training",
    "continue_on_target",
    "train",
    "train_together",
]
