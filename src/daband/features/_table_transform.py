"""Convert raw table values to the features of a context.

``TableTransform`` has one transform per column. It is fitted once, saved, and applied to tables
(``apply``) and to single rows (``TableRowReader``). The functions ``as_number``, ``as_category``
and ``as_date`` read one value. So the same rules hold for files, pandas and polars frames,
mappings and HTTP requests:

* A value is missing if it is None, NaN, or one of ``MISSING_TEXTS``. Spaces around a text do not
  count.
* A number is a number, True or False, or a text with one of these: ``41``, ``" 41.0"`` and
  ``4.1e1`` are equal.
* A category is a text. Equal numbers are the same category: ``1``, ``1.0`` and ``"1.0"`` are the
  category ``1``. A text with leading zeros is not a number here: ``"01"`` and ``"1"`` are two
  categories.
* A date is a date, or a text such as ``2024-05-31``, ``31.05.2024`` or ``2024-05-31 18:30``. A time
  with a time zone or an offset is converted to UTC; other times are used as they are.

``from_table`` fits a transform, which is then ``pair.table``. ``for_pair`` copies it to
``policy.table``, and the file of a policy contains it. Applying a transform needs only numpy.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from daband.base._arrays import Arrays, FloatArray, IntArray, drop_prefix
from daband.errors import DataError, InvalidInput, did_you_mean

if TYPE_CHECKING:
    from daband.features._input_encoders import InputEncoder

T = TypeVar("T")

#: Texts that mean a missing value, in files and in rows.
MISSING_TEXTS = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL")
#: A regular expression for texts that are numbers. Leading zeros, or integers with more than 18
#: digits, mean an id.
NUMBER_PATTERN = (
    r"[+-]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+|0|[1-9][0-9]{0,17})(?:[eE][+-]?[0-9]+)?"
)
#: The name of a column that frames have if rows were dropped: the row number in the user's table,
#: for messages.
ROW_COLUMN = "row of the table"
#: The largest absolute value of a number: squares of larger ones are not finite.
MAX_NUMBER = 1e100
#: A number that is further from the training mean, in standard deviations, causes the warning
#: "far_outside".
FAR_DEVIATIONS = 8.0

_NUMBER_REGEX = re.compile(NUMBER_PATTERN)
#: Texts that are numbers, also with leading zeros and any number of digits.
_ANY_NUMBER_PATTERN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
#: Dates with dots, which start with the day. Dates with slashes are ambiguous and not accepted.
_DOTTED_DATE_PATTERN = re.compile(r"^(\d\d)\.(\d\d)\.(\d{4})\b")
#: Dates that start with the year, with or without hyphens.
_ISO_DATE_PATTERN = re.compile(r"\d{4}-?\d\d-?\d\d(?!\d)")
#: The separators of words.
_SEPARATOR_PATTERN = re.compile(r"[\s|,;/]+")
_BOOLEAN_TEXTS = {"true": 1.0, "false": 0.0}
#: The names of the types of pandas' missing values.
_PANDAS_MISSING_TYPES = ("NAType", "NaTType")
_CATEGORY_TYPES = (str, bool, int, float, np.bool_, np.integer, np.floating)
#: The category of missing values, and the end of the name of a feature that is 1 if the value is
#: missing.
_MISSING_CATEGORY = "(missing)"
#: The maximum number of categories or columns that one message lists.
_MAX_LISTED = 8
#: ``CategoricalColumn.fit`` warns if there are more categories than this, and fewer rows per
#: category than ``_MIN_ROWS_PER_CATEGORY``.
_MAX_CATEGORIES = 50
_MIN_ROWS_PER_CATEGORY = 20
#: The maximum number of words of ``WordsColumn``.
_MAX_WORDS = 50
#: The value of "format" in a saved transform.
_FORMAT_NAME = "daband table transform"


def is_missing(value: Any) -> bool:
    """Return True if a value is None, NaN or missing in pandas.

    Texts are never missing here; see ``as_text``.
    """
    is_nan = isinstance(value, float | np.floating) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ in _PANDAS_MISSING_TYPES


def as_text(value: str) -> str | None:
    """Return a text without surrounding spaces, or None if it means a missing value."""
    text = value.strip()
    return None if text in MISSING_TEXTS else text


def as_number(value: Any, name: str) -> float:
    """Return a value as a number, or NaN if it is missing. Errors name the column ``name``."""
    if isinstance(value, str):
        text = as_text(value)
        if text is None:
            return math.nan
        number = (
            float(text) if _ANY_NUMBER_PATTERN.fullmatch(text) else _BOOLEAN_TEXTS.get(text.lower())
        )
    else:
        try:
            # accepts real numbers only
            number = math.nan if is_missing(value) else math.fsum((value,))
        except (TypeError, ValueError):
            number = None
        except OverflowError:
            number = math.inf
    if number is None or abs(number) > MAX_NUMBER:
        rule = "number" if number is None else f"finite number of at most {MAX_NUMBER:g}"
        raise InvalidInput(
            f"{name!r} must be a {rule} or None, got {repr(value)[:60]} ({type(value).__name__})"
        )
    return number


def as_category(value: Any, name: str) -> str | None:
    """Return a value as the text of its category, or None if it is missing.

    Errors name the column ``name``.
    """
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidInput(
                f"{name!r} must be a text without NUL characters, got {repr(value)[:60]}"
            )
        text = as_text(value)
        if text is None or not _NUMBER_REGEX.fullmatch(text):
            return text if text is None or text.lower() not in _BOOLEAN_TEXTS else text.lower()
        return format_value(int(text) if text.lstrip("+-").isdigit() else float(text))
    if is_missing(value):
        return None
    if not isinstance(value, _CATEGORY_TYPES):
        raise InvalidInput(
            f"{name!r} must be a text or a number or None, got {value!r} ({type(value).__name__})"
        )
    return format_value(value)


def format_value(value: Any) -> str:
    """Return a number or boolean as a text.

    Equal numbers have equal texts: 1 and 1.0 are "1", and True is "true".
    """
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, float | np.floating):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    return str(value)


def as_date(value: Any, name: str) -> datetime | None:
    """Return a value as a date without time zone, or None if it is missing.

    A time with a time zone is converted to UTC. Errors name the column ``name``.
    """
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, str):
        value = as_text(value)
    if is_missing(value):
        return None
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    try:
        instant = value
        if not isinstance(value, datetime):
            text = _DOTTED_DATE_PATTERN.sub(r"\3-\2-\1", value)
            if not _ISO_DATE_PATTERN.match(text):  # such as the week 2024-W22
                raise ValueError(text)
            instant = datetime.fromisoformat(text)
        return instant if instant.tzinfo is None else instant.astimezone(UTC).replace(tzinfo=None)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(
            f"{name!r} must be a date such as 2024-05-31 or 2024-05-31 18:30, got {value!r}"
        ) from None


def read_numbers(
    frame: Any, name: str, *, table_name: str = "", is_context: bool = True
) -> FloatArray:
    """Return a column of a frame as numbers (n,), with NaN for missing values.

    Errors name the column, the row, and the table if ``table_name`` is given. For context columns
    they suggest a remedy.
    """
    column = get_column(frame, name, table_name)
    dtype = column.dtype
    if (
        dtype.is_numeric()
        if hasattr(dtype, "is_numeric")
        else isinstance(dtype, np.dtype) and dtype.kind in "iufb"
    ):
        values = np.array(column.cast(float) if hasattr(column, "cast") else column, np.float64)
        is_too_large = np.abs(values) > MAX_NUMBER
        if is_too_large.any():
            index = int(is_too_large.argmax())
            raise DataError(
                f"column {name!r} has {values[index]:g} in row {row_number(frame, index)}, but at most"
                f" {MAX_NUMBER:g} is accepted; correct it, or leave it empty if it is missing"
            )
        return values
    remedy = "; list the column in `categorical` or in `dates`, or clean it" if is_context else ""
    numbers, codes = read_distinct(frame, name, as_number, table_name=table_name, remedy=remedy)
    return np.array(numbers, np.float64)[codes]


def count_categories(frame: Any, name: str, *, table_name: str = "") -> Counter[str | None]:
    """Return the number of rows of each category of a column; None counts missing values."""
    categories, codes = read_distinct(frame, name, as_category, table_name=table_name)
    counts = Counter[str | None]()
    for category, count in zip(categories, np.bincount(codes).tolist(), strict=True):
        counts[category] += count
    return counts


def row_number(frame: Any, row: int) -> str:
    """Return the number that a row of a frame has in the user's table, which may have more rows.

    Rows count from 0. The text also names the line in a spreadsheet, whose header is line 1.
    """
    number = int(frame[ROW_COLUMN][int(row)]) if ROW_COLUMN in frame.columns else int(row)
    return f"{number} (line {number + 2} in a spreadsheet)"


def read_distinct(
    frame: Any,
    name: str,
    convert: Callable[[Any, str], T],
    *,
    table_name: str = "",
    remedy: str = "",
) -> tuple[list[T], IntArray]:
    """Return ``convert(value, name)`` for each distinct value of a column, and the index of each
    row's value in that list, (n,).

    Errors name the column, the row, and the table if ``table_name`` is given.
    """
    values, codes = find_distinct(get_column(frame, name, table_name))
    results: list[T] = []
    for code, value in enumerate(values):
        try:
            results.append(convert(value, name))
        except InvalidInput as error:
            row = row_number(frame, int((codes == code).argmax()))
            table = f" of the {table_name} table" if table_name else ""
            raise InvalidInput(f"column {error} in row {row}{table}{remedy}") from None
    return results, codes


def find_distinct(column: Any) -> tuple[list[Any], IntArray]:
    """Return the distinct values of a polars or pandas column in the order of their first rows, and
    the index of each row's value, (n,).

    Values of two types, such as 1 and True, are distinct.
    """
    if type(column).__module__.startswith("polars") and not (
        column.dtype.is_nested() or column.dtype.is_object()
    ):
        rows = column.alias("value").to_frame()
        distinct = rows.unique(maintain_order=True)
        numbered = distinct.with_row_index("code")
        joined = rows.join(
            numbered, on="value", how="left", nulls_equal=True, maintain_order="left"
        )
        return distinct["value"].to_list(), joined["code"].to_numpy().astype(np.int64)
    code_by_key: dict[Any, int] = {}
    values: list[Any] = []
    codes: list[int] = []
    for value in column.to_list():
        key = (type(value), value if isinstance(value, Hashable) else repr(value))
        code = code_by_key.setdefault(key, len(values))
        if code == len(values):
            values.append(value)
        codes.append(code)
    return values, np.array(codes, np.int64)


def _count_in_tables(tables: Mapping[str, Any], name: str) -> Counter[str | None]:
    """Return the number of rows of each category of a column in all tables, which are frames by
    table name.
    """
    counts = Counter[str | None]()
    for table, frame in tables.items():
        counts.update(count_categories(frame, name, table_name=table))
    return counts


def get_column(frame: Any, name: str, table_name: str) -> Any:
    """Return a column of a frame, or raise an error that suggests the nearest name."""
    if name not in frame.columns:
        table = f"{table_name} table" if table_name else "table"
        names = [str(column) for column in frame.columns if column != ROW_COLUMN]
        raise InvalidInput(
            f"the {table} has no column {name!r}{did_you_mean(name, names)} (it has"
            f" {', '.join(names)})"
        )
    return frame[name]


@dataclass(frozen=True, slots=True)
class RowWarning:
    """A warning about a row with a value or a column that the training data did not have."""

    #: "extra_column", "missing_value", "unseen_category", "far_outside" or "small_image".
    kind: str
    #: The name of the column, or empty if the warning is about several columns.
    column: str
    message: str


@dataclass(frozen=True)
class NumericColumn:
    """The transform of a numeric column.

    Missing values are replaced by the median. The feature is the value minus the mean, divided by
    the standard deviation.
    """

    name: str
    median: float
    mean: float
    std: float
    #: If True, a second feature is 1 for missing values and 0 for others. ``fit`` sets it if it saw
    #: missing values.
    flags_missing: bool
    #: True if all tables have booleans.
    is_boolean: bool = False
    kind: ClassVar[str] = "numeric"

    @classmethod
    def fit(cls, name: str, tables: Mapping[str, Any]) -> NumericColumn:
        """Return the transform fitted on the column ``name`` of all tables, which are frames by
        table name.
        """
        values = np.concatenate(
            [read_numbers(frame, name, table_name=table) for table, frame in tables.items()]
        )
        is_nan = np.isnan(values)
        if is_nan.all():
            raise DataError(
                f"column {name!r} has no value at all; remove it from the context columns"
            )
        median = float(np.median(values[~is_nan]))
        values = np.where(is_nan, median, values)
        # A constant column becomes 0.
        return cls(
            name,
            median,
            float(values.mean()),
            float(values.std()) or 1.0,
            flags_missing=bool(is_nan.any()),
            is_boolean=all(
                str(frame[name].dtype).lower().startswith("bool") for frame in tables.values()
            ),
        )

    @property
    def feature_names(self) -> list[str]:
        """The names of the features of this column."""
        return (
            [self.name, f"{self.name} {_MISSING_CATEGORY}"] if self.flags_missing else [self.name]
        )

    def apply(self, frame: Any) -> FloatArray:
        """Return the features (n, 1 or 2) of a frame's rows."""
        values = read_numbers(frame, self.name)
        is_nan = np.isnan(values)
        scaled = (np.where(is_nan, self.median, values) - self.mean) / self.std
        return np.stack(
            [scaled, is_nan.astype(np.float64)] if self.flags_missing else [scaled], axis=1
        )

    def encode_one(self, value: Any, row_warnings: list[RowWarning]) -> list[float]:
        """Return the features of one value, and append its warnings to ``row_warnings``."""
        number = as_number(value, self.name)
        is_nan = math.isnan(number)
        if is_nan:
            number = self.median
            if not self.flags_missing:
                row_warnings.append(
                    _make_missing_warning(
                        self.name, f"the training median, {self.median:g}, is used"
                    )
                )
        scaled = (number - self.mean) / self.std
        if abs(scaled) > FAR_DEVIATIONS:
            distance = (
                f"{abs(scaled):.3g} standard deviations from the training mean, {self.mean:g}"
            )
            row_warnings.append(
                RowWarning("far_outside", self.name, f"{self.name!r} is {number:g}, {distance}")
            )
        return [scaled, float(is_nan)] if self.flags_missing else [scaled]


