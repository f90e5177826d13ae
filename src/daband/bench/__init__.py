"""Run experiments: presets, methods x seeds x pairs, ablations, and a report."""

from daband.bench._bench import BenchError, bench
from daband.bench._records import read_results
from daband.bench._report import write_report
from daband.bench._settings import Experiment, load_experiment, preset_names
from daband.bench._tables import read_paper_tables

__all__ = [
    "BenchError",
    "Experiment",
    "bench",
    "load_experiment",
    "preset_names",
    "read_paper_tables",
    "read_results",
    "write_report",
]
