"""Figures of results: scores in the target, gains by class, pairs of a data set, ablations and sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from daband.arrays import FloatArray
from daband.experiments import TARGET_ACCURACY, Metric
from daband.report.statistics import Key
from daband.report.style import GRID, INK, MUTED, PAPER, label, style_of, written

__all__ = ["Group", "ablation_figure", "gain_figure", "pairs_figure", "score_figure", "sweep_figure"]

WIDTH = 4.5
"""Inches: as wide as a phone shows without making the letters too small, and a column of a page in print."""


_AXIS = {
    "target_accuracy": "target accuracy: share of contexts with a best arm",
    "target_value": "target value: mean expected reward, in the rewards' unit",
}


@dataclass(frozen=True)
class Group:
    """A row of a figure: its name, a score per seed, and the paper's accuracy where there is one."""

    name: str
    values: FloatArray
    key: Key
    paper: float | None = None


def score_figure(groups: Sequence[Group], metric: Metric, *, references: Mapping[str, float] | None = None) -> Figure:
    """The score in the target: a bar for the mean, a dot per seed, a diamond for the paper; the best on top.

    ``references`` are values to compare with, drawn as dotted lines with their names.
    """
    ranked = sorted(groups, key=lambda group: float(group.values.mean()))
    figure = Figure(figsize=(WIDTH, 0.95 + 0.42 * len(ranked)), layout="constrained")
    axes = figure.subplots()
    for place, group in enumerate(ranked):
        style = style_of(*group.key)
        mean = float(group.values.mean())
        axes.barh(place, mean, height=0.62, color=style.colour, alpha=0.35, linewidth=0)
        axes.plot([mean, mean], [place - 0.31, place + 0.31], color=style.colour, linewidth=2.2, solid_capstyle="butt")
        if len(group.values) > 1:
            offsets = np.linspace(-0.18, 0.18, len(group.values))
            axes.plot(group.values, place + offsets, "o", color=INK, markersize=2.6, markeredgewidth=0)
        if group.paper is not None:
            axes.plot(group.paper, place, "D", markersize=5.5, markerfacecolor=PAPER, markeredgecolor=INK, zorder=4)
        axes.annotate(
            f"{mean:,.{metric.digits(mean)}f}", (1.0, place), xycoords=("axes fraction", "data"), xytext=(4, 0),
            textcoords="offset points", va="center", ha="left", fontweight="bold", color=style.colour,
        )  # fmt: skip
    _rows(axes, [written(group.name, 32) for group in ranked])
    marks = list((references or {}).values())
    top = max([float(group.values.max()) for group in ranked] + [group.paper or 0.0 for group in ranked] + marks)
    lowest = min([float(group.values.min()) for group in ranked] + marks)
    if metric is TARGET_ACCURACY:
        axes.set_xlim(0.0, min(1.0, top * 1.06 + 0.02))
    else:  # rewards in the user's unit may be negative
        room = 0.06 * (max(top, 0.0) - min(lowest, 0.0))
        axes.set_xlim(min(0.0, lowest - room), max(0.0, top + room) or 1.0)
    for name, value in (references or {}).items():
        axes.axvline(value, color=MUTED, linewidth=0.9, linestyle=":")
        axes.annotate(
            name, (value, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=7.5, color=MUTED,
        )  # fmt: skip
    axes.set_xlabel(_AXIS[metric.field])
    notes = ["bar: mean over seeds"] + ["dot: one seed"] * any(len(group.values) > 1 for group in ranked)
    notes += ["diamond: the paper"] * any(group.paper is not None for group in ranked)
    _note(figure, notes)
    return figure


def gain_figure(
    classes: Sequence[str], gains: FloatArray, methods: tuple[Key, Key], paper: Mapping[str, float]
) -> Figure:
    """How much more the first method gets right than the second, by class; ``gains`` (seeds, classes), NaN for none.

    Each bar has the colour of the method that is ahead.
    """
    order = range(len(classes))[::-1]
    row = 0.3 if len(classes) <= 20 else 0.2
    figure = Figure(figsize=(WIDTH, 0.95 + row * len(classes)), layout="constrained")
    axes = figure.subplots()
    means = [float(np.mean(column[np.isfinite(column)])) if np.isfinite(column).any() else 0.0 for column in gains.T]
    for place, at in enumerate(order):
        gain = means[at]
        colour = style_of(*methods[0 if gain >= 0 else 1]).colour
        axes.barh(place, gain, height=0.68, color=colour, alpha=0.4, linewidth=0)
        axes.plot([gain, gain], [place - 0.34, place + 0.34], color=colour, linewidth=2, solid_capstyle="butt")
        if len(gains) > 1:
            axes.plot(gains[:, at], np.full(len(gains), place), "o", color=INK, markersize=2.4, markeredgewidth=0)
        if classes[at] in paper:
            axes.plot(
                paper[classes[at]], place, "D", markersize=4.8, markerfacecolor=PAPER, markeredgecolor=INK, zorder=4
            )
    _rows(axes, [written(classes[at], 22) for at in order], size=8.5 if len(classes) <= 20 else 7)
    axes.axvline(0, color=INK, linewidth=0.9)
    axes.set_ylabel("class of the target context")
    axes.set_xlabel(f"gain in accuracy, {_name(methods[0])} over {_name(methods[1])}")
    notes = ["bar: mean over seeds"] + ["dot: one seed"] * (len(gains) > 1) + ["diamond: the paper"] * bool(paper)
    _note(figure, notes)
    return figure


def pairs_figure(pairs: Sequence[str], scores: Mapping[Key, Mapping[str, FloatArray]], metric: Metric) -> Figure:
    """Every pair of a data set as a row, a mark per method at its mean over seeds, with its range."""
    figure = Figure(figsize=(WIDTH, 1.25 + 0.3 * len(pairs)), layout="constrained")
    axes = figure.subplots()
    shown = list(pairs)[::-1]
    for number, (key, by_pair) in enumerate(scores.items()):
        style = style_of(*key)
        shift = 0.11 * ((len(scores) - 1) / 2 - number)  # methods of equal score stay visible
        means = [float(by_pair[pair].mean()) if pair in by_pair else np.nan for pair in shown]
        axes.plot(
            means,
            np.arange(len(shown)) + shift,
            style.marker,
            color=style.colour,
            markersize=5.5,
            linestyle="none",
            label=_name(key),
        )
        for place, pair in enumerate(shown):
            if pair in by_pair and len(by_pair[pair]) > 1:
                ends = [float(by_pair[pair].min()), float(by_pair[pair].max())]
                axes.plot(ends, [place + shift, place + shift], color=style.colour, linewidth=1.0, alpha=0.7)
    _rows(axes, [written(pair.partition("/")[2] or pair, 24) for pair in shown])
    axes.grid(axis="x")
    axes.set_xlabel(_AXIS[metric.field])
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.2, columnspacing=1.0)
    return figure