@dataclass(frozen=True)
class CategoricalColumn:
    """The one-hot encoding of a column.

    Missing values are a category if ``fit`` saw some. The features of a category that ``fit`` did
    not see are all 0.
    """

    name: str
    categories: tuple[str, ...]
    kind: ClassVar[str] = "categorical"

    @classmethod
    def fit(cls, name: str, tables: Mapping[str, Any]) -> CategoricalColumn:
        """Return the transform fitted on the column ``name`` of all tables, which are frames by
        table name.
        """
        counts = _count_in_tables(tables, name)
        n_rows = counts.total()
        categories = sorted(text for text in counts if text is not None)
        if len(categories) > _MAX_CATEGORIES and n_rows < _MIN_ROWS_PER_CATEGORY * len(categories):
            warnings.warn(
                f"column {name!r} has {len(categories):,} categories in {n_rows:,} rows, and"
                " becomes as many features: too few rows of each to learn from. Group them,"
                " convert them to numbers, or drop the column",
                stacklevel=5,
            )
        return cls(name, (*categories, *([_MISSING_CATEGORY] if None in counts else [])))

    @functools.cached_property
    def index(self) -> dict[str | None, int]:
        """The index of each category. The key of missing values is None."""
        return {
            None if text == _MISSING_CATEGORY else text: index
            for index, text in enumerate(self.categories)
        }

    @property
    def feature_names(self) -> list[str]:
        """The names of the features of this column."""
        return [f"{self.name} = {category}" for category in self.categories]

    def apply(self, frame: Any) -> FloatArray:
        """Return zeros and ones (n, number of categories) for a frame's rows."""
        texts, codes = read_distinct(frame, self.name, as_category)
        indices = np.array([self.index.get(text, -1) for text in texts], np.int64)
        one_hot = (indices[:, None] == np.arange(len(self.categories))).astype(np.float64)
        return one_hot[codes]

    def encode_one(self, value: Any, row_warnings: list[RowWarning]) -> list[float]:
        """Return the features of one value, and append its warnings to ``row_warnings``."""
        features = [0.0] * len(self.categories)
        text = as_category(value, self.name)
        if text in self.index:
            features[self.index[text]] = 1.0
        else:
            row_warnings.append(self.make_unseen_warning(text))
        return features

    def make_unseen_warning(self, text: str | None) -> RowWarning:
        """Return the warning for a category that ``fit`` did not see; None is a missing value."""
        if text is None:
            return _make_missing_warning(self.name, "it counts as none of the categories")
        ellipsis = ["..."] if len(self.categories) > _MAX_LISTED else []
        seen_list = ", ".join((*self.categories[:_MAX_LISTED], *ellipsis))
        message = (
            f"{self.name!r} is {text!r}, a category that training never saw (it saw {seen_list})"
        )
        return RowWarning("unseen_category", self.name, message)


