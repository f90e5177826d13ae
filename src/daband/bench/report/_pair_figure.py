"""The figure of a pair: examples of both domains, or for tables the features that differ most."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray, unit_scale
from daband._files import make_folder, write_bytes
from daband._image_layout import channels_last, image_layout
from daband.bench.report._method_styles import COLOURS, figure_text
from daband.domains._contract import Contexts, EvaluationDomain, Pair, RewardDomain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EXAMPLES = 8
_FEATURES = 15
_SAMPLE = 2000
_SOURCE, _TARGET = COLOURS[0], COLOURS[1]


def draw_pair(pair: Pair, path: str | Path) -> Path:
    """Write the figure of a pair (PNG, PDF or SVG by the path's ending) and return its path."""
    target, content = Path(path), io.BytesIO()
    pair_figure(pair).savefig(content, format=target.suffix.lstrip(".") or "png", dpi=130)
    make_folder(target.parent)
    write_bytes(target, content.getvalue())
    return target


def pair_figure(pair: Pair) -> Figure:
    """Examples of both domains, or for tables the features that differ most, and how often each arm is best.

    The target's examples and frequencies come from its test, which is for people who may know the answers; where the
    target has no labels, its contexts alone are drawn.
    """
    from matplotlib.figure import Figure

    if image_layout(pair.context_shape) is not None and pair.arms == "disjoint":
        figure = Figure(figsize=(9.6, 7.2), layout="constrained")
        _draw_images(figure, pair)
    else:
        figure = Figure(figsize=(11.0, 6.0), layout="constrained")
        _draw_features(figure, pair)
    title = f"{pair.name}: {pair.about.summary}" if pair.about.summary else pair.name
    figure.suptitle(figure_text(title, 140), fontsize=11)
    return figure


def shifted_features(source: AnyArray, target: AnyArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means of every number of a context on both sides, each (d,), and their difference in pooled deviations, (d,)."""
    flat = [unit_scale(contexts).reshape(len(contexts), -1) for contexts in (source, target)]
    means = [contexts.mean(axis=0) for contexts in flat]
    deviation = np.sqrt((flat[0].var(axis=0) + flat[1].var(axis=0)) / 2.0)
    difference: FloatArray = (means[1] - means[0]) / np.where(deviation > 0, deviation, 1.0)
    return means[0], means[1], difference


def _draw_images(figure: Any, pair: Pair) -> None:
    contexts, labels = _sample(pair.source)
    examples = [(contexts, labels), _sample(_shown(pair))]
    upper, lower = figure.subfigures(2, 1, height_ratios=[2.6, 1.0])
    for side, title, (images, kinds) in zip(upper.subfigures(1, 2), ("source", "target"), examples, strict=True):
        side.suptitle(title)
        rows = _rows_of_every_class(kinds, _EXAMPLES * 2)
        cells = side.subplots(4, 4).reshape(-1)
        for cell in cells:
            cell.axis("off")
        for cell, row in zip(cells, rows, strict=False):
            cell.imshow(_drawable(images[row]), interpolation="nearest", cmap="gray")
            if kinds[row] >= 0:
                cell.set_title(figure_text(pair.class_names[kinds[row]], 24), fontsize=7)
    _draw_frequencies(lower.subplots(), pair, (examples[0][1], examples[1][1]))


def _draw_features(figure: Any, pair: Pair) -> None:
    contexts, labels = _sample(pair.source)
    seen, kinds = _sample(_shown(pair))
    if pair.arms == "shared":  # one context per arm: features are compared over all arms
        contexts, seen = (part.reshape(-1, *pair.context_shape) for part in (contexts, seen))
    source_means, target_means, difference = shifted_features(contexts, seen)
    most = np.argsort(-np.abs(difference), kind="stable")[:_FEATURES][::-1]
    names = pair.feature_names or tuple(f"feature {number}" for number in range(len(difference)))
    left, right = figure.subplots(1, 2, width_ratios=[1.7, 1.0])
    places = np.arange(len(most))
    left.barh(places + 0.2, source_means[most], height=0.38, color=_SOURCE, label="source")
    left.barh(places - 0.2, target_means[most], height=0.38, color=_TARGET, label="target")
    left.set_yticks(places, [f"{figure_text(names[at], 38)}  ({difference[at]:+.1f})" for at in most], fontsize=8)
    left.set_xlabel("mean; in brackets the difference in deviations")
    left.set_title("most shifted features")
    left.legend(loc="lower right", fontsize=8)
    left.axvline(0.0, color="black", linewidth=0.6)
    _draw_frequencies(right, pair, (labels, kinds))


def _draw_frequencies(axes: Any, pair: Pair, labels: tuple[IntArray, IntArray]) -> None:
    places = np.arange(pair.n_arms)
    for offset, colour, name, kinds in ((-0.2, _SOURCE, "source", labels[0]), (0.2, _TARGET, "target", labels[1])):
        labelled = kinds[kinds >= 0]
        if len(labelled):
            shares = np.bincount(labelled, minlength=pair.n_arms) / len(labelled)
            axes.bar(places + offset, shares, width=0.38, color=colour, label=name)
    axes.set_xticks(places, [figure_text(name, 14) for name in pair.class_names], rotation=60, ha="right", fontsize=7)
    axes.margins(y=0.35)  # room for the legend above the bars
    axes.set_ylabel("share")
    axes.set_title("which arm is best")
    if axes.containers:
        axes.legend(fontsize=8, ncols=2, loc="upper right")


def _shown(pair: Pair) -> EvaluationDomain | Contexts:
    return pair.target if pair.target_test is None else pair.target_test


def _sample(domain: Any) -> tuple[AnyArray, IntArray]:
    """Contexts and the best arm of each, -1 where a log or a target without labels does not tell it."""
    if isinstance(domain, EvaluationDomain):
        stop = min(len(domain), _SAMPLE)
        best = domain.read_expected(0, stop).argmax(axis=1)
        return domain.read(0, stop), best
    stop = min(len(domain), _SAMPLE)
    if isinstance(domain, RewardDomain):
        rounds = domain.rounds(0, stop, seed=0)
        table = rounds.rewards if rounds.expected is None else rounds.expected
        return rounds.contexts, table.argmax(axis=1)
    return domain.batch(0, stop, seed=0), np.full(stop, -1, dtype=np.int64)


def _rows_of_every_class(labels: IntArray, n: int) -> list[int]:
    """Rows that go through the classes in turn, so that a few examples show many of them."""
    turns = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        turns[rows] = np.arange(len(rows))
    return [int(row) for row in np.lexsort((labels, turns))[:n]]


def _drawable(image: AnyArray) -> AnyArray:
    if image.dtype != np.uint8:  # normalised contexts: stretched to what a screen can show
        low, high = float(image.min()), float(image.max())
        image = (image - low) / ((high - low) or 1.0)
    return channels_last(image, image_layout(image.shape))
