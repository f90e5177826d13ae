"""Draw the figures of a report: the scores of methods, and their regret over rounds."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from daband.base._arrays import FloatArray
from daband.bench._records import Metric
from daband.bench.report._method_summaries import LABEL_BY_METHOD, MethodKey, get_label
from daband.bench.report._run_files import RunCurves

#: Matplotlib's settings for every figure of a report.
STYLE_FILE = Path(__file__).with_name("figures.mplstyle")
#: Width of a figure in inches, which is readable on a phone and is one column of a printed page.
_WIDTH_INCHES = 4.5
#: Okabe and Ito's palette, which is distinct for all kinds of colour vision, and further colours.
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#b3a100",
    "#7b5cc4",
    "#8c510a",
    "#7a7f87",
)
#: Colour of dots and of the outlines of diamonds.
_DARK_COLOUR = "#1b1f24"


def get_style(method: str, variant: str = "default") -> tuple[str, str]:
    """Return the colour and the line style of a method in all figures.

    The methods of ``LABEL_BY_METHOD`` have different colours. Others get a colour by a hash of
    their name.
    """
    known_methods = list(LABEL_BY_METHOD)
    index = zlib.crc32(f"{method} {variant}".encode())
    if method in known_methods and variant == "default":
        index = known_methods.index(method)
    return COLOURS[index % len(COLOURS)], "--" if method.endswith("-p") else "-"


def shorten_text(text: str, length: int) -> str:
    """Return a text in one line of at most ``length`` characters.

    Dollar signs, which start formulas, are escaped.
    """
    text = " ".join(text.split())
    return (text if len(text) <= length else f"{text[: length - 1]}…").replace("$", r"\$")


@dataclass(frozen=True)
class ScoreRow:
    """A row of ``draw_scores``: a method with its scores."""

    #: The method and its variant.
    key: MethodKey
    #: A score per seed.
    scores: FloatArray
    #: The paper's accuracy; None if the paper has none.
    paper_accuracy: float | None = None


def draw_scores(rows: Sequence[ScoreRow], metric: Metric) -> Figure:
    """Draw target scores, the best method on top.

    A bar is a mean, a dot one seed, a diamond the paper's accuracy.
    """
    ranked_rows = sorted(rows, key=lambda row: float(row.scores.mean()))
    figure, axes = _create_figure(0.95 + 0.42 * len(ranked_rows))
    for y, row in enumerate(ranked_rows):
        mean, (colour, _) = float(row.scores.mean()), get_style(*row.key)
        axes.barh(y, mean, height=0.62, color=colour, alpha=0.45, linewidth=0)
        dot_heights = y + np.linspace(-0.25, 0.25, len(row.scores) + 2)[1:-1]
        axes.plot(
            row.scores, dot_heights, "o", color=_DARK_COLOUR, markersize=2.6, markeredgewidth=0
        )
        if row.paper_accuracy is not None:
            colours = {"markerfacecolor": "white", "markeredgecolor": _DARK_COLOUR}
            axes.plot(row.paper_accuracy, y, "D", markersize=5.5, zorder=4, **colours)
        mean_text = f"{mean:,.{metric.count_decimals(mean)}f}"
        y_axis_transform = axes.get_yaxis_transform()
        axes.text(
            1.01,
            y,
            mean_text,
            transform=y_axis_transform,
            va="center",
            fontweight="bold",
            color=colour,
        )
    axes.set_yticks(
        range(len(ranked_rows)), [shorten_text(get_label(*row.key), 32) for row in ranked_rows]
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    paper_remark = (
        "; diamond: the paper" if any(row.paper_accuracy is not None for row in ranked_rows) else ""
    )
    axes.set_xlabel(f"{metric.name}; bar: mean, dot: one seed{paper_remark}")
    return figure


def draw_regret(curves_by_method: Mapping[MethodKey, RunCurves], *, domain: str) -> Figure:
    """Draw the cumulative regret over rounds in a domain, "source" or "target".

    A line is the mean over seeds, and its band is the range of seeds.

    The y-axis ends just above the largest regret of methods that learn. The regret of random and
    constant arms is often so large that it would hide all other differences.
    """
    figure, axes = _create_figure(3.2)
    learning_methods = [key for key in curves_by_method if key[0] not in ("random", "constant")]
    last_regrets = [
        float(curves_by_method[key].values[:, -1].max())
        for key in learning_methods or curves_by_method
    ]
    y_limit = 1.08 * max(last_regrets) or 1.0  # 1 if nothing has regret
    axes.set_xlim(0, max(int(curves.rounds[-1]) for curves in curves_by_method.values()))
    axes.set_ylim(0, y_limit)
    for key, curves in curves_by_method.items():
        colour, line_style = get_style(*key)
        label = shorten_text(get_label(*key), 32)
        axes.plot(
            curves.rounds,
            curves.values.mean(axis=0),
            color=colour,
            linestyle=line_style,
            label=label,
        )
        low = curves.values.min(axis=0)
        high = curves.values.max(axis=0)
        axes.fill_between(curves.rounds, low, high, color=colour, alpha=0.18, linewidth=0)
    figure.legend(loc="outside upper center", ncols=3, handletextpad=0.5, columnspacing=1.2)
    axes.grid(axis="y")
    axes.set_xlabel(f"rounds in the {domain}")
    axes.set_ylabel(f"cumulative {domain} regret")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def _create_figure(height: float) -> tuple[Figure, Any]:
    """Return an empty figure and its axes. ``height`` is in inches."""
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    return figure, figure.subplots()
