"""The figure of the front page, as SVG text from records: ``results_pages.py`` writes and checks
it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TEXT = "#1f2933"
MUTED = "#52606d"
PLAIN = "#9fb3c8"
PAPER = "#e69f00"
OURS = "#0072b2"
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
GROUPS = {
    "Linear": {"linucb-normalised": ("LinUCB, images normalised", PLAIN)},
    "The paper's network and settings": {
        "paper-nlinucb": ("Neural-LinUCB", PLAIN),
        "paper": ("DABand (paper)", PAPER),
    },
    "Five networks, settings of daband": {
        "nlinucb": ("Neural-LinUCB", PLAIN),
        "daband": ("DABand, default", OURS),
    },
}
"""For each group the bars: the name in ``runs``, the label and the colour."""


def front_figure(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], digits: Path, *, reported: float
) -> str:
    """Return the digits of both domains, and the target accuracy of each method: mean and standard
    deviation over runs.

    ``reported`` is the accuracy that the paper reports for its method, drawn as an empty bar around
    our result.
    """
    picture = base64.b64encode(digits.read_bytes()).decode()
    bars = {key: label for group in GROUPS.values() for key, (label, _) in group.items()}
    values = {key: np.array([record["target_accuracy"] for record in runs[key]]) for key in bars}
    described = ", ".join(f"{bars[key]} {own.mean():.3f}" for key, own in values.items())
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 880 318' role='img' {FONT}>",
        "<title>MNIST to MNIST-M</title>",
        (
            f"<desc>Target accuracy without a target reward: {described}. The paper reports"
            f" {reported:.3f}.</desc>"
        ),
        "<rect width='880' height='318' rx='10' fill='#ffffff' stroke='#d9e2ec'/>",
        *_domain(20, "Source: every choice gets a reward", picture, 0),
        *_domain(160, "Target: images only, no reward, no label", picture, 1),
        draw_text(430, 34, "Correct choices in the target", 15, TEXT, weight=600),
    ]
    left = 622
    width = 155
    top = 46
    for group, rows in GROUPS.items():
        top += 18
        parts.append(draw_text(430, top, group, 12, MUTED))
        top += 6
        for key, (label, fill) in rows.items():
            mean = float(values[key].mean())
            deviation = float(values[key].std(ddof=1))
            weight = 400 if fill == PLAIN else 600
            end = left + mean * width
            after = end + max(8.0, deviation * width + 6)
            if key == "paper":
                parts.append(
                    f"<rect x='{left}' y='{top}' width='{reported * width:.1f}' height='24' rx='3'"
                    f" fill='none' stroke='{PAPER}' stroke-dasharray='3 2'/>"
                )
                after = left + reported * width + 8
            number = f"{mean:.3f}" + (f" (paper: {reported:.3f})" if key == "paper" else "")
            parts += [
                draw_text(left - 10, top + 17, label, 14, TEXT, anchor="end", weight=weight),
                (
                    f"<rect x='{left}' y='{top}' width='{mean * width:.1f}' height='24' rx='3'"
                    f" fill='{fill}'/>"
                ),
                (
                    f"<path d='M{end - deviation * width:.1f}"
                    f" {top + 12}h{2 * deviation * width:.1f}' stroke='{TEXT}'/>"
                ),
                draw_text(after, top + 17, number, 13, TEXT, weight=weight),
            ]
            top += 30
    seeds = sorted({len(own) for own in values.values()})
    rounds = int(runs["daband"][0]["rounds"])
    note = (
        f"MNIST to MNIST-M, {rounds:,} source rounds, mean of {' or '.join(map(str, seeds))} seeds"
    )
    return "\n".join([*parts, draw_text(430, 304, note, 12, MUTED), "</svg>", ""])


def _domain(top: int, title: str, picture: str, row: int) -> list[str]:
    """Return a title, and below it one row of the digits."""
    side = 62
    left = 24
    return [
        draw_text(left, top + 14, title, 15, TEXT, weight=600),
        (
            f"<svg x='{left}' y='{top + 26}' width='{side * 6}' height='{side}' viewBox='0"
            f" {28 * row} 168 28'><image width='168' height='56'"
            f" href='data:image/png;base64,{picture}'/></svg>"
        ),
    ]


def draw_text(
    x: float,
    y: float,
    words: str,
    size: int,
    fill: str,
    *,
    anchor: str = "start",
    weight: int = 400,
) -> str:
    """Return a text of an SVG."""
    place = f"x='{x:.1f}' y='{y:.1f}' font-size='{size}'"
    return (
        f"<text {place} font-weight='{weight}' fill='{fill}' text-anchor='{anchor}'>{words}</text>"
    )
