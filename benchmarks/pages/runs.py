"""Records of runs as one frame (polars), and the templates that pages of results are written with.

A page is a template in ``templates/`` and the records that it names; what a table says of some runs (mean and standard
deviation, paired difference, commits) is a method of ``Runs``. Which runs are of today's recipe is decided by the hash
of the recipe in each record, and by nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from daband.bench.report._rendering import template_environment
from daband.evaluation._paired_test import Paired, compare_paired, holm
from pages.text import commits, count, mean_and_deviation, number, p_value, percent, table


class Runs:
    """Some runs: a frame with a row for each, fields of nested records joined by a point ("criteria.snd")."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Runs:
        """The runs of a record file."""
        rows = []
        for record in records:
            row: dict[str, Any] = {}
            for name, value in record.items():
                if name in ("recipe", "settings"):
                    row[name] = json.dumps(value)
                elif isinstance(value, Mapping):
                    row |= {f"{name}.{inner}": one for inner, one in value.items()}
                else:
                    row[name] = value
            rows.append(row)
        return cls(pl.from_dicts(rows, infer_schema_length=None, strict=False))

    def where(self, **fields: Any) -> Runs:
        """The runs whose fields have these values, or one of several; in order of seeds."""
        frame = self.frame
        for name, value in fields.items():
            wanted = value if isinstance(value, list | tuple | set) else [value]
            frame = frame.filter(pl.col(name).is_in(list(wanted)))
        return Runs(frame.sort("seed", maintain_order=True))

    def on(self, pair: str) -> Runs:
        """The runs on "signs", on "digit" with its balanced target, or on the "imbalanced" one."""
        signs, imbalanced = (pl.col("pair").str.contains(word) for word in ("signs", "imbalanced"))
        wanted = {"signs": signs, "imbalanced": imbalanced, "digit": ~signs & ~imbalanced}[pair]
        return Runs(self.frame.filter(wanted))

    def by(self, field: str) -> list[tuple[Any, Runs]]:
        """Groups of equal values of a field, in the order of first appearance."""
        values = self.frame[field].unique(maintain_order=True).to_list()
        return [(value, self.where(**{field: value})) for value in values if value is not None]

    def __len__(self) -> int:
        return len(self.frame)

    def values(self, field: str = "target_accuracy") -> list[float]:
        """A field of every run, in order of seeds."""
        found: list[float] = self.frame.sort("seed", maintain_order=True)[field].to_list()
        return found

    def mean(self, field: str = "target_accuracy") -> float:
        """The mean of a field."""
        return float(np.mean(self.values(field)))

    def text(self, field: str, *, whole: bool = False) -> str:
        """Mean and sample standard deviation of a field, the mean alone for a single run."""
        return mean_and_deviation(self.frame.iter_rows(named=True), field, count if whole else number)

    @property
    def accuracy(self) -> str:
        """Mean and standard deviation of the target accuracy."""
        return self.text("target_accuracy")

    @property
    def regret(self) -> str:
        """The mean source regret, where it is known."""
        known = [value for value in self.values("source_regret") if value is not None]
        return count(float(np.mean(known))) if known else ""

    def less(self, other: Runs, field: str = "target_accuracy") -> Paired:
        """How far these runs lie above others, paired by the seeds that both have."""
        mine, theirs = (dict(zip(one.frame["seed"], one.frame[field], strict=True)) for one in (self, other))
        seeds = sorted(mine.keys() & theirs.keys())
        return compare_paired([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])

    @property
    def commits(self) -> str:
        """The commits of the runs, as code."""
        return commits(self.frame.iter_rows(named=True))

    @property
    def devices(self) -> str:
        """The devices of the runs."""
        return ", ".join(dict.fromkeys(self.frame["device"].to_list()))


def _difference(test: Paired) -> str:
    return f"{test.difference:+.3f} ({test.low:+.3f} to {test.high:+.3f})"


def _ablation(rows: Mapping[str, Runs], papers: Mapping[str, float] | None = None) -> str:
    """A table of combinations of terms against all three, with Holm's correction; the paper's numbers beside."""
    full = rows["RPD"]
    tests = {name: own.less(full) for name, own in rows.items() if name != "RPD"}
    corrected = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    lines = []
    for name, own in rows.items():
        test = tests.get(name)
        cells = ["", "", ""]
        if test is not None:
            cells = [f"{test.difference:+.3f}", f"{test.low:+.3f} to {test.high:+.3f}", p_value(corrected[name])]
        lines.append([name, own.accuracy, *cells, own.regret, str(len(own))])
        if papers:
            lines[-1].append(number(papers[name], 4))
    head = ["terms", "target accuracy", "against all three", "95% interval", "p (Holm)", "source regret", "seeds"]
    return "\n".join(table([*head, "the paper"] if papers else head, lines))


def fill(template: str, *, filters: Mapping[str, Any] | None = None, **content: Any) -> str:
    """A template of ``templates/`` with its content: a page as Markdown; ``filters`` are more of the page's own."""
    pages = template_environment(Path(__file__).parent / "templates")
    pages.filters.update(number=number, count=count, percent=percent, difference=_difference, **(filters or {}))

    def table_of(head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
        return "\n".join(table(head, rows, text_columns=text_columns))

    pages.globals.update(table=table_of, ablation=_ablation)
    return pages.get_template(f"{template}.md").render(**content)
