"""Sections of results: what a policy is worth, methods compared by pair and class, ablations, sweeps."""

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
from daband.bench.report._document import Block, Cell, Drawing, Folded, Section, SideBySide, Table, Text
from daband.bench.report._figures import Group, ablation_figure, gain_figure, pairs_figure, score_figure, sweep_figure
from daband.bench.report._method_styles import label
from daband.bench.report._method_summaries import BASELINE, UNKNOWN, Key, Mean, MethodSummary
from daband.bench.report._rendering import caption
from daband.bench.report._run_files import RunFiles
from daband.evaluation._paired_test import Paired

_OURS = ("daband", "default")
_WIDEST = 16
"""Classes that fit in the columns of a table; with more of them they become its rows."""
_REFERENCES = {"target_constant_value": "best constant arm", "logger_value": "logger"}
"""What a policy is compared with: the fields of a record, and their names."""
_NO_NUMBER = Cell("-", muted=True)


def slug(name: str) -> str:
    """A pair's name as files can have it."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


def mean_cell(mean: Mean, digits: int, *, bold: bool = False, deviation: bool = True) -> Cell:
    """A mean with its deviation as a cell."""
    if mean.value is None:
        return Cell(UNKNOWN, muted=True)
    around = f"{mean.deviation:,.{digits}f}" if deviation and mean.seeds > 1 else ""
    return Cell(f"{mean.value:,.{digits}f}", around, bold)


def _printed(value: float, deviation: float) -> Cell:
    """A number of the paper."""
    return Cell(f"{value:.4f}", f"{deviation:.2f}", muted=True)


def side_by_side(blocks: Sequence[Block]) -> list[Block]:
    """Drawings together in front, in a row where there is room; the rest behind them."""
    drawings = [block for block in blocks if isinstance(block, Drawing)]
    others = [block for block in blocks if not isinstance(block, Drawing)]
    return [SideBySide(drawings), *others] if drawings else list(others)


def class_names(records: Sequence[Record]) -> list[str]:
    """The names of the arms, from the first record that has them; their numbers where none does."""
    for record in records:
        per_arm = record.get("per_class") or record.get("target_arm_counts")
        if per_arm:
            return [str(name) for name in record.get("class_names") or range(len(per_arm))]
    return []


def uplift(records: Sequence[Record], key: Key, reference: str) -> Paired | None:
    """How much more a method earns than a reference, paired by seed; None where the reference is not known."""
    runs = [record for record in records if summaries.key_of(record) == key]
    other = {record["seed"]: record[reference] for record in runs if record.get(reference) is not None}
    return summaries.paired_difference(summaries.score_by_seed(runs, key, TARGET_VALUE), other)


def decision_sections(runs: Sequence[RunFiles]) -> list[Section]:
    """What each policy is worth in the rewards' unit, beside what is there without it: for the person who decides.

    One section, where rewards are numbers in a unit and the target of the single pair has labels. Where exactly one
    arm is right, the accuracy says it all.
    """
    compared = [run for run in runs if summaries.role_of(run.record) == "comparison"]
    records = summaries.labelled([run.record for run in compared])
    pairs = {run.record["pair"] for run in runs}
    if not records or len(pairs) > 1 or metric_of(records) is not TARGET_VALUE:
        return []
    pair = pairs.pop()
    rows = sorted(summaries.summarise(records), key=lambda row: -row.rank)
    digits = decimals(*(row.value.value for row in rows), significant=4)
    means = {name: Mean.of([record.get(name) for record in records]).value for name in _REFERENCES}
    references = {name: value for name, value in means.items() if value is not None}
    columns: list[tuple[str, Sequence[Cell | str]]] = [
        ("policy", [label(*row.key) for row in rows]),
        ("value a decision", [mean_cell(row.value, digits, bold=row is rows[0] and len(rows) > 1) for row in rows]),
    ]
    for name in references:
        gains = [uplift(records, row.key, name) for row in rows]
        columns.append((f"over the {_REFERENCES[name]}", [_difference(gain, digits) for gain in gains]))
        columns.append(("95% interval", [_interval(gain, digits) for gain in gains]))
    promises = [_promise([run for run in compared if run.key == row.key], digits) for row in rows]
    promised = any(text for text, _ in promises)
    if promised:
        columns.append(("promised, at least", [text for text, _ in promises]))
        columns.append(("kept", [text for _, text in promises]))
    constant, logger = (None if value is None else f"{value:,.{digits}f}" for value in means.values())
    about = caption("decision", pair=pair, constant=constant, logger=logger, promised=promised)
    best = Mean.of([record.get("target_best_value") for record in records]).value
    marks = {_REFERENCES[name]: value for name, value in references.items()}
    marks |= {} if best is None else {"best arm": best}
    groups = [Group(label(*row.key), summaries.scores(records, row.key, TARGET_VALUE), row.key) for row in rows]
    listed = "; ".join(f"{group.name} {group.values.mean():,.{digits}f}" for group in groups)
    figure = score_figure(groups, TARGET_VALUE, references=marks)
    blocks: list[Block] = [
        Text(_worth(rows[0], records, digits)),
        Drawing(f"{slug(pair)}-value", figure, caption("value", pair=pair), f"Value by policy: {listed}."),
        Table.of_columns(f"{slug(pair)}-decision", about, *columns),
    ]
    return [Section(f"What it is worth: {pair}", blocks, 2)]


def _worth(row: MethodSummary, records: Sequence[Record], digits: int) -> str:
    parts = []
    for field, words in _REFERENCES.items():
        gain = uplift(records, row.key, field)
        if gain is not None:
            sure = "" if math.isnan(gain.low) else f" (95% interval {_interval(gain, digits)})"
            parts.append(f"{_difference(gain, digits)}{sure} against the {words}")
    against = f": {'; '.join(parts)}." if parts else "."
    return f"{label(*row.key)} earns {row.value.text(digits)} a decision in the target{against}"


def _promise(runs: Sequence[RunFiles], digits: int) -> tuple[str, str]:
    """The lowest bound of a method's assessed runs, and in how many runs it held."""
    assessed = [(assessment.low, run.record["target_value"]) for run in runs if (assessment := run.assessment())]
    if not assessed:
        return "", ""
    held = sum(value >= low for low, value in assessed)
    return f"{min(assessed)[0]:,.{digits}f}", f"{held} of {len(assessed)} runs"


