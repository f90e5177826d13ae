"""Sections of learning: regret in the source, terms of the bound, the discriminator, regret in the target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daband.experiments import TARGET_ACCURACY, Records, decimals, metric_of
from daband.report.document import Block, Drawing, SideBySide, Text
from daband.report.figures_learning import bound_figure, discriminator_figure, regret_figure
from daband.report.runs import Curve, RunFiles, common_curve
from daband.report.sections_results import mean_cell, slug
from daband.report.statistics import Key, growth_exponent
from daband.report.style import TERMS, label
from daband.report.summary import Mean
from daband.report.tables import Cell, Table

__all__ = ["by_method", "continued_blocks", "learning_blocks"]

_MOST_CURVES = 8
"""Curves in a figure; more cannot be told apart."""


def by_method(runs: Sequence[RunFiles]) -> dict[Key, list[RunFiles]]:
    """Runs by method and variant, in the order of first appearance."""
    groups: dict[Key, list[RunFiles]] = {}
    for run in runs:
        groups.setdefault(run.key, []).append(run)
    return groups


def learning_blocks(pair: str, runs: Sequence[RunFiles], best: Key | None) -> list[Block]:
    """Regret in the source, every observable term of the bound, and the discriminator."""
    groups = by_method(runs)
    curves = _curves(groups, "source_regret")
    drawn: list[Drawing] = []
    if curves:
        told = "; ".join(f"{label(*key)} {curve.values[:, -1].mean():,.0f}" for key, curve in curves.items())
        drawn.append(
            Drawing(
                f"{slug(pair)}-source-regret",
                regret_figure(curves, where="source"),
                f"{pair}: cumulative regret in the source while learning; means over seeds, bands their range.",
                f"Cumulative source regret after all rounds: {told}.",
            )
        )
    # Only neural methods adapt, and the bound is measured for these alone; the figure shows the best of them.
    measured = {key: _episode_table(found) for key, found in groups.items()}
    with_bound = [key for key, episodes in measured.items() if any("bound_rounds" in e[-1] for e in episodes if e)]
    blocks: list[Block] = []
    if with_bound:
        shown = best if best in with_bound else with_bound[-1]
        terms = _term_curves(measured[shown])
        exponents = {key: _exponents(measured[key]) for key in with_bound}
        means = {name: float(np.mean(values)) for name, values in exponents[shown].items() if values}
        drawn.append(
            Drawing(
                f"{slug(pair)}-bound",
                bound_figure(terms, means),
                f"{pair}: the observable terms of the bound on {label(*shown)}'s target regret, summed over source "
                "rounds; means over seeds. A term that is not known is left out, and the sum with it. A bound above "
                "the dotted line N says nothing about N rounds.",
                "Growth exponents: " + "; ".join(f"{TERMS[n][0]} {v:.2f}" for n, v in means.items()) + ".",
            )
        )
        blocks.append(_bound_table(pair, measured, exponents))
    discriminators = {}
    for key, episodes in measured.items():
        curve = _episode_curve(episodes, "discriminator_accuracy")
        if curve is not None:
            discriminators[key] = curve
    if discriminators:
        discriminators = dict(list(discriminators.items())[:_MOST_CURVES])
        told = "; ".join(f"{label(*key)} {curve.values[:, -1].mean():.2f}" for key, curve in discriminators.items())
        drawn.append(
            Drawing(
                f"{slug(pair)}-discriminator",
                discriminator_figure(discriminators),
                f"{pair}: how often the discriminator tells source from target, by episode. At chance it cannot, and "
                "the domains look alike to the head. Lines are running means over seeds, bands their range.",
                f"Discriminator accuracy in the last episode: {told}.",
            )
        )
    return [SideBySide(drawn), *blocks] if drawn else blocks


def continued_blocks(pair: str, runs: Sequence[RunFiles]) -> list[Block]:
    """What the head start is worth once rewards arrive in the target; nothing where no run was continued."""
    groups: dict[Key, list[RunFiles]] = {}
    records: dict[Key, Records] = {}
    for key, found in by_method(runs).items():
        continued = [(run, record) for run in found if (record := run.continued())]
        if continued:
            groups[key], records[key] = [run for run, _ in continued], [record for _, record in continued]
    if not groups:
        return []
    every = [record for found in records.values() for record in found]
    in_unit = metric_of(every) is not TARGET_ACCURACY
    fields = {
        "continued regret": "continued_regret", "zero-shot regret": "zero_shot_regret", "total": "total_regret",
    }  # fmt: skip
    if in_unit:
        fields = {"reward a round": "continued_reward", **fields}
    table = Table(
        f"{slug(pair)}-continued",
        f"{pair}: regret in the target, in the rewards' unit. Zero-shot: of the fixed policy on the evaluation "
        "contexts. Continued: of the rounds that were then played in the target with its rewards. ± over seeds.",
        ["method", "rounds in the target", *fields, "seeds"],
    )
    totals = {key: Mean.of([record["total_regret"] for record in found]).value for key, found in records.items()}
    least = min((value for value in totals.values() if value is not None), default=None)
    digits = {
        field: decimals(*(record[field] for record in every), significant=4) if in_unit else 1
        for field in fields.values()
    }
    for key, mine in records.items():
        wins = totals[key] is not None and totals[key] == least and len(records) > 1
        cells = [
            mean_cell(Mean.of([record[field] for record in mine]), digits[field], bold=wins and field == "total_regret")
            for field in fields.values()
        ]
        table.add(label(*key), f"{mine[0]['rounds']:,}", *cells, str(len(mine)))
    curves = _curves(groups, "target_regret")
    if not curves:
        return [Text("The target does not tell its expected rewards, so there is no regret to draw."), table]
    told = "; ".join(f"{label(*key)} {curve.values[:, -1].mean():,.0f}" for key, curve in curves.items())
    drawing = Drawing(
        f"{slug(pair)}-target-regret",
        regret_figure(curves, where="target"),
        f"{pair}: cumulative regret in the target once its rewards arrive; means over seeds, bands their range.",
        f"Cumulative target regret: {told}.",
    )
    return [SideBySide([drawing]), table]


def _curves(groups: Mapping[Key, Sequence[RunFiles]], name: str) -> dict[Key, Curve]:
    curves = {}
    for key, found in list(groups.items())[:_MOST_CURVES]:
        curve = common_curve([getattr(run, name)() for run in found])
        if curve is not None:
            curves[key] = curve
    return curves


def _episode_table(runs: Sequence[RunFiles]) -> list[list[dict[str, Any]]]:
    return [episodes for episodes in (run.episodes() for run in runs) if episodes]


def _episode_curve(runs: Sequence[list[dict[str, Any]]], name: str) -> Curve | None:
    curves = []
    for episodes in runs:
        mine = [(e["episode"], e[name]) for e in episodes if e.get(name) is not None]
        if mine:
            numbers, values = zip(*mine, strict=True)
            curves.append((np.array(numbers), np.array(values, np.float64)))
    return common_curve(curves)


def _term_curves(runs: Sequence[list[dict[str, Any]]]) -> dict[str, Curve]:
    curves = {}
    for name in TERMS:
        found = [_term(episodes, name) for episodes in runs]
        curve = common_curve([term for term in found if term is not None])
        if curve is not None and curve.values[:, -1].max() > 0:
            curves[name] = curve
    return curves


def _term(episodes: list[dict[str, Any]], name: str) -> tuple[Any, Any] | None:
    mine = [e for e in episodes if "bound_rounds" in e]
    if not mine or any(e.get(f"bound_{name}") is None for e in mine):  # not known in some episode, so nor is its sum
        return None
    rounds = np.array([e["bound_rounds"] for e in mine])
    values = np.array([e[f"bound_{name}"] for e in mine], np.float64)
    return rounds.astype(np.int64), values


def _exponents(runs: Sequence[list[dict[str, Any]]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name in TERMS:
        terms = [term for term in (_term(episodes, name) for episodes in runs) if term is not None]
        slopes = [growth_exponent(*term) for term in terms]
        found[name] = [slope for slope in slopes if not math.isnan(slope)]
    return found


def _bound_table(
    pair: str, measured: Mapping[Key, Sequence[list[dict[str, Any]]]], exponents: Mapping[Key, dict[str, list[float]]]
) -> Table:
    headings = ["term"]
    for key in exponents:
        headings += [f"{label(*key)}, a round", f"{label(*key)}, exponent"]
    table = Table(
        f"{slug(pair)}-bound",
        f"{pair}: the observable terms of the bound, as their mean a source round at the end of training, and the "
        "exponent of N that fits the later half of the rounds (± over seeds): below 1 the sum grows slower than N, and "
        "a term at 1 or above keeps the whole bound from doing so. Psi, the least joint error, needs target rewards "
        "and is left out. A term that is not known, as the divergence without a discriminator, has no number, and then "
        "there is no sum.",
        headings,
    )
    for name, (text, _) in TERMS.items():
        cells: list[Cell | str] = []
        for key, slopes in exponents.items():
            ends = [term for term in (_term(episodes, name) for episodes in measured[key]) if term is not None]
            share = Mean.of([float(values[-1] / rounds[-1]) for rounds, values in ends])
            cells.append(mean_cell(share, 3, spread=False))
            found = np.array(slopes[name])
            spread = f"{found.std(ddof=1):.2f}" if len(found) > 1 else ""
            cells.append(Cell(f"{found.mean():.2f}", spread) if len(found) else Cell("-", muted=True))
        table.add(text, *cells)
    return table
