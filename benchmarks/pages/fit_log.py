"""The page of results on logs larger than memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.runs import fill

Record = dict[str, Any]

NAMES = {
    "product float32": "reading and X'X alone, single precision",
    "product float64": "reading and X'X alone, double precision",
    "fit_log": "`fit_log`, one process",
    "fit_log ray": "`fit_log`, two Ray workers",
    "fit_log ray killed": "the same, one worker killed",
}


def fit_log_page(records: Sequence[Record]) -> str:
    """The page, from the records of ``fit_log.py``."""
    return fill("fit-log", records=records, rows=_rows, filters={"rate": _rate, "cpu": _cpu})


def _rows(record: Record) -> list[list[str]]:
    rows = []
    for kind, name in NAMES.items():
        if kind in record["results"]:
            of = record["results"][kind]
            difference, by_ray = of["largest_difference"], "ray" in kind
            rows.append([
                name, f"{_rate(of) / 1e6:.2f}", "" if by_ray else f"{1e9 * _cpu(of) / record['rows']:.0f}",
                "" if by_ray else f"{of['peak_bytes'] / 1e9:.2f}",
                "" if difference is None or kind == "fit_log" else f"{difference:.0e}" if difference else "0",
            ])  # fmt: skip
    return rows


def _rate(result: Record) -> float:
    return float(np.median(result["rows_per_second"]))


def _cpu(result: Record) -> float:
    return float(np.median(result["cpu_seconds"]))
