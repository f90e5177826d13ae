"""The figure of marks against costs under budgets, as SVG text from the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pages.front_figure import FONT, MUTED, OURS, PAPER, TEXT, draw_text

#: The limits of both axes: costs in dollars (logarithmic) and marks.
COSTS = (2e-5, 2e-2)
MARKS = (0.78, 0.95)


def budget_figure(record: Mapping[str, Any]) -> str:
    """Return the marks and costs of the policy under budgets, and those of single models."""

    def place(cost: float, mark: float) -> tuple[float, float]:
        x = np.log(cost / COSTS[0]) / np.log(COSTS[1] / COSTS[0])
        return 70 + 560 * float(x), 300 - 270 * (mark - MARKS[0]) / (MARKS[1] - MARKS[0])

    points = [(np.mean(row["costs"]), np.mean(row["marks"])) for row in record["budgets"]]
    line = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 660 350' role='img' {FONT}>",
        "<title>Mean mark against mean cost per prompt</title>",
        "<rect width='660' height='350' rx='10' fill='#ffffff' stroke='#d9e2ec'/>",
        f"<polyline points='{line}' fill='none' stroke='{OURS}' stroke-width='2'/>",
    ]
    for row, point in zip(record["budgets"], points, strict=True):
        x, y = place(*point)
        low, high = (place(point[0], mark)[1] for mark in row["interval"])
        parts.append(f"<path d='M{x:.1f} {low:.1f}V{high:.1f}' stroke='{OURS}'/>")
        parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{OURS}'/>")
    for model in record["single"]:
        x, y = place(model["cost"], model["mark"])
        name = model["model"].partition("/")[2]
        is_right = x > 450
        parts.append(f"<rect x='{x - 4:.1f}' y='{y - 4:.1f}' width='8' height='8' fill='{PAPER}'/>")
        shift = 32 if name.endswith("flash") else 16
        anchor = "end" if is_right else "start"
        parts.append(draw_text(x, y + shift, name, 11, TEXT, anchor=anchor))
    for cost in (1e-4, 1e-3, 1e-2):
        parts.append(draw_text(place(cost, 0)[0], 320, f"${cost:g}", 11, MUTED, anchor="middle"))
    for mark in (0.8, 0.85, 0.9, 0.95):
        parts.append(
            draw_text(60, place(1e-3, mark)[1] + 4, f"{mark:.2f}", 11, MUTED, anchor="end")
        )
    parts.append(draw_text(350, 340, "mean cost per prompt", 12, MUTED, anchor="middle"))
    return "\n".join([*parts, "</svg>", ""])
