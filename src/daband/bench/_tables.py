"""Build the tables of an experiment, for the terminal and for the report.

All methods with the same seed see the same contexts and rewards, so differences are paired by seed.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from daband.bench._records import (
    TARGET_ACCURACY,
    Metric,
    Record,
    adjust_holm,
    choose_metric,
    compare_paired,
    count_decimals,
    group_by,
)

#: The method with which the methods of a comparison are compared.
BASELINE = "nlinucb"


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    caption: str
    #: The cells of each row, by heading. All rows have the same headings.
    rows: Sequence[Mapping[str, str]]


@cache
def read_paper_tables() -> dict[str, Any]:
    """Return the tables of DABand's paper by name: accuracy, ablation and full_ablation."""
    return tomllib.loads((resources.files("daband.bench") / "paper.toml").read_text("utf-8"))


def build_tables(records: Sequence[Record]) -> list[Table]:
    """Return a table of methods for each pair, and for each recipe of an ablation."""
    groups = group_by(records, lambda record: (record["pair"], _split_variant(record)[0]))
    return [_build_method_table(pair, base, group) for (pair, base), group in groups.items()]


def _split_variant(record: Record) -> tuple[str, str]:
    """Return the base and the letters of an ablation; "default" and the method for other runs."""
    base, _, letters = record["variant"].partition(":")
    return base, letters or record["method"]


def _format_mean(values: Sequence[float | None], n_decimals: int | None = None) -> str:
    """Return the mean over seeds and the sample standard deviation as text.

    The mean is "unknown" if a value is None.
    """
    known_values = [value for value in values if value is not None]
    if not values or len(known_values) < len(values):
        return "unknown"
    if n_decimals is None:
        n_decimals = count_decimals(*known_values)
    text = f"{np.mean(known_values):,.{n_decimals}f}"
    if len(values) > 1:
        text += f" ± {np.std(known_values, ddof=1):,.{n_decimals}f}"
    return text


def _build_method_table(pair: str, base: str, records: Sequence[Record]) -> Table:
    """Return the table of the methods on one pair, or of an ablation of the recipe ``base``.

    The best method is first.
    """
    metric = choose_metric(records)
    groups = group_by(records, lambda record: _split_variant(record)[1])
    scores = {
        name: {record["seed"]: record[metric.field] for record in group}
        for name, group in groups.items()
    }
    reference = BASELINE if base == "default" else "RPD"
    reference_scores = scores.get(reference, {})
    tests = {}
    for name, score_by_seed in scores.items():
        seeds = score_by_seed.keys() & reference_scores.keys()
        if name != reference and seeds:
            tests[name] = compare_paired(
                [score_by_seed[seed] for seed in seeds], [reference_scores[seed] for seed in seeds]
            )
    p_values = dict(zip(tests, adjust_holm([test.p_value for test in tests.values()]), strict=True))
    all_scores = [score for score_by_seed in scores.values() for score in score_by_seed.values()]
    n_decimals = metric.count_decimals(*all_scores)
    paper_scores = _read_paper_scores(pair, base)
    rows = []
    for name in sorted(scores, key=lambda name: -np.mean(list(scores[name].values()))):
        group = groups[name]
        row = {"method": name, metric.name: _format_mean(_get(group, metric.field), n_decimals)}
        if reference_scores:
            test = tests.get(name)
            has_interval = test is not None and not math.isnan(test.low)
            row[f"over {reference}"] = "" if test is None else f"{test.difference:+,.{n_decimals}f}"
            row["95% interval"] = (
                f"{test.low:+,.{n_decimals}f} to {test.high:+,.{n_decimals}f}"
                if test is not None and has_interval
                else ""
            )
            row["p (Holm)"] = f"{p_values[name]:.2g}" if has_interval else ""
        if paper_scores:
            row["paper"] = f"{paper_scores[name]:.4f}" if name in paper_scores else ""
        for field in ("source_reward", "source_regret"):
            if any(value is not None for value in _get(records, field)):
                row[field.replace("_", " ")] = _format_mean(_get(group, field))
        row["rounds"] = f"{group[0]['rounds']:,}"
        row["seeds"] = str(len(group))
        row["seconds per run"] = f"{np.mean(_get(group, 'wall_seconds')):,.1f}"
        rows.append(row)
    caption = _describe(pair, base, metric, records[0])
    if tests:
        caption += (
            f" Differences to {reference} are paired by seed; p-values are from two-sided paired t"
            " tests with Holm's correction."
        )
    return Table(caption, rows)


def _get(records: Sequence[Record], field: str) -> list[Any]:
    """Return a field of every record."""
    return [record[field] for record in records]


def _describe(pair: str, base: str, metric: Metric, record: Record) -> str:
    """Return the caption of a table of methods."""
    name = pair if base == "default" else f"{pair}, ablation of the recipe {base}"
    constant_text = ""
    if metric is not TARGET_ACCURACY:
        values = [record["target_constant_value"], record["target_best_value"]]
        n_decimals = count_decimals(*values)
        constant_text = (
            f" The best constant arm has {values[0]:,.{n_decimals}f}, and the best arm of each"
            f" context {values[1]:,.{n_decimals}f}."
        )
    return (
        f"{name}: {metric.name} on held-out contexts, without target rewards; mean ± standard"
        f" deviation over seeds.{constant_text}"
    )


def _read_paper_scores(pair: str, base: str) -> dict[str, float]:
    """Return the paper's accuracies by method, or by the letters of an ablation."""
    if base != "default":
        return read_paper_tables()["full_ablation"].get(pair, {}).get("accuracy", {})
    methods = read_paper_tables()["accuracy"].get(pair, {}).get("methods", {})
    return {name: row["average"] for name, row in methods.items()}
