"""Write reports of run folders as one HTML page, and read runs as data frames."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from daband.bench.report._method_summaries import paper_ablation

if TYPE_CHECKING:
    from daband.bench.report._page import write_report
    from daband.bench.report._run_files import frame

__all__ = ["frame", "paper_ablation", "write_report"]

#: Functions whose modules take a second to import: matplotlib, polars.
_MODULE_BY_FUNCTION = {"write_report": "_page", "frame": "_run_files"}


def __getattr__(name: str) -> Any:
    if name in _MODULE_BY_FUNCTION:
        return getattr(import_module(f"{__name__}.{_MODULE_BY_FUNCTION[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
