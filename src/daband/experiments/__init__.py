"""Experiments: presets, one run from settings to a folder, and many runs at a time."""

from daband.experiments.assess_runs import AssessedRun, assess_runs, with_committees
from daband.experiments.bench import BenchError, bench, continue_bench
from daband.experiments.executors import Event, Executor, Listener, WorkerDied
from daband.experiments.methods import build_policy, method_names
from daband.experiments.records import read_results
from daband.experiments.run import (
    AUDIT_FOLDER,
    CANDIDATES_FOLDER,
    CHOICE_FILE,
    PolicyFolder,
    Profiled,
    begin_audit,
    continue_run,
    execute,
    finish_choice,
    finished_runs,
    policy_folder,
    profile_run,
    start_from_shorter,
)
from daband.experiments.settings import Experiment, RunSpec, load_experiment, preset_names

__all__ = [
    "AUDIT_FOLDER",
    "CANDIDATES_FOLDER",
    "CHOICE_FILE",
    "AssessedRun",
    "BenchError",
    "Event",
    "Executor",
    "Experiment",
    "Listener",
    "PolicyFolder",
    "Profiled",
    "RunSpec",
    "WorkerDied",
    "assess_runs",
    "begin_audit",
    "bench",
    "build_policy",
    "continue_bench",
    "continue_run",
    "execute",
    "finish_choice",
    "finished_runs",
    "load_experiment",
    "method_names",
    "policy_folder",
    "preset_names",
    "profile_run",
    "read_results",
    "start_from_shorter",
    "with_committees",
]
