"""Build the sections of a report, from methods by pair and class to learning curves and warnings.

A ``Section`` has texts, tables and drawings. Functions named ``*_sections`` and ``*_tables`` return them for runs and
records. Their captions are templates in ``captions.toml``. The last functions format numbers.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure

from daband.bench._records import TARGET_ACCURACY, Metric, PairedTest, Records, choose_metric, count_decimals, group_by
from daband.bench._variants import compute_ablation_rows
from daband.bench.report import _figures as figures
from daband.bench.report import _method_summaries as summaries
from daband.bench.report._method_summaries import BASELINE, UNKNOWN, Key, Mean, MethodSummary, label
from daband.bench.report._run_files import RunFiles, merge_curves
from daband.evaluation._collapse_watch import CollapseWatch

#: Maximum number of classes of a table that is shown without a click.
_MAX_OPEN_CLASSES = 16
#: Maximum number of curves in a figure. More curves cannot be distinguished.
_MAX_CURVES = 8
#: Maximum number of warnings in the report.
_MAX_WARNINGS = 12
#: Fields of ``environment.json`` in the report.
_VERSIONS = ("daband", "commit", "python", "numpy", "torch", "system", "processor", "cpus", "device", "accelerator")
#: The observable terms of the regret bound, with their names in the table.
_BOUND_TERMS = {
    "source_regret": "source regret", "regression_error": "regression error", "divergence": "divergence",
    "predicted_reward_target": "predicted reward, target", "predicted_reward_source": "predicted reward, source",
    "exploration": "exploration", "total": "sum, without psi",
}  # fmt: skip


class Bold(str):
    """The text of a table cell in bold."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """A table of texts: headings, and rows of cells."""

    #: The id of the table on the page.
    name: str
    #: The text above the table, not yet escaped.
    caption: str
    #: The heading of each column.
    headings: Sequence[str]
    #: The cells of each row.
    rows: Sequence[Sequence[str]]

    @classmethod
    def from_columns(cls, name: str, caption: str, columns: Mapping[str, Sequence[str]]) -> Table:
        """Return a table from columns of cells, by heading. A column without any text is dropped."""
        filled_columns = {heading: cells for heading, cells in columns.items() if any(cells)}
        return cls(name, caption, list(filled_columns), list(zip(*filled_columns.values(), strict=True)))

    @staticmethod
    def is_bold(cell: str) -> bool:
        """Return True if a cell is in bold."""
        return isinstance(cell, Bold)


@dataclass(frozen=True)
class Drawing:
    """A figure with its caption and description."""

    #: The file name without a suffix.
    name: str
    figure: Figure
    caption: str
    #: The description for screen readers.
    alt: str


@dataclass(frozen=True)
class Section:
    """A heading with texts, drawings and tables below it."""

    title: str
    texts: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    #: The level of the heading: 2 for a data set, 3 for a part of it.
    level: int = 3
    #: True if the section opens only on a click.
    folded: bool = False


@lru_cache(maxsize=1)
def _read_captions() -> dict[str, jinja2.Template]:
    """Return the templates of ``captions.toml``, by name."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701 - the page escapes
    environment.filters["count"] = lambda n, noun: f"{n:,} {noun}" + ("s" if n != 1 else "")
    texts = tomllib.loads(Path(__file__).with_name("captions.toml").read_text(encoding="utf-8"))
    return {name: environment.from_string(text) for name, text in texts.items()}


def caption(name: str, /, **values: Any) -> str:
    """Return a text of ``captions.toml`` with its values, not yet escaped."""
    return _read_captions()[name].render(**values)


