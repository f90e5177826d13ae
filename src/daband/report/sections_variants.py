"""Sections of ablations and sweeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.arrays import FloatArray
from daband.experiments import AblationRow, Metric, Record, ablation_rows
from daband.report.document import Block, Drawing
from daband.report.figures_results import ablation_figure, sweep_figure
from daband.report.reference import paper_ablation
from daband.report.sections_results import interval, mean_cell, scores, slug
from daband.report.statistics import Key
from daband.report.style import label
from daband.report.summary import Mean, labelled, summarise
from daband.report.tables import Cell, Table

__all__ = ["ablation_blocks", "sweep_blocks"]


def ablation_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """What R, P and D are worth: every combination beside the full method, with Holm's correction, and the paper's."""
    rows = ablation_rows(records)
    if not rows:
        return []
    paper = paper_ablation(pair)
    metric = rows[0].metric
    digits = metric.digits(*(row.score for row in rows), significant=4)
    bases = list(dict.fromkeys(row.base for row in rows))
    blocks: list[Block] = []
    for base in bases:
        mine = [row for row in rows if row.base == base]
        headings = [
            "terms kept",
            metric.name,
            "against all three",
            "95% interval",
            "p",
            "p (Holm)",
            "source regret",
            "seeds",
        ]
        table = Table(
            f"{slug(pair)}-ablation-{slug(base)}",
            f"{pair}: the recipe {base} with some of R (regression error), P (predicted reward) and D (divergence) "
            "left out. Differences to the full method are paired by seed; p is of a two-sided paired t test, and "
            f"corrected by Holm over these {sum(row.paired is not None for row in mine)} comparisons.",
            headings + (["paper"] if paper else []),
        )
        best = max((row.score for row in mine if row.score is not None), default=None)
        for row in mine:
            table.add(*_ablation_cells(row, best, digits), *([_paper_cell(paper, row.letters)] if paper else []))
        blocks.append(table)
    if with_figure and labelled(records):
        values = {
            base: {
                row.letters: scores(records, ("daband", f"{base}:{row.letters}"), metric)
                for row in rows
                if row.base == base and row.score is not None
            }
            for base in bases
        }
        told = "; ".join(
            f"{row.base} with {row.letters} {row.score:,.{digits}f}" for row in rows if row.score is not None
        )
        drawing = Drawing(
            f"{slug(pair)}-ablation",
            ablation_figure(values, {letters: value for letters, (value, _) in paper.items()}, metric),
            f"{pair}: {metric.name} with the terms R, P and D that are kept.",
            f"{metric.name.capitalize()} in the ablation: {told}.",
        )
        blocks.insert(0, drawing)
    return blocks


def sweep_blocks(
    pair: str, records: Sequence[Record], sweep: dict[str, Any], *, with_figure: bool = True
) -> list[Block]:
    """Every point of a sweep, what each rule of selection would pick, and the score over a single swept setting."""
    rows = summarise(records)
    metric = rows[0].metric
    digits = metric.digits(*(row.score.value for row in rows), significant=4)
    table = Table(
        f"{slug(pair)}-sweep",
        f"{pair}: every setting of the sweep. “Picked by” names the rule that chose it; a rule called oracle looked at "
        "the target's rewards, which nobody has before the hand-over.",
        ["method", "setting", metric.name, "source regret", "seeds", "picked by"],
        text_columns=2,
    )
    best = max(row.rank for row in rows)
    picked = {(record["method"], record["variant"]): record.get("selection", "none") for record in records}
    for row in rows:
        rule = picked[row.method, row.variant]
        table.add(
            label(row.method),
            row.variant,
            mean_cell(row.score, digits, bold=row.rank == best),
            mean_cell(row.source_regret, 0, spread=False),
            str(len(row.seeds)),
            "" if rule == "none" else str(rule),
        )
    blocks: list[Block] = [table]
    choices = [choice for choice in sweep.get("choices", []) if choice.get("pair") == pair]
    if choices:
        rules = Table(
            f"{slug(pair)}-selection",
            f"{pair}: what each rule of selection picks, how far that is below the best setting, and how its order of "
            f"the settings agrees with their {metric.name} (Spearman's rank correlation, 1 is the same order).",
            ["rule", "picks", metric.name, "below the best", "rank correlation"],
            text_columns=2,
        )
        for choice in choices:
            agreement = choice.get("rank_correlation")
            rules.add(
                choice["rule"], choice["variant"], *(
                    Mean(choice.get(name), 0.0, 1).text(digits) for name in ("score", "below_best")
                ),
                "" if agreement is None else f"{agreement:+.2f}",
            )  # fmt: skip
        blocks.append(rules)
    curves = _swept_numbers(labelled(records), metric)
    if with_figure and curves is not None:
        setting, found = curves
        points = [(x, values) for by_value in found.values() for x, values in sorted(by_value.items())]
        told = "; ".join(f"{x:g}: {values.mean():,.{digits}f}" for x, values in points)
        figure = sweep_figure(setting, found, metric)
        alt = f"{metric.name.capitalize()} over {setting}: {told}"
        blocks.insert(0, Drawing(f"{slug(pair)}-sweep", figure, f"{pair}: {metric.name} over {setting}.", alt))
    return blocks


def _ablation_cells(row: AblationRow, best: float | None, digits: int) -> list[Cell | str]:
    test = row.paired
    return [
        "none of them" if row.letters == "none" else " + ".join(row.letters),
        mean_cell(Mean(row.score, row.score_spread, len(row.seeds)), digits, bold=row.score == best),
        "" if test is None else f"{test.difference:+,.{digits}f}",
        interval(test, digits),
        _p_text(None if test is None else test.p_value),
        _p_text(row.p_holm),
        "unknown" if row.source_regret is None else f"{row.source_regret:,.0f}",
        str(len(row.seeds)),
    ]


def _paper_cell(paper: dict[str, tuple[float, float]], letters: str) -> Cell | str:
    return Cell(f"{paper[letters][0]:.4f}", f"{paper[letters][1]:.2f}", muted=True) if letters in paper else ""


def _p_text(value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _swept_numbers(records: Sequence[Record], metric: Metric) -> tuple[str, dict[Key, dict[float, FloatArray]]] | None:
    """Scores over a single swept number by method; None where several settings, or words, were swept."""
    found: dict[Key, dict[float, list[float]]] = {}
    names = set()
    for record in records:
        name, _, text = record["variant"].partition("=")
        try:
            value = float(text)
        except ValueError:
            return None
        names.add(name)
        found.setdefault((record["method"], "default"), {}).setdefault(value, []).append(record[metric.field])
    if len(names) != 1 or len({x for points in found.values() for x in points}) < 2:
        return None
    return names.pop(), {key: {x: np.array(v) for x, v in points.items()} for key, points in found.items()}
