"""Build the sections of a report: the comparison of methods, ablation, learning curves, versions
and warnings.

A ``Section`` has texts, tables and drawings. Functions whose names start with "build" return
sections and tables for runs and records. Their captions are templates in ``captions.toml``. The
last functions format numbers.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure

from daband.bench._records import (
    TARGET_ACCURACY,
    Metric,
    PairedTest,
    Records,
    choose_metric,
    count_decimals,
    group_by,
)
from daband.bench._variants import compute_ablation_rows
from daband.bench.report import _figures as figures
from daband.bench.report import _method_summaries as summaries
from daband.bench.report._method_summaries import (
    BASELINE,
    Mean,
    MethodKey,
    MethodSummary,
    get_label,
)
from daband.bench.report._run_files import RunFiles, merge_curves
from daband.training._collapse_watch import CollapseWatch

#: Maximum number of curves in a figure. More curves cannot be distinguished.
_MAX_CURVES = 8
#: Maximum number of warnings in the report.
_MAX_WARNINGS = 12
#: Fields of ``environment.json`` in the report.
_ENVIRONMENT_FIELDS = (
    "daband",
    "commit",
    "python",
    "numpy",
    "torch",
    "system",
    "processor",
    "cpus",
    "device",
    "accelerator",
)


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
        """Return a table from columns of cells, by heading. A column without any text is
        dropped.
        """
        filled_columns = {heading: cells for heading, cells in columns.items() if any(cells)}
        return cls(
            name, caption, list(filled_columns), list(zip(*filled_columns.values(), strict=True))
        )

    @staticmethod
    def is_bold(cell: str) -> bool:
        """Return True if a cell is in bold."""
        return isinstance(cell, Bold)


@dataclass(frozen=True)
class Drawing:
    """A figure with its caption and description."""

    #: The file name without a suffix.
    name: str
    #: The matplotlib figure.
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
    is_folded: bool = False


@lru_cache(maxsize=1)
def _read_captions() -> dict[str, jinja2.Template]:
    """Return the templates of ``captions.toml``, by name."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701
    environment.filters["count"] = lambda n, noun: f"{n:,} {noun}" + ("s" if n != 1 else "")
    texts = tomllib.loads(Path(__file__).with_name("captions.toml").read_text(encoding="utf-8"))
    return {name: environment.from_string(text) for name, text in texts.items()}


def render_caption(name: str, /, **values: Any) -> str:
    """Return a text of ``captions.toml`` with its values, not yet escaped."""
    return _read_captions()[name].render(**values)