@dataclass(frozen=True)
class DateColumn:
    """The transform of a column of dates.

    The features are the standardised year, and the sine and cosine of month, weekday and time of
    day. So December is near January. There are no features of the time of day if no value in
    ``fit`` had one. The features of a missing date are 0.
    """

    name: str
    #: The mean year.
    mean: float
    #: The standard deviation of the year.
    std: float
    #: True if there are features of the time of day.
    has_times: bool
    #: If True, the last feature is 1 for missing dates and 0 for others. ``fit`` sets it if it saw
    #: missing dates.
    flags_missing: bool
    kind: ClassVar[str] = "date"

    @classmethod
    def fit(cls, name: str, tables: Mapping[str, Any]) -> DateColumn:
        """Return the transform fitted on the column ``name`` of all tables, which are frames by
        table name.
        """
        dates: list[datetime] = []
        row_years = []
        for table, frame in tables.items():
            values, codes = read_distinct(frame, name, as_date, table_name=table)
            dates += [value for value in values if value is not None]
            row_years.append(np.array([value.year if value else 0 for value in values])[codes])
        all_years = np.concatenate(row_years)
        years = all_years[all_years > 0]
        if not dates:
            raise DataError(
                f"column {name!r} has no value at all; remove it from the context columns"
            )
        return cls(
            name,
            float(years.mean()),
            float(years.std()) or 1.0,
            has_times=any((value.hour, value.minute) != (0, 0) for value in dates),
            flags_missing=len(years) < len(all_years),
        )

    @property
    def feature_names(self) -> list[str]:
        """The names of the features of this column."""
        cycles = ["month", "weekday", *(["time"] if self.has_times else [])]
        suffixes = ["year", *(f"{cycle} {axis}" for cycle in cycles for axis in ("sine", "cosine"))]
        suffixes += [_MISSING_CATEGORY] if self.flags_missing else []
        return [f"{self.name} {suffix}" for suffix in suffixes]

    def apply(self, frame: Any) -> FloatArray:
        """Return the features (n, m) of a frame's rows."""
        dates, codes = read_distinct(frame, self.name, as_date)
        features = np.array([self._to_features(value) for value in dates])
        return features.reshape(len(dates), len(self.feature_names))[codes]

    def encode_one(self, value: Any, row_warnings: list[RowWarning]) -> list[float]:
        """Return the features of one value, and append its warnings to ``row_warnings``."""
        date_or_none = as_date(value, self.name)
        if date_or_none is None and not self.flags_missing:
            replacement = f"the year {self.mean:.0f} and no month are used"
            row_warnings.append(_make_missing_warning(self.name, replacement))
        return self._to_features(date_or_none)

    def _to_features(self, value: datetime | None) -> list[float]:
        """Return the features of a date."""
        if value is None:
            return [0.0] * (len(self.feature_names) - self.flags_missing) + [
                1.0
            ] * self.flags_missing
        fractions = [(value.month - 1 + (value.day - 1) / 31) / 12, value.weekday() / 7]
        if self.has_times:
            fractions.append((value.hour + value.minute / 60) / 24)
        features = [(value.year - self.mean) / self.std]
        for angle in (2 * math.pi * fraction for fraction in fractions):
            features += [math.sin(angle), math.cos(angle)]
        return [*features, *([0.0] if self.flags_missing else [])]


