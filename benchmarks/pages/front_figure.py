"""The picture of the front page, as SVG text from the records of DIGIT: ``results_pages.py`` writes and checks it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["front_figure"]

METHODS = {
    "random": "Random",
    "linucb": "LinUCB",
    "linucb-p": "LinUCB-P",
    "nlinucb": "Neural-LinUCB",
    "daband": "DABand",
}
TEXT, MUTED, PLAIN, OURS = "#1f2933", "#52606d", "#9fb3c8", "#0072b2"
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def front_figure(runs: Mapping[str, Sequence[Mapping[str, Any]]], digits: Path) -> str:
    """Digits of both domains, and each method's target accuracy: mean and standard deviation over its runs."""
    picture = base64.b64encode(digits.read_bytes()).decode()
    spread = {name: np.array([record["target_accuracy"] for record in runs[name]]) for name in METHODS}
    told = ", ".join(f"{METHODS[name]} {values.mean():.3f}" for name, values in spread.items())
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 860 290' role='img' {FONT}>",
        "<title>MNIST to MNIST-M</title>",
        f"<desc>Target accuracy without a target reward: {told}.</desc>",
        "<rect width='860' height='290' rx='10' fill='#ffffff' stroke='#d9e2ec'/>",
        *_domain(24, "Source: every choice gets a reward", picture, 0),
        *_domain(152, "Target: images only, no reward, no label", picture, 1),
        _text(440, 34, "Right choices in the target", 15, TEXT, weight=600),
    ]
    left, width = 548, 230
    for place, (name, values) in enumerate(spread.items()):
        top = 54 + place * 43
        mean, deviation = float(values.mean()), float(values.std(ddof=1))
        fill = OURS if name == "daband" else PLAIN
        centre = left + mean * width
        parts += [
            _text(left - 10, top + 20, METHODS[name], 14, TEXT, anchor="end", weight=600 if name == "daband" else 400),
            f"<rect x='{left}' y='{top}' width='{mean * width:.1f}' height='28' rx='3' fill='{fill}'/>",
            f"<path d='M{centre - deviation * width:.1f} {top + 14}h{2 * deviation * width:.1f}' stroke='{TEXT}'/>",
            _text(centre + max(8.0, deviation * width + 6), top + 20, f"{mean:.3f}".lstrip("0"), 14, TEXT,
                  weight=600 if name == "daband" else 400),
        ]  # fmt: skip
    seeds = sorted({len(values) for values in spread.values()})
    rounds = int(runs["daband"][0]["rounds"])
    note = f"MNIST to MNIST-M, {rounds:,} source rounds, mean of {' or '.join(map(str, seeds))} seeds"
    return "\n".join([*parts, _text(440, 277, note, 12, MUTED), "</svg>", ""])


def _domain(top: int, title: str, picture: str, row: int) -> list[str]:
    """A title, and below it one row of the digits."""
    side, left = 62, 24
    return [
        _text(left, top + 14, title, 15, TEXT, weight=600),
        f"<svg x='{left}' y='{top + 26}' width='{side * 6}' height='{side}' viewBox='0 {28 * row} 168 28'>"
        f"<image width='168' height='56' href='data:image/png;base64,{picture}'/></svg>",
    ]


def _text(x: float, y: float, words: str, size: int, fill: str, *, anchor: str = "start", weight: int = 400) -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' font-size='{size}'"
    return f"<text {place} font-weight='{weight}' fill='{fill}' text-anchor='{anchor}'>{words}</text>"
