"""What came out when something was left out or changed, as sections: ablations and sweeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.arrays import FloatArray
from daband.experiments.ablation import AblationRow, ablation_rows
from daband.report.document import Block, Drawing
from daband.report.figures_results import ablation_figure, sweep_figure
from daband.report.reference import paper_ablation
from daband.report.runs import Record
from daband.report.sections_results import accuracies, interval, slug
from daband.report.statistics import Key
from daband.report.style import label
from daband.report.summary import summarise
from daband.report.tables import Cell, Table

__all__ = ["ablation_blocks", "sweep_blocks"]


def ablation_blocks(pair: str, records: Sequence[Record], *, with_figure: bool = True) -> list[Block]:
    """What R, P and D are worth: every combination beside the full method, with Holm's correction, and the paper's."""
    rows = ablation_rows(records)
    if not rows:
        return []
    paper = paper_ablation(pair)
    bases = list(dict.fromkeys(row.base for row in rows))
    blocks: list[Block] = []
    for base in bases:
        mine = [row for row in rows if row.base == base]
        headings = [
            "terms kept",
            "target accuracy",
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
        best = max(row.accuracy for row in mine)
        for row in mine:
            table.add(*_ablation_cells(row, best), *([_paper_cell(paper, row.letters)] if paper else []))
        blocks.append(table)
    if with_figure:
        values = {
            base: {
                row.letters: accuracies(records, ("daband", f"{base}:{row.letters}"))
                for row in rows
                if row.base == base
            }
            for base in bases
        }
        said = "; ".join(f"{row.base} with {row.letters} {row.accuracy:.3f}" for row in rows)
        drawing = Drawing(
            f"{slug(pair)}-ablation",
            ablation_figure(values, {letters: value for letters, (value, _) in paper.items()}),
            f"{pair}: accuracy in the target with the terms R, P and D that are kept.",
            f"Target accuracy in the ablation: {said}.",
        )
        blocks.insert(0, drawing)
    return blocks


def sweep_blocks(
    pair: str, records: Sequence[Record], sweep: dict[str, Any], *, with_figure: bool = True
) -> list[Block]:
    """Every point of a sweep, what each rule of selection would pick, and the accuracy over a single swept setting."""
    rows = summarise(records)
    table = Table(
        f"{slug(pair)}-sweep",
        f"{pair}: every setting of the sweep. “Picked by” names the rule that chose it; a rule called oracle looked at "
        "the target's rewards, which nobody has before the hand-over.",
        ["method", "setting", "target accuracy", "source regret", "seeds", "picked by"],
        text_columns=2,
    )
    best = max(row.accuracy for row in rows)
    picked = {(record["method"], record["variant"]): record.get("selection", "none") for record in records}
    for row in rows:
        several = len(row.seeds) > 1
        rule = picked[row.method, row.variant]
        table.add(
            label(row.method),
            row.variant,
            Cell(f"{row.accuracy:.4f}", f"{row.accuracy_spread:.4f}" if several else "", row.accuracy == best),
            "unknown" if row.source_regret is None else f"{row.source_regret:,.0f}",
            str(len(row.seeds)),
            "" if rule == "none" else str(rule),
        )
    blocks: list[Block] = [table]
    choices = [choice for choice in sweep.get("choices", []) if choice.get("pair") == pair]
    if choices:
        rules = Table(
            f"{slug(pair)}-selection",
            f"{pair}: what each rule of selection picks, how far that is below the best setting, and how its order of "
            "the settings agrees with their accuracy (Spearman's rank correlation, 1 is the same order).",
            ["rule", "picks", "target accuracy", "below the best", "rank correlation"],
            text_columns=2,
        )
        for choice in choices:
            agreement = choice.get("rank_correlation")
            rules.add(
                choice["rule"], choice["variant"], f"{choice['accuracy']:.4f}", f"{choice['below_best']:.4f}",
                "" if agreement is None else f"{agreement:+.2f}",
            )  # fmt: skip
        blocks.append(rules)
    curves = _swept_numbers(records)
    if with_figure and curves is not None:
        setting, found = curves
        blocks.insert(
            0,
            Drawing(
                f"{slug(pair)}-sweep",
                sweep_figure(setting, found),
                f"{pair}: accuracy in the target over {setting}.",
                f"Target accuracy over {setting}: "
                + "; ".join(f"{x:g}: {v.mean():.3f}" for points in found.values() for x, v in sorted(points.items())),
            ),
        )
    return blocks


def _ablation_cells(row: AblationRow, best: float) -> list[Cell | str]:
    test = row.paired
    several = len(row.seeds) > 1
    return [
        "none of them" if row.letters == "none" else " + ".join(row.letters),
        Cell(f"{row.accuracy:.4f}", f"{row.accuracy_spread:.4f}" if several else "", row.accuracy == best),
        "" if test is None else f"{test.difference:+.4f}",
        interval(test, 4),
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


def _swept_numbers(records: Sequence[Record]) -> tuple[str, dict[Key, dict[float, FloatArray]]] | None:
    """Accuracies over a single swept number by method; None where several settings, or words, were swept."""
    found: dict[Key, dict[float, list[float]]] = {}
    names = set()
    for record in records:
        name, _, text = record["variant"].partition("=")
        try:
            value = float(text)
        except ValueError:
            return None
        names.add(name)
        found.setdefault((record["method"], "default"), {}).setdefault(value, []).append(record["target_accuracy"])
    if len(names) != 1 or len({x for points in found.values() for x in points}) < 2:
        return None
    return names.pop(), {key: {x: np.array(v) for x, v in points.items()} for key, points in found.items()}
