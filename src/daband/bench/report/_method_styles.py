"""How things look and what they are called: one colour, marker and name per method, in every figure and table.

Figures are drawn in the colours of a light page. On the HTML page each of these colours becomes a CSS variable, so the
same drawing follows the reader's light or dark setting; the files beside it are for print.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

# Okabe and Ito's palette, told apart with any kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")

INK, MUTED, GRID, PAPER, ACCENT = "#1b1f24", "#5c6470", "#dfe3e8", "#fdfdfc", "#0072b2"
SOURCE, TARGET = "#0072b2", "#e69f00"
#: Colours of arms: the palette above without its yellow and black, which one of the two pages would swallow.
ARMS = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#b3a100", "#7b5cc4", "#8c510a", "#7a7f87",
)  # fmt: skip
# What a dark page shows instead: the same hues, light enough to be read on it.
_DARK = {
    INK: "#e8eaed", MUTED: "#a3abb6", GRID: "#343a42", PAPER: "#15181c", "#0072b2": "#4fa8e0", "#e69f00": "#f2b632",
    "#009e73": "#2fc79a", "#d55e00": "#ff8648", "#cc79a7": "#e59cc4", "#56b4e9": "#93d3f7", "#b3a100": "#e8db55",
    "#7b5cc4": "#b39bf0", "#8c510a": "#cf9a58", "#7a7f87": "#a4aab3",
}  # fmt: skip
_NAMES = {colour: f"--c{number}" for number, colour in enumerate(_DARK)}
_NAMES.update({INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"})
_HEX = re.compile("|".join(_NAMES), re.IGNORECASE)


@dataclass(frozen=True)
class MethodStyle:
    """How a method is drawn. Markers and dashes tell what colours tell, once more."""

    colour: str
    marker: str
    dashes: str = "-"


_METHODS = {
    "daband": ("DABand", MethodStyle("#d55e00", "o")),
    "nlinucb": ("NLinUCB", MethodStyle("#0072b2", "s")),
    "nlinucb-p": ("NLinUCB-P", MethodStyle("#56b4e9", "D", "--")),
    "linucb": ("LinUCB", MethodStyle("#009e73", "^")),
    "linucb-p": ("LinUCB-P", MethodStyle("#cc79a7", "v", "--")),
    "trees": ("Trees", MethodStyle("#8c510a", "P")),
    "random": ("Random", MethodStyle("#7a7f87", "x", ":")),
    "constant": ("Constant", MethodStyle("#b3a100", "+", ":")),
}
_VARIANTS = {
    "paper:RPD": MethodStyle("#d55e00", "o"),
    "paper:none": MethodStyle("#e69f00", "s", "--"),
    "default-rpd:RPD": MethodStyle("#0072b2", "o"),
    "default-rpd:none": MethodStyle("#56b4e9", "s", "--"),
}
_OTHERS = ("#7b5cc4", "#e69f00", "#8c510a", "#b3a100", "#d55e00", "#0072b2", "#009e73", "#cc79a7")


def label(method: str, variant: str = "default") -> str:
    """What people call a method, as the paper writes it; a variant stands in brackets behind it."""
    name = _METHODS[method][0] if method in _METHODS else method
    return name if variant == "default" else f"{name} ({variant})"


def style_of(method: str, variant: str = "default") -> MethodStyle:
    """The same for a method in every figure; a method or variant of somebody's own gets a colour by its name."""
    if method in _METHODS and variant == "default":
        return _METHODS[method][1]
    if variant in _VARIANTS:
        return _VARIANTS[variant]
    number = hashlib.sha256(f"{method} {variant}".encode()).digest()[0]
    return MethodStyle(_OTHERS[number % len(_OTHERS)], "PX*p"[number % 4], ("-", "--", "-.")[number % 3])


def short(text: str, length: int) -> str:
    """A text in one line of at most ``length`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def figure_text(text: str, length: int) -> str:
    """The same for a figure, where a dollar sign would begin a formula."""
    return short(text, length).replace("$", r"\$")


#: Matplotlib's settings for every figure of a report.
FIGURES = Path(__file__).with_name("figures.mplstyle")


def themed(svg: str) -> str:
    """A drawing whose colours follow the page: each of ours becomes a variable, with itself where there is none."""
    return _HEX.sub(lambda found: f"var({_NAMES[found.group().lower()]},{found.group().lower()})", svg)


def css_variables(*, dark: bool) -> str:
    """The values of these variables on a light or dark page."""
    return "".join(f"{_NAMES[light]}:{other if dark else light};" for light, other in _DARK.items())
