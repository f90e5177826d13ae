"""What came out, as sections: methods side by side, by class, and over the pairs of a data set."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.arrays import FloatArray
from daband.evaluation.paired import Paired
from daband.report.document import Block, Drawing, Folded, SideBySide
from daband.report.figures_results import Group, accuracy_figure, gain_figure, pairs_figure
from daband.report.reference import paper_accuracy
from daband.report.runs import Record
from daband.report.statistics import Key, accuracy_by_seed, paired_difference, verdict
from daband.report.style import label
from daband.report.summary import MethodSummary, summarise
from daband.report.tables import Cell, Table

__all__ = [
    "accuracies", "by_class_blocks", "class_names", "comparison_blocks", "comparison_table", "interval", "pairs_blocks",
    "side_by_side", "slug",
]  # fmt: skip

_OURS, _BASELINE = ("daband", "default"), ("nlinucb", "default")
_WIDEST = 16
"""Classes that fit in the columns of a table; with more of them they become its rows."""


def slug(name: str) -> str:
    """A pair's name as files can have it."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


def interval(paired: Paired | None, digits: int = 3) -> str:
    """A 95% interval in words; empty where a single seed allows none."""
    if paired is None or math.isnan(paired.low):
        return ""
    return f"{paired.low:+.{digits}f} to {paired.high:+.{digits}f}"


def comparison_table(
    rows: Sequence[MethodSummary], *, name: str, caption: str, records: Sequence[Record] = ()
) -> Table:
    """Methods with their accuracy, its gain over Neural-LinUCB, the paper's accuracy, and their source regret."""
    pair = rows[0].pair
    paper = paper_accuracy(pair)
    baseline = accuracy_by_seed(records, _BASELINE)
    headings = ["method", "target accuracy", "by class"]
    headings += ["over NLinUCB", "95% interval"] if baseline else []
    headings += ["paper"] if paper else []
    table = Table(name, caption, [*headings, "source regret", "rounds", "seeds", "s a run"])
    best = max(row.accuracy for row in rows)
    for row in rows:
        several = len(row.seeds) > 1
        cells: list[Cell | str] = [
            label(row.method, row.variant),
            Cell(
                f"{row.accuracy:.4f}",
                f"{row.accuracy_spread:.4f}" if several else "",
                row.accuracy == best and len(rows) > 1,
            ),
            f"{row.accuracy_macro:.4f}",
        ]
        if baseline:
            paired = None
            if (row.method, row.variant) != _BASELINE:
                paired = paired_difference(accuracy_by_seed(records, (row.method, row.variant)), baseline)
            cells += ["" if paired is None else f"{paired.difference:+.3f}", interval(paired)]
        if paper:
            theirs = paper.get(row.method) if row.variant == "default" else None
            cells.append(
                "" if theirs is None else Cell(f"{theirs.average:.4f}", f"{theirs.average_spread:.2f}", muted=True)
            )
        regret = Cell("unknown", muted=True)
        if row.source_regret is not None:
            regret = Cell(f"{row.source_regret:,.0f}", f"{row.source_regret_spread:,.0f}" if several else "")
        table.add(*cells, regret, f"{row.rounds:,}", str(len(row.seeds)), f"{row.seconds:,.1f}")
    return table


def comparison_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """The comparison of methods on one pair."""
    rows = summarise(records)
    paper = paper_accuracy(pair)
    caption = (
        f"{pair}: every method learned from source rewards alone and was then held fixed. Target accuracy is "
        "1 - regret / N over target contexts that no method saw: where one arm is right, the share of contexts with "
        "the right arm; “by class” is the mean over classes. "
        "± is the sample standard deviation over seeds; intervals are 95%, paired by seed."
    )
    blocks: list[Block] = []
    if with_figure:
        groups = []
        for row in rows:
            theirs = paper.get(row.method) if row.variant == "default" else None
            values = accuracies(records, (row.method, row.variant))
            groups.append(
                Group(
                    label(row.method, row.variant),
                    values,
                    (row.method, row.variant),
                    theirs.average if theirs else None,
                )
            )
        said = "; ".join(f"{label(row.method, row.variant)} {row.accuracy:.3f}" for row in rows)
        blocks.append(
            Drawing(
                f"{slug(pair)}-accuracy",
                accuracy_figure(groups),
                f"{pair}: accuracy in the target, zero-shot.",
                f"Target accuracy by method: {said}.",
            )
        )
    blocks.append(comparison_table(rows, name=f"{slug(pair)}-methods", caption=caption, records=records))
    return blocks


