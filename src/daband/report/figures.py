"""Figures of a comparison, for the eye and for print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from daband.arrays import FloatArray
from daband.report.summary import MethodSummary, Record

__all__ = ["COLOURS", "comparison_figure", "save_figure"]

# Okabe and Ito's palette, told apart with any kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")


def comparison_figure(
    rows: Sequence[MethodSummary], records: Sequence[Record], curves: Mapping[str, FloatArray]
) -> Figure:
    """Target accuracy by method, a dot per seed, and cumulative source regret over rounds with its range."""
    methods = [row.method for row in rows]
    colour = {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(methods)}
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for position, row in enumerate(rows):
        left.bar(position, row.accuracy, color=colour[row.method], alpha=0.75, width=0.65)
        dots = [record["target_accuracy"] for record in records if record["method"] == row.method]
        left.plot(np.full(len(dots), position), dots, "o", color="black", markersize=3.5, zorder=3)
        left.annotate(
            f"{row.accuracy:.3f}", (position, max(dots)), xytext=(0, 5), textcoords="offset points", ha="center"
        )
    left.set_xticks(range(len(methods)), methods)
    left.set_ylim(0, 1.08)
    left.set_ylabel("target accuracy (1 - regret / N)")
    left.set_title("Zero-shot on the target")
    for method, curve in curves.items():
        rounds = np.arange(1, curve.shape[1] + 1)
        right.plot(rounds, curve.mean(axis=0), color=colour[method], label=method, linewidth=1.8)
        right.fill_between(rounds, curve.min(axis=0), curve.max(axis=0), color=colour[method], alpha=0.2, linewidth=0)
    right.set_xlabel("source rounds")
    right.set_ylabel("cumulative source regret")
    right.set_title("Learning on the source")
    right.set_yscale("log")  # else the worst method hides all differences among the others
    if curves:
        right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure; the ending of ``path`` decides the format."""
    with matplotlib.rc_context({"svg.hashsalt": "daband"}):
        figure.savefig(path, dpi=150)