def comparison_table(rows: Sequence[MethodSummary], *, name: str, about: str, records: Sequence[Record] = ()) -> Table:
    """Methods on one pair: their score in the target, its gain over Neural-LinUCB, the paper's, and the source's.

    The score is the accuracy where exactly one arm pays 1, else the value in the rewards' unit with the regret
    beside it.
    """
    metric = rows[0].metric
    paper = summaries.paper_accuracy(rows[0].pair)
    theirs = [paper.get(row.method) if row.variant == "default" else None for row in rows]
    best = max(row.rank for row in rows)
    digits = metric.digits(*(row.score.value for row in rows), significant=4)
    score = [mean_cell(row.score, digits, bold=row.rank == best and len(rows) > 1) for row in rows]
    regret_digits = decimals(*(row.regret.value for row in rows), significant=4)
    if metric is TARGET_ACCURACY:
        second_column = "by class", [mean_cell(row.accuracy_macro, 4, deviation=False) for row in rows]
    else:
        second_column = "target regret", [mean_cell(row.regret, regret_digits) for row in rows]
    baseline = summaries.score_by_seed(records, BASELINE, metric)
    by_seed = [summaries.score_by_seed(records, row.key, metric) if row.key != BASELINE else {} for row in rows]
    paired = [summaries.paired_difference(of_method, baseline) for of_method in by_seed]
    source_digits = 0 if metric is TARGET_ACCURACY else _source_digits(rows)
    printed = ["" if one is None else _printed(one.average, one.average_deviation) for one in theirs]
    return Table.of_columns(
        name,
        about,
        ("method", [label(*row.key) for row in rows]),
        (metric.name, score),
        second_column,
        ("over NLinUCB", [_difference(test, digits - 1) for test in paired]) if baseline else None,
        ("95% interval", [_interval(test, digits - 1) for test in paired]) if baseline else None,
        ("paper", printed) if paper else None,
        ("source regret", [mean_cell(row.source_regret, source_digits) for row in rows]),
        *_budget_columns(rows),
    )