def slug(name: str) -> str:
    """Return a pair's name as a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


def result_sections(pair: str, runs: Sequence[RunFiles]) -> list[Section]:
    """Return the results on one pair: the comparison of methods, and the ablation."""
    roles = group_by([run.record for run in runs], summaries.get_role)
    sections = []
    if "comparison" in roles:
        # If each arm has its own context, an arm index has another meaning in every round.
        has_shared_arms = runs[0].read_json_file("config.json").get("policy", {}).get("arms") == "shared"
        sections += _comparison_sections(pair, roles["comparison"], by_class=not has_shared_arms)
    if "ablation" in roles:
        sections.append(Section("Ablation of R, P and D", tables=ablation_tables(pair, roles["ablation"])))
    return sections


def _comparison_sections(pair: str, records: Records, *, by_class: bool) -> list[Section]:
    """Return the sections that compare methods on a pair."""
    rows, tables = _rank_methods(records), comparison_tables(pair, records)
    if not summaries.filter_labelled(records):
        return [Section("Results without target labels", tables=tables)]
    metric, paper = rows[0].metric, summaries.read_paper_accuracy(pair)
    score_rows = []
    for row in rows:
        average = paper[row.method].average if row.variant == "default" and row.method in paper else None
        scores = summaries.score_by_seed(records, row.key, metric)
        score_rows.append(figures.ScoreRow(row.key, np.array(list(scores.values())), average))
    listed = "; ".join(f"{label(*row.key)} {row.score.format(metric.count_decimals(row.score.value))}" for row in rows)
    drawing = Drawing(
        f"{slug(pair)}-{metric.field.removeprefix('target_')}",
        figures.draw_scores(score_rows, metric),
        caption("score", pair=pair, metric=metric.name),
        f"{metric.name.capitalize()} by method: {listed}.",
    )
    texts = [caption("budget", rounds=f"{records[0]['rounds']:,}")] if paper else []
    classes = _find_class_names(records)
    if not by_class or not classes or metric is not TARGET_ACCURACY:
        return [Section(metric.name.capitalize(), texts, [drawing], tables)]
    class_table = _class_table(pair, rows, records, classes)
    if len(classes) <= _MAX_OPEN_CLASSES:
        return [Section(metric.name.capitalize(), texts, [drawing], [*tables, class_table])]
    class_section = Section(f"Every class ({len(classes)})", tables=[class_table], folded=True)
    return [Section(metric.name.capitalize(), texts, [drawing], tables), class_section]


def _rank_methods(records: Records) -> list[MethodSummary]:
    """Return the summaries of methods, the best first."""
    return sorted(summaries.summarise(records), key=lambda row: -row.rank)


def comparison_tables(pair: str, records: Records) -> list[Table]:
    """Return the table of methods on one pair, with target scores, gains, the paper's accuracy and source regret.

    If exactly one arm is right, the score is the accuracy, with the gain over Neural-LinUCB. Otherwise it is the value
    in the unit of the rewards, with the regret and the gain over the best constant arm. If the target has no labels,
    the tables show source results and the chosen arms.
    """
    rows = _rank_methods(records)
    if not summaries.filter_labelled(records):
        return _unlabelled_tables(pair, rows, records)
    metric = rows[0].metric
    is_accuracy = metric is TARGET_ACCURACY
    paper = summaries.read_paper_accuracy(pair)
    paper_rows = [paper.get(row.method) if row.variant == "default" else None for row in rows]
    digits = metric.count_decimals(*(row.score.value for row in rows), significant=4)
    gains = [_compute_gain(records, row.key, metric) for row in rows]
    values = {"best constant arm": rows[0].constant_value, "best arm": rows[0].best_value}
    texts = [
        f"the {name} has {value:,.{count_decimals(value, significant=4)}f}"
        for name, value in values.items()
        if value is not None
    ]
    regret_digits = count_decimals(*(row.regret.value for row in rows), significant=4)
    columns = {
        "method": [label(*row.key) for row in rows],
        metric.name: _show_scores(rows, digits),
        "by class": [Mean(row.accuracy_macro.value, 0.0, 1).format(4) if is_accuracy else "" for row in rows],
        "target regret": ["" if is_accuracy else row.regret.format(regret_digits) for row in rows],
        "over NLinUCB" if is_accuracy else "over the best constant arm": [_show_change(gain, digits) for gain in gains],
        "95% interval": [_show_limits(gain, digits) for gain in gains],
        "paper": ["" if row is None else _show_paper(row.average, row.average_deviation) for row in paper_rows],
        "source regret": [row.source_regret.format(0 if is_accuracy else _source_decimals(rows)) for row in rows],
        **_budget_columns(rows),
    }
    about = caption("methods", pair=pair, accuracy=is_accuracy, references=" and ".join(texts))
    return [Table.from_columns(f"{slug(pair)}-methods", about, columns)]


def _compute_gain(records: Records, key: Key, metric: Metric) -> PairedTest | None:
    """Return a method's gain in the metric, paired by seed.

    For the accuracy, it is the gain over Neural-LinUCB, and for the value the gain over the best constant arm.
    """
    scores = summaries.score_by_seed(records, key, metric)
    if metric is TARGET_ACCURACY:
        reference_scores = {} if key == BASELINE else summaries.score_by_seed(records, BASELINE, metric)
    else:
        field = "target_constant_value"
        runs = [record for record in records if summaries.get_key(record) == key and record.get(field) is not None]
        reference_scores = {run["seed"]: run[field] for run in runs}
    return summaries.compare_seeds(scores, reference_scores)


def _unlabelled_tables(pair: str, rows: Sequence[MethodSummary], records: Records) -> list[Table]:
    """Return tables of source results and of the chosen arms, for a target without labels."""
    digits = count_decimals(*(row.source_reward.value for row in rows))
    logger_values = [row.logger_value.format(digits) for row in rows if row.logger_value.value is not None]
    logged_value = logger_values[0].partition(" ")[0] if logger_values else None  # does not depend on the method
    columns = {
        "method": [label(*row.key) for row in rows],
        "source reward": ["" if logged_value else row.source_reward.format(digits) for row in rows],
        "source regret": ["" if logged_value else row.source_regret.format(_source_decimals(rows)) for row in rows],
        **_budget_columns(rows),
    }
    about = caption("unlabelled", pair=pair, logged=logged_value)
    tables = [Table.from_columns(f"{slug(pair)}-methods", about, columns)]
    classes = _find_class_names(records)
    fractions = {label(*row.key): row.arm_fractions for row in rows if len(row.arm_fractions) == len(classes) > 0}
    if fractions:
        texts = {name: [f"{fraction:.3f}" for fraction in values] for name, values in fractions.items()}
        about = caption("arms", pair=pair)
        tables.append(Table.from_columns(f"{slug(pair)}-arms", about, {"arm": classes, **texts}))
    return tables


def _find_class_names(records: Records) -> list[str]:
    """Return the names of the arms from the first record that has them, or else their numbers."""
    for record in records:
        per_arm = record.get("per_class") or record.get("target_arm_counts")
        if per_arm:
            return [str(name) for name in record.get("class_names") or range(len(per_arm))]
    return []


def _class_table(pair: str, rows: Sequence[MethodSummary], records: Records, classes: Sequence[str]) -> Table:
    """Return the table of accuracies by class, with the paper's accuracies."""
    paper = summaries.read_paper_accuracy(pair)
    columns: dict[str, list[str]] = {"class": [*classes, "all"]}
    for row in rows:
        run_accuracies = [record.get("per_class") or [] for record in records if summaries.get_key(record) == row.key]
        complete = [accuracies for accuracies in run_accuracies if len(accuracies) == len(classes)]
        accuracies_by_class = list(zip(*complete, strict=True)) or [()] * len(classes)
        means = [Mean.of([value for value in values if value is not None]) for values in accuracies_by_class]
        mean_texts = ["-" if mean.value is None else mean.format(3) for mean in means]
        columns[label(*row.key)] = [*mean_texts, row.accuracy.format(4)]
        paper_row = paper.get(row.method) if row.variant == "default" else None
        if paper_row is not None:
            paper_texts = {
                name: _show_paper(value, paper_row.deviation[name]) for name, value in paper_row.per_class.items()
            }
            average = _show_paper(paper_row.average, paper_row.average_deviation)
            columns[f"paper: {label(row.method)}"] = [*(paper_texts.get(name, "-") for name in classes), average]
    return Table.from_columns(f"{slug(pair)}-classes", caption("classes", pair=pair, paper=paper), columns)


