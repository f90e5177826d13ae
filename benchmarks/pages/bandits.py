"""The page of the bandit problems of the literature, and its figure of regret over rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from pages.front_figure import FONT, MUTED, OURS, PAPER, TEXT, draw_text
from pages.text import commits, fill, number

Record = Mapping[str, Any]

#: daband's policies, with the colours of their curves. Other methods are peers.
_COLOURS = {"LinUCB": "#7b61c9", "Mixture": OURS, "Trees": "#2e8b57", "NeuralLinUCB": "#c2571a"}
#: The problems in the order of the page.
_PROBLEMS = (
    *("mushroom", "shuttle", "wheel .5", "wheel .9", "wheel .95", "wheel .99"),
    *("linear", "quadratic", "sinus"),
)
#: The limits of the logarithmic axis of regret.
_LIMITS = (0.005, 2.0)


class Runs:
    """The finished runs of a record, by method and problem."""

    def __init__(self, record: Record) -> None:
        self.runs = [run for run in record["runs"] if "regret" in run]
        played = {run["problem"] for run in self.runs}
        self.problems = [problem for problem in _PROBLEMS if problem in played]
        names = dict.fromkeys([*_COLOURS, *sorted(run["method"] for run in self.runs)])
        self.methods = [name for name in names if any(self.of(name, p) for p in self.problems)]

    def of(self, method: str, problem: str) -> list[Record]:
        """Return the runs of all seeds."""
        return [run for run in self.runs if (run["method"], run["problem"]) == (method, problem)]

    def regrets(self, method: str, problem: str) -> list[float]:
        return [run["regret"] for run in self.of(method, problem)]

    def find_best_peer(self, problem: str) -> str | None:
        """Return the peer with the least mean regret, or None if there is none."""
        means = {
            method: float(np.mean(self.regrets(method, problem)))
            for method in self.methods
            if method not in _COLOURS and self.of(method, problem)
        }
        return min(means, key=means.__getitem__) if means else None


def bandits(record: Record) -> str:
    """Return the page."""
    runs = Runs(record)
    rows = []
    for method in runs.methods:
        cells = [_mean_and_worst(runs.regrets(method, problem)) for problem in runs.problems]
        seconds = median(run["seconds"] for run in runs.runs if run["method"] == method)
        name = f"**{method}**" if method in _COLOURS else method
        rows.append([name, *cells, number(seconds, 0)])
    best = [runs.find_best_peer(problem) for problem in runs.problems]
    ours = [run for run in runs.runs if run["method"] in _COLOURS]
    stuck = [run for run in ours if run["second half"] > 0.5]
    failed = sorted({run["method"] for run in record["runs"] if "error" in run})
    return fill(
        "bandits",
        head=["", *runs.problems, "seconds"],
        rows=rows,
        absent=record["absent"],
        failed=failed,
        stuck=len(stuck),
        n_ours=len(ours),
        stuck_runs=[
            f"{method} on {problem} {count}"
            for (method, problem), count in Counter(
                (run["method"], run["problem"]) for run in stuck
            ).items()
        ],
        seeds=_count_seeds(runs, ours=True),
        peer_seeds=_count_seeds(runs, ours=False),
        mean=_mean(runs, "Mixture"),
        peer_mean=float(
            np.mean(
                [
                    np.mean(runs.regrets(name, problem))
                    for name, problem in zip(best, runs.problems, strict=True)
                    if name
                ]
            )
        ),
        versions=_list_versions(record),
        commits=commits(runs.runs),
        cpus=sorted({machine["cpu"] for machine in record["machines"].values()}),
    )


def _mean(runs: Runs, method: str) -> float:
    """Return the mean over problems of a method's mean regret."""
    return float(np.mean([np.mean(runs.regrets(method, problem)) for problem in runs.problems]))


def _mean_and_worst(regrets: Sequence[float]) -> str:
    """Return the mean and the worst seed, without zeros before the point."""
    if not regrets:
        return ""
    mean, worst = (f"{value:.3f}".removeprefix("0") for value in (np.mean(regrets), max(regrets)))
    return f"{mean} ({worst})"


def _count_seeds(runs: Runs, *, ours: bool) -> str:
    """Return the smallest and the largest number of seeds of a method on a problem."""
    counts = {
        len(runs.of(method, problem))
        for method in runs.methods
        for problem in runs.problems
        if (method in _COLOURS) is ours and runs.of(method, problem)
    }
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def _list_versions(record: Record) -> str:
    """Return the names and versions of all libraries."""
    names = ("daband", "vowpalwabbit", "bayesianbandits", "contextualbandits", "mabwiser", "river")
    versions = {
        name: machine[name]
        for machine in record["machines"].values()
        for name in (*names, "calvera")
        if name in machine
    }
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def bandits_figure(record: Record) -> str:
    """Return the regret so far of our policies and the best peer, in one panel per problem."""
    runs = Runs(record)
    width, height, n_columns = 290, 190, 3
    n_rows = -(-len(runs.problems) // n_columns)
    size = (n_columns * width + 20, n_rows * height + 50)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {size[0]} {size[1]}' role='img'"
        f" {FONT}>",
        "<title>Regret so far as a fraction of that of random choices</title>",
        f"<rect width='{size[0]}' height='{size[1]}' rx='10' fill='#ffffff' stroke='#d9e2ec'/>",
    ]
    for index, problem in enumerate(runs.problems):
        left, top = 50 + index % n_columns * width, 30 + index // n_columns * height
        peer = runs.find_best_peer(problem)
        parts.append(draw_text(left, top - 8, problem, 13, TEXT, weight=600))
        parts += _draw_axes(left, top, width - 70, height - 60)
        for method, colour in [(peer, PAPER), *_COLOURS.items()]:
            curves = [run["curve"] for run in runs.of(method or "", problem)]
            if curves:
                points = _place(np.mean(curves, axis=0), left, top, width - 70, height - 60)
                parts.append(
                    f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2'/>"
                )
        if peer:
            parts.append(draw_text(left, top + height - 42, f"best peer: {peer}", 10, MUTED))
    names = [*_COLOURS.items(), ("best peer", PAPER)]
    for index, (name, colour) in enumerate(names):
        parts.append(draw_text(60 + 150 * index, size[1] - 14, name, 12, colour, weight=600))
    return "\n".join([*parts, "</svg>", ""])


def _scale(value: float, top: float, height: float) -> float:
    low, high = np.log(_LIMITS)
    return top + height * (1.0 - (float(np.log(np.clip(value, *_LIMITS))) - low) / (high - low))


def _draw_axes(left: float, top: float, width: float, height: float) -> list[str]:
    """Return horizontal lines with their regret."""
    parts = []
    for value in (0.01, 0.1, 1.0):
        y = _scale(value, top, height)
        parts.append(f"<path d='M{left} {y:.1f}h{width}' stroke='#d9e2ec'/>")
        parts.append(draw_text(left - 6, y + 4, f"{value:g}", 10, MUTED, anchor="end"))
    return parts


def _place(curve: Any, left: float, top: float, width: float, height: float) -> str:
    """Return the points of the regret so far, divided by that of random choices so far."""
    parts = np.arange(1, len(curve) + 1) / len(curve)
    return " ".join(
        f"{left + width * part:.1f},{_scale(value / part, top, height):.1f}"
        for part, value in zip(parts, curve, strict=True)
    )