@dataclass(frozen=True)
class EncodedColumn:
    """The transform of a column of images (bytes, base64 or paths) or texts to the features of a
    frozen encoder.
    """

    name: str
    encoder: InputEncoder
    kind: ClassVar[str] = "encoded"

    @property
    def feature_names(self) -> list[str]:
        """The names of the features of this column."""
        return [f"{self.name} {number}" for number in range(self.encoder.n_features)]

    def apply(self, frame: Any) -> FloatArray:
        """Return the features (n, n_features) of a frame's rows."""
        values = get_column(frame, self.name, "").to_list()

        def describe_row(row: int) -> str:
            return (
                f"column {self.name!r} has {str(values[row])[-80:]!r} in row"
                f" {row_number(frame, row)}"
            )

        return self.encoder.encode_column(values, describe_row)

    def state(self) -> dict[str, Any]:
        """Return the settings in JSON types."""
        return {"name": self.name, "encoder": self.encoder.state(), "digest": self.encoder.digest}

    def encode_one(self, value: Any, row_warnings: list[RowWarning]) -> list[float]:  # noqa: ARG002
        """Return the features of one value, which has no warnings."""
        try:
            return self.encoder.encode_one(value).tolist()
        except InvalidInput as error:
            raise InvalidInput(f"{self.name!r}: {error}") from None