def pairs_tables(family: str, records: Records) -> list[Table]:
    """Return a table for a data set of several pairs, with a row per pair, a row of means, and a column per method.

    The list is empty if the targets have no labels.
    """
    records = summaries.filter_labelled(records)
    if not records:
        return []
    metric, rows = choose_metric(records), summaries.summarise(records)
    pairs = list(dict.fromkeys(row.pair for row in rows))
    means: dict[Key, list[Mean]] = {}
    for key in dict.fromkeys(row.key for row in rows):
        by_pair = {row.pair: row.score for row in rows if row.key == key}
        scores = summaries.score_by_seed(records, key, metric) if len(by_pair) == len(pairs) else {}
        means[key] = [*(by_pair.get(pair, Mean.of([])) for pair in pairs), Mean.of(list(scores.values()))]
    digits = metric.count_decimals(*(row.score.value for row in rows), significant=4)
    means_by_row = zip(*means.values(), strict=True)
    best = [max((mean.value for mean in row if mean.value is not None), default=None) for row in means_by_row]
    columns = {"source-target": [*(pair.partition("/")[2] or pair for pair in pairs), "mean of pairs"]}
    for key, row_means in means.items():
        texts = ["-" if mean.value is None else mean.format(digits) for mean in row_means]
        is_best = [mean.value is not None and mean.value == top for mean, top in zip(row_means, best, strict=True)]
        columns[label(*key)] = [Bold(text) if bold else text for text, bold in zip(texts, is_best, strict=True)]
    about = caption("pairs", family=family, metric=metric.name)
    return [Table.from_columns(f"{slug(family)}-pairs", about, columns)]


