"""Numbers, tables and templates that the results pages share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from daband.bench._records import compare_paired

Record = Mapping[str, Any]


def number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """Return a value with fixed digits; with a sign for differences that do not round to 0."""
    signed = sign and round(value, digits) != 0
    return f"{value:{'+' if signed else ''}z.{digits}f}"


def count(value: float) -> str:
    """Return an integer with commas."""
    return f"{value:,.0f}"


def percent(value: float, digits: int = 0) -> str:
    """Return a fraction as a percentage."""
    return f"{value:.{digits}%}"


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean and the sample standard deviation; only the mean for a single value."""
    mean = f"{np.mean(values):,.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):,.{digits}f}"


def difference(values: Sequence[float], others: Sequence[float]) -> str:
    """Return the mean paired difference and its 95% interval."""
    test = compare_paired(values, others)
    return (
        f"{number(test.difference, sign=True)} ({number(test.low, sign=True)} to"
        f" {number(test.high, sign=True)})"
    )


def commits(records: Iterable[Record]) -> str:
    """Return the commits of some runs, as code."""
    names = dict.fromkeys(name for record in records for name in record["commit"].split(", "))
    return ", ".join(f"`{name}`" for name in names)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], text_columns: int = 1) -> str:
    """Return a Markdown table; the first columns are text, the others numbers."""
    rules = ["---"] * text_columns + ["---:"] * (len(head) - text_columns)
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, rules, *rows))


def fill(template: str, **content: Any) -> str:
    """Return a page of ``templates/`` with its content; an undefined name is an error."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    pages.filters.update(number=number, count=count, percent=percent, paragraph=_paragraph)
    pages.globals["table"] = table
    return pages.get_template(f"{template}.md").render(**content)


def _paragraph(text: str) -> str:
    return (
        textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)
        + "\n"
    )
