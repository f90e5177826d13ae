"""Experiments: presets, one run from settings to a folder, and many runs at a time."""

from daband.experiments.assess_runs import AssessedRun, assess_runs, with_committees
from daband.experiments.audited import AUDIT_FOLDER, begin_audit
from daband.experiments.bench import BenchError, bench, read_results
from daband.experiments.continued import continue_bench, continue_run, finished_runs
from daband.experiments.executors import Event, Executor, Listener, WorkerDied
from daband.experiments.methods import build_policy, method_names
from daband.experiments.profiled import Profiled, profile_run
from daband.experiments.run import execute
from daband.experiments.settings import Experiment, RunSpec, load_experiment, preset_names

__all__ = [
    "AUDIT_FOLDER",
    "AssessedRun",
    "BenchError",
    "Event",
    "Executor",
    "Experiment",
    "Listener",
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
    "finished_runs",
    "load_experiment",
    "method_names",
    "preset_names",
    "profile_run",
    "read_results",
    "with_committees",
]
