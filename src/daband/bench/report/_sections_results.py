"""Build the result sections of a report: methods by pair and class, ablations and sweeps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daband._arrays import FloatArray
from daband.bench._ablation import ablation_rows
from daband.bench._records import TARGET_ACCURACY, TARGET_VALUE, Metric, Record, decimals, metric_of
from daband.bench.report import _method_summaries as summaries
from daband.bench.report._document import Block, Cell, Drawing, Folded, SideBySide, Table, Text
from daband.bench.report._figures import Group, ablation_figure, score_figure, sweep_figure
from daband.bench.report._method_styles import label
from daband.bench.report._method_summaries import BASELINE, UNKNOWN, Key, Mean, MethodSummary
from daband.bench.report._rendering import caption
from daband.evaluation._paired_test import Paired

#: Classes in the columns of a table; with more of them they become its rows.
_MAX_CLASS_COLUMNS = 16
_NO_NUMBER = Cell("-", muted=True)


def slug(name: str) -> str:
    """Return a pair's name as a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


def mean_cell(mean: Mean, digits: int, *, bold: bool = False, deviation: bool = True) -> Cell:
    """Return a mean with its standard deviation as a cell."""
    if mean.value is None:
        return Cell(UNKNOWN, muted=True)
    around = f"{mean.deviation:,.{digits}f}" if deviation and mean.seeds > 1 else ""
    return Cell(f"{mean.value:,.{digits}f}", around, bold)


def _printed(value: float, deviation: float) -> Cell:
    """Return a number of the paper as a cell."""
    return Cell(f"{value:.4f}", f"{deviation:.2f}", muted=True)


