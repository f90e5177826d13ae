"""Raw rows of a table as contexts: the fitted transform of the columns, one row at a time, and what is odd in it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from daband.arrays import FloatArray
from daband.errors import InvalidInput
from daband.table_transform import CategoricalColumn, NumericColumn, TableTransform, category_text

__all__ = ["FAR", "RowWarning", "TableRows"]

FAR = 8.0
"""A number that is further than so many deviations from the mean that training saw is far outside."""
_MISSING = "(missing)"
_KINDS_OF_MISSING = ("NAType", "NaTType")  # pandas' own
_KINDS_OF_CATEGORY = (str, bool, int, float, np.bool_, np.integer, np.floating, np.str_)
_KINDS_OF_NUMBER = (bool, int, float, np.bool_, np.integer, np.floating, Decimal)
_TRUTHS = ("true", "false", "yes", "no")
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class RowWarning:
    """Something in a row that training never saw.

    ``kind`` is "extra_column", "missing_value", "unseen_category", "far_outside" or "small_image".
    """

    kind: str
    column: str
    message: str


class TableRows:
    """Turns mappings from column to value into contexts, as ``TableTransform.contexts`` does, in microseconds."""

    def __init__(self, transform: TableTransform) -> None:
        self.transform = transform
        self.names = tuple(column.name for column in transform.columns)
        self._known = frozenset(self.names)
        self._dimension = len(transform.feature_names)
        self._numeric: list[tuple[str, NumericColumn, int]] = []
        self._categorical: list[tuple[str, dict[str, int], str]] = []
        place = 0
        for column in transform.columns:
            if isinstance(column, NumericColumn):
                self._numeric.append((column.name, column, place))
            else:
                assert isinstance(column, CategoricalColumn)
                at = {category: place + index for index, category in enumerate(column.categories)}
                more = ", ..." if len(column.categories) > _MOST_NAMED else ""
                self._categorical.append((column.name, at, ", ".join(column.categories[:_MOST_NAMED]) + more))
            place += len(column.features)
        self._places = np.array([place for _, _, place in self._numeric], np.int64)
        self._mean = np.array([column.mean for _, column, _ in self._numeric])
        self._deviation = np.array([column.deviation for _, column, _ in self._numeric])
        self._contiguous = np.array_equal(self._places, np.arange(len(self._places)))

    @property
    def ranges(self) -> tuple[FloatArray, FloatArray]:
        """Centre and deviation (d,) of each number of a context; infinite where any value is as good as another."""
        centre, scale = np.zeros(self._dimension), np.full(self._dimension, np.inf)
        scale[self._places] = 1.0
        return centre, scale

    def one(self, row: Mapping[str, Any]) -> tuple[FloatArray, tuple[RowWarning, ...]]:
        """The context (d,) of a row, and its warnings. A column that is missing or mistyped is an error."""
        odd: list[RowWarning] = []
        context = np.zeros(self._dimension)
        values: list[float] = []
        for name, column, place in self._numeric:
            try:
                value = row[name]
            except KeyError:
                raise self._lacks(row, name) from None
            kind = type(value)
            if (kind is float and value == value) or kind is int:  # noqa: PLR0124 - NaN is not equal to itself
                values.append(value)
                continue
            number = _number(value, name)
            if number is None:
                if column.flags_missing:
                    context[place + 1] = 1.0
                else:
                    odd.append(_missing(name, f"the median of training, {column.median:g}, stands in"))
                number = column.median
            values.append(number)
        for name, place_of, known in self._categorical:
            try:
                value = row[name]
            except KeyError:
                raise self._lacks(row, name) from None
            at = place_of.get(value) if type(value) is str else None
            if at is None:
                category = _category(value, name)
                at = place_of.get(_MISSING if category is None else category)
                if at is None:
                    odd.append(_unseen(name, category, known))
                    continue
            context[at] = 1.0
        if values:
            try:
                with np.errstate(over="ignore"):  # what overflows is far outside
                    scaled = (np.array(values, np.float64) - self._mean) / self._deviation
            except OverflowError:
                raise InvalidInput("a number of the row is too large for double precision") from None
            if self._contiguous:
                context[: len(values)] = scaled
            else:
                context[self._places] = scaled
            if not (scaled.max() <= FAR and scaled.min() >= -FAR):
                self._check_numbers(values, scaled, odd)
        if len(row) != len(self.names):
            odd.extend(self._extra(row))
        return context, tuple(odd)

    def _check_numbers(self, values: list[float], scaled: FloatArray, odd: list[RowWarning]) -> None:
        for at, (name, column, _) in enumerate(self._numeric):
            if not math.isfinite(values[at]):
                raise InvalidInput(f"{name!r} must be a finite number or None, got {values[at]!r}")
            if abs(scaled[at]) > FAR:
                odd.append(
                    RowWarning(
                        "far_outside",
                        name,
                        f"{name!r} is {values[at]:g}, {abs(scaled[at]):.3g} deviations from the mean of training, "
                        f"{column.mean:g}",
                    )
                )

    def _lacks(self, row: Mapping[str, Any], name: str) -> InvalidInput:
        others = [str(other) for other in row if other not in self._known]
        lowered = {other.lower(): other for other in reversed(others)}
        near = difflib.get_close_matches(name.lower(), lowered, n=1)
        misspelt = f" but {lowered[near[0]]!r}, which is no column of training and may be misspelt" if near else ""
        return InvalidInput(
            f"the row has no {name!r}{misspelt}; where its value is missing, put None "
            f"(columns: {', '.join(self.names)})"
        )

    def _extra(self, row: Mapping[str, Any]) -> list[RowWarning]:
        return [
            RowWarning("extra_column", str(name), f"{str(name)!r} is no column of training and was ignored")
            for name in row
            if name not in self._known
        ]


def _number(value: Any, name: str) -> float | None:
    """A number of a row; None where it is missing."""
    if value is None or type(value).__name__ in _KINDS_OF_MISSING:
        return None
    if not isinstance(value, _KINDS_OF_NUMBER):
        truth = isinstance(value, str) and value.strip().lower() in _TRUTHS
        wanted = "a number, True or False, or None" if truth else "a number or None"
        raise InvalidInput(f"{name!r} must be {wanted}, got {value!r} ({type(value).__name__})")
    number = float(value)
    return None if math.isnan(number) else number


def _category(value: Any, name: str) -> str | None:
    """A category as tables spell it (``category_text``); None where it is missing."""
    if value is None or type(value).__name__ in _KINDS_OF_MISSING or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, _KINDS_OF_CATEGORY):
        raise InvalidInput(f"{name!r} must be a text or a number or None, got {value!r} ({type(value).__name__})")
    return category_text(value)


def _missing(name: str, what: str) -> RowWarning:
    return RowWarning("missing_value", name, f"{name!r} has no value, which never happened in training; {what}")


def _unseen(name: str, category: str | None, known: str) -> RowWarning:
    if category is None:
        return _missing(name, "it counts as none of the categories")
    return RowWarning(
        "unseen_category", name, f"{name!r} is {category!r}, a category that training never saw (it saw {known})"
    )
