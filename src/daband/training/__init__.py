"""The loop of one run: rounds, episodes, gradient steps, and the folder it is kept in."""

from daband.training.loop import Run, train
from daband.training.run_folder import RunFolder

__all__ = ["Run", "RunFolder", "train"]