def make_slug(name: str) -> str:
    """Return a pair's name as a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


def build_result_sections(pair: str, runs: Sequence[RunFiles]) -> list[Section]:
    """Return the results on one pair: the comparison of methods, and the ablation."""
    records_by_role = group_by([run.record for run in runs], summaries.get_role)
    sections = []
    if "comparison" in records_by_role:
        # If each arm has its own context, an arm index has another meaning in every round.
        has_shared_arms = (
            runs[0].read_json_file("config.json").get("policy", {}).get("arms") == "shared"
        )
        sections += _build_comparison_sections(
            pair, records_by_role["comparison"], with_classes=not has_shared_arms
        )
    if "ablation" in records_by_role:
        tables = build_ablation_tables(pair, records_by_role["ablation"])
        sections.append(Section("Ablation of R, P and D", tables=tables))
    return sections


def _build_comparison_sections(pair: str, records: Records, *, with_classes: bool) -> list[Section]:
    """Return the sections that compare methods on a pair."""
    rows = _rank_methods(records)
    tables = build_comparison_tables(pair, records)
    if not summaries.filter_labelled(records):
        return [Section("Results without target labels", tables=tables)]
    metric = rows[0].metric
    paper_accuracies = summaries.read_paper_accuracy(pair)
    score_rows = []
    for row in rows:
        paper_row = paper_accuracies.get(row.method) if row.variant == "default" else None
        scores = np.array(list(summaries.compute_scores_by_seed(records, row.key, metric).values()))
        score_rows.append(
            figures.ScoreRow(row.key, scores, None if paper_row is None else paper_row.average)
        )
    score_texts = [row.score.format(metric.count_decimals(row.score.value)) for row in rows]
    scores_text = "; ".join(
        f"{row.label} {text}" for row, text in zip(rows, score_texts, strict=True)
    )
    drawing = Drawing(
        f"{make_slug(pair)}-{metric.field.removeprefix('target_')}",
        figures.draw_scores(score_rows, metric),
        render_caption("score", pair=pair, metric=metric.name),
        f"{metric.name.capitalize()} by method: {scores_text}.",
    )
    texts = (
        [render_caption("budget", rounds=f"{records[0]['rounds']:,}")] if paper_accuracies else []
    )
    class_names = _find_class_names(records)
    if not with_classes or not class_names or metric is not TARGET_ACCURACY:
        return [Section(metric.name.capitalize(), texts, [drawing], tables)]
    class_table = _build_class_table(pair, rows, records, class_names)
    return [Section(metric.name.capitalize(), texts, [drawing], [*tables, class_table])]


def _rank_methods(records: Records) -> list[MethodSummary]:
    """Return the summaries of methods, the best first."""
    return sorted(summaries.summarise(records), key=lambda row: -row.sort_score)


def build_comparison_tables(pair: str, records: Records) -> list[Table]:
    """Return the table of methods on one pair, with target scores, gains, the paper's accuracy and
    source regret.

    If exactly one arm is right, the score is the accuracy, with the gain over Neural-LinUCB.
    Otherwise it is the value in the unit of the rewards, with the regret and the gain over the best
    constant arm. If the target has no labels, the tables show source results and the chosen arms.
    """
    rows = _rank_methods(records)
    if not summaries.filter_labelled(records):
        return _build_unlabelled_tables(pair, rows, records)
    metric = rows[0].metric
    is_accuracy = metric is TARGET_ACCURACY
    paper_accuracies = summaries.read_paper_accuracy(pair)
    paper_rows = [
        paper_accuracies.get(row.method) if row.variant == "default" else None for row in rows
    ]
    n_decimals = metric.count_decimals(*(row.score.value for row in rows), n_digits=4)
    gains = [_compute_gain(records, row.key, metric) for row in rows]
    columns = {
        "method": [row.label for row in rows],
        metric.name: _format_scores(rows, n_decimals),
        "by class": [
            Mean(row.accuracy_macro.value, 0.0, 1).format(4) if is_accuracy else "" for row in rows
        ],
        "target regret": [] if is_accuracy else _format_means([row.regret for row in rows]),
        f"over {'NLinUCB' if is_accuracy else 'the best constant arm'}": [
            _format_change(gain, n_decimals) for gain in gains
        ],
        "95% interval": [_format_limits(gain, n_decimals) for gain in gains],
        "paper": [
            "" if row is None else _format_paper(row.average, row.average_deviation)
            for row in paper_rows
        ],
        "source regret": _format_means(
            [row.source_regret for row in rows], 0 if is_accuracy else None
        ),
        **_build_budget_columns(rows),
    }
    reference_values = {"best constant arm": rows[0].constant_value, "best arm": rows[0].best_value}
    references = " and ".join(
        f"the {name} has {value:,.{count_decimals(value, n_digits=4)}f}"
        for name, value in reference_values.items()
        if value is not None
    )
    caption_text = render_caption(
        "methods", pair=pair, is_accuracy=is_accuracy, references=references
    )
    return [Table.from_columns(f"{make_slug(pair)}-methods", caption_text, columns)]


def _compute_gain(records: Records, key: MethodKey, metric: Metric) -> PairedTest | None:
    """Return a method's gain in the metric, paired by seed.

    For the accuracy, it is the gain over Neural-LinUCB, and for the value the gain over the best
    constant arm.
    """
    scores = summaries.compute_scores_by_seed(records, key, metric)
    if metric is TARGET_ACCURACY:
        reference_scores = (
            {} if key == BASELINE else summaries.compute_scores_by_seed(records, BASELINE, metric)
        )
    else:
        field = "target_constant_value"
        method_records = [
            record
            for record in records
            if summaries.get_key(record) == key and record.get(field) is not None
        ]
        reference_scores = {record["seed"]: record[field] for record in method_records}
    return summaries.compare_seeds(scores, reference_scores)


def _build_unlabelled_tables(
    pair: str, rows: Sequence[MethodSummary], records: Records
) -> list[Table]:
    """Return tables of source results and of the chosen arms, for a target without labels."""
    logger_value = rows[0].logger_value.value  # does not depend on the method
    columns: dict[str, Sequence[str]] = {"method": [row.label for row in rows]}
    logged_value = None
    if logger_value is None:
        columns["source reward"] = _format_means([row.source_reward for row in rows])
        columns["source regret"] = _format_means([row.source_regret for row in rows])
    else:
        logged_value = f"{logger_value:,.{count_decimals(logger_value)}f}"
    columns |= _build_budget_columns(rows)
    caption_text = render_caption("unlabelled", pair=pair, logged_value=logged_value)
    tables = [Table.from_columns(f"{make_slug(pair)}-methods", caption_text, columns)]
    class_names = _find_class_names(records)
    counted_rows = [row for row in rows if len(row.arm_fractions) == len(class_names) > 0]
    if counted_rows:
        arm_columns = {
            row.label: [f"{fraction:.3f}" for fraction in row.arm_fractions] for row in counted_rows
        }
        caption_text = render_caption("arms", pair=pair)
        tables.append(
            Table.from_columns(
                f"{make_slug(pair)}-arms", caption_text, {"arm": class_names, **arm_columns}
            )
        )
    return tables


def _find_class_names(records: Records) -> list[str]:
    """Return the names of the arms from the first record that has them, or else their numbers."""
    for record in records:
        arm_values = record.get("per_class") or record.get("target_arm_counts")
        if arm_values:
            return [str(name) for name in record.get("class_names") or range(len(arm_values))]
    return []


def _build_class_table(
    pair: str, rows: Sequence[MethodSummary], records: Records, class_names: Sequence[str]
) -> Table:
    """Return the table of accuracies by class, with the paper's accuracies."""
    paper_accuracies = summaries.read_paper_accuracy(pair)
    columns: dict[str, list[str]] = {"class": [*class_names, "all"]}
    for row in rows:
        run_accuracies = [
            record.get("per_class") or []
            for record in records
            if summaries.get_key(record) == row.key
        ]
        complete_accuracies = [
            accuracies for accuracies in run_accuracies if len(accuracies) == len(class_names)
        ]
        accuracies_by_class = list(zip(*complete_accuracies, strict=True)) or [()] * len(
            class_names
        )
        means = [
            Mean.of([value for value in values if value is not None])
            for values in accuracies_by_class
        ]
        mean_texts = ["-" if mean.value is None else mean.format(3) for mean in means]
        columns[row.label] = [*mean_texts, row.accuracy.format(4)]
        paper_row = paper_accuracies.get(row.method) if row.variant == "default" else None
        if paper_row is not None:
            accuracies = paper_row.per_class
            deviations = paper_row.per_class_deviation
            paper_texts = {
                name: _format_paper(accuracies[name], deviations[name]) for name in accuracies
            }
            average_text = _format_paper(paper_row.average, paper_row.average_deviation)
            columns[f"paper: {row.label}"] = [
                *(paper_texts.get(name, "-") for name in class_names),
                average_text,
            ]
    caption_text = render_caption("classes", pair=pair, with_paper=bool(paper_accuracies))
    return Table.from_columns(f"{make_slug(pair)}-classes", caption_text, columns)


