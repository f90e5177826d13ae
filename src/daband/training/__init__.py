"""The loop of one run: rounds, episodes, gradient steps, and the folder it is kept in."""

from daband.training._fit_log import LogWarning, fit_log, learn_log
from daband.training._loop import can_train_stacked, continue_on_target, run_phase, train, train_stacked
from daband.training._profiling import Profile, Stopwatch
from daband.training._train_candidates import CandidateProgress, train_candidates
from daband.training._trainer import Phase, Run, TrainSettings, source_phase
from daband.training._work_folder import Folder, as_json

__all__ = [
    "CandidateProgress", "Folder", "LogWarning", "Phase", "Profile", "Run", "Stopwatch",
    "TrainSettings", "as_json", "can_train_stacked", "continue_on_target", "fit_log", "learn_log",
    "run_phase", "source_phase", "train", "train_candidates", "train_stacked",
]  # fmt: skip