def ablation_figure(
    bases: Mapping[str, Mapping[str, FloatArray]], paper: Mapping[str, float], metric: Metric
) -> Figure:
    """The score with the terms that are kept, a colour per base, a diamond for the paper."""
    letters = [
        name for name in ("RPD", "PD", "RD", "RP", "D", "P", "R", "none") if any(name in b for b in bases.values())
    ]
    figure = Figure(figsize=(WIDTH, 1.2 + 0.4 * len(letters)), layout="constrained")
    axes = figure.subplots()
    places = {name: place for place, name in enumerate(reversed(letters))}
    height = 0.74 / len(bases)
    for number, (base, found) in enumerate(bases.items()):
        colour = (style_of("daband").colour, style_of("nlinucb").colour, style_of("linucb").colour)[number % 3]
        shift = height * ((len(bases) - 1) / 2 - number)
        for name, values in found.items():
            axes.barh(
                places[name] + shift, float(values.mean()), height=height * 0.92, color=colour, alpha=0.4, linewidth=0,
                label=f"recipe {written(base, 24)}" if name == next(iter(found)) else None,
            )  # fmt: skip
            dots = np.full(len(values), places[name] + shift)
            axes.plot(values, dots, "o", color=INK, markersize=2.2, markeredgewidth=0)
    for name, value in paper.items():
        if name in places:
            mark = "the paper" if name == next(iter(n for n in paper if n in places)) else None
            axes.plot(
                value, places[name], "D", markersize=5, markerfacecolor=PAPER, markeredgecolor=INK, zorder=4,
                linestyle="none", label=mark,
            )  # fmt: skip
    _rows(axes, ["none of them" if name == "none" else " + ".join(name) for name in reversed(letters)])
    lowest = min(float(values.min()) for found in bases.values() for values in found.values())
    axes.set_xlim(left=min(0.0, 1.06 * lowest))
    axes.set_xlabel(f"{metric.name}; dots are seeds")
    axes.set_ylabel("terms kept")
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.5, columnspacing=1.2)
    return figure


def sweep_figure(setting: str, curves: Mapping[Key, Mapping[float, FloatArray]], metric: Metric) -> Figure:
    """The score over one swept setting, a line per method, a dot per seed."""
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axes = figure.subplots()
    for (method, _), found in curves.items():
        style = style_of(method)
        at = sorted(found)
        axes.plot(
            at,
            [float(found[x].mean()) for x in at],
            color=style.colour,
            linestyle=style.dashes,
            label=_name((method, "default")),
        )
        for x in at:
            axes.plot(np.full(len(found[x]), x), found[x], "o", color=style.colour, markersize=3, markeredgewidth=0)
    values = sorted({x for found in curves.values() for x in found})
    if min(values) > 0 and max(values) / min(values) > 30:
        axes.set_xscale("log")
    axes.grid(axis="y")
    axes.set_xlabel(written(setting, 40))
    axes.set_ylabel(f"{metric.name}; dots are seeds")
    if len(curves) > 1:
        axes.legend()
    return figure


def _rows(axes: Any, names: Sequence[str], *, size: float = 9.0) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(axis="x", color=GRID)


def _note(figure: Figure, parts: Sequence[str]) -> None:
    figure.supxlabel("; ".join(parts), fontsize=7.5, color=MUTED, x=0.99, ha="right")


def _name(key: Key) -> str:
    return written(label(*key), 32)
