"""The loop of one run: rounds, episodes, gradient steps, and the folder it is kept in."""

from daband.training.fit_log import LogWarning, fit_log, learn_log
from daband.training.loop import can_train_stacked, continue_on_target, run_phase, train, train_stacked
from daband.training.profiling import Profile, Stopwatch
from daband.training.source_weights import SourceWeights, measured_source_weights
from daband.training.train_candidates import CandidateProgress, train_candidates
from daband.training.trainer import Phase, Run, TrainSettings, source_phase
from daband.training.work_folder import Folder, as_json

__all__ = [
    "CandidateProgress", "Folder", "LogWarning", "Phase", "Profile", "Run", "SourceWeights", "Stopwatch",
    "TrainSettings", "as_json", "can_train_stacked", "continue_on_target", "fit_log", "learn_log",
    "measured_source_weights", "run_phase", "source_phase", "train", "train_candidates", "train_stacked",
]  # fmt: skip
