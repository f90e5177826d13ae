"""From the columns of a table to the numbers of a context: fitted once, saved, applied to tables and to raw rows.

``from_table`` fits one and a pair holds it as ``pair.table``. The policy that ``for_pair`` builds keeps it as
``policy.table``, in its file, and as ``table.json`` in the folder of its run.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import date, datetime, time
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from daband._arrays import FloatArray
from daband._files import write_text
from daband._lazy_polars import pl
from daband.errors import DataError, InvalidInput, did_you_mean

_MISSING = "(missing)"
FAR = 8.0
"""A number that is further than so many deviations from the mean that training saw is far outside."""
_FAR_SQUARE = FAR * FAR
_KINDS_OF_MISSING = ("NAType", "NaTType")  # pandas' own
_KINDS_OF_CATEGORY = (str, bool, int, float, np.bool_, np.integer, np.floating, np.str_)
_LARGE = 1e100
_TRUTHS = ("true", "false", "yes", "no")
_AXES = ("sine", "cosine")
_MOST_NAMED = 8
"""Categories, and unknown columns of a row, that a message names."""
_MAX_COMPARED = 100
"""Unknown columns of a row that are compared with a missing one, to find a misspelt name."""
_DAY_FIRST = re.compile(r"^(\d\d)\.(\d\d)\.(\d{4})\b")
"""31.05.2024: with points a date begins with its day wherever it is written, with strokes not."""
_TIME_OF_DAY = re.compile(r"^\d{1,2}:\d\d(:\d\d(\.\d+)?)?$")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_MANY_CATEGORIES, _FEW_ROWS = 50, 20
"""A column of more categories than this, with fewer rows than this for each, gets a warning."""
_FORMAT = "daband table transform"


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers: missing values become the median, then everything is centred and scaled.

    ``flags_missing`` adds a column that is 1 where the value was missing, if any was when the transform was fitted.
    """

    name: str
    median: float
    mean: float
    deviation: float
    flags_missing: bool

    @property
    def features(self) -> list[str]:
        """The names of the numbers this column becomes."""
        return [self.name, f"{self.name} {_MISSING}"] if self.flags_missing else [self.name]

    def apply(self, values: FloatArray) -> FloatArray:
        """Numbers (n, 1 or 2) for values (n,), NaN where missing."""
        absent = np.isnan(values)
        scaled = (np.where(absent, self.median, values) - self.mean) / self.deviation
        return np.stack([scaled, absent.astype(np.float64)] if self.flags_missing else [scaled], axis=1)


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories, one-hot; missing is a category if it was seen, an unknown category is all zeros."""

    name: str
    categories: tuple[str, ...]

    @property
    def features(self) -> list[str]:
        """The names of the numbers this column becomes."""
        return [f"{self.name} = {category}" for category in self.categories]

    def apply(self, values: Sequence[str | None]) -> FloatArray:
        """Zeros and ones (n, number of categories)."""
        place = {category: at for at, category in enumerate(self.categories)}
        hot = np.zeros((len(values), len(self.categories)))
        for row, value in enumerate(values):
            at = place.get(_MISSING if value is None else value)
            if at is not None:
                hot[row, at] = 1.0
        return hot


@dataclass(frozen=True)
class DateColumn:
    """A column of dates: the year, and month, weekday and time of day as points on a circle.

    So December is near January. Where no date had a time of day when the transform was fitted, there is none, and of
    times of day alone there is nothing else. A missing date is the mean year and the centre of the circles, and a flag
    says so if any was missing.
    """

    name: str
    mean: float
    deviation: float
    has_times: bool
    flags_missing: bool

    @property
    def features(self) -> list[str]:
        """The names of the numbers this column becomes."""
        circles = [*(["month", "weekday"] if self._has_days else []), *(["time"] if self.has_times else [])]
        parts = [*(["year"] if self._has_days else []), *(f"{one} {axis}" for one in circles for axis in _AXES)]
        return [f"{self.name} {part}" for part in (*parts, *([_MISSING] if self.flags_missing else []))]

    @property
    def _has_days(self) -> bool:
        return self.mean > 0  # of times of day alone it is 0, a year that no calendar has

    def apply(self, values: Sequence[datetime | time | None]) -> FloatArray:
        """Numbers (n, number of features)."""
        return np.array([self.one(value) for value in values]).reshape(len(values), len(self.features))

    def one(self, value: datetime | time | None) -> list[float]:
        """The numbers of one date."""
        if value is None:
            return [0.0] * (len(self.features) - self.flags_missing) + [1.0] * self.flags_missing
        years, shares = [], []
        if self._has_days:
            if isinstance(value, time):
                raise InvalidInput(f"{self.name!r} must be a date such as 2024-05-31, got the time {value:%H:%M} alone")
            years = [(value.year - self.mean) / self.deviation]
            shares = [(value.month - 1 + (value.day - 1) / 31) / 12, value.weekday() / 7]
        if self.has_times:
            shares.append((value.hour + value.minute / 60) / 24)
        angles = [2 * math.pi * share for share in shares]
        circles = [number for angle in angles for number in (math.sin(angle), math.cos(angle))]
        return [*years, *circles, *([0.0] if self.flags_missing else [])]


AnyColumn: TypeAlias = NumericColumn | CategoricalColumn | DateColumn
_KINDS: dict[str, type[AnyColumn]] = {"numeric": NumericColumn, "categorical": CategoricalColumn, "date": DateColumn}


@dataclass(frozen=True)
class TableTransform:
    """What each context column becomes, in order."""

    columns: tuple[AnyColumn, ...]
    ids: tuple[str, ...] = ()
    """Columns that name a row: no part of a context, but rows may have them."""

    @classmethod
    def fit(
        cls,
        frame: pl.DataFrame,
        *,
        context: Sequence[str],
        categorical: Sequence[str] = (),
        dates: Sequence[str] = (),
        ids: Sequence[str] = (),
    ) -> TableTransform:
        """Fit on the context columns of a frame.

        Those in ``categorical`` are one-hot, those in ``dates`` become parts of a date, the others must be numeric.
        """
        fitted: list[AnyColumn] = []
        for name in context:
            if name in categorical:
                seen = category_texts(frame, name)
                categories = sorted({value for value in seen if value is not None})
                _warn_of_many(name, categories, len(seen))
                fitted.append(CategoricalColumn(name, (*categories, *([_MISSING] if None in seen else []))))
                continue
            if name in dates:
                fitted.append(_fitted_dates(name, moments(frame, name)))
                continue
            values = numbers(frame, name)
            present = values[~np.isnan(values)]
            if not len(present):
                raise DataError(f"column {name!r} has no value at all; leave it out of the context columns")
            median = float(np.median(present))
            filled = np.where(np.isnan(values), median, values)
            # A constant column carries nothing; a deviation of 1 makes it zeros instead of dividing by zero.
            deviation = float(filled.std()) or 1.0
            missing = bool(np.isnan(values).any())
            fitted.append(NumericColumn(name, median, float(filled.mean()), deviation, missing))
        return cls(tuple(fitted), tuple(ids))

    def with_medians(self, frame: pl.DataFrame, marked: Sequence[bool]) -> TableTransform:
        """The same, but gaps are filled by the median of this frame in numeric columns whose numbers are ``marked``.

        ``marked`` has a place for each number of a context: those that a domain measures in units of its own.
        """
        columns = list(self.columns)
        start = 0
        for place, column in enumerate(self.columns):
            if isinstance(column, NumericColumn) and marked[start]:
                values = numbers(frame, column.name)
                if not np.isnan(values).all():
                    columns[place] = replace(column, median=float(np.nanmedian(values)))
            start += len(column.features)
        return replace(self, columns=tuple(columns))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """A name per number of a context."""
        return tuple(feature for column in self.columns for feature in column.features)

    def apply(self, frame: pl.DataFrame) -> FloatArray:
        """Contexts (n, d) of a frame that has the columns of the fit."""
        read: dict[type, Any] = {NumericColumn: numbers, CategoricalColumn: category_texts, DateColumn: moments}
        return np.concatenate([one.apply(read[type(one)](frame, one.name)) for one in self.columns], axis=1)

    def contexts(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> FloatArray:
        """Contexts (n, d) of raw rows, ``{"age": 41, "city": "Oslo"}``: one, or several. polars is not needed for it.

        None and NaN are missing values. A column that a row lacks, or a number that is none, is an error; columns that
        are not part of the context are ignored.
        """
        listed = [rows] if isinstance(rows, Mapping) else list(rows)
        contexts = np.empty((len(listed), len(self.feature_names)))
        for at, row in enumerate(listed):
            if not isinstance(row, Mapping):
                raise InvalidInput(
                    f"rows must be a mapping of columns to values, or several, got {type(rows).__name__}; for a polars "
                    "frame call apply(frame)"
                )
            try:
                contexts[at] = self.rows.read(row)[0]
            except InvalidInput as error:
                raise InvalidInput(f"row {at}: {error}") from None
        return contexts

    @functools.cached_property
    def rows(self) -> TableRows:
        """What reads raw rows, one at a time."""
        return TableRows(self)

    def state(self) -> dict[str, Any]:
        """Everything that was fitted, as JSON can hold it; ``from_state`` makes the same transform of it."""
        kinds = {kind: name for name, kind in _KINDS.items()}
        columns = [{"kind": kinds[type(column)], **asdict(column)} for column in self.columns]
        return {"format": _FORMAT, "version": 1, "columns": columns, "ids": list(self.ids)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TableTransform:
        """The transform whose ``state`` this is."""
        try:
            if state["format"] != _FORMAT or state["version"] != 1:
                raise KeyError("format")
            columns: list[AnyColumn] = []
            for column in state["columns"]:
                name, kind = str(column["name"]), _KINDS.get(column["kind"])
                if kind is CategoricalColumn:
                    columns.append(CategoricalColumn(name, tuple(str(value) for value in column["categories"])))
                    continue
                if kind is None:
                    raise ValueError(f"column {name!r} is of the unknown kind {column['kind']!r}")
                types = {one.name: float if one.type == "float" else bool for one in fields(kind)[1:]}
                values: dict[str, Any] = {field: read(column[field]) for field, read in types.items()}
                if not all(map(math.isfinite, values.values())) or not values["deviation"] > 0:
                    raise ValueError(f"the numbers of column {name!r} are not finite, or its deviation is not > 0")
                columns.append(kind(name, **values))
            ids = tuple(str(name) for name in state.get("ids", ()))  # files of before 0.3 have none
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"this is not the state of a table transform ({error})") from None
        return cls(tuple(columns), ids)

    def save(self, path: str | Path) -> None:
        """Write the transform as JSON."""
        write_text(path, json.dumps(self.state(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> TableTransform:
        """Read a transform that ``save`` wrote."""
        try:
            return cls.from_state(json.loads(Path(path).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise DataError(f"{path} is not there") from None
        except (ValueError, DataError) as error:
            raise DataError(f"{path} is not a saved table transform ({error})") from None


@dataclass(frozen=True, slots=True)
class RowWarning:
    """Something in a row that training never saw.

    ``kind`` is "extra_column", "missing_value", "unseen_category", "far_outside" or "small_image".
    """

    kind: str
    column: str
    message: str


class TableRows:
    """Turns mappings from column to value into contexts, one at a time, in microseconds: ``TableTransform.rows``."""

    def __init__(self, transform: TableTransform) -> None:
        self.names = tuple(column.name for column in transform.columns)
        self._known = frozenset(self.names)
        self._ids = frozenset(transform.ids)
        self._dimension = len(transform.feature_names)
        self._numeric: list[tuple[str, NumericColumn, int]] = []
        self._categorical: list[tuple[str, dict[str, int], str]] = []
        self._dates: list[tuple[str, DateColumn, slice]] = []
        place = 0
        for column in transform.columns:
            if isinstance(column, NumericColumn):
                self._numeric.append((column.name, column, place))
            elif isinstance(column, DateColumn):
                self._dates.append((column.name, column, slice(place, place + len(column.features))))
            else:
                at = {category: place + index for index, category in enumerate(column.categories)}
                more = ", ..." if len(column.categories) > _MOST_NAMED else ""
                self._categorical.append((column.name, at, ", ".join(column.categories[:_MOST_NAMED]) + more))
            place += len(column.features)
        self._places = np.array([place for _, _, place in self._numeric], np.int64)
        self._mean = np.array([column.mean for _, column, _ in self._numeric])
        self._deviation = np.array([column.deviation for _, column, _ in self._numeric])
        names = [name for name, _, _ in self._numeric]
        self._values_of = itemgetter(*names) if len(names) > 1 and self._deviation.min() > 1.0 / _LARGE else None
        self._others = self._dimension > len(self._places)
        """Whether a context has more than the numeric columns."""

    @property
    def ranges(self) -> tuple[FloatArray, FloatArray]:
        """Centre and deviation (d,) of each number of a context; infinite where any value is as good as another."""
        centre, scale = np.zeros(self._dimension), np.full(self._dimension, np.inf)
        scale[self._places] = 1.0
        return centre, scale

    def read(self, row: Mapping[str, Any]) -> tuple[FloatArray, tuple[RowWarning, ...]]:
        """The context (d,) of a row, and its warnings. A column that is missing or mistyped is an error."""
        numbers = self._plain_numbers(row)
        if numbers is not None and not self._others and len(row) == len(self.names):
            return numbers, ()
        odd: list[RowWarning] = []
        context = np.zeros(self._dimension)
        if numbers is None:
            numbers = self._odd_numbers(row, context, odd)
        context[self._places] = numbers
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
        for name, dates, places in self._dates:
            if name not in row:
                raise self._lacks(row, name)
            moment = as_moment(row[name], name)
            if moment is None and not dates.flags_missing:
                year = f"the year {dates.mean:.0f} and no month stand in"
                odd.append(_missing(name, year if dates.mean else "the centre of the circle stands in"))
            context[places] = dates.one(moment)
        if len(row) != len(self.names):
            odd.extend(self._extra(row))
        return context, tuple(odd)

    def _plain_numbers(self, row: Mapping[str, Any]) -> FloatArray | None:
        """The numeric columns (n,), scaled, where nothing about them is odd; else None."""
        if self._values_of is None:
            return None
        try:
            values = self._values_of(row)
            # With larger numbers a warning of numpy might follow, and NaN is a missing value. What is no number raises.
            if not math.hypot(*values) < _LARGE:
                return None
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        scaled: FloatArray = np.array(values, np.float64) - self._mean
        scaled /= self._deviation
        # In nearly every case all of them together are not as far out as one number may be.
        if scaled.dot(scaled) <= _FAR_SQUARE or (scaled.max() <= FAR and scaled.min() >= -FAR):
            return scaled
        return None

    def _odd_numbers(self, row: Mapping[str, Any], context: FloatArray, odd: list[RowWarning]) -> FloatArray:
        """The numeric columns (n,), scaled, one by one, with flags of missing values in ``context`` and warnings."""
        values: list[float] = []
        for name, column, place in self._numeric:
            try:
                number = _number(row[name], name)
            except KeyError:
                raise self._lacks(row, name) from None
            if number is None:
                if column.flags_missing:
                    context[place + 1] = 1.0
                else:
                    odd.append(_missing(name, f"the median of training, {column.median:g}, stands in"))
                number = column.median
            values.append(number)
        with np.errstate(over="ignore"):  # what overflows is far outside
            scaled: FloatArray = (np.array(values) - self._mean) / self._deviation
        for (name, column, _), value, number in zip(self._numeric, values, scaled, strict=True):
            if not math.isfinite(value):
                raise InvalidInput(f"{name!r} must be a finite number or None, got {value!r}")
            if abs(number) > FAR:
                text = f"{name!r} is {value:g}, {abs(number):.3g} deviations from the mean of training, {column.mean:g}"
                odd.append(RowWarning("far_outside", name, text))
        return scaled

    def _lacks(self, row: Mapping[str, Any], name: str) -> InvalidInput:
        unknown = (str(other) for other in row if other not in self._known)
        others = list(islice(unknown, _MAX_COMPARED))  # comparing each of thousands would take seconds
        lowered = {other.lower(): other for other in reversed(others)}
        near = difflib.get_close_matches(name.lower(), lowered, n=1)
        misspelt = f" but {lowered[near[0]]!r}, which is no column of training and may be misspelt" if near else ""
        return InvalidInput(
            f"the row has no {name!r}{misspelt}; where its value is missing, put None "
            f"(columns: {', '.join(self.names)})"
        )

    def _extra(self, row: Mapping[str, Any]) -> list[RowWarning]:
        extra = [str(name) for name in row if name not in self._known and name not in self._ids]
        named, more = extra[:_MOST_NAMED], len(extra) - _MOST_NAMED
        odd = [RowWarning("extra_column", n, f"{n!r} is no column of training and was ignored") for n in named]
        if more > 0:
            odd.append(RowWarning("extra_column", "", f"{more:,} more columns are not of training and were ignored"))
        return odd


def _is_missing(value: Any) -> bool:
    nan = isinstance(value, float) and math.isnan(value)
    return value is None or nan or type(value).__name__ in _KINDS_OF_MISSING


def _number(value: Any, name: str) -> float | None:
    """A number of a row; None where it is missing."""
    if _is_missing(value):
        return None
    try:
        number = math.fsum((value,))  # takes what is a real number, and no text
    except (TypeError, ValueError):
        truth = isinstance(value, str) and value.strip().lower() in _TRUTHS
        wanted = "a number, True or False, or None" if truth else "a number or None"
        text = "; rows that polars or pandas read from a file have numbers" if isinstance(value, str) else ""
        raise InvalidInput(f"{name!r} must be {wanted}, got {value!r} ({type(value).__name__}){text}") from None
    except OverflowError:
        raise InvalidInput(f"{name!r} is too large for double precision") from None
    return None if math.isnan(number) else number


def _category(value: Any, name: str) -> str | None:
    """A category as tables spell it (``category_text``); None where it is missing."""
    if _is_missing(value):
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


def category_text(value: Any) -> str:
    """A category as ``category_texts`` writes it: true and false in lower case, whole numbers without a point."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