def side_by_side(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks with all drawings first, next to each other."""
    drawings = [block for block in blocks if isinstance(block, Drawing)]
    others = [block for block in blocks if not isinstance(block, Drawing)]
    return [SideBySide(drawings), *others] if drawings else list(others)


def class_names(records: Sequence[Record]) -> list[str]:
    """Return the names of the arms from the first record that has them, or else their numbers."""
    for record in records:
        per_arm = record.get("per_class") or record.get("target_arm_counts")
        if per_arm:
            return [str(name) for name in record.get("class_names") or range(len(per_arm))]
    return []


def comparison_table(pair: str, rows: Sequence[MethodSummary], records: Sequence[Record]) -> Table:
    """Return the table of methods on one pair: target score, its gain, the paper's accuracy, source regret.

    The score is the accuracy if exactly one arm is right, with the gain over Neural-LinUCB; otherwise it is the value
    in the rewards' unit, with the regret and the gain over the best constant arm.
    """
    metric = rows[0].metric
    accuracy = metric is TARGET_ACCURACY
    paper = summaries.paper_accuracy(pair)
    theirs = [paper.get(row.method) if row.variant == "default" else None for row in rows]
    printed = ["" if one is None else _printed(one.average, one.average_deviation) for one in theirs]
    best = max(row.rank for row in rows)
    digits = metric.digits(*(row.score.value for row in rows), significant=4)
    score = [mean_cell(row.score, digits, bold=row.rank == best and len(rows) > 1) for row in rows]
    regret_digits = decimals(*(row.regret.value for row in rows), significant=4)
    if accuracy:
        second_column = "by class", [mean_cell(row.accuracy_macro, 4, deviation=False) for row in rows]
    else:
        second_column = "target regret", [mean_cell(row.regret, regret_digits) for row in rows]
    gains = [_gain(records, row.key, metric) for row in rows]
    compared = any(gain is not None for gain in gains)
    values = {"best constant arm": rows[0].constant_value, "best arm": rows[0].best_value}
    known = {name: value for name, value in values.items() if value is not None}
    texts = (f"the {name} has {value:,.{decimals(value, significant=4)}f}" for name, value in known.items())
    return Table.of_columns(
        f"{slug(pair)}-methods",
        caption("methods", pair=pair, accuracy=accuracy, references=" and ".join(texts)),
        ("method", [label(*row.key) for row in rows]),
        (metric.name, score),
        second_column,
        ("over NLinUCB" if accuracy else "over the best constant arm", [_difference(gain, digits) for gain in gains])
        if compared
        else None,
        ("95% interval", [_interval(gain, digits) for gain in gains]) if compared else None,
        ("paper", printed) if paper else None,
        ("source regret", [mean_cell(row.source_regret, 0 if accuracy else _source_digits(rows)) for row in rows]),
        *_budget_columns(rows),
    )


def _gain(records: Sequence[Record], key: Key, metric: Metric) -> Paired | None:
    """Return the gain over Neural-LinUCB (accuracy) or the best constant arm (value), paired by seed."""
    own = summaries.score_by_seed(records, key, metric)
    if metric is TARGET_ACCURACY:
        other = {} if key == BASELINE else summaries.score_by_seed(records, BASELINE, metric)
    else:
        field = "target_constant_value"
        runs = [record for record in records if summaries.key_of(record) == key and record.get(field) is not None]
        other = {run["seed"]: run[field] for run in runs}
    return summaries.paired_difference(own, other)


def comparison_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """Return the comparison of methods on one pair."""
    rows = summaries.summarise(records)
    if not summaries.labelled(records):
        return _unlabelled_blocks(pair, rows, class_names(records))
    metric = rows[0].metric
    if metric is TARGET_VALUE:
        rows = sorted(rows, key=lambda row: -row.rank)
    table = comparison_table(pair, rows, records)
    if not with_figure:
        return [table]
    paper = summaries.paper_accuracy(pair)
    groups = []
    for row in rows:
        average = paper[row.method].average if row.variant == "default" and row.method in paper else None
        groups.append(Group(label(*row.key), summaries.scores(records, row.key, metric), row.key, average))
    references = {"best constant arm": rows[0].constant_value, "best arm": rows[0].best_value}
    marks = {name: value for name, value in references.items() if value is not None and metric is TARGET_VALUE}
    digits = metric.digits(*(row.score.value for row in rows))
    listed = "; ".join(f"{label(*row.key)} {row.score.value:,.{digits}f}" for row in rows)
    drawing = Drawing(
        f"{slug(pair)}-{metric.field.removeprefix('target_')}",
        score_figure(groups, metric, references=marks),
        caption("score", pair=pair, metric=metric.name),
        f"{metric.name.capitalize()} by method: {listed}.",
    )
    return [drawing, table]


def _unlabelled_blocks(pair: str, rows: Sequence[MethodSummary], classes: Sequence[str]) -> list[Block]:
    """Return source results and the chosen arms, for a target without labels."""
    digits = decimals(*(row.source_reward.value for row in rows))
    logger_values = [f"{row.logger_value.value:,.{digits}f}" for row in rows if row.logger_value.value is not None]
    logged = logger_values[0] if logger_values else None  # rewards of a log do not depend on the method
    table = Table.of_columns(
        f"{slug(pair)}-methods",
        caption("unlabelled", pair=pair, logged=logged),
        ("method", [label(*row.key) for row in rows]),
        None if logged else ("source reward", [mean_cell(row.source_reward, digits) for row in rows]),
        None if logged else ("source regret", [mean_cell(row.source_regret, _source_digits(rows)) for row in rows]),
        *_budget_columns(rows),
    )
    chosen = Table(f"{slug(pair)}-arms", caption("arms", pair=pair), ["method", *classes])
    for row in rows:
        if len(row.arm_shares) == len(classes) > 0:
            chosen.add(label(*row.key), *(f"{share:.3f}" for share in row.arm_shares))
    if not chosen.rows:
        return [table]
    return [table, chosen if len(classes) <= _MAX_CLASS_COLUMNS else chosen.transposed("arm")]


def by_class_blocks(pair: str, records: Sequence[Record]) -> list[Block]:
    """Return the accuracy by class, next to the paper's."""
    classes = class_names(records)
    if not classes or not summaries.labelled(records) or metric_of(records) is not TARGET_ACCURACY:
        return []
    paper = summaries.paper_accuracy(pair)
    rows = summaries.summarise(records)
    values = {row.key: _per_class(records, row.key, len(classes)) for row in rows}
    best = np.argmax([np.nan_to_num(summaries.column_means(own), nan=-1.0) for own in values.values()], axis=0)
    top = max((row.accuracy.value for row in rows if row.accuracy.value is not None), default=None)
    table = Table(f"{slug(pair)}-classes", caption("classes", pair=pair, paper=paper), ["method", *classes, "all"])
    for number, row in enumerate(rows):
        cells = []
        for at, column in enumerate(values[row.key].T):
            mean = Mean.of(column[np.isfinite(column)].tolist())
            bold = len(rows) > 1 and best[at] == number
            cells.append(_NO_NUMBER if mean.value is None else mean_cell(mean, 3, bold=bold))
        table.add(label(*row.key), *cells, mean_cell(row.accuracy, 4, bold=row.accuracy.value == top))
        theirs = paper.get(row.method) if row.variant == "default" else None
        if theirs is not None:
            printed = {name: _printed(theirs.per_class[name], theirs.deviation[name]) for name in theirs.per_class}
            average = _printed(theirs.average, theirs.average_deviation)
            paper_cells = (printed.get(name, _NO_NUMBER) for name in classes)
            table.add(Cell(f"paper: {label(row.method)}", muted=True), *paper_cells, average)
    if len(classes) <= _MAX_CLASS_COLUMNS:
        return [table]
    return [Folded(f"Every class ({len(classes)})", [table.transposed("class")])]


def _per_class(records: Sequence[Record], key: Key, n: int) -> FloatArray:
    """Return the accuracy of ``n`` classes, (seeds, n), NaN for classes without a context."""
    rows = [
        [math.nan if share is None else float(share) for share in record["per_class"]]
        for record in records
        if summaries.key_of(record) == key and len(record.get("per_class") or []) == n
    ]
    return np.array(rows).reshape(-1, n)


def pairs_blocks(family: str, records: Sequence[Record]) -> list[Block]:
    """Return a data set of several pairs: a row per pair, a column per method, and the mean over pairs."""
    records = summaries.labelled(records)
    if not records:
        return [Text("The targets of these pairs have no labels, so methods cannot be compared there.")]
    metric = metric_of(records)
    pairs = list(dict.fromkeys(record["pair"] for record in records))
    by_key: dict[Key, dict[str, FloatArray]] = {}
    for key in dict.fromkeys(map(summaries.key_of, records)):
        values = {pair: summaries.scores([r for r in records if r["pair"] == pair], key, metric) for pair in pairs}
        by_key[key] = {pair: of_pair for pair, of_pair in values.items() if len(of_pair)}
    whole = {key: summaries.score_by_seed(records, key, metric) for key in by_key if by_key[key].keys() == set(pairs)}
    means = {key: np.array(list(whole[key].values())) if key in whole else None for key in by_key}
    digits = metric.digits(*(float(v.mean()) for of in by_key.values() for v in of.values()), significant=4)
    about = caption("pairs", family=family, metric=metric.name)
    table = Table(f"{slug(family)}-pairs", about, ["source-target", *(label(*key) for key in by_key)])
    for pair in pairs:
        table.add(pair.partition("/")[2] or pair, *_mean_cells([of.get(pair) for of in by_key.values()], digits))
    table.add(Cell("mean of pairs", bold=True), *_mean_cells(list(means.values()), digits))
    return [table]


def _mean_cells(columns: Sequence[FloatArray | None], digits: int) -> list[Cell]:
    """Return means over seeds, the best of them bold."""
    means = [None if values is None or not len(values) else float(values.mean()) for values in columns]
    best = max((mean for mean in means if mean is not None), default=0.0)
    return [
        _NO_NUMBER if values is None or mean is None else mean_cell(Mean.of(values.tolist()), digits, bold=mean == best)
        for values, mean in zip(columns, means, strict=True)
    ]


def ablation_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """Return every combination of R, P and D next to the full method, with Holm's correction, and the paper's."""
    rows = ablation_rows(records)
    if not rows:
        return []
    paper = summaries.paper_ablation(pair)
    metric = rows[0].metric
    digits = metric.digits(*(row.score for row in rows), significant=4)
    bases = {base: [row for row in rows if row.base == base] for base in dict.fromkeys(row.base for row in rows)}
    blocks: list[Block] = []
    for base, of_base in bases.items():
        best = max((row.score for row in of_base if row.score is not None), default=None)
        means = [Mean(row.score, row.score_deviation, len(row.seeds)) for row in of_base]
        tests = [row.paired for row in of_base]
        printed = [paper.get(row.letters) for row in of_base]
        blocks.append(
            Table.of_columns(
                f"{slug(pair)}-ablation-{slug(base)}",
                caption("ablation", pair=pair, base=base, tests=sum(test is not None for test in tests)),
                ("terms kept", ["none of them" if r.letters == "none" else " + ".join(r.letters) for r in of_base]),
                (metric.name, [mean_cell(mean, digits, bold=mean.value == best) for mean in means]),
                ("against all three", [_difference(test, digits) for test in tests]),
                ("95% interval", [_interval(test, digits) for test in tests]),
                ("p (Holm)", [_p_text(row.p_holm) for row in of_base]),
                ("source regret", [UNKNOWN if r.source_regret is None else f"{r.source_regret:,.0f}" for r in of_base]),
                ("seeds", [str(len(row.seeds)) for row in of_base]),
                ("paper", ["" if one is None else _printed(*one) for one in printed]) if paper else None,
            )
        )
    if with_figure and summaries.labelled(records):
        scored = [row for row in rows if row.score is not None]
        values: dict[str, dict[str, FloatArray]] = {base: {} for base in bases}
        for row in scored:
            values[row.base][row.letters] = summaries.scores(records, ("daband", f"{row.base}:{row.letters}"), metric)
        listed = "; ".join(f"{row.base} with {row.letters} {row.score:,.{digits}f}" for row in scored)
        drawing = Drawing(
            f"{slug(pair)}-ablation",
            ablation_figure(values, {letters: value for letters, (value, _) in paper.items()}, metric),
            caption("ablation_figure", pair=pair, metric=metric.name),
            f"{metric.name.capitalize()} in the ablation: {listed}.",
        )
        blocks.insert(0, drawing)
    return blocks


def sweep_blocks(
    pair: str, records: Sequence[Record], sweep: Mapping[str, Any], *, with_figure: bool = True
) -> list[Block]:
    """Return every point of a sweep, the choice of each selection rule, and the score over a single swept setting."""
    rows = summaries.summarise(records)
    metric = rows[0].metric
    digits = metric.digits(*(row.score.value for row in rows), significant=4)
    best = max(row.rank for row in rows)
    picked = {summaries.key_of(record): str(record.get("selection", "none")) for record in records}
    table = Table.of_columns(
        f"{slug(pair)}-sweep",
        caption("sweep", pair=pair),
        ("method", [label(row.method) for row in rows]),
        ("setting", [row.variant for row in rows]),
        (metric.name, [mean_cell(row.score, digits, bold=row.rank == best) for row in rows]),
        ("source regret", [mean_cell(row.source_regret, 0, deviation=False) for row in rows]),
        ("seeds", [str(len(row.seeds)) for row in rows]),
        ("chosen by", ["" if picked[row.key] == "none" else picked[row.key] for row in rows]),
        text_columns=2,
    )
    blocks: list[Block] = [table]
    choices = [choice for choice in sweep.get("choices", []) if choice.get("pair") == pair]
    if choices:
        blocks.append(selection_table(pair, choices, metric))
    curves = _swept_numbers(summaries.labelled(records), metric)
    if with_figure and curves is not None:
        setting, by_method = curves
        points = [(x, values) for by_value in by_method.values() for x, values in sorted(by_value.items())]
        listed = "; ".join(f"{x:g}: {values.mean():,.{digits}f}" for x, values in points)
        figure = sweep_figure(setting, by_method, metric)
        alt = f"{metric.name.capitalize()} over {setting}: {listed}"
        blocks.insert(0, Drawing(f"{slug(pair)}-sweep", figure, f"{pair}: {metric.name} over {setting}.", alt))
    return blocks


def selection_table(pair: str, choices: Sequence[Mapping[str, Any]], metric: Metric) -> Table:
    """Return the choice of each rule on a pair, as ``sweep.json`` lists it, and its score."""
    digits = metric.digits(*(choice["score"] for choice in choices), significant=4)
    agreements = [choice["rank_correlation"] for choice in choices]
    return Table.of_columns(
        f"{slug(pair)}-selection",
        caption("selection", pair=pair, metric=metric.name),
        ("rule", [choice["rule"] for choice in choices]),
        ("choice", [choice["variant"] for choice in choices]),
        (metric.name, [Mean(choice["score"], 0.0, 1).text(digits) for choice in choices]),
        ("below best", [Mean(choice["below_best"], 0.0, 1).text(digits) for choice in choices]),
        ("rank correlation", ["" if agreement is None else f"{agreement:+.2f}" for agreement in agreements]),
        text_columns=2,
    )


def _swept_numbers(records: Sequence[Record], metric: Metric) -> tuple[str, dict[Key, dict[float, FloatArray]]] | None:
    """Return scores over a single swept number by method; None if several settings, or words, were swept."""
    by_method: dict[Key, dict[float, list[float]]] = {}
    names = set()
    for record in records:
        name, _, text = record["variant"].partition("=")
        try:
            value = float(text)
        except ValueError:
            return None
        names.add(name)
        by_method.setdefault((record["method"], "default"), {}).setdefault(value, []).append(record[metric.field])
    if len(names) != 1 or len({x for points in by_method.values() for x in points}) < 2:
        return None
    return names.pop(), {key: {x: np.array(v) for x, v in points.items()} for key, points in by_method.items()}


def _budget_columns(rows: Sequence[MethodSummary]) -> list[tuple[str, list[str]]]:
    return [
        ("rounds", [f"{row.rounds:,}" for row in rows]),
        ("seeds", [str(len(row.seeds)) for row in rows]),
        ("seconds per run", [f"{row.seconds:,.1f}" for row in rows]),
    ]


def _source_digits(rows: Sequence[MethodSummary]) -> int:
    return decimals(*(row.source_regret.value for row in rows), significant=4)


def _difference(paired: Paired | None, digits: int) -> str:
    return "" if paired is None else f"{paired.difference:+,.{digits}f}"


def _interval(paired: Paired | None, digits: int) -> str:
    """Return a 95% interval as text; empty for a single seed."""
    if paired is None or math.isnan(paired.low):
        return ""
    return f"{paired.low:+,.{digits}f} to {paired.high:+,.{digits}f}"


def _p_text(value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"
