"""Figures of learning: regret over rounds, the terms of the bound and how they grow, and the discriminator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from daband.arrays import FloatArray
from daband.report.figures_results import WIDTH
from daband.report.runs import Curve
from daband.report.statistics import Key
from daband.report.style import INK, MUTED, TERMS, label, style_of, written

__all__ = ["bound_figure", "discriminator_figure", "regret_figure"]

_GAP = 0.062
"""How far apart labels at the ends of curves must be, as a share of the height of the axes."""


def regret_figure(curves: Mapping[Key, Curve], *, where: str) -> Figure:
    """Cumulative regret over rounds: the mean over seeds, and a band over their range.

    Random and the constant arm would hide all differences among the others, so the axis ends with those.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    learned = [curve for (method, _), curve in curves.items() if method not in ("random", "constant")] or list(
        curves.values()
    )
    top = 1.08 * max(float(curve.values[:, -1].max()) for curve in learned) or 1.0  # nobody has any regret
    last = max(int(curve.rounds[-1]) for curve in curves.values())
    axes.set_xlim(0, last)
    axes.set_ylim(0, top)
    ends = []
    for key, curve in curves.items():
        style = style_of(*key)
        mean = curve.values.mean(axis=0)
        axes.plot(curve.rounds, mean, color=style.colour, linestyle=style.dashes)
        if len(curve.values) > 1:
            low, high = curve.values.min(axis=0), curve.values.max(axis=0)
            axes.fill_between(curve.rounds, low, high, color=style.colour, alpha=0.18, linewidth=0)
        ends.append((min(float(mean[-1]), top), _name(key), style.colour))
    _label_ends(axes, ends)
    axes.grid(axis="y")
    axes.set_xlabel(f"rounds in the {where}")
    axes.set_ylabel(f"cumulative {where} regret")
    _thousands(axes.xaxis)
    _thousands(axes.yaxis)
    return figure


def bound_figure(terms: Mapping[str, Curve], exponents: Mapping[str, float]) -> Figure:
    """Every observable term of the bound on logarithmic axes, where a slope of 1 is growth like N."""
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    first = min(int(curve.rounds[0]) for curve in terms.values())
    last = max(int(curve.rounds[-1]) for curve in terms.values())
    axes.plot([first, last], [first, last], color=MUTED, linewidth=0.9, linestyle=":")
    ends = [(float(last), "N", MUTED)]
    for name, curve in terms.items():
        text, colour = TERMS[name]
        mean = curve.values.mean(axis=0)
        axes.plot(
            curve.rounds, np.where(mean > 0, mean, np.nan), color=colour, linewidth=2.4 if name == "total" else 1.6
        )
        exponent = exponents.get(name, math.nan)
        grows = "" if math.isnan(exponent) else f", $N^{{{exponent:.2f}}}$"
        ends.append((float(mean[-1]), f"{text}{grows}", colour))
    axes.set_xlim(first, max(last, 2 * first))  # a single episode has a width too
    positive = [curve.values.mean(axis=0) for curve in terms.values()]
    lowest = min((float(values[values > 0].min()) for values in positive if (values > 0).any()), default=1.0)
    axes.set_ylim(max(lowest, 0.3 * first / 10), None)
    _label_ends(axes, [end for end in ends if end[0] > 0], size=7.8)
    axes.grid(which="major")
    axes.set_xlabel("source rounds N")
    axes.set_ylabel("sum up to round N")
    return figure


def discriminator_figure(curves: Mapping[Key, Curve]) -> Figure:
    """How well the discriminator tells the domains apart, episode by episode, against chance."""
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0.5, color=MUTED, linewidth=0.9, linestyle=":")
    last = max(int(curve.rounds[-1]) for curve in curves.values())
    axes.set_xlim(1, max(last, 2))
    lowest = min(float(curve.values.min()) for curve in curves.values())
    axes.set_ylim(min(0.45, lowest - 0.02), 1.01)
    ends = [(0.5, "chance", MUTED)]
    for key, curve in curves.items():
        style = style_of(*key)
        smooth = _smoothed(curve.values.mean(axis=0))
        axes.plot(curve.rounds, smooth, color=style.colour, linestyle=style.dashes)
        if len(curve.values) > 1:
            low, high = _smoothed(curve.values.min(axis=0)), _smoothed(curve.values.max(axis=0))
            axes.fill_between(curve.rounds, low, high, color=style.colour, alpha=0.18, linewidth=0)
        ends.append((float(smooth[-1]), _name(key), style.colour))
    _label_ends(axes, ends)
    axes.grid(axis="y")
    axes.set_xlabel("episode")
    axes.set_ylabel("discriminator accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, str]], *, size: float = 8.5) -> None:
    """Names at the right ends of curves, moved apart where they would overlap, with a thin line to those that moved."""
    if not ends:
        return
    to_axes = axes.transAxes.inverted()
    x = axes.get_xlim()[1]
    wanted = [float(to_axes.transform(axes.transData.transform((x, y)))[1]) for y, _, _ in ends]
    order = np.argsort(wanted, kind="stable")
    places = _apart([wanted[at] for at in order], _GAP * size / 8.5)
    for at, place in zip(order, places, strict=True):
        _, text, colour = ends[at]
        moved = abs(place - wanted[at]) > 0.01
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        axes.annotate(
            text,
            (1.0, min(max(wanted[at], 0.0), 1.0)),
            xycoords="axes fraction",
            xytext=(1.045 if moved else 1.015, place),
            textcoords="axes fraction",
            va="center",
            ha="left",
            fontsize=size,
            color=colour,
            annotation_clip=False,
            arrowprops=leader if moved else None,
        )


def _apart(sorted_places: Sequence[float], gap: float) -> FloatArray:
    """The nearest places in the same order that are ``gap`` apart, within the axes as far as there is room."""
    places = np.array(sorted_places, np.float64)
    for _ in range(200):
        moved = False
        for at in range(len(places) - 1):
            missing = gap - (places[at + 1] - places[at])
            if missing > 1e-6:
                places[at] -= missing / 2
                places[at + 1] += missing / 2
                moved = True
        if not moved:
            break
    overshoot = places[-1] - 1.0
    if overshoot > 0:
        places -= overshoot
    if places[0] < 0:
        places -= places[0]
    return places


def _smoothed(values: FloatArray, share: float = 0.03) -> FloatArray:
    """A running mean over a few episodes; the ends average over what there is."""
    width = min(max(1, int(len(values) * share)), (len(values) - 1) // 2)
    kernel = np.ones(2 * width + 1)
    smooth: FloatArray = np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")
    return smooth


def _thousands(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_major_locator(MaxNLocator(5, integer=True))
    axis.label.set_color(INK)


def _name(key: Key) -> str:
    return written(label(*key), 32)