def find_name(value: Any, places: Mapping[str, int]) -> int | None:
    """The place of a name that a column may write otherwise: a true is True, and 1.0 is 1."""
    text = category_text(value)
    whole = re.fullmatch(r"(-?\d+)(\.0)?", text) if isinstance(value, int | float | str) else None
    spelled = (text, str(value), *((whole[1], f"{whole[1]}.0") if whole else ()))
    known = list(dict.fromkeys(name for name in spelled if name in places))
    if len(known) > 1 and isinstance(value, bool | float):  # as text they differ, in a column of these not
        raise DataError(f"{value!r} may be {known[0]!r} or {known[1]!r}, which are two arms; rename one")
    return places[known[0]] if known else None


def _warn_of_many(name: str, categories: Sequence[str], rows: int) -> None:
    if len(categories) > _MANY_CATEGORIES and rows < _FEW_ROWS * len(categories):
        warnings.warn(
            f"column {name!r} has {len(categories):,} categories in {rows:,} rows, and becomes as many numbers of "
            "every context: too few rows of each to learn from. Group them, make numbers of them, or leave it out",
            stacklevel=4,
        )


def numbers(frame: pl.DataFrame, name: str, *, where: str = "", is_context: bool = True) -> FloatArray:
    """A numeric column as floats (n,), NaN where missing; text and infinite values are errors.

    Errors name the column and, where given, the table (``where``). What can be done about a column that is not numeric
    depends on whether it is a part of contexts (``is_context``).
    """
    column = _column(frame, name, where)
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean or column.null_count() == len(column)):
        row, example = first_non_number(column)
        place = f" of the {where} table" if where else ""
        remedy = "list it in `categorical`, or clean it" if is_context else "it must hold a number in every row"
        if is_context and _holds_dates(column, example):
            remedy = "list it in `dates` (in ISO's form, 2024-05-31), or leave it out"
        raise InvalidInput(
            f"column {name!r}{place} is not numeric: it is of type {column.dtype}, e.g. {str(example)!r} in row {row}; "
            + remedy
        )
    values: FloatArray = np.array(column.cast(pl.Float64).fill_null(float("nan")).to_numpy(), dtype=np.float64)
    if np.isinf(values).any():
        raise DataError(
            f"column {name!r} has an infinite value; put a number there, or leave it empty if it is missing"
        )
    return values