@dataclass(frozen=True)
class WordsColumn:
    """The transform of a column of texts or lists such as ``Action|Comedy``.

    There is one feature per word in ``words``: 1 if the text has the word, otherwise 0.
    """

    name: str
    words: tuple[str, ...]
    kind: ClassVar[str] = "words"

    @classmethod
    def fit(cls, name: str, tables: Mapping[str, Any]) -> WordsColumn:
        """Return the transform for the 50 most frequent words that at least two rows have, but not
        all rows.
        """
        text_counts = _count_in_tables(tables, name)
        counts = Counter[str]()
        for text, count in text_counts.items():
            counts.update(dict.fromkeys(split_words(text), count))
        sorted_counts = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        words = [word for word, count in sorted_counts if 1 < count < text_counts.total()]
        return cls(name, tuple(sorted(words[:_MAX_WORDS])))

    @property
    def feature_names(self) -> list[str]:
        """The names of the features of this column."""
        return [f"{self.name}: {word}" for word in self.words]

    def apply(self, frame: Any) -> FloatArray:
        """Return zeros and ones (n, number of words) for a frame's rows."""
        texts, codes = read_distinct(frame, self.name, as_category)
        features = np.array([self.encode_one(text, []) for text in texts])
        return features.reshape(len(texts), len(self.words))[codes]

    def encode_one(self, value: Any, row_warnings: list[RowWarning]) -> list[float]:  # noqa: ARG002
        """Return the features of one value. Unknown words are ignored, without a warning."""
        words = split_words(as_category(value, self.name))
        return [float(word in words) for word in self.words]