def by_class_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """Accuracy by class beside the paper's, and the gain of DABand over Neural-LinUCB (or the best over its rival)."""
    classes = class_names(records)
    if not classes:
        return []
    paper = paper_accuracy(pair)
    rows = summarise(records)
    shares = {(row.method, row.variant): _per_class(records, (row.method, row.variant), len(classes)) for row in rows}
    # A table is read by the eye: of equal means the first is set in bold.
    means = {key: _column_means(values) for key, values in shares.items()}
    best = np.nanargmax(
        np.where(np.isfinite(np.stack(list(means.values()))), np.stack(list(means.values())), -1.0), axis=0
    )
    caption = f"{pair}: accuracy by the class of the target context, mean ± sample standard deviation over seeds."
    if paper:
        caption += " Rows “paper” are as printed there, for its own data and budget."
    table = Table(f"{slug(pair)}-classes", caption, ["method", *classes, "all"])
    for number, row in enumerate(rows):
        key = (row.method, row.variant)
        cells = []
        for at in range(len(classes)):
            column = shares[key][:, at]
            known = column[np.isfinite(column)]
            if not len(known):
                cells.append(Cell("-", muted=True))
                continue
            spread = f"{known.std(ddof=1):.3f}" if len(known) > 1 else ""
            cells.append(Cell(f"{known.mean():.3f}", spread, bold=len(rows) > 1 and best[at] == number))
        several = len(row.seeds) > 1
        overall = Cell(
            f"{row.accuracy:.4f}",
            f"{row.accuracy_spread:.4f}" if several else "",
            row.accuracy == max(r.accuracy for r in rows),
        )
        table.add(label(*key), *cells, overall)
        theirs = paper.get(row.method) if row.variant == "default" else None
        if theirs is not None:
            printed = [
                Cell(f"{theirs.per_class[c]:.4f}", f"{theirs.spread[c]:.2f}", muted=True)
                if c in theirs.per_class
                else Cell("-", muted=True)
                for c in classes
            ]
            table.add(
                Cell(f"paper: {label(row.method)}", muted=True), *printed,
                Cell(f"{theirs.average:.4f}", f"{theirs.average_spread:.2f}", muted=True),
            )  # fmt: skip
    drawn = _gain_drawings(pair, records, classes) if with_figure else []
    if len(classes) <= _WIDEST:
        return [table, *drawn]
    inside: list[Block] = [SideBySide(drawn)] if drawn else []
    return [Folded(f"Every class ({len(classes)})", [*inside, table.transposed("class")])]


def pairs_blocks(family: str, records: Sequence[Record]) -> list[Block]:
    """A data set of several pairs: every pair as a row, every method as a column, and the mean of pairs."""
    pairs = list(dict.fromkeys(record["pair"] for record in records))
    keys = list(dict.fromkeys((record["method"], record["variant"]) for record in records))
    accuracy: dict[Key, dict[str, FloatArray]] = {key: {} for key in keys}
    for key in keys:
        for pair in pairs:
            values = accuracies([record for record in records if record["pair"] == pair], key)
            if len(values):
                accuracy[key][pair] = values
    table = Table(
        f"{slug(family)}-pairs",
        f"{family}: target accuracy of every pair of source and target, zero-shot; ± over seeds. The last row is the "
        "mean of the pairs, its ± over seeds.",
        ["source-target", *(label(*key) for key in keys)],
    )
    for pair in pairs:
        row_best = max((float(accuracy[key][pair].mean()) for key in keys if pair in accuracy[key]), default=0.0)
        cells: list[Cell | str] = []
        for key in keys:
            found = accuracy[key].get(pair)
            cells.append(
                Cell("-", muted=True) if found is None else _mean_cell(found, bold=float(found.mean()) == row_best)
            )
        table.add(pair.partition("/")[2] or pair, *cells)
    means = {
        key: np.array(list(accuracy_by_seed(records, key).values()))
        for key in keys
        if accuracy[key].keys() == set(pairs)
    }
    top = max((float(values.mean()) for values in means.values() if len(values)), default=0.0)
    last = [
        _mean_cell(means[key], bold=float(means[key].mean()) == top)
        if key in means and len(means[key])
        else Cell("-", muted=True)
        for key in keys
    ]
    table.add(Cell("mean of pairs", bold=True), *last)
    said = "; ".join(f"{label(*key)} {values.mean():.3f}" for key, values in means.items() if len(values))
    drawing = Drawing(
        f"{slug(family)}-pairs",
        pairs_figure(pairs, accuracy),
        f"{family}: accuracy in the target for every pair; marks are means over seeds, lines their range.",
        f"Mean target accuracy over {len(pairs)} pairs: {said}.",
    )
    return [drawing, table]


