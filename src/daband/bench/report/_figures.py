"""Every figure of a report: scores, gains, pairs, ablations, sweeps, curves of learning, and what a policy sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.bench._records import TARGET_ACCURACY, Metric
from daband.bench.report import _method_styles as styles
from daband.bench.report._method_summaries import Key, column_means
from daband.bench.report._run_files import Curve

WIDTH = 4.5
"""Inches: as wide as a phone shows without making the letters too small, and a column of a page in print."""
_GAP = 0.062
"""How far apart labels at the ends of curves must be, as a share of the height of the axes."""
_MOST_WITH_NUMBERS = 14
"""Arms whose names and shares can be written into a figure without covering each other."""
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


def gain_figure(
    classes: Sequence[str], gains: FloatArray, methods: tuple[Key, Key], paper: Mapping[str, float]
) -> Figure:
    """How much more the first method gets right than the second, by class; ``gains`` (seeds, classes), NaN for none.

    Each bar has the colour of the method that is ahead.
    """
    order = range(len(classes))[::-1]
    figure, axes = _figure(0.95 + (0.3 if len(classes) <= 20 else 0.2) * len(classes))
    means = np.nan_to_num(column_means(gains))
    for place, at in enumerate(order):
        colour = styles.style_of(*methods[0 if means[at] >= 0 else 1]).colour
        _bar(axes, place, means[at], colour, height=0.68, alpha=0.4, edge=2)
        if len(gains) > 1:
            _dots(axes, gains[:, at], np.full(len(gains), place), size=2.4)
        if classes[at] in paper:
            _diamond(axes, paper[classes[at]], place, size=4.8)
    _name_rows(axes, [styles.figure_text(classes[at], 22) for at in order], size=8.5 if len(classes) <= 20 else 7)
    axes.axvline(0, color=styles.INK, linewidth=0.9)
    axes.set_ylabel("class of the target context")
    axes.set_xlabel(f"gain in accuracy, {_name(methods[0])} over {_name(methods[1])}")
    _explain_marks(figure, dots=len(gains) > 1, paper=bool(paper))
    return figure


def pairs_figure(pairs: Sequence[str], scores: Mapping[Key, Mapping[str, FloatArray]], metric: Metric) -> Figure:
    """Every pair of a data set as a row, a mark per method at its mean over seeds, with its range."""
    figure, axes = _figure(1.25 + 0.3 * len(pairs))
    rows = list(pairs)[::-1]
    for number, (key, by_pair) in enumerate(scores.items()):
        style = styles.style_of(*key)
        shift = 0.11 * ((len(scores) - 1) / 2 - number)  # methods of equal score stay visible
        means = [float(by_pair[pair].mean()) if pair in by_pair else np.nan for pair in rows]
        places = np.arange(len(rows)) + shift
        axes.plot(means, places, style.marker, color=style.colour, markersize=5.5, linestyle="none", label=_name(key))
        for place, pair in enumerate(rows):
            if pair in by_pair and len(by_pair[pair]) > 1:
                ends = [float(by_pair[pair].min()), float(by_pair[pair].max())]
                axes.plot(ends, [place + shift, place + shift], color=style.colour, linewidth=1.0, alpha=0.7)
    _name_rows(axes, [styles.figure_text(pair.partition("/")[2] or pair, 24) for pair in rows])
    axes.grid(axis="x")
    axes.set_xlabel(_AXIS[metric.field])
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.2, columnspacing=1.0)
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
    ends = [(min(end, top), name, colour) for end, name, colour in _draw_curves(axes, curves)]
    _label_ends(axes, ends)
    axes.grid(axis="y")
    axes.set_xlabel(f"rounds in the {where}")
    axes.set_ylabel(f"cumulative {where} regret")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_major_locator(MaxNLocator(5, integer=True))
        axis.label.set_color(styles.INK)
    return figure


def discriminator_figure(curves: Mapping[Key, Curve]) -> Figure:
    """How well the discriminator tells the domains apart, episode by episode, against a guess."""
    figure, axes = _figure(3.0)
    axes.axhline(0.5, color=styles.MUTED, linewidth=0.9, linestyle=":")
    axes.set_xlim(1, max(*(int(curve.rounds[-1]) for curve in curves.values()), 2))
    axes.set_ylim(min(0.45, *(float(curve.values.min()) - 0.02 for curve in curves.values())), 1.01)
    _label_ends(axes, [(0.5, "chance", styles.MUTED), *_draw_curves(axes, curves, smooth=_running_mean)])
    axes.grid(axis="y")
    axes.set_xlabel("episode")
    axes.set_ylabel("discriminator accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def bound_figure(terms: Mapping[str, Curve], exponents: Mapping[str, float]) -> Figure:
    """Every observable term of the bound on logarithmic axes, where a slope of 1 is growth like N."""
    figure, axes = _figure(3.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    first = min(int(curve.rounds[0]) for curve in terms.values())
    last = max(int(curve.rounds[-1]) for curve in terms.values())
    axes.plot([first, last], [first, last], color=styles.MUTED, linewidth=0.9, linestyle=":")
    ends = [(float(last), "N", styles.MUTED)]
    means = {name: curve.values.mean(axis=0) for name, curve in terms.items()}
    for name, mean in means.items():
        text, colour = styles.TERMS[name]
        positive = np.where(mean > 0, mean, np.nan)
        axes.plot(terms[name].rounds, positive, color=colour, linewidth=2.4 if name == "total" else 1.6)
        exponent = exponents.get(name, math.nan)
        grows = "" if math.isnan(exponent) else f", $N^{{{exponent:.2f}}}$"
        ends.append((float(mean[-1]), f"{text}{grows}", colour))
    axes.set_xlim(first, max(last, 2 * first))  # a single episode has a width too
    lowest = min((float(mean[mean > 0].min()) for mean in means.values() if (mean > 0).any()), default=1.0)
    axes.set_ylim(max(lowest, 0.3 * first / 10), None)
    _label_ends(axes, [end for end in ends if end[0] > 0], size=7.8)
    axes.grid(which="major")
    axes.set_xlabel("source rounds N")
    axes.set_ylabel("sum up to round N")
    return figure


def confusion_figure(counts: IntArray, classes: Sequence[str]) -> Figure:
    """Shares of the contexts of each right arm by the arm that was chosen; every row sums to 1."""
    n = len(classes)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = _figure(WIDTH * 0.98)
    for row, column in zip(*np.nonzero(counts), strict=True):
        share = float(shares[row, column])
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=styles.ACCENT, alpha=share, linewidth=0))
        if n <= _MOST_WITH_NUMBERS and share >= 0.005:
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


def embed(latents: AnyArray, domain: AnyArray) -> tuple[FloatArray, IntArray]:
    """Places in the plane for some of the contexts, and which these are: t-SNE, the same every time.

    As many of both domains, at most 250 each: more take longer and say no more.
    """
    from sklearn.manifold import TSNE

    rows = np.concatenate([np.flatnonzero(domain == side)[:250] for side in (0, 1)])
    chosen = np.asarray(latents[rows], np.float32)
    if len(rows) < 8 or float(chosen.std()) == 0.0:  # nothing to arrange
        places = np.zeros((len(rows), 2))
        places[:, : min(2, chosen.shape[1])] = chosen[:, :2]
        return places, rows
    start, perplexity = "pca" if chosen.shape[1] > 1 else "random", min(30.0, (len(rows) - 1) / 3)
    arrange = TSNE(n_components=2, init=start, perplexity=perplexity, max_iter=400, random_state=0)
    return np.asarray(arrange.fit_transform(chosen), np.float64), rows


def map_figure(
    maps: Mapping[str, tuple[FloatArray, IntArray]], domain: AnyArray, arm: AnyArray, classes: Sequence[str]
) -> Figure:
    """Latents in the plane, before and after training (columns), by domain (above) and by right arm (below)."""
    figure = Figure(figsize=(WIDTH, 5.0))
    columns = len(maps)
    by_arm = np.array([styles.ARMS[int(a) % len(styles.ARMS)] if a >= 0 else styles.MUTED for a in arm])
    for column, (title, (places, rows)) in enumerate(maps.items()):
        for row in (0, 1):
            left, bottom = 0.005 + column / columns, 0.47 - 0.465 * row
            axes = figure.add_axes((left, bottom, 1 / columns - 0.01, 0.445))
            axes.set_xticks([])
            axes.set_yticks([])
            _frame(axes)
            if row == 0:
                figure.text(left + 0.5 / columns - 0.005, 0.985, title, ha="center", va="top", fontweight="bold")
            for side, mark, colour in _DOMAINS:
                inside = domain[rows] == side
                colours = list(by_arm[rows][inside]) if row else [colour] * int(inside.sum())
                axes.scatter(
                    places[inside, 0], places[inside, 1], c=colours, marker=mark, s=9, linewidths=0, alpha=0.75
                )
        # Before training arms lie in one cloud, and names would hide it; so would the names of many arms.
        if column == columns - 1 and len(classes) <= _MOST_WITH_NUMBERS:
            around = {"boxstyle": "round,pad=0.12", "facecolor": styles.PAPER, "edgecolor": "none", "alpha": 0.75}
            for number in np.unique(arm[rows][arm[rows] >= 0]):
                middle = np.median(places[arm[rows] == number], axis=0)
                name = styles.figure_text(classes[int(number)], 10)
                axes.text(
                    middle[0], middle[1], name, ha="center", va="center", fontsize=8, fontweight="bold", bbox=around
                )
    for left, text, colour in ((0.36, "● source", styles.SOURCE), (0.52, "▲ target", styles.TARGET)):
        figure.text(left, 0.945, text, color=colour, va="top", fontsize=8.5)
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


def _draw_curves(
    axes: Any, curves: Mapping[Key, Curve], smooth: Callable[[FloatArray], FloatArray] = lambda values: values
) -> list[tuple[float, str, str]]:
    """Means over seeds and bands over their range; returns where each ends, its name and its colour."""
    ends = []
    for key, curve in curves.items():
        style = styles.style_of(*key)
        mean = smooth(curve.values.mean(axis=0))
        axes.plot(curve.rounds, mean, color=style.colour, linestyle=style.dashes)
        if len(curve.values) > 1:
            low, high = smooth(curve.values.min(axis=0)), smooth(curve.values.max(axis=0))
            axes.fill_between(curve.rounds, low, high, color=style.colour, alpha=0.18, linewidth=0)
        ends.append((float(mean[-1]), _name(key), style.colour))
    return ends


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, str]], *, size: float = 8.5) -> None:
    """Names at the right ends of curves, moved apart where they would overlap, with a thin line to those that moved."""
    ends = [end for end in ends if math.isfinite(end[0])]
    if not ends:
        return
    to_axes = axes.transAxes.inverted()
    x = axes.get_xlim()[1]
    wanted = [float(to_axes.transform(axes.transData.transform((x, y)))[1]) for y, _, _ in ends]
    order = np.argsort(wanted, kind="stable")
    places = separate([wanted[at] for at in order], _GAP * size / 8.5)
    for at, place in zip(order, places, strict=True):
        _, text, colour = ends[at]
        moved = abs(place - wanted[at]) > 0.01
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        end, beside = (1.0, min(max(wanted[at], 0.0), 1.0)), (1.045 if moved else 1.015, place)
        coordinates = dict.fromkeys(("xycoords", "textcoords"), "axes fraction")
        style = {"va": "center", "ha": "left", "fontsize": size, "color": colour, "annotation_clip": False}
        axes.annotate(text, end, beside, arrowprops=leader if moved else None, **coordinates, **style)


def separate(sorted_places: Sequence[float], gap: float) -> FloatArray:
    """The nearest places in the same order that are ``gap`` apart, within the axes as far as there is room."""
    from sklearn.isotonic import isotonic_regression

    # Places a gap apart, less a gap for each before them, never fall: the nearest such places are a regression.
    steps = gap * np.arange(len(sorted_places))
    places: FloatArray = isotonic_regression(np.array(sorted_places, np.float64) - steps) + steps
    places -= max(places[-1] - 1.0, 0.0)
    places -= min(places[0], 0.0)
    return places


def _running_mean(values: FloatArray) -> FloatArray:
    """A running mean over a few episodes; the ends average over what there is."""
    width = min(max(1, int(len(values) * 0.03)), (len(values) - 1) // 2)
    kernel = np.ones(2 * width + 1)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def _name(key: Key) -> str:
    return styles.figure_text(styles.label(*key), 32)