def first_non_number(column: pl.Series) -> tuple[int, Any]:
    """The first value of a column that is no number, and its row; of text, rather one that is no amount either."""
    wrong = column.is_not_null()
    if column.dtype == pl.String:
        amount = column.str.contains(r"^ *[+-]?[\d.,]*\d *%? *$")
        number = column.cast(pl.Float64, strict=False).is_not_null()
        wrong &= ~number & (~amount if (~amount).any() else True)
    row = int(wrong.arg_max() or 0)
    return row, column[row]


def category_texts(frame: pl.DataFrame, name: str, *, where: str = "") -> list[str | None]:
    """A column of categories as text (n,), None where missing.

    A whole number has no point in it: a column of whole numbers is one of floats wherever a library that has no missing
    integers wrote it, and 3 must be the category 3.0 of the other table.
    """
    column = _column(frame, name, where)
    if column.dtype.is_float():
        return [None if value is None or math.isnan(value) else category_text(value) for value in column.to_list()]
    return column.cast(pl.String).to_list()


def moments(frame: pl.DataFrame, name: str, *, where: str = "") -> list[datetime | time | None]:
    """A column of dates or times of day (n,), None where missing; text must be in the forms of ``as_moment``."""
    return [as_moment(value, name) for value in _column(frame, name, where).to_list()]


