"""Figures of what a policy has learned: what it takes for what, where it goes wrong, and how it sees both domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.report.figures_results import WIDTH
from daband.report.style import ACCENT, ARMS, GRID, INK, MUTED, PAPER, SOURCE, TARGET, written

__all__ = ["confusion_figure", "embedded", "examples_figure", "map_figure"]

_MOST_WITH_NUMBERS = 14
"""Arms whose names and shares can be written into a figure without covering each other."""


def confusion_figure(counts: IntArray, classes: Sequence[str]) -> Figure:
    """Shares of the contexts of each right arm by the arm that was chosen; every row sums to 1."""
    n = len(classes)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    figure = Figure(figsize=(WIDTH, WIDTH * 0.98), layout="constrained")
    axes = figure.subplots()
    for row, column in zip(*np.nonzero(counts), strict=True):
        share = float(shares[row, column])
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=ACCENT, alpha=share, linewidth=0))
        if n <= _MOST_WITH_NUMBERS and share >= 0.005:
            text = f"{share:.2f}".removeprefix("0") if share < 0.995 else "1"
            axes.text(
                column, row, text, ha="center", va="center", fontsize=6.6 if n > 8 else 8,
                color=PAPER if share > 0.55 else INK,
            )  # fmt: skip
    size = 8 if n <= 12 else max(4.0, 110 / n)
    names = [written(name, 16) for name in classes]
    turned = max(map(len, names)) > 2
    axes.set_xticks(range(n), names, fontsize=size, rotation=55 if turned else 0, ha="right" if turned else "center")
    axes.set_yticks(range(n), names, fontsize=size)
    axes.tick_params(length=0)
    axes.set_xlim(-0.5, n - 0.5)
    axes.set_ylim(n - 0.5, -0.5)
    axes.set_aspect("equal")
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color(GRID)
    axes.set_xlabel("arm that was chosen")
    axes.set_ylabel("arm that was right")
    return figure


def examples_figure(artifacts: Mapping[str, AnyArray], classes: Sequence[str]) -> Figure:
    """Target contexts that the policy got wrong: what they are, and below it what was chosen."""
    images = artifacts["wrong_images"]
    columns = 6
    rows = -(-len(images) // columns)
    cell, words = WIDTH / columns, 0.34
    height = rows * (cell + words)
    figure = Figure(figsize=(WIDTH, height))
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        bottom = 1 - (row * (cell + words) + cell) / height
        axes = figure.add_axes((column / columns + 0.008, bottom, 1 / columns - 0.016, (cell - 0.08) / height))
        axes.imshow(image, cmap="gray", interpolation="nearest")
        axes.axis("off")
        right, chosen = (classes[int(artifacts[f"wrong_{name}"][number])] for name in ("right", "chosen"))
        size = 7.6 if max(len(right), len(chosen)) <= 7 else 5.6
        middle = column / columns + 0.5 / columns
        figure.text(middle, bottom - 0.02 / height, f"is {written(right, 15)}", ha="center", va="top", fontsize=size)
        figure.text(
            middle,
            bottom - 0.16 / height,
            f"chose {written(chosen, 13)}",
            ha="center",
            va="top",
            fontsize=size,
            color=MUTED,
        )
    return figure


def embedded(latents: AnyArray, domain: AnyArray, *, points: int = 250) -> tuple[FloatArray, IntArray]:
    """Places in the plane for some of the contexts, and which these are: t-SNE, the same every time.

    As many of both domains, at most ``points`` each: more take longer and say no more.
    """
    from sklearn.manifold import TSNE

    sides = [np.flatnonzero(domain == side) for side in (0, 1)]
    rows = np.concatenate([side[:points] for side in sides])
    chosen = np.asarray(latents[rows], np.float32)
    if len(rows) < 8 or float(chosen.std()) == 0.0:  # nothing to arrange
        places = np.zeros((len(rows), 2))
        places[:, : min(2, chosen.shape[1])] = chosen[:, :2]
        return places, rows
    arrange = TSNE(
        n_components=2,
        init="pca" if chosen.shape[1] > 1 else "random",
        perplexity=min(30.0, (len(rows) - 1) / 3),
        max_iter=400,
        random_state=0,
    )
    places = np.asarray(arrange.fit_transform(chosen), np.float64)
    return places, rows


def map_figure(
    maps: Mapping[str, tuple[FloatArray, IntArray]], domain: AnyArray, arm: AnyArray, classes: Sequence[str]
) -> Figure:
    """Latents in the plane, before and after training (columns), by domain (above) and by right arm (below)."""
    figure = Figure(figsize=(WIDTH, 5.0))
    columns = len(maps)
    for column, (title, (places, rows)) in enumerate(maps.items()):
        for row in (0, 1):
            left, bottom = 0.005 + column / columns, 0.47 - 0.465 * row
            axes = figure.add_axes((left, bottom, 1 / columns - 0.01, 0.445))
            axes.set_xticks([])
            axes.set_yticks([])
            for side in axes.spines.values():
                side.set_visible(True)
                side.set_color(GRID)
            if row == 0:
                figure.text(left + 0.5 / columns - 0.005, 0.985, title, ha="center", va="top", fontweight="bold")
                _by_domain(axes, places, domain[rows])
            else:
                _by_arm(axes, places, domain[rows], arm[rows])
                # Before training arms lie in one cloud, and names would hide it; so would the names of many arms.
                if column == columns - 1 and len(classes) <= _MOST_WITH_NUMBERS:
                    _name_arms(axes, places, arm[rows], classes)
    for left, text, colour in ((0.36, "● source", SOURCE), (0.52, "▲ target", TARGET)):
        figure.text(left, 0.945, text, color=colour, va="top", fontsize=8.5)
    return figure


def _by_domain(axes: Any, places: FloatArray, domain: AnyArray) -> None:
    for side, mark, colour in ((0, "o", SOURCE), (1, "^", TARGET)):
        mine = places[domain == side]
        _dots(axes, mine, [colour] * len(mine), mark)


def _by_arm(axes: Any, places: FloatArray, domain: AnyArray, arm: AnyArray) -> None:
    colours = np.array([ARMS[int(a) % len(ARMS)] if a >= 0 else MUTED for a in arm])
    for side, mark in ((0, "o"), (1, "^")):
        mine = domain == side
        _dots(axes, places[mine], list(colours[mine]), mark)


def _name_arms(axes: Any, places: FloatArray, arm: AnyArray, classes: Sequence[str]) -> None:
    around = {"boxstyle": "round,pad=0.12", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.75}
    for number in np.unique(arm[arm >= 0]):
        middle = np.median(places[arm == number], axis=0)
        name = written(classes[int(number)], 10)
        axes.text(*middle, name, ha="center", va="center", fontsize=8, fontweight="bold", bbox=around)


def _dots(axes: Any, places: FloatArray, colours: list[str], mark: str) -> None:
    axes.scatter(*places.T, c=colours, marker=mark, s=9, linewidths=0, alpha=0.75)
