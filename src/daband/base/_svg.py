"""Draw curves and intervals as SVG, for pages that must work without other files."""

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
_TOP = 28
#: Height of a row of ``draw_intervals``, and the width of its names.
_ROW_HEIGHT = 26
_NAME_WIDTH = 180
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
        share = (top - height) / (top - bottom)
        return f"{left:.1f},{_TOP + (_HEIGHT - _BOTTOM - _TOP) * share:.1f}"

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
        f'<text x="6" y="14">{label}</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 10}" text-anchor="end">{last:,.0f} rounds</text>'
        "</svg>"
    )


def draw_intervals(
    rows: Sequence[tuple[str, float, float, float]], *, label: str, line: float | None = None
) -> str:
    """Return a figure of named values with their limits (name, value, low, high), one below the
    other.

    Limits must be finite. Without rows, the text is empty.

    Args:
        rows: the values.
        label: the title of the axis, with the unit of the values; it is escaped.
        line: the value of a dashed vertical line; None for no line.
    """
    if not rows:
        return ""
    label = escape_text(label)
    numbers = [number for _, *values in rows for number in values]
    numbers += [] if line is None else [line]
    low, high = min(numbers), max(numbers)
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    low, high = low - margin, high + margin
    height = _ROW_HEIGHT * len(rows) + 44

    def place(number: float) -> float:
        return _NAME_WIDTH + (_WIDTH - _NAME_WIDTH - 20) * (number - low) / (high - low)

    parts = []
    for row, (name, value, lower, upper) in enumerate(rows):
        y = _ROW_HEIGHT * (row + 0.5)
        parts += [
            f'<text x="{_NAME_WIDTH - 10}" y="{y + 4:.0f}" text-anchor="end">{escape_text(name)}</text>',
            f'<line x1="{place(lower):.1f}" x2="{place(upper):.1f}" y1="{y:.0f}" y2="{y:.0f}"'
            ' stroke="currentColor" stroke-width="2" opacity="0.5"/>',
            f'<circle cx="{place(value):.1f}" cy="{y:.0f}" r="4"/>',
        ]
    bottom = _ROW_HEIGHT * len(rows)
    if line is not None:
        parts.append(
            f'<line x1="{place(line):.1f}" x2="{place(line):.1f}" y1="0" y2="{bottom}"'
            ' stroke="currentColor" stroke-dasharray="4"/>'
        )
    for number in (low + margin, high - margin):
        parts.append(
            f'<text x="{place(number):.1f}" y="{bottom + 16}" text-anchor="middle">{number:.3g}</text>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}" width="100%"'
        f' font-size="12" fill="currentColor"><title>{label}</title>{"".join(parts)}'
        f'<text x="{(_WIDTH + _NAME_WIDTH) / 2:.0f}" y="{height - 8}" text-anchor="middle">{label}'
        "</text></svg>"
    )