def ablation_tables(pair: str, records: Records) -> list[Table]:
    """Return a table per recipe with every combination of R, P and D, compared with the full method.

    p-values have Holm's correction. The paper's accuracies are a column if there are any.
    """
    paper = summaries.paper_ablation(pair)
    tables = []
    for base, rows in group_by(compute_ablation_rows(records), lambda row: row.base).items():
        summary_rows = [row.summary for row in rows]
        metric = summary_rows[0].metric
        digits = metric.count_decimals(*(row.score.value for row in summary_rows), significant=4)
        tests = [row.paired_test for row in rows]
        columns = {
            "terms kept": ["none of them" if row.letters == "none" else " + ".join(row.letters) for row in rows],
            metric.name: _show_scores(summary_rows, digits),
            "against all three": [_show_change(test, digits) for test in tests],
            "95% interval": [_show_limits(test, digits) for test in tests],
            "p (Holm)": [show_p_value(row.p_holm) for row in rows],
            "source regret": [Mean(row.source_regret.value, 0.0, 1).format(0) for row in summary_rows],
            "seeds": [str(len(row.seeds)) for row in summary_rows],
            "paper": [_show_paper(*paper[row.letters]) if row.letters in paper else "" for row in rows],
        }
        about = caption("ablation", pair=pair, base=base, tests=sum(test is not None for test in tests))
        tables.append(Table.from_columns(f"{slug(pair)}-ablation-{slug(base)}", about, columns))
    return tables


def assessment_sections(runs: Sequence[RunFiles]) -> list[Section]:
    """Return a section with the advantages of runs over the incumbent; empty if no run was assessed."""
    texts = [f"{run.name}: {assessment.sentence}" for run in runs if (assessment := run.read_assessment()) is not None]
    return [Section("Advantage over the incumbent", texts, level=2)] if texts else []


def detail_sections(pair: str, runs: Sequence[RunFiles]) -> list[Section]:
    """Return the sections on continued training and on learning curves of one pair, as far as the runs have them."""
    records = [record for run in runs if (record := run.read_continued())]
    sections = (
        Section(
            "Continued in the target",
            drawings=_regret_drawings(pair, runs, "target"),
            tables=[continued_table(pair, records)] if records else [],
        ),
        Section(
            "Learning in the source", drawings=_regret_drawings(pair, runs, "source"), tables=_bound_tables(pair, runs)
        ),
    )
    return [section for section in sections if section.drawings or section.tables]


def continued_table(pair: str, records: Records) -> Table:
    """Return a table of target regret before and with target rewards, by method, from records of ``continue_run``."""
    groups = group_by(records, summaries.get_key)
    has_unit = choose_metric(records) is not TARGET_ACCURACY
    fields = {"continued regret": "continued_regret", "zero-shot regret": "zero_shot_regret", "total": "total_regret"}
    fields = {"reward a round": "continued_reward", **fields} if has_unit else fields
    columns = {
        "method": [label(*key) for key in groups],
        "target rounds": [f"{group[0]['rounds']:,}" for group in groups.values()],
    }
    for heading, field in fields.items():
        digits = count_decimals(*(record[field] for record in records), significant=4) if has_unit else 1
        columns[heading] = [Mean.of([record[field] for record in group]).format(digits) for group in groups.values()]
    columns["seeds"] = [str(len(group)) for group in groups.values()]
    return Table.from_columns(f"{slug(pair)}-continued", caption("continued", pair=pair), columns)


def _regret_drawings(pair: str, runs: Sequence[RunFiles], domain: str) -> list[Drawing]:
    """Return a drawing of cumulative regret over the rounds in a domain; empty if no run has one."""
    curves = {}
    for key, key_runs in list(group_by(runs, lambda run: run.key).items())[:_MAX_CURVES]:
        curve = merge_curves([run.read_regret(domain) for run in key_runs])
        if curve is not None:
            curves[key] = curve
    if not curves:
        return []
    listed = "; ".join(f"{label(*key)} {curve.values[:, -1].mean():,.0f}" for key, curve in curves.items())
    figure, alt = figures.draw_regret(curves, domain=domain), f"Cumulative {domain} regret after all rounds: {listed}."
    return [Drawing(f"{slug(pair)}-{domain}-regret", figure, caption(f"{domain}_regret", pair=pair), alt)]


