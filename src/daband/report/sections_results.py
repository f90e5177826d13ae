"""Sections of results: methods compared on one pair, by class, and over the pairs of a data set."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.arrays import FloatArray
from daband.evaluation import Paired
from daband.experiments import TARGET_ACCURACY, Metric, Record, decimals, metric_of
from daband.report.document import Block, Drawing, Folded, SideBySide, Text
from daband.report.figures_results import Group, gain_figure, pairs_figure, score_figure
from daband.report.reference import paper_accuracy
from daband.report.statistics import Key, paired_difference, score_by_seed, verdict
from daband.report.style import label
from daband.report.summary import UNKNOWN, Mean, MethodSummary, labelled, summarise
from daband.report.tables import Cell, Table

__all__ = [
    "by_class_blocks", "class_names", "comparison_blocks", "comparison_table", "interval", "mean_cell", "pairs_blocks",
    "scores", "side_by_side", "slug",
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
    return f"{paired.low:+,.{digits}f} to {paired.high:+,.{digits}f}"


def comparison_table(
    rows: Sequence[MethodSummary], *, name: str, caption: str, records: Sequence[Record] = ()
) -> Table:
    """Methods on one pair: their score in the target, its gain over Neural-LinUCB, the paper's, and the source's.

    The score is the accuracy where exactly one arm pays 1, else the value in the rewards' unit with the regret
    beside it.
    """
    metric = rows[0].metric
    paper = paper_accuracy(rows[0].pair)
    baseline = score_by_seed(records, _BASELINE, metric)
    headings = ["method", metric.name, *(["by class"] if metric is TARGET_ACCURACY else ["target regret"])]
    headings += ["over NLinUCB", "95% interval"] if baseline else []
    headings += ["paper"] if paper else []
    table = Table(name, caption, [*headings, "source regret", "rounds", "seeds", "s a run"])
    best = max(row.rank for row in rows)
    digits = metric.digits(*(row.score.value for row in rows), significant=4)
    regret_digits = decimals(*(row.regret.value for row in rows), significant=4)
    for row in rows:
        cells: list[Cell | str] = [
            label(row.method, row.variant),
            mean_cell(row.score, digits, bold=row.rank == best and len(rows) > 1),
        ]
        if metric is TARGET_ACCURACY:
            cells.append(mean_cell(row.accuracy_macro, 4, spread=False))
        else:
            cells.append(mean_cell(row.regret, regret_digits))
        if baseline:
            paired = None
            if (row.method, row.variant) != _BASELINE:
                paired = paired_difference(score_by_seed(records, (row.method, row.variant), metric), baseline)
            cells += ["" if paired is None else f"{paired.difference:+,.{digits - 1}f}", interval(paired, digits - 1)]
        if paper:
            theirs = paper.get(row.method) if row.variant == "default" else None
            cells.append(
                "" if theirs is None else Cell(f"{theirs.average:.4f}", f"{theirs.average_spread:.2f}", muted=True)
            )
        regret = mean_cell(row.source_regret, 0 if metric is TARGET_ACCURACY else _source_digits(rows))
        table.add(*cells, regret, f"{row.rounds:,}", str(len(row.seeds)), f"{row.seconds:,.1f}")
    return table


def comparison_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """The comparison of methods on one pair."""
    rows = summarise(records)
    if not labelled(records):
        return _unlabelled_blocks(pair, rows, class_names(records))
    metric = rows[0].metric
    spread = "± is the sample standard deviation over seeds; intervals are 95%, paired by seed."
    caption = f"{pair}: every method learned from source rewards alone and was then held fixed. "
    references: dict[str, float] = {}
    if metric is TARGET_ACCURACY:
        caption += (
            "Target accuracy is the share of contexts with the right arm, 1 - regret / N, over target contexts that no "
            f"method saw; “by class” is the mean over classes. {spread}"
        )
    else:
        best, constant = rows[0].best_value, rows[0].constant_value
        references = {
            name: value for name, value in (("best constant arm", constant), ("best arm", best)) if value is not None
        }
        told = " and ".join(
            f"the {name} has {value:,.{decimals(value, significant=4)}f}" for name, value in references.items()
        )
        caption += (
            "Target value is the mean expected reward of the chosen arm over target contexts that no method saw, in "
            f"the rewards' unit; {told}. Regret is the sum over contexts, in the same unit. {spread}"
        )
    blocks: list[Block] = []
    if with_figure and metric is TARGET_ACCURACY:  # values in a unit have their chart where they are decided on
        groups = []
        paper = paper_accuracy(pair)
        for row in rows:
            theirs = paper.get(row.method) if row.variant == "default" else None
            key = (row.method, row.variant)
            groups.append(Group(label(*key), scores(records, key, metric), key, theirs.average if theirs else None))
        digits = metric.digits(*(row.score.value for row in rows))
        told = "; ".join(f"{label(row.method, row.variant)} {row.score.value:,.{digits}f}" for row in rows)
        blocks.append(
            Drawing(
                f"{slug(pair)}-{metric.field.removeprefix('target_')}",
                score_figure(groups, metric),
                f"{pair}: {metric.name}, zero-shot.",
                f"{metric.name.capitalize()} by method: {told}.",
            )
        )
    blocks.append(comparison_table(rows, name=f"{slug(pair)}-methods", caption=caption, records=records))
    return blocks


def _unlabelled_blocks(pair: str, rows: Sequence[MethodSummary], classes: Sequence[str]) -> list[Block]:
    """What is known of methods where the target has no labels: the source, and which arms are chosen in the target."""
    digits = decimals(*(row.source_reward.value for row in rows))
    logged = [row.logger_value.value for row in rows if row.logger_value.value is not None]
    caption = (
        f"{pair}: every method learned from source rewards. The target has no labels, so accuracy, value and regret "
        "there are not known. "
    )
    # A log has the rewards of its logger, whichever method learns from it: they say nothing of a method.
    caption += (
        f"The policy that wrote the log earned {logged[0]:,.{digits}f} a round."
        if logged
        else "Reward is the mean of a source round while learning; ± over seeds."
    )
    own = [] if logged else ["source reward", "source regret"]
    table = Table(f"{slug(pair)}-methods", caption, ["method", *own, "rounds", "seeds", "s a run"])
    for row in rows:
        learned = [mean_cell(row.source_reward, digits), mean_cell(row.source_regret, _source_digits(rows))]
        table.add(
            label(row.method, row.variant), *([] if logged else learned), f"{row.rounds:,}", str(len(row.seeds)),
            f"{row.seconds:,.1f}",
        )  # fmt: skip
    chosen = Table(
        f"{slug(pair)}-arms",
        f"{pair}: how often each arm is chosen on target contexts, as shares over all seeds.",
        ["method", *classes],
    )
    for row in rows:
        if len(row.arm_shares) == len(classes) > 0:
            chosen.add(label(row.method, row.variant), *(f"{share:.3f}" for share in row.arm_shares))
    if not chosen.rows:
        return [table]
    return [table, chosen if len(classes) <= _WIDEST else chosen.transposed("arm")]


def by_class_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """Accuracy by class beside the paper's, and the gain of DABand over Neural-LinUCB (or the best over its rival)."""
    classes = class_names(records)
    if not classes or not labelled(records) or metric_of(records) is not TARGET_ACCURACY:
        return []  # without a right arm there is no class that a context belongs to
    paper = paper_accuracy(pair)
    rows = summarise(records)
    shares = {(row.method, row.variant): _per_class(records, (row.method, row.variant), len(classes)) for row in rows}
    # A table is read by the eye: of equal means the first is set in bold.
    means = {key: _column_means(values) for key, values in shares.items()}
    best = np.nanargmax(
        np.where(np.isfinite(np.stack(list(means.values()))), np.stack(list(means.values())), -1.0), axis=0
    )
    caption = f"{pair}: accuracy by class, the best arm of a target context; ± is the sample deviation over seeds."
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
        top = max((r.accuracy.value for r in rows if r.accuracy.value is not None), default=None)
        table.add(label(*key), *cells, mean_cell(row.accuracy, 4, bold=row.accuracy.value == top))
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
    records = labelled(records)
    if not records:
        return [Text("The targets of these pairs have no labels, so methods cannot be compared there.")]
    metric = metric_of(records)
    pairs = list(dict.fromkeys(record["pair"] for record in records))
    keys = list(dict.fromkeys((record["method"], record["variant"]) for record in records))
    by_key: dict[Key, dict[str, FloatArray]] = {key: {} for key in keys}
    for key in keys:
        for pair in pairs:
            values = scores([record for record in records if record["pair"] == pair], key, metric)
            if len(values):
                by_key[key][pair] = values
    digits = metric.digits(*(float(v.mean()) for found in by_key.values() for v in found.values()), significant=4)
    table = Table(
        f"{slug(family)}-pairs",
        f"{family}: {metric.name} of every pair of source and target, zero-shot; ± over seeds. The last row is the "
        "mean of the pairs, its ± over seeds.",
        ["source-target", *(label(*key) for key in keys)],
    )
    for pair in pairs:
        row_best = max((float(by_key[key][pair].mean()) for key in keys if pair in by_key[key]), default=0.0)
        cells: list[Cell | str] = []
        for key in keys:
            found = by_key[key].get(pair)
            cells.append(
                Cell("-", muted=True)
                if found is None
                else mean_cell(Mean.of(found.tolist()), digits, bold=float(found.mean()) == row_best)
            )
        table.add(pair.partition("/")[2] or pair, *cells)
    means = {
        key: np.array(list(score_by_seed(records, key, metric).values()))
        for key in keys
        if by_key[key].keys() == set(pairs)
    }
    top = max((float(values.mean()) for values in means.values() if len(values)), default=0.0)
    last = [
        mean_cell(Mean.of(means[key].tolist()), digits, bold=float(means[key].mean()) == top)
        if key in means and len(means[key])
        else Cell("-", muted=True)
        for key in keys
    ]
    table.add(Cell("mean of pairs", bold=True), *last)
    told = "; ".join(f"{label(*key)} {values.mean():,.{digits}f}" for key, values in means.items() if len(values))
    drawing = Drawing(
        f"{slug(family)}-pairs",
        pairs_figure(pairs, by_key, metric),
        f"{family}: {metric.name} for every pair; marks are means over seeds, lines their range.",
        f"Mean {metric.name} over {len(pairs)} pairs: {told}.",
    )
    return [drawing, table]