def build_pairs_tables(data_set: str, records: Records) -> list[Table]:
    """Return a table for a data set of several pairs, with a row per pair, a row of means, and a
    column per method.

    The list is empty if the targets have no labels.
    """
    records = summaries.filter_labelled(records)
    if not records:
        return []
    metric = choose_metric(records)
    rows = summaries.summarise(records)
    pairs = list(dict.fromkeys(row.pair for row in rows))
    means_by_method: dict[MethodKey, list[Mean]] = {}
    for key in dict.fromkeys(row.key for row in rows):
        score_by_pair = {row.pair: row.score for row in rows if row.key == key}
        scores = (
            summaries.compute_scores_by_seed(records, key, metric)
            if len(score_by_pair) == len(pairs)
            else {}
        )
        pair_scores = [score_by_pair.get(pair, Mean.of([])) for pair in pairs]
        means_by_method[key] = [*pair_scores, Mean.of(list(scores.values()))]
    n_decimals = metric.count_decimals(*(row.score.value for row in rows), n_digits=4)
    row_scores = [
        [mean.value for mean in means] for means in zip(*means_by_method.values(), strict=True)
    ]
    best_scores = [
        max((score for score in scores if score is not None), default=None) for scores in row_scores
    ]
    columns = {
        "source-target": [*(pair.partition("/")[2] or pair for pair in pairs), "mean of pairs"]
    }
    for key, means in means_by_method.items():
        cells = ["-" if mean.value is None else mean.format(n_decimals) for mean in means]
        for index, (mean, best_score) in enumerate(zip(means, best_scores, strict=True)):
            if mean.value is not None and mean.value == best_score:
                cells[index] = Bold(cells[index])
        columns[get_label(*key)] = cells
    caption_text = render_caption("pairs", data_set=data_set, metric=metric.name)
    return [Table.from_columns(f"{make_slug(data_set)}-pairs", caption_text, columns)]


