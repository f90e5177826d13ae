"""Run experiments: presets, methods x seeds x pairs, ablations; ``daband.bench.report``
shows them.
"""

from daband.bench._bench import BenchError, bench
from daband.bench._settings import Experiment, load_experiment, preset_names

__all__ = ["BenchError", "Experiment", "bench", "load_experiment", "preset_names"]