def comparison_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """The comparison of methods on one pair."""
    rows = summaries.summarise(records)
    if not summaries.labelled(records):
        return _unlabelled_blocks(pair, rows, class_names(records))
    metric = rows[0].metric
    values = {"best constant arm": rows[0].constant_value, "best arm": rows[0].best_value}
    known = {name: value for name, value in values.items() if value is not None}
    texts = (f"the {name} has {value:,.{decimals(value, significant=4)}f}" for name, value in known.items())
    about = caption("methods", pair=pair, accuracy=metric is TARGET_ACCURACY, references=" and ".join(texts))
    table = comparison_table(rows, name=f"{slug(pair)}-methods", about=about, records=records)
    if not with_figure or metric is not TARGET_ACCURACY:  # values in a unit have their chart where they are decided on
        return [table]
    paper = summaries.paper_accuracy(pair)
    groups = []
    for row in rows:
        average = paper[row.method].average if row.variant == "default" and row.method in paper else None
        groups.append(Group(label(*row.key), summaries.scores(records, row.key, metric), row.key, average))
    digits = metric.digits(*(row.score.value for row in rows))
    listed = "; ".join(f"{label(*row.key)} {row.score.value:,.{digits}f}" for row in rows)
    drawing = Drawing(
        f"{slug(pair)}-{metric.field.removeprefix('target_')}",
        score_figure(groups, metric),
        caption("score", pair=pair, metric=metric.name),
        f"{metric.name.capitalize()} by method: {listed}.",
    )
    return [drawing, table]


def _unlabelled_blocks(pair: str, rows: Sequence[MethodSummary], classes: Sequence[str]) -> list[Block]:
    """What is known of methods where the target has no labels: the source, and which arms are chosen in the target."""
    digits = decimals(*(row.source_reward.value for row in rows))
    logger_values = [f"{row.logger_value.value:,.{digits}f}" for row in rows if row.logger_value.value is not None]
    # A log has the rewards of its logger, whichever method learns from it: they say nothing of a method.
    logged = logger_values[0] if logger_values else None
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
    return [table, chosen if len(classes) <= _WIDEST else chosen.transposed("arm")]


def by_class_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """Accuracy by class beside the paper's, and the gain of DABand over Neural-LinUCB (or the best over its rival)."""
    classes = class_names(records)
    if not classes or not summaries.labelled(records) or metric_of(records) is not TARGET_ACCURACY:
        return []  # without a right arm there is no class that a context belongs to
    paper = summaries.paper_accuracy(pair)
    rows = summaries.summarise(records)
    shares = {row.key: np.array(list(_per_class(records, row.key, len(classes)).values())) for row in rows}
    shares = {key: values.reshape(-1, len(classes)) for key, values in shares.items()}
    # A table is read by the eye: of equal means the first is set in bold.
    best = np.argmax([np.nan_to_num(summaries.column_means(values), nan=-1.0) for values in shares.values()], axis=0)
    top = max((row.accuracy.value for row in rows if row.accuracy.value is not None), default=None)
    about = caption("classes", pair=pair, paper=paper)
    table = Table(f"{slug(pair)}-classes", about, ["method", *classes, "all"])
    for number, row in enumerate(rows):
        cells = []
        for at, column in enumerate(shares[row.key].T):
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
    drawings = _gain_drawings(pair, records, classes) if with_figure else []
    if len(classes) <= _WIDEST:
        return [table, *drawings]
    inside: list[Block] = [SideBySide(drawings)] if drawings else []
    return [Folded(f"Every class ({len(classes)})", [*inside, table.transposed("class")])]


def _per_class(records: Sequence[Record], key: Key, n: int) -> dict[int, list[float]]:
    """The accuracy of ``n`` classes by seed, NaN for classes without a context."""
    return {
        record["seed"]: [math.nan if share is None else float(share) for share in record["per_class"]]
        for record in records
        if summaries.key_of(record) == key and len(record.get("per_class") or []) == n
    }