def build_ablation_tables(pair: str, records: Records) -> list[Table]:
    """Return a table per recipe with every combination of the loss terms R, P and D, compared with
    the full method.

    The terms are defined in ``_variants.py``. p-values have Holm's correction. The paper's
    accuracies are a column if there are any.
    """
    reported = summaries.paper_ablation(pair)
    tables = []
    for base, rows in group_by(compute_ablation_rows(records), lambda row: row.base).items():
        summary_rows = [row.summary for row in rows]
        metric = summary_rows[0].metric
        n_decimals = metric.count_decimals(*(row.score.value for row in summary_rows), n_digits=4)
        tests = [row.paired_test for row in rows]
        columns = {
            "terms kept": [
                "none of them" if row.letters == "none" else " + ".join(row.letters) for row in rows
            ],
            metric.name: _format_scores(summary_rows, n_decimals),
            "against all three": [_format_change(test, n_decimals) for test in tests],
            "95% interval": [_format_limits(test, n_decimals) for test in tests],
            "p (Holm)": [
                "" if row.holm_p_value is None else f"{row.holm_p_value:.2g}" for row in rows
            ],
            "source regret": [
                Mean(row.source_regret.value, 0.0, 1).format(0) for row in summary_rows
            ],
            "seeds": [str(len(row.seeds)) for row in summary_rows],
            "paper": [
                _format_paper(*reported[row.letters]) if row.letters in reported else ""
                for row in rows
            ],
        }
        caption_text = render_caption(
            "ablation", pair=pair, base=base, n_tests=sum(test is not None for test in tests)
        )
        tables.append(
            Table.from_columns(
                f"{make_slug(pair)}-ablation-{make_slug(base)}", caption_text, columns
            )
        )
    return tables


def build_detail_sections(pair: str, runs: Sequence[RunFiles]) -> list[Section]:
    """Return the sections on continued training and on learning curves of one pair, as far as the
    runs have them.
    """
    records = [record for run in runs if (record := run.read_continued())]
    continued_tables = [build_continued_table(pair, records)] if records else []
    sections = (
        Section(
            "Continued in the target",
            (),
            _build_regret_drawings(pair, runs, "target"),
            continued_tables,
        ),
        Section(
            "Learning in the source",
            (),
            _build_regret_drawings(pair, runs, "source"),
        ),
    )
    return [section for section in sections if section.drawings or section.tables]


def build_continued_table(pair: str, records: Records) -> Table:
    """Return a table of target regret before and with target rewards, by method, from records of
    ``continue_run``.
    """
    records_by_method = group_by(records, summaries.get_key)
    has_unit = choose_metric(records) is not TARGET_ACCURACY
    field_by_heading = {
        "continued regret": "continued_regret",
        "zero-shot regret": "zero_shot_regret",
        "total": "total_regret",
    }
    field_by_heading = (
        {"reward a round": "continued_reward", **field_by_heading} if has_unit else field_by_heading
    )
    columns = {
        "method": [get_label(*key) for key in records_by_method],
        "target rounds": [
            f"{method_records[0]['rounds']:,}" for method_records in records_by_method.values()
        ],
    }
    for heading, field in field_by_heading.items():
        n_decimals = (
            count_decimals(*(record[field] for record in records), n_digits=4) if has_unit else 1
        )
        means = [
            Mean.of([record[field] for record in method_records])
            for method_records in records_by_method.values()
        ]
        columns[heading] = [mean.format(n_decimals) for mean in means]
    columns["seeds"] = [str(len(method_records)) for method_records in records_by_method.values()]
    return Table.from_columns(
        f"{make_slug(pair)}-continued", render_caption("continued", pair=pair), columns
    )


def _build_regret_drawings(pair: str, runs: Sequence[RunFiles], domain: str) -> list[Drawing]:
    """Return a drawing of cumulative regret over the rounds in a domain; empty if no run
    has one.
    """
    curves_by_method = {}
    for key, method_runs in list(group_by(runs, lambda run: run.key).items())[:_MAX_CURVES]:
        run_curves = merge_curves([run.read_regret(domain) for run in method_runs])
        if run_curves is not None:
            curves_by_method[key] = run_curves
    if not curves_by_method:
        return []
    mean_regrets = {
        get_label(*key): curves.values[:, -1].mean() for key, curves in curves_by_method.items()
    }
    regrets_text = "; ".join(f"{name} {regret:,.0f}" for name, regret in mean_regrets.items())
    figure = figures.draw_regret(curves_by_method, domain=domain)
    alt = f"Cumulative {domain} regret after all rounds: {regrets_text}."
    return [
        Drawing(
            f"{make_slug(pair)}-{domain}-regret",
            figure,
            render_caption(f"{domain}_regret", pair=pair),
            alt,
        )
    ]


