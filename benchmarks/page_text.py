"""What pages of results share: numbers and tables as Markdown, records by method and by variant."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from daband.evaluation import compare_paired, holm
from daband.report import paper_ablation

__all__ = [
    "NAMES",
    "ablation_table",
    "by",
    "count",
    "number",
    "of_method",
    "paragraph",
    "spread",
    "table",
    "written_from",
]

Record = Mapping[str, Any]
NAMES = {
    "random": "Random", "linucb": "LinUCB", "linucb-p": "LinUCB-P (64 components)", "nlinucb": "Neural-LinUCB",
    "nlinucb-p": "NLinUCB-P", "daband": "**DABand**",
}  # fmt: skip
LETTERS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")


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


def ablation_table(records: Sequence[Record], base: str, *, pair: str) -> list[str]:
    """R, P and D in all combinations of one recipe: accuracy, paired tests against all three, source regret."""
    own = {letters: by(records, "variant")[f"{base}:{letters}"] for letters in LETTERS}
    accuracy = {letters: [record["target_accuracy"] for record in found] for letters, found in own.items()}
    tests = {letters: compare_paired(accuracy[letters], accuracy["RPD"]) for letters in LETTERS[:-1]}
    corrected = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    paper = paper_ablation(pair)
    rows = []
    for letters, found in own.items():
        test = tests.get(letters)
        row = [
            "none (Neural-LinUCB)" if letters == "none" else ", ".join(letters),
            spread(found, "target_accuracy", number),
            "" if test is None else number(test.difference, sign=True),
            "" if test is None else _p_value(corrected[letters]),
            count(float(np.mean([record["source_regret"] for record in found]))),
        ]
        rows.append([*row, number(paper[letters][0], 4)] if paper else row)
    head = ["terms", "target accuracy", "against all three", "p (Holm)", "source regret"]
    return table([*head, "the paper"] if paper else head, rows)


def _p_value(value: float) -> str:
    return "< .0001" if value < 0.0001 else number(value, 4 if value < 0.01 else 2)