def _bound_tables(pair: str, runs: Sequence[RunFiles]) -> list[Table]:
    """Return a table of the bound's observable terms per round after training; empty if no method measures them."""
    columns: dict[str, list[str]] = {}
    for key, group in group_by(runs, lambda run: run.key).items():
        last = [records[-1] for run in group if (records := run.read_episodes()) and "bound_rounds" in records[-1]]
        if last:
            sums_by_term = {name: [record.get(f"bound_{name}") for record in last] for name in _BOUND_TERMS}
            rounds = [record["bound_rounds"] for record in last]
            columns[label(*key)] = [
                UNKNOWN if None in values else Mean.of([v / n for v, n in zip(values, rounds, strict=True)]).format(3)
                for values in sums_by_term.values()
            ]
    if not columns:
        return []
    columns = {"term": list(_BOUND_TERMS.values()), **columns}
    return [Table.from_columns(f"{slug(pair)}-bound", caption("bound", pair=pair), columns)]


def setup_section(runs: Sequence[RunFiles]) -> Section:
    """Return the section with versions, hardware and the location of each run's settings."""
    environments = [run.read_json_file("environment.json") for run in runs]
    groups = group_by(
        [fields for fields in environments if fields],
        lambda fields: ", ".join(f"{name} {fields[name]}" for name in _VERSIONS if fields.get(name)),
    )
    lines = [f"{len(group)} run{'s' if len(group) > 1 else ''}: {text}." for text, group in groups.items()]
    remark = "The run folders are missing, so versions are unknown."
    return Section(
        "Versions and settings", [*(lines or [remark]), "config.json in each run's folder has all settings."], level=2
    )


def warning_sections(runs: Sequence[RunFiles]) -> list[Section]:
    """Return a section with warnings about the results; empty if there are none.

    Each message appears once, with at most three of the runs.
    """
    messages: dict[str, list[str]] = {}
    for pair, pair_runs in group_by(runs, lambda run: run.record["pair"]).items():
        by_method = group_by(pair_runs, lambda run: run.key).values()
        if len({frozenset(run.record["seed"] for run in group) for group in by_method}) > 1:
            messages.setdefault("Methods ran on different seeds; differences use common seeds.", []).append(pair)
        if len({run.record["rounds"] for run in pair_runs}) > 1:
            messages.setdefault("Runs with different budgets are compared.", []).append(pair)
    for run in runs:
        if run.path is None:
            messages.setdefault("The run's folder is missing, so curves and images leave it out.", []).append(run.name)
        watch = CollapseWatch()
        for message in (message for record in run.read_episodes() for message in watch.observe(record)):
            sign = f"Training showed a sign of collapse: {message.partition(':')[0]}."
            messages.setdefault(sign, []).append(run.name)
    texts = []
    for message, run_names in messages.items():
        others = f" and {len(run_names) - 3} more" if len(run_names) > 3 else ""
        texts.append(f"{message} ({'; '.join(run_names[:3])}{others})")
    return [Section("Warnings", texts[:_MAX_WARNINGS], level=2)] if texts else []


def _show_scores(rows: Sequence[MethodSummary], digits: int) -> list[str]:
    """Return the scores of methods on one pair, the best in bold."""
    best = max(row.rank for row in rows)
    texts = [row.score.format(digits) for row in rows]
    return [Bold(text) if len(rows) > 1 and row.rank == best else text for text, row in zip(texts, rows, strict=True)]


def _budget_columns(rows: Sequence[MethodSummary]) -> dict[str, list[str]]:
    """Return the table columns with rounds, seeds and seconds."""
    return {
        "rounds": [f"{row.rounds:,}" for row in rows],
        "seeds": [str(len(row.seeds)) for row in rows],
        "seconds per run": [f"{row.seconds:,.1f}" for row in rows],
    }


def _source_decimals(rows: Sequence[MethodSummary]) -> int:
    """Return the number of decimals for source regrets."""
    return count_decimals(*(row.source_regret.value for row in rows), significant=4)


def _show_paper(value: float, deviation: float) -> str:
    """Return an accuracy of the paper with its standard deviation as text."""
    return f"{value:.4f} ± {deviation:.2f}"


def _show_change(paired: PairedTest | None, digits: int) -> str:
    """Return a paired difference as text; empty for None."""
    return "" if paired is None else f"{paired.difference:+,.{digits}f}"


def _show_limits(paired: PairedTest | None, digits: int) -> str:
    """Return the 95% interval of a paired difference as text; empty for None or a single seed."""
    if paired is None or math.isnan(paired.low):
        return ""
    return f"{paired.low:+,.{digits}f} to {paired.high:+,.{digits}f}"


def show_p_value(value: float | None) -> str:
    """Return a p-value as text; empty without a test."""
    if value is None or math.isnan(value):
        return ""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"
