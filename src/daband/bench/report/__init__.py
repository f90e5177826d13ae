"""Reports: tables, figures and one HTML page; and data frames for notebooks. Reads run folders only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from daband.bench.report._method_summaries import (
    Mean,
    MethodSummary,
    PaperAccuracy,
    paper_ablation,
    paper_accuracy,
    paper_tables,
    summarise,
)
from daband.bench.report._run_files import read_records

if TYPE_CHECKING:
    from daband.bench.report._data_frames import compare, episodes, frame
    from daband.bench.report._page import markdown_table, write_report
    from daband.bench.report._sections_results import selection_table
    from daband.bench.report._sections_runs import continued_table

__all__ = [
    "Mean", "MethodSummary", "PaperAccuracy", "compare", "continued_table", "episodes", "frame", "markdown_table",
    "paper_ablation", "paper_accuracy", "paper_tables", "read_records", "selection_table", "summarise", "write_report",
]  # fmt: skip

_NEED_LIBRARIES = dict.fromkeys(("compare", "episodes", "frame"), "data_frames")
_NEED_LIBRARIES |= {"continued_table": "sections_runs", "selection_table": "sections_results"}
_NEED_LIBRARIES |= dict.fromkeys(("markdown_table", "write_report"), "page")


def __getattr__(name: str) -> Any:
    # polars and matplotlib take a second to import, which a command that draws nothing should not wait for.
    if name in _NEED_LIBRARIES:
        return getattr(importlib.import_module(f"daband.bench.report._{_NEED_LIBRARIES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
