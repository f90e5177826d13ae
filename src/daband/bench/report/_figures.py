"""Every figure of a report: scores, gains, pairs, ablations, sweeps, curves of learning, and what a policy sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.bench._records import TARGET_ACCURACY, Metric
from daband.bench.report import _method_styles as styles
from daband.bench.report._method_summaries import Key
from daband.bench.report._run_files import Curve

#: Inches: as wide as a phone shows without making the letters too small, and a column of a page in print.
WIDTH = 4.5
#: Arms whose names and shares can be written into a figure without covering each other.
_MAX_ARMS_WITH_NUMBERS = 14
_AXIS = {
    "target_accuracy": "target accuracy: share of contexts with a best arm",
    "target_value": "target value: mean expected reward, in the rewards' unit",
}
_DOMAINS = ((0, "o", styles.SOURCE), (1, "^", styles.TARGET))


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
    figure, axes = _figure(0.95 + 0.42 * len(ranked))
    for place, group in enumerate(ranked):
        colour = styles.style_of(*group.key).colour
        mean = float(group.values.mean())
        _bar(axes, place, mean, colour, height=0.62, alpha=0.35, edge=2.2)
        if len(group.values) > 1:
            _dots(axes, group.values, place + np.linspace(-0.18, 0.18, len(group.values)), size=2.6)
        if group.paper is not None:
            _diamond(axes, group.paper, place, size=5.5)
        text = f"{mean:,.{metric.digits(mean)}f}"
        right = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "va": "center", "ha": "left"}
        axes.annotate(text, (1.0, place), textcoords="offset points", fontweight="bold", color=colour, **right)
    _name_rows(axes, [styles.figure_text(group.name, 32) for group in ranked])
    marks = list((references or {}).values())
    top = max([float(group.values.max()) for group in ranked] + [group.paper or 0.0 for group in ranked] + marks)
    lowest = min([float(group.values.min()) for group in ranked] + marks)
    if metric is TARGET_ACCURACY:
        axes.set_xlim(0.0, min(1.0, top * 1.06 + 0.02))
    else:  # rewards in the user's unit may be negative
        room = 0.06 * (max(top, 0.0) - min(lowest, 0.0))
        axes.set_xlim(min(0.0, lowest - room), max(0.0, top + room) or 1.0)
    for name, value in (references or {}).items():
        axes.axvline(value, color=styles.MUTED, linewidth=0.9, linestyle=":")
        above = {"xycoords": ("data", "axes fraction"), "xytext": (0, 2), "va": "bottom", "ha": "center"}
        axes.annotate(name, (value, 1.0), textcoords="offset points", fontsize=7.5, color=styles.MUTED, **above)
    axes.set_xlabel(_AXIS[metric.field])
    dots = any(len(group.values) > 1 for group in ranked)
    _explain_marks(figure, dots=dots, paper=any(group.paper is not None for group in ranked))
    return figure


def ablation_figure(
    bases: Mapping[str, Mapping[str, FloatArray]], paper: Mapping[str, float], metric: Metric
) -> Figure:
    """The score with the terms that are kept, a colour per base, a diamond for the paper."""
    order = ("RPD", "PD", "RD", "RP", "D", "P", "R", "none")
    letters = [name for name in order if any(name in base for base in bases.values())]
    figure, axes = _figure(1.2 + 0.4 * len(letters))
    places = {name: place for place, name in enumerate(reversed(letters))}
    height = 0.74 / len(bases)
    for number, (base, by_letters) in enumerate(bases.items()):
        colour = styles.style_of(("daband", "nlinucb", "linucb")[number % 3]).colour
        shift = height * ((len(bases) - 1) / 2 - number)
        for name, values in by_letters.items():
            named = f"recipe {styles.figure_text(base, 24)}" if name == next(iter(by_letters)) else None
            bar = {"height": height * 0.92, "color": colour, "alpha": 0.4, "linewidth": 0}
            axes.barh(places[name] + shift, float(values.mean()), label=named, **bar)
            _dots(axes, values, np.full(len(values), places[name] + shift), size=2.2)
    printed = [name for name in paper if name in places]
    for name in printed:
        mark = "the paper" if name == printed[0] else None
        _diamond(axes, paper[name], places[name], size=5, linestyle="none", label=mark)
    _name_rows(axes, ["none of them" if name == "none" else " + ".join(name) for name in reversed(letters)])
    lowest = min(float(values.min()) for by_letters in bases.values() for values in by_letters.values())
    axes.set_xlim(left=min(0.0, 1.06 * lowest))
    axes.set_xlabel(f"{metric.name}; dots are seeds")
    axes.set_ylabel("terms kept")
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.5, columnspacing=1.2)
    return figure


def sweep_figure(setting: str, curves: Mapping[Key, Mapping[float, FloatArray]], metric: Metric) -> Figure:
    """The score over one swept setting, a line per method, a dot per seed."""
    figure, axes = _figure(3.0)
    for (method, _), by_value in curves.items():
        style = styles.style_of(method)
        at = sorted(by_value)
        means = [float(by_value[x].mean()) for x in at]
        axes.plot(at, means, color=style.colour, linestyle=style.dashes, label=_name((method, "default")))
        for x in at:
            _dots(axes, np.full(len(by_value[x]), x), by_value[x], size=3, colour=style.colour)
    values = sorted({x for by_value in curves.values() for x in by_value})
    if min(values) > 0 and max(values) / min(values) > 30:
        axes.set_xscale("log")
    axes.grid(axis="y")
    axes.set_xlabel(styles.figure_text(setting, 40))
    axes.set_ylabel(f"{metric.name}; dots are seeds")
    if len(curves) > 1:
        axes.legend()
    return figure


def regret_figure(curves: Mapping[Key, Curve], *, where: str) -> Figure:
    """Cumulative regret over rounds: the mean over seeds, and a band over their range.

    Random and the constant arm would hide all differences among the others, so the axis ends with those.
    """
    figure, axes = _figure(3.2)
    learned = [curve for (method, _), curve in curves.items() if method not in ("random", "constant")]
    top = 1.08 * max(float(curve.values[:, -1].max()) for curve in learned or curves.values()) or 1.0  # no regret
    axes.set_xlim(0, max(int(curve.rounds[-1]) for curve in curves.values()))
    axes.set_ylim(0, top)
    for key, curve in curves.items():
        style = styles.style_of(*key)
        axes.plot(curve.rounds, curve.values.mean(axis=0), color=style.colour, linestyle=style.dashes, label=_name(key))
        if len(curve.values) > 1:
            low, high = curve.values.min(axis=0), curve.values.max(axis=0)
            axes.fill_between(curve.rounds, low, high, color=style.colour, alpha=0.18, linewidth=0)
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.5, columnspacing=1.2)
    axes.grid(axis="y")
    axes.set_xlabel(f"rounds in the {where}")
    axes.set_ylabel(f"cumulative {where} regret")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_major_locator(MaxNLocator(5, integer=True))
        axis.label.set_color(styles.INK)
    return figure


def confusion_figure(counts: IntArray, classes: Sequence[str]) -> Figure:
    """Shares of the contexts of each right arm by the arm that was chosen; every row sums to 1."""
    n = len(classes)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = _figure(WIDTH * 0.98)
    for row, column in zip(*np.nonzero(counts), strict=True):
        share = float(shares[row, column])
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=styles.ACCENT, alpha=share, linewidth=0))
        if n <= _MAX_ARMS_WITH_NUMBERS and share >= 0.005:
            text = f"{share:.2f}".removeprefix("0") if share < 0.995 else "1"
            colour = styles.PAPER if share > 0.55 else styles.INK
            axes.text(column, row, text, ha="center", va="center", fontsize=6.6 if n > 8 else 8, color=colour)
    size = 8 if n <= 12 else max(4.0, 110 / n)
    names = [styles.figure_text(name, 16) for name in classes]
    turned = max(map(len, names)) > 2
    axes.set_xticks(range(n), names, fontsize=size, rotation=55 if turned else 0, ha="right" if turned else "center")
    axes.set_yticks(range(n), names, fontsize=size)
    axes.tick_params(length=0)
    axes.set_xlim(-0.5, n - 0.5)
    axes.set_ylim(n - 0.5, -0.5)
    axes.set_aspect("equal")
    _frame(axes)
    axes.set_xlabel("arm that was chosen")
    axes.set_ylabel("arm that was right")
    return figure


def examples_figure(artifacts: Mapping[str, AnyArray], classes: Sequence[str]) -> Figure:
    """Target contexts that the policy got wrong: what they are, and below it what was chosen."""
    images = artifacts["wrong_images"]
    columns = 6
    cell, words = WIDTH / columns, 0.34
    height = -(-len(images) // columns) * (cell + words)
    figure = Figure(figsize=(WIDTH, height))
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        bottom = 1 - (row * (cell + words) + cell) / height
        axes = figure.add_axes((column / columns + 0.008, bottom, 1 / columns - 0.016, (cell - 0.08) / height))
        axes.imshow(image, cmap="gray", interpolation="nearest")
        axes.axis("off")
        right, chosen = (classes[int(artifacts[f"wrong_{name}"][number])] for name in ("right", "chosen"))
        size = 7.6 if max(len(right), len(chosen)) <= 7 else 5.6
        texts = (
            (0.02, f"is {styles.figure_text(right, 15)}", styles.INK),
            (0.16, f"chose {styles.figure_text(chosen, 13)}", styles.MUTED),
        )
        for below, text, colour in texts:
            place = (column / columns + 0.5 / columns, bottom - below / height)
            figure.text(*place, text, ha="center", va="top", fontsize=size, color=colour)
    return figure


def map_figure(artifacts: Mapping[str, AnyArray], classes: Sequence[str]) -> Figure:
    """Draw latent features after training in a plane: by domain on the left, by right arm on the right."""
    places, domain, arm = (artifacts[name] for name in ("latent", "latent_domain", "latent_arm"))
    if places.shape[1] == 1:
        places = np.hstack([places, np.zeros_like(places)])
    by_arm = np.array([styles.ARMS[int(a) % len(styles.ARMS)] if a >= 0 else styles.MUTED for a in arm])
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    for column, axes in enumerate(figure.subplots(1, 2)):
        axes.set_xticks([])
        axes.set_yticks([])
        _frame(axes)
        for side, mark, colour in _DOMAINS:
            inside = domain == side
            colours = list(by_arm[inside]) if column else [colour] * int(inside.sum())
            axes.scatter(places[inside, 0], places[inside, 1], c=colours, marker=mark, s=7, linewidths=0, alpha=0.75)
    if len(classes) <= _MAX_ARMS_WITH_NUMBERS:
        around = {"boxstyle": "round,pad=0.12", "facecolor": styles.PAPER, "edgecolor": "none", "alpha": 0.75}
        for number in np.unique(arm[arm >= 0]):
            middle = np.median(places[arm == number], axis=0)
            name = styles.figure_text(classes[int(number)], 10)
            axes.text(middle[0], middle[1], name, ha="center", va="center", fontsize=8, bbox=around)
    figure.suptitle("● source   ▲ target", fontsize=8.5, color=styles.MUTED)
    return figure


def _figure(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _frame(axes: Any) -> None:
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color(styles.GRID)


def _bar(axes: Any, place: float, value: float, colour: str, *, height: float, alpha: float, edge: float) -> None:
    axes.barh(place, value, height=height, color=colour, alpha=alpha, linewidth=0)
    ends = [place - height / 2, place + height / 2]
    axes.plot([value, value], ends, color=colour, linewidth=edge, solid_capstyle="butt")


def _dots(axes: Any, x: AnyArray, y: AnyArray, *, size: float, colour: str = styles.INK) -> None:
    axes.plot(x, y, "o", color=colour, markersize=size, markeredgewidth=0)


def _diamond(axes: Any, x: float, y: float, *, size: float, **more: Any) -> None:
    axes.plot(x, y, "D", markersize=size, markerfacecolor=styles.PAPER, markeredgecolor=styles.INK, zorder=4, **more)


def _name_rows(axes: Any, names: Sequence[str], *, size: float = 9.0) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(axis="x", color=styles.GRID)


def _explain_marks(figure: Figure, *, dots: bool, paper: bool) -> None:
    parts = ["bar: mean over seeds", *["dot: one seed"] * dots, *["diamond: the paper"] * paper]
    figure.supxlabel("; ".join(parts), fontsize=7.5, color=styles.MUTED, x=0.99, ha="right")


def _name(key: Key) -> str:
    return styles.figure_text(styles.label(*key), 32)