def build_setup_section(runs: Sequence[RunFiles]) -> Section:
    """Return the section with versions, hardware and the location of each run's settings."""
    environments = [run.read_json_file("environment.json") for run in runs]
    environments_by_text = group_by(
        [fields for fields in environments if fields],
        lambda fields: ", ".join(
            f"{name} {fields[name]}" for name in _ENVIRONMENT_FIELDS if fields.get(name)
        ),
    )
    lines = [
        f"{len(group)} run{'s' if len(group) > 1 else ''}: {text}."
        for text, group in environments_by_text.items()
    ]
    lines = lines or ["The run folders are missing, so versions are unknown."]
    return Section(
        "Versions and settings",
        [*lines, "config.json in each run's folder has all settings."],
        level=2,
    )


def build_warning_sections(runs: Sequence[RunFiles]) -> list[Section]:
    """Return a section with warnings about the results; empty if there are none.

    Each message appears once, with at most three of the runs.
    """
    names_by_message: defaultdict[str, list[str]] = defaultdict(list)
    for pair, pair_runs in group_by(runs, lambda run: run.record["pair"]).items():
        method_runs = group_by(pair_runs, lambda run: run.key).values()
        if len({frozenset(run.record["seed"] for run in group) for group in method_runs}) > 1:
            names_by_message["Methods ran on different seeds; differences use common seeds."] += [
                pair
            ]
        if len({run.record["rounds"] for run in pair_runs}) > 1:
            names_by_message["Runs with different budgets are compared."].append(pair)
    for run in runs:
        if run.path is None:
            message = "The run's folder is missing, so curves and images leave it out."
            names_by_message[message].append(run.name)
        watch = CollapseWatch()
        for sign in (sign for record in run.read_episodes() for sign in watch.observe(record)):
            message = f"Training showed a sign of collapse: {sign.partition(':')[0]}."
            names_by_message[message].append(run.name)
    texts = []
    for message, names in names_by_message.items():
        others_text = f" and {len(names) - 3} more" if len(names) > 3 else ""
        texts.append(f"{message} ({'; '.join(names[:3])}{others_text})")
    return [Section("Warnings", texts[:_MAX_WARNINGS], level=2)] if texts else []


def _format_scores(rows: Sequence[MethodSummary], n_decimals: int) -> list[str]:
    """Return the scores of methods on one pair, the best in bold."""
    best_score = max(row.sort_score for row in rows)
    texts = [row.score.format(n_decimals) for row in rows]
    is_best = [len(rows) > 1 and row.sort_score == best_score for row in rows]
    return [Bold(text) if bold else text for text, bold in zip(texts, is_best, strict=True)]


def _build_budget_columns(rows: Sequence[MethodSummary]) -> dict[str, list[str]]:
    """Return the table columns with rounds, seeds and seconds."""
    return {
        "rounds": [f"{row.n_rounds:,}" for row in rows],
        "seeds": [str(len(row.seeds)) for row in rows],
        "seconds per run": [f"{row.seconds:,.1f}" for row in rows],
    }


def _format_means(means: Sequence[Mean], n_decimals: int | None = None) -> list[str]:
    """Return means as texts, by default with four digits of the largest one."""
    if n_decimals is None:
        n_decimals = count_decimals(*(mean.value for mean in means), n_digits=4)
    return [mean.format(n_decimals) for mean in means]


def _format_paper(accuracy: float, deviation: float) -> str:
    """Return an accuracy of the paper with its standard deviation as text."""
    return f"{accuracy:.4f} ± {deviation:.2f}"


def _format_change(test: PairedTest | None, n_decimals: int) -> str:
    """Return a paired difference as text; empty for None."""
    return "" if test is None else f"{test.difference:+,.{n_decimals}f}"


def _format_limits(test: PairedTest | None, n_decimals: int) -> str:
    """Return the 95% interval of a paired difference as text; empty for None or a single seed."""
    if test is None or math.isnan(test.low):
        return ""
    return f"{test.low:+,.{n_decimals}f} to {test.high:+,.{n_decimals}f}"
