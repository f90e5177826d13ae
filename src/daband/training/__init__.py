"""The loop of one run: rounds, episodes, gradient steps, and the folder it is kept in."""

from daband.training.loop import Run, continue_on_target, train
from daband.training.profiling import Profile, Stopwatch
from daband.training.run_folder import RunFolder

__all__ = ["Profile", "Run", "RunFolder", "Stopwatch", "continue_on_target", "train"]