def side_by_side(blocks: Sequence[Block]) -> list[Block]:
    """Drawings together in front, in a row where there is room; the rest behind them."""
    drawn = [block for block in blocks if isinstance(block, Drawing)]
    others = [block for block in blocks if not isinstance(block, Drawing)]
    return [SideBySide(drawn), *others] if drawn else list(others)


def scores(records: Sequence[Record], key: Key, metric: Metric) -> FloatArray:
    """The score of every run of a method whose target has labels, (seeds,)."""
    mine = [record for record in labelled(records) if (record["method"], record["variant"]) == key]
    return np.array([record[metric.field] for record in mine], np.float64)


def mean_cell(mean: Mean, digits: int, *, bold: bool = False, spread: bool = True) -> Cell:
    """A mean with its spread as a cell."""
    if mean.value is None:
        return Cell(UNKNOWN, muted=True)
    around = f"{mean.spread:,.{digits}f}" if spread and mean.seeds > 1 else ""
    return Cell(f"{mean.value:,.{digits}f}", around, bold)


def _source_digits(rows: Sequence[MethodSummary]) -> int:
    return decimals(*(row.source_regret.value for row in rows), significant=4)


def class_names(records: Sequence[Record]) -> list[str]:
    """The names of the arms, from the first record that has them; their numbers where none does."""
    known = next((record for record in records if record.get("per_class") or record.get("target_arm_counts")), None)
    if known is None:
        return []
    n_arms = len(known.get("per_class") or known["target_arm_counts"])
    return [str(name) for name in known.get("class_names") or range(n_arms)]


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
