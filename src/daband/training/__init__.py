"""The loop of one run: rounds, episodes, gradient steps, and the folder it is kept in."""

from daband.training.candidates import CandidateProgress, train_candidates
from daband.training.fit_log import LogWarning, fit_log, learn_log
from daband.training.folder import Folder, as_json
from daband.training.loop import Training, continue_on_target, run_phase, train, train_stacked
from daband.training.profiling import Profile, Stopwatch
from daband.training.source_weights import SourceWeights, measured_source_weights
from daband.training.trainer import Run, TrainSettings

__all__ = [
    "CandidateProgress", "Folder", "LogWarning", "Profile", "Run", "SourceWeights", "Stopwatch", "TrainSettings",
    "Training", "as_json", "continue_on_target", "fit_log", "learn_log", "measured_source_weights", "run_phase",
    "train", "train_candidates", "train_stacked",
]  # fmt: skip
