"""Experiments: presets, one run from settings to a folder, and many runs at a time."""

from daband.bench._ablation import BASES, COMBINATIONS, AblationRow, ablation_rows, ablation_runs, write_ablation
from daband.bench._assess_runs import AssessedRun, assess_runs, with_committees
from daband.bench._bench import BenchError, bench, continue_bench
from daband.bench._executors import Executor, Listener, RunEvent
from daband.bench._methods import build_policy, checked_method, method_names, policy_class
from daband.bench._ray_executor import on_ray
from daband.bench._records import (
    TARGET_ACCURACY,
    TARGET_VALUE,
    Metric,
    Record,
    Records,
    decimals,
    group_by,
    metric_of,
    read_results,
)
from daband.bench._run import (
    AUDIT_FOLDER,
    PolicyFolder,
    begin_audit,
    continue_run,
    execute,
    finish_choice,
    finished_runs,
    policy_folder,
    read_spec,
    start_from_shorter,
)
from daband.bench._settings import Experiment, RunSpec, load_experiment, parse_override, preset_names
from daband.bench._sweep import (
    SELECTION_RULES,
    Point,
    SweepChoice,
    choices,
    measure,
    parse_grid,
    sweep_points,
    sweep_runs,
    write_sweep,
)

__all__ = [
    "AUDIT_FOLDER", "BASES", "COMBINATIONS", "SELECTION_RULES",
    "TARGET_ACCURACY", "TARGET_VALUE", "AblationRow", "AssessedRun", "BenchError", "Executor", "Experiment",
    "Listener", "Metric", "Point", "PolicyFolder", "Record", "Records", "RunEvent", "RunSpec",
    "SweepChoice", "ablation_rows", "ablation_runs", "assess_runs", "begin_audit", "bench",
    "build_policy", "checked_method", "choices", "continue_bench", "continue_run", "decimals", "execute",
    "finish_choice", "finished_runs", "group_by", "load_experiment", "measure", "method_names", "metric_of",
    "on_ray", "parse_grid", "parse_override", "policy_class", "policy_folder", "preset_names",
    "read_results", "read_spec", "start_from_shorter", "sweep_points", "sweep_runs", "with_committees",
    "write_ablation", "write_sweep",
]  # fmt: skip