def split_words(text: str | None) -> set[str]:
    """Return the words of a text in lower case; none for None."""
    return (
        set() if text is None else {word for word in _SEPARATOR_PATTERN.split(text.lower()) if word}
    )


#: The transform of one column.
AnyColumn: TypeAlias = NumericColumn | CategoricalColumn | DateColumn | EncodedColumn | WordsColumn
#: The transforms of columns, by the name in a file.
_COLUMN_CLASSES: dict[str, Any] = {
    column.kind: column
    for column in (NumericColumn, CategoricalColumn, DateColumn, EncodedColumn, WordsColumn)
}


def _make_missing_warning(name: str, replacement: str) -> RowWarning:
    """Return the warning about a value that was never missing in training.

    The message ends with ``replacement``.
    """
    return RowWarning(
        "missing_value",
        name,
        f"{name!r} has no value, which never happened in training; {replacement}",
    )


@dataclass(frozen=True)
class TableTransform:
    """The transform of a table's rows to contexts, with one transform per column."""

    #: The transform of each column, in the order of the features.
    columns: tuple[AnyColumn, ...]
    #: The names of columns that rows may have, but contexts do not use, such as an id. They cause
    #: no warning.
    ids: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        frame: Any,
        *,
        context: Sequence[str],
        categorical: Sequence[str] = (),
        dates: Sequence[str] = (),
        ids: Sequence[str] = (),
        encoders: Mapping[str, Any] | None = None,
        words: Sequence[str] = (),
    ) -> TableTransform:
        """Return a transform that is fitted on the context columns of one or several frames.

        Args:
            frame: a polars or pandas frame, or a mapping from names to frames.
            context: the names of the columns of a context. Those that are not listed below must be
                numeric.
            categorical: columns to encode one-hot (``CategoricalColumn``).
            dates: columns of dates (``DateColumn``).
            ids: columns that identify a row, and are not part of a context.
            encoders: the encoder of each column of images or texts (``EncodedColumn``), or "words"
                (``WordsColumn``).
            words: columns of texts or lists, with a feature for each frequent word
                (``WordsColumn``).
        """
        tables = frame if isinstance(frame, Mapping) else {"": frame}
        pretrained = {name: value for name, value in (encoders or {}).items() if value != "words"}
        words = [*words, *((encoders or {}).keys() - pretrained.keys())]
        classes: dict[str, Any] = dict.fromkeys(categorical, CategoricalColumn)
        classes |= dict.fromkeys(dates, DateColumn) | dict.fromkeys(words, WordsColumn)
        encoded = wrap_encoders(pretrained)
        columns = [
            encoded.get(name) or classes.get(name, NumericColumn).fit(name, tables)
            for name in context
        ]
        return cls(tuple(columns), tuple(ids))

    def with_medians(self, frame: Any, own_units: Sequence[bool]) -> TableTransform:
        """Return a copy that replaces missing values of some numeric columns by the medians of this
        frame.

        These are the columns that each domain measures in its own units. ``own_units`` (d,) is True
        for their features.
        """
        columns = list(self.columns)
        start = 0
        for index, column in enumerate(self.columns):
            if isinstance(column, NumericColumn) and own_units[start]:
                values = read_numbers(frame, column.name)
                if not np.isnan(values).all():
                    columns[index] = replace(column, median=float(np.nanmedian(values)))
            start += len(column.feature_names)
        return replace(self, columns=tuple(columns))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that a row must have."""
        return tuple(column.name for column in self.columns)

    @functools.cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The name of each feature of a context."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def apply(self, frame: Any) -> FloatArray:
        """Return the contexts (n, d) of a polars or pandas frame with the columns of the fit."""
        return np.concatenate([column.apply(frame) for column in self.columns], axis=1)

    def contexts(self, rows: Any) -> FloatArray:
        """Return the contexts (n, d) of one row such as ``{"age": 41, "city": "Oslo"}``, several
        rows, or a frame.

        Missing columns and values of another type raise an error. Other columns are ignored.
        """
        if hasattr(rows, "columns"):
            return self.apply(rows)
        row_list = (
            [rows]
            if isinstance(rows, Mapping)
            else list(rows)
            if isinstance(rows, Iterable)
            else [rows]
        )
        contexts = np.empty((len(row_list), len(self.feature_names)))
        for index, row in enumerate(row_list):
            if not isinstance(row, Mapping):
                raise InvalidInput(
                    "rows must be a mapping from columns to values, a list of such mappings, or a"
                    f" frame, got {type(rows).__name__}"
                )
            try:
                contexts[index] = self.row_reader.read(row)[0]
            except InvalidInput as error:
                raise InvalidInput(f"row {index}: {error}") from None
        return contexts

    @functools.cached_property
    def row_reader(self) -> TableRowReader:
        """The reader of single rows for this transform."""
        return TableRowReader(self)

    def state(self) -> dict[str, Any]:
        """Return the fitted state in JSON types, without the arrays of encoders.

        ``from_state`` reads both.
        """
        columns = [
            {
                "kind": column.kind,
                **(column.state() if isinstance(column, EncodedColumn) else asdict(column)),
            }
            for column in self.columns
        ]
        return {"format": _FORMAT_NAME, "columns": columns, "ids": list(self.ids)}

    def arrays(self) -> Arrays:
        """Return the arrays of encoders. Their names start with the digest of the encoder."""
        encoders = [column.encoder for column in self.columns if isinstance(column, EncodedColumn)]
        return {
            f"{encoder.digest}/{name}": array
            for encoder in encoders
            for name, array in encoder.arrays().items()
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Arrays | None = None) -> TableTransform:
        """Return the transform with this ``state`` and these ``arrays``."""
        try:
            if state["format"] != _FORMAT_NAME:
                raise KeyError("format")
            columns = tuple(_load_column(column, arrays or {}) for column in state["columns"])
            return cls(columns, tuple(str(name) for name in state["ids"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"this is not the state of a table transform ({error})") from None


def wrap_encoders(
    encoders: Mapping[str, Any], framing: tuple[int, int] | None = None
) -> dict[str, EncodedColumn]:
    """Return the column transform for each of these encoders, by column name.

    Encoders and ``framing`` are arguments of ``as_input_encoder``, which is called once per
    encoder, even if several columns use it.
    """
    from daband.features._input_encoders import as_input_encoder

    encoders_by_id = {
        id(encoder): as_input_encoder(encoder, framing) for encoder in encoders.values()
    }
    return {
        name: EncodedColumn(name, encoders_by_id[id(encoder)]) for name, encoder in encoders.items()
    }


def _load_column(state: Mapping[str, Any], arrays: Arrays) -> AnyColumn:
    """Return the transform of a column that was saved as ``state`` and, if it has an encoder,
    ``arrays``.
    """
    name = str(state["name"])
    column_class = _COLUMN_CLASSES[state["kind"]]
    if column_class is EncodedColumn:
        from daband.features._input_encoders import InputEncoder

        return EncodedColumn(
            name,
            InputEncoder.from_state(state["encoder"], drop_prefix(f"{state['digest']}/", arrays)),
        )
    names = [field.name for field in fields(column_class)]
    values = {name: state[name] for name in names if name in state}
    for field in fields(column_class):
        if field.type == "float" and not math.isfinite(values[field.name]):
            raise ValueError(f"{field.name} of column {name!r} is not finite")
    if not values.get("std", 1.0) > 0:
        raise ValueError(f"std of column {name!r} is not > 0")
    return column_class(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    )


class TableRowReader:
    """A reader of single rows, which are mappings from columns to values.

    See ``TableTransform.row_reader``.
    """

    def __init__(self, transform: TableTransform) -> None:
        self.names = transform.names
        self._known_names = frozenset((*self.names, *transform.ids))
        self._columns = transform.columns

    @property
    def encoded(self) -> dict[str, str]:
        """The kind of input, "image" or "text", of each column with an encoder, by column name."""
        return {
            column.name: column.encoder.input_kind
            for column in self._columns
            if isinstance(column, EncodedColumn)
        }

    def read(self, row: Mapping[str, Any]) -> tuple[FloatArray, tuple[RowWarning, ...]]:
        """Return the context (d,) of a row, and its warnings.

        A missing column or an invalid value raises an error.
        """
        row_warnings: list[RowWarning] = []
        features: list[float] = []
        try:
            for column in self._columns:
                value = row[column.name]
                if type(value) is float and type(column) is NumericColumn:  # the most frequent case
                    scaled = (value - column.mean) / column.std
                    if abs(scaled) <= FAR_DEVIATIONS and not column.flags_missing:
                        features.append(scaled)
                        continue
                features += column.encode_one(value, row_warnings)
        except KeyError as error:
            raise self._make_missing_column_error(row, error.args[0]) from None
        if len(row) != len(self.names):
            row_warnings += self._make_extra_column_warnings(row)
        return np.array(features), tuple(row_warnings)

    def _make_missing_column_error(self, row: Mapping[str, Any], name: str) -> InvalidInput:
        """Return the error for a row without the column ``name``.

        It suggests a similar name that the row has.
        """
        extras = {str(key).lower(): str(key) for key in row if key not in self._known_names}
        matches = difflib.get_close_matches(name.lower(), list(extras)[:100], n=1)
        hint = (
            f" but {extras[matches[0]]!r}, which is not a column of training and may be misspelt"
            if matches
            else ""
        )
        return InvalidInput(
            f"the row has no {name!r}{hint}; if its value is missing, pass None, or null in JSON"
            f" (columns: {', '.join(self.names)})"
        )

    def _make_extra_column_warnings(self, row: Mapping[str, Any]) -> list[RowWarning]:
        """Return warnings about columns that the training data did not have."""
        extra_names = [str(name) for name in row if name not in self._known_names]
        row_warnings = [
            RowWarning(
                "extra_column", name, f"{name[:80]!r} is not a column of training and was ignored"
            )
            for name in extra_names[:_MAX_LISTED]
        ]
        if len(extra_names) > _MAX_LISTED:
            message = (
                f"{len(extra_names) - _MAX_LISTED:,} more columns are not columns of training and"
                " were ignored"
            )
            row_warnings.append(RowWarning("extra_column", "", message))
        return row_warnings
