"""Draw a curve with its limits as SVG, for pages that must work without other files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

#: Characters that XML does not allow.
_NOT_IN_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Width and height of a figure, and its margins, in pixels.
_WIDTH = 640
_HEIGHT = 220
_LEFT = 70
_BOTTOM = 34
#: Smallest distance of a label from that of the dashed line, as a fraction of the height.
_LABEL_SPACING = 0.1


def escape_text(text: str) -> str:
    """Return a text for SVG, in which characters that XML does not allow are replaced."""
    return escape(_NOT_IN_XML.sub("\ufffd", text))


def draw_curve(
    points: Sequence[tuple[float, float, float | None, float | None]],
    *,
    label: str,
    line: float = 0.0,
) -> str:
    """Return a figure of points (x, value, low, high), with a dashed horizontal line.

    A limit that is None is at the edge of the figure. Without points, the text is empty.

    Args:
        points: the points, by increasing x.
        label: the name of the figure, with the unit of the values; it is escaped.
        line: the value of the dashed line.
    """
    if not points:
        return ""
    label = escape_text(label)
    # the first limits may be far apart; the later half sets the scale
    recent = points[len(points) // 2 :]
    shown = [line, *(value for point in recent for value in point[1:] if value is not None)]
    bottom, top = min(shown), max(shown)
    named = [line, *(y for y in (bottom, top) if abs(y - line) > _LABEL_SPACING * (top - bottom))]
    margin = 0.05 * ((top - bottom) or abs(top) or 1.0)
    bottom, top = bottom - margin, top + margin
    last = float(points[-1][0]) or 1.0

    def place(x: float, y: float | None, missing: float) -> str:
        height = missing if y is None else min(max(y, bottom), top)
        left = _LEFT + (_WIDTH - _LEFT - 10) * x / last
        return f"{left:.1f},{10 + (_HEIGHT - _BOTTOM - 10) * (top - height) / (top - bottom):.1f}"

    upper = [place(x, high, top) for x, _, _, high in points]
    lower = [place(x, low, bottom) for x, _, low, _ in points]
    values = [place(x, value, 0.0) for x, value, _, _ in points]
    start, end = place(0.0, line, 0.0), place(last, line, 0.0)
    texts = [
        f'<text x="{_LEFT - 6}" y="{place(0.0, y, 0.0).split(",")[1]}" text-anchor="end">{y:.3g}'
        "</text>"
        for y in named
    ]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}" width="100%"'
        ' font-size="12" fill="currentColor">'
        f"<title>{label}</title>"
        f'<polygon points="{" ".join([*upper, *reversed(lower)])}" opacity="0.15"/>'
        f'<polyline points="{" ".join(values)}" fill="none" stroke="currentColor"'
        ' stroke-width="2"/>'
        f'<polyline points="{start} {end}" stroke="currentColor" stroke-dasharray="4"/>'
        f"{''.join(texts)}"
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 10}" text-anchor="end">{last:,.0f} rounds</text>'
        "</svg>"
    )