def as_moment(value: Any, name: str) -> datetime | time | None:
    """A date of a row, or a time of day, None where it is missing; text is 2024-05-31, 2024-05-31 18:30 or 18:30."""
    if _is_missing(value):
        return None
    if isinstance(value, datetime | time):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    try:
        text = _DAY_FIRST.sub(r"\3-\2-\1", value.strip())
        if _TIME_OF_DAY.match(text):
            return time.fromisoformat(f"0{text}" if text[1] == ":" else text)
        return datetime.fromisoformat(text)
    except (AttributeError, ValueError):
        raise InvalidInput(
            f"{name!r} must be a date such as 2024-05-31 or 2024-05-31 18:30, or a time such as 18:30, got {value!r}"
        ) from None


def kind_of_dates(column: pl.Series) -> str:
    """``date`` where all values are dates, in text 2024-05-31 or 31.05.2024, ``time`` of times of day, else nothing."""
    values = column.drop_nulls()
    if column.dtype != pl.String or not len(values):
        return {pl.Date: "date", pl.Datetime: "date", pl.Time: "time"}.get(column.dtype.base_type(), "")
    try:
        are_times = {isinstance(as_moment(value, column.name), time) for value in values}
    except InvalidInput:
        return ""
    if are_times == {True}:
        return "time"
    return "date" if are_times == {False} and all(len(value) >= 8 for value in values) else ""


def _fitted_dates(name: str, values: Sequence[datetime | time | None]) -> DateColumn:
    present = [value for value in values if value is not None]
    if not present:
        raise DataError(f"column {name!r} has no value at all; leave it out of the context columns")
    years = np.array([value.year for value in present if isinstance(value, datetime)] or [0])
    if years.min() > 0 and len(years) < len(present):
        raise InvalidInput(f"column {name!r} has dates and times of day alone; give all rows dates, or leave it out")
    has_times = not years.any() or any((value.hour, value.minute) != (0, 0) for value in present)
    return DateColumn(name, float(years.mean()), float(years.std()) or 1.0, has_times, len(present) < len(values))


def _holds_dates(column: pl.Series, example: Any) -> bool:
    return column.dtype.is_temporal() or (isinstance(example, str) and _DATE.match(example) is not None)


def _column(frame: pl.DataFrame, name: str, where: str = "") -> pl.Series:
    if name not in frame.columns:
        hint = did_you_mean(name, frame.columns)
        table = f"{where} table" if where else "table"
        raise InvalidInput(f"the {table} has no column {name!r}{hint} (its columns: {', '.join(frame.columns)})")
    return frame[name]
