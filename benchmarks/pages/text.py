"""What pages of results share: numbers and tables as Markdown, records by method and by variant."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = [
    "NAMES",
    "by",
    "count",
    "digit_runs",
    "number",
    "of_method",
    "paragraph",
    "spread",
    "table",
    "written_from",
]

Record = Mapping[str, Any]
NAMES = {
    "random": "Random", "constant": "Constant", "linucb": "LinUCB", "linucb-p": "LinUCB-P (64 components)",
    "nlinucb": "Neural-LinUCB", "nlinucb-p": "NLinUCB-P", "daband": "**DABand**",
}  # fmt: skip


def written_from(*records: str) -> str:
    """The comment that says where a page comes from."""
    files = ", ".join(f"benchmarks/records/{name}.json" for name in records)
    return f"<!-- Written by benchmarks/results_pages.py from {files}. Do not edit. -->"


def paragraph(*parts: str) -> str:
    """Text as one paragraph, wrapped."""
    return textwrap.fill(" ".join(parts), 120, break_long_words=False, break_on_hyphens=False)


def number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """A number as the field writes accuracies: .950; with a sign for differences."""
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("0.", ".", 1)


def count(value: float) -> str:
    """A whole number with commas."""
    return f"{value:,.0f}"


def spread(records: Sequence[Record], key: str, show: Callable[[float], str]) -> str:
    """Mean and sample standard deviation of a field."""
    values = np.array([record[key] for record in records], np.float64)
    return f"{show(float(values.mean()))} ± {show(float(values.std(ddof=1)))}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> list[str]:
    """A Markdown table; the first columns are text, the others numbers."""
    rules = ["---"] * text_columns + ["---:"] * (len(head) - text_columns)
    return [f"| {' | '.join(cells)} |" for cells in (head, rules, *rows)]


def by(records: Sequence[Record], key: str) -> dict[Any, list[Record]]:
    """Records by a field, in the order of its values, each list by seed."""
    found: dict[Any, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record[key], record["seed"])):
        found.setdefault(record[key], []).append(record)
    return found


def of_method(records: Sequence[Record], method: str) -> list[Record]:
    """The records of a method, by pair and seed."""
    found = [record for record in records if record["method"] == method]
    return sorted(found, key=lambda record: (record["pair"], record["seed"]))


def digit_runs(bench: Sequence[Record], attribution: Sequence[Record]) -> list[Record]:
    """DIGIT by method: Neural-LinUCB with the target's statistics and DABand's default are of the attribution study."""
    studies = {"nlinucb": ("baselines", "statistics of the target"), "daband": ("leave-one-out", "default")}
    found = [record for record in bench if record["method"] not in studies]
    for method, study in studies.items():
        own = [r for r in attribution if (r["study"], r["variant"]) == study and r["method"] == method]
        found += [{**record, "pair": "digit"} for record in own if "signs" not in record["pair"]]
    return found