def side_by_side(blocks: Sequence[Block]) -> list[Block]:
    """Drawings together in front, in a row where there is room; the rest behind them."""
    drawn = [block for block in blocks if isinstance(block, Drawing)]
    others = [block for block in blocks if not isinstance(block, Drawing)]
    return [SideBySide(drawn), *others] if drawn else list(others)


def accuracies(records: Sequence[Record], key: Key) -> FloatArray:
    """The accuracy of every run of a method, (seeds,)."""
    return np.array([r["target_accuracy"] for r in records if (r["method"], r["variant"]) == key], np.float64)


def _mean_cell(values: FloatArray, *, bold: bool) -> Cell:
    return Cell(f"{values.mean():.4f}", f"{values.std(ddof=1):.4f}" if len(values) > 1 else "", bold)


def class_names(records: Sequence[Record]) -> list[str]:
    """What the arms are called, by the first record that knows; their numbers where nobody does."""
    known = next((record for record in records if record.get("per_class")), None)
    if known is None:
        return []
    return [str(name) for name in known.get("class_names") or range(len(known["per_class"]))]


def _per_class(records: Sequence[Record], key: Key, n: int) -> FloatArray:
    """Accuracy by seed and class, (seeds, n), NaN for classes without a context."""
    mine = [
        r["per_class"] for r in records if (r["method"], r["variant"]) == key and len(r.get("per_class") or []) == n
    ]
    values = [[math.nan if share is None else float(share) for share in row] for row in mine]
    return np.array(values, np.float64).reshape(-1, n)


def _column_means(values: FloatArray) -> FloatArray:
    return np.array([c[np.isfinite(c)].mean() if np.isfinite(c).any() else math.nan for c in values.T])


def _gain_drawings(pair: str, records: Sequence[Record], classes: list[str]) -> list[Drawing]:
    """DABand over Neural-LinUCB as in the paper; where one of them did not run, the best method over its rival."""
    ran = {(record["method"], record["variant"]) for record in records}
    found = verdict(records)
    if {_OURS, _BASELINE} <= ran:
        best, rival = _OURS, _BASELINE
    elif found is not None and found.rival is not None:
        best, rival = found.best, found.rival
    else:
        return []
    by_seed: dict[Key, dict[int, list[Any]]] = {best: {}, rival: {}}
    for record in records:
        key = (record["method"], record["variant"])
        if key in by_seed and len(record.get("per_class") or []) == len(classes):
            by_seed[key][record["seed"]] = record["per_class"]
    seeds = sorted(by_seed[best].keys() & by_seed[rival].keys())
    if not seeds:
        return []
    gains = np.array(
        [
            [
                math.nan if a is None or b is None else a - b
                for a, b in zip(by_seed[best][seed], by_seed[rival][seed], strict=True)
            ]
            for seed in seeds
        ],
        np.float64,
    )
    theirs: dict[str, float] = {}
    printed = paper_accuracy(pair)
    if (best, rival) == (_OURS, _BASELINE) and printed:
        ours, other = printed["daband"].per_class, printed["nlinucb"].per_class
        theirs = {name: ours[name] - other[name] for name in ours}
    names = (label(*best), label(*rival))
    means = _column_means(gains)
    better = int((means > 0).sum())
    return [
        Drawing(
            f"{slug(pair)}-gain",
            gain_figure(classes, gains, (best, rival), theirs),
            f"{pair}: gain of {names[0]} over {names[1]} by class, paired by seed.",
            f"{names[0]} is better than {names[1]} for {better} of {len(classes)} classes.",
        )
    ]