def _gain_drawings(pair: str, records: Sequence[Record], classes: list[str]) -> list[Drawing]:
    """DABand over Neural-LinUCB as in the paper; where one of them did not run, the best method over its rival."""
    result = summaries.verdict(records)
    if {_OURS, BASELINE} <= {summaries.key_of(record) for record in records}:
        best, rival = _OURS, BASELINE
    elif result is not None and result.rival is not None:
        best, rival = result.best, result.rival
    else:
        return []
    first, second = (_per_class(records, key, len(classes)) for key in (best, rival))
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return []
    gains = np.array([first[seed] for seed in seeds]) - np.array([second[seed] for seed in seeds])
    theirs: dict[str, float] = {}
    printed = summaries.paper_accuracy(pair)
    if (best, rival) == (_OURS, BASELINE) and printed:
        ours, other = printed["daband"].per_class, printed["nlinucb"].per_class
        theirs = {name: ours[name] - other[name] for name in ours}
    names = {"best": label(*best), "rival": label(*rival)}
    better = int((summaries.column_means(gains) > 0).sum())
    alt = f"{names['best']} is better than {names['rival']} for {better} of {len(classes)} classes."
    figure = gain_figure(classes, gains, (best, rival), theirs)
    return [Drawing(f"{slug(pair)}-gain", figure, caption("gain", pair=pair, **names), alt)]


def pairs_blocks(family: str, records: Sequence[Record]) -> list[Block]:
    """A data set of several pairs: every pair as a row, every method as a column, and the mean of pairs."""
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
    known = {key: values for key, values in means.items() if values is not None and len(values)}
    listed = "; ".join(f"{label(*key)} {values.mean():,.{digits}f}" for key, values in known.items())
    figure, about = pairs_figure(pairs, by_key, metric), caption("pairs_figure", family=family, metric=metric.name)
    alt = f"Mean {metric.name} over {len(pairs)} pairs: {listed}."
    return [Drawing(f"{slug(family)}-pairs", figure, about, alt), table]


def _mean_cells(columns: Sequence[FloatArray | None], digits: int) -> list[Cell]:
    """Means over seeds, the best of them bold."""
    means = [None if values is None or not len(values) else float(values.mean()) for values in columns]
    best = max((mean for mean in means if mean is not None), default=0.0)
    return [
        _NO_NUMBER if values is None or mean is None else mean_cell(Mean.of(values.tolist()), digits, bold=mean == best)
        for values, mean in zip(columns, means, strict=True)
    ]


def ablation_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """What R, P and D are worth: every combination beside the full method, with Holm's correction, and the paper's."""
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
                ("p", [_p_text(None if test is None else test.p_value) for test in tests]),
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
    """Every point of a sweep, what each rule of selection would pick, and the score over a single swept setting."""
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
        ("picked by", ["" if picked[row.key] == "none" else picked[row.key] for row in rows]),
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
    """What each rule picks on a pair, as ``sweep.json`` lists it, and how good that is."""
    digits = metric.digits(*(choice["score"] for choice in choices), significant=4)
    agreements = [choice["rank_correlation"] for choice in choices]
    return Table.of_columns(
        f"{slug(pair)}-selection",
        caption("selection", pair=pair, metric=metric.name),
        ("rule", [choice["rule"] for choice in choices]),
        ("picks", [choice["variant"] for choice in choices]),
        (metric.name, [Mean(choice["score"], 0.0, 1).text(digits) for choice in choices]),
        ("below best", [Mean(choice["below_best"], 0.0, 1).text(digits) for choice in choices]),
        ("rank correlation", ["" if agreement is None else f"{agreement:+.2f}" for agreement in agreements]),
        text_columns=2,
    )


def _swept_numbers(records: Sequence[Record], metric: Metric) -> tuple[str, dict[Key, dict[float, FloatArray]]] | None:
    """Scores over a single swept number by method; None where several settings, or words, were swept."""
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
        ("s a run", [f"{row.seconds:,.1f}" for row in rows]),
    ]


def _source_digits(rows: Sequence[MethodSummary]) -> int:
    return decimals(*(row.source_regret.value for row in rows), significant=4)


def _difference(paired: Paired | None, digits: int) -> str:
    return "" if paired is None else f"{paired.difference:+,.{digits}f}"


def _interval(paired: Paired | None, digits: int) -> str:
    """A 95% interval in words; empty where a single seed allows none."""
    if paired is None or math.isnan(paired.low):
        return ""
    return f"{paired.low:+,.{digits}f} to {paired.high:+,.{digits}f}"


def _p_text(value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"
