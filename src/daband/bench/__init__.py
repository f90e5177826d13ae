"""Run experiments: presets, methods x seeds x pairs, ablations and sweeps; ``daband.bench.report`` shows them."""

from daband.bench._bench import BenchError, bench, continue_bench
from daband.bench._executors import on_ray
from daband.bench._methods import method_names
from daband.bench._records import read_results
from daband.bench._settings import Experiment, RunSpec, load_experiment, preset_names

__all__ = [
    "BenchError", "Experiment", "RunSpec", "bench", "continue_bench", "load_experiment", "method_names", "on_ray",
    "preset_names", "read_results",
]  # fmt: skip
