"""The page of results on logs larger than memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.text import paragraph

__all__ = ["fit_log_page"]

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
    lines = [
        "# Logs larger than memory",
        "",
        "<!-- Written by benchmarks/results_pages.py from benchmarks/records/fit-log.json. Do not edit. -->",
        "",
        paragraph(
            "`daband.fit_log` fits LinUCB with ten arms to a log of 32 float32 features in 64 Parquet files,",
            "weights and",
            "all checks included. Beside it stands what reading the same files and one matrix product, X'X of all",
            "contexts, take in the same run: a fit cannot do with less. Products run on one thread, which is fastest",
            "for their size, and sums are taken in double precision, so that those of parts add up to those of the",
            "whole to nine digits. [Large logs](../guide/large-logs.md) explains the call.",
        ),
        "",
    ]
    for record in records:
        results = record["results"]
        fast, double = (_rate(results[kind]) for kind in ("product float32", "product float64"))
        own = _rate(results["fit_log"])
        lines += [
            f"## {record['rows']:,} rounds",
            "",
            paragraph(
                f"{record['bytes'] / 1e9:.1f} GB. One process has a peak memory of",
                f"**{results['fit_log']['peak_bytes'] / 1e9:.2f} GB**, and reads and learns {own / 1e6:.2f} million",
                "rows a",
                f"second: **{own / fast:.2f} times** what reading and the product reach in single precision,",
                f"{own / double:.2f} times in double precision, in which sums have to be taken. Of processor time it",
                f"takes {_cpu(results['fit_log']) / _cpu(results['product float32']):.1f} and",
                f"{_cpu(results['fit_log']) / _cpu(results['product float64']):.1f} times as much.",
            ),
            "",
            "| what | million rows a second | processor ns a row | peak memory, GB | largest difference |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for kind, name in NAMES.items():
            if kind not in results:
                continue
            found = results[kind]
            difference = found["largest_difference"]
            cells = [
                name,
                f"{_rate(found) / 1e6:.2f}",
                f"{1e9 * np.median(found['cpu_seconds']) / record['rows']:.0f}" if "ray" not in kind else "",
                f"{found['peak_bytes'] / 1e9:.2f}" if "ray" not in kind else "",
                "" if difference is None or kind == "fit_log" else f"{difference:.0e}" if difference else "0",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines += [
            "",
            paragraph(
                f"{_of(len(results['fit_log']['seconds']))} ({record['machine']}, other work kept",
                f"it busy: a load of {record['load_average']:.0f}). Rates depend on that; the ratio is within one run.",
                "Ray's rate includes the start of the cluster, and the time to find that a worker is lost.",
            ),
            "",
        ]
    lines += [
        "```",
        *[f"{record['command']} --data DIR --out FILE    # commit {record['commit']}" for record in records],
        "```",
        "",
    ]
    return "\n".join(lines)


def _of(runs: int) -> str:
    return "One run of each" if runs == 1 else f"Medians of {runs} runs in turn"


def _rate(found: Record) -> float:
    return float(np.median(found["rows_per_second"]))


def _cpu(found: Record) -> float:
    return float(np.median(found["cpu_seconds"]))
