"""Assign roles to the columns of tables, and read tables of arms.

``Columns`` has the columns by role. ``infer_columns`` infers roles that the user has not stated, and ``find_notices``
reports possible mistakes in the values. ``read_catalogue`` reads a table of arms with their features.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import time
from typing import Any

import numpy as np

from daband._arrays import as_numpy
from daband._lazy_polars import pl
from daband._table_transform import (
    ROW_COLUMN,
    TableTransform,
    WordsColumn,
    as_date_or_time,
    format_value,
    read_categories,
    read_numbers,
    split_words,
)
from daband.domains.readers._reading import read_table
from daband.errors import DataError, InvalidInput, did_you_mean
from daband.linear._catalogue import Catalogue


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a table by their role.

    Rewards are given in one of three ways: ``label`` names the right arm, ``rewards`` has a column per arm, and the log
    of another policy has ``arm`` and ``reward``. A log may have ``label`` or ``rewards`` as well, for ``target_test``.
    A column of arms, rewards, propensities or ids cannot be a context.
    """

    #: Columns that a policy sees.
    context: Sequence[str]
    #: Context columns that are one-hot encoded.
    categorical: Sequence[str] = ()
    #: Column with the right arm, whose reward is 1. The rewards of all other arms are 0.
    label: str | None = None
    #: Columns with the reward of each arm.
    rewards: Sequence[str] = ()
    #: Column with the logged arm.
    arm: str | None = None
    #: Column with the reward of the logged arm.
    reward: str | None = None
    #: Column with the propensity of the logged arm; without it, ``from_table`` estimates propensities.
    propensity: str | None = None
    #: Column of a log with the arms that could be chosen, separated by ``|``; None if all could.
    offered: str | None = None
    #: Context columns with dates or times of day.
    dates: Sequence[str] = ()
    #: Columns that name a row in the questions of an audit.
    id: Sequence[str] = ()
    #: Encoders of context columns with texts or images: names such as "sentence-transformers:all-MiniLM-L6-v2", paths
    #: or modules, as in ``from_texts``.
    encoders: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("context", "categorical", "rewards", "dates", "id"):
            if isinstance(getattr(self, name), str):
                raise InvalidInput(f"columns.{name} must be a sequence of names, got the text {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.context:
            raise InvalidInput("columns.context must name at least one column")
        for role_name in ("categorical", "dates", "encoders"):
            unknown = [name for name in getattr(self, role_name) if name not in self.context]
            if unknown:
                raise InvalidInput(f"columns.{role_name} names {unknown[0]!r}, which is not one of the context columns")
        if (self.arm or self.reward or self.propensity) and not (self.arm and self.reward):
            raise InvalidInput("a log needs both columns.arm and columns.reward, and columns.propensity if it has any")
        if (self.label is not None and self.rewards) or not (self.label or self.rewards or self.arm):
            raise InvalidInput("columns needs either a label column or a reward column per arm")
        if self.offered and not self.arm:
            raise InvalidInput("columns.offered is for a log: name columns.arm and columns.reward as well")
        for role in ("label", "rewards", "arm", "reward", "propensity", "offered", "id"):
            names = getattr(self, role)
            in_context = [name for name in (names if role in ("rewards", "id") else (names,)) if name in self.context]
            if in_context:
                raise InvalidInput(
                    f"columns.context has {in_context[0]!r}, which columns.{role} names: no policy may see it"
                )


#: Regular expression of the usual names of id columns.
_ID_NAME = re.compile(r"(^|[_ .-])(id|uuid|guid|key|index|nr|no)$|^unnamed|^$", re.IGNORECASE)
#: Regular expression of the usual names of propensity columns.
_PROPENSITY_NAME = re.compile(
    r"(logged[_ ]?)?(propensity([_ ]?score)?|propensities|p_?score|action[_ ]?prob(ability)?)", re.IGNORECASE
)
#: A text column with at most this many categories is used, also if the table has few rows.
_MAX_CATEGORIES = 50
#: Minimum mean number of rows per category of a text column with more categories.
_MIN_ROWS_PER_CATEGORY = 20
#: Arms with fewer rows are reported.
_MIN_ROWS_PER_ARM = 3
#: Texts are ids if a larger fraction of their values is distinct. Integers also need the usual name of an id column.
_MAX_UNIQUE_FRACTION = 0.95
#: Larger differences between the domains are reported: of medians, in standard deviations; and of the binary
#: logarithms of standard deviations.
_MAX_SHIFT = 2.0
#: A larger fraction of target rows with new categories is reported.
_MAX_NEW_FRACTION = 0.01
#: A number farther from the median, in interquartile ranges, is reported.
_MAX_OUTLIER_RANGES = 1e4
#: Numbers that many tables contain in place of missing values.
_MISSING_CODES = (-99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)


@dataclass(frozen=True)
class ColumnRole:
    """The role of a column, and the reason for it."""

    #: Name of the column.
    name: str
    #: "number", "category", "date", "text", "ignored", "label", "arm", "reward", "propensity" or "offered".
    role: str
    #: Reason for the role, as a phrase.
    reason: str
    #: True if the column identifies rows.
    is_id: bool = False
    #: True if the user should check the role.
    is_notable: bool = False


@dataclass(frozen=True)
class Notice:
    """A possible mistake in a column."""

    #: Name of the column.
    column: str
    #: The possible mistake, in a sentence.
    text: str
    #: True if only the user can decide whether it is a mistake.
    needs_decision: bool = False

    def __str__(self) -> str:
        return f"{self.column}: {self.text}"


@dataclass(frozen=True)
class StatedRoles:
    """The roles of columns that a user states. The roles of other columns are inferred.

    ``label``, ``arm``, ``reward``, ``propensity`` and ``offered`` name one column each, as in ``Columns``. Either
    ``label``, or ``arm`` and ``reward`` are required. A propensity column is also recognised by its usual names.
    ``id``, ``category``, ``number``, ``date``, ``drop`` and ``text`` list columns of these roles. ``domain`` is the
    column that names the domain of a row. ``encoder`` encodes the columns in ``text``.
    """

    label: str | None = None
    arm: str | None = None
    reward: str | None = None
    propensity: str | None = None
    offered: str | None = None
    id: Sequence[str] = ()
    category: Sequence[str] = ()
    number: Sequence[str] = ()
    date: Sequence[str] = ()
    drop: Sequence[str] = ()
    domain: str | None = None
    text: Sequence[str] = ()
    encoder: Any = None

    def __post_init__(self) -> None:
        for role in ("id", "category", "number", "date", "drop", "text"):
            names = getattr(self, role)
            object.__setattr__(self, role, (names,) if isinstance(names, str) else tuple(names))
        if bool(self.text) != bool(self.encoder):
            raise InvalidInput("text and encoder must be given together: --text COLUMN --encoder NAME")


def infer_columns(source: pl.DataFrame, target: pl.DataFrame, roles: StatedRoles) -> tuple[Columns, list[ColumnRole]]:
    """Return the columns by role, and the role of every source column with the reason for it.

    ``roles`` has the roles that the user stated.
    """
    if (roles.label is None) == (roles.arm is None):
        raise InvalidInput(
            "name either the column with the right arm (label), or the columns with the arm and the reward of a log "
            f"(arm and reward); the source has {', '.join(source.columns)}"
        )
    if roles.arm is not None and roles.reward is None:
        raise InvalidInput(
            f"arm {roles.arm!r} needs a reward: the column with the reward of the chosen arm (--reward COLUMN)"
        )
    stated_roles = {
        **dict.fromkeys(roles.drop, ("ignored", "dropped, as stated")),
        **({roles.domain: ("ignored", "it names the domain, as stated")} if roles.domain else {}),
        **dict.fromkeys(roles.id, ("ignored", "an id, as stated")),
        **dict.fromkeys(roles.category, ("category", "as stated")),
        **dict.fromkeys(roles.number, ("number", "as stated")),
        **dict.fromkeys(roles.date, ("date", "as stated")),
        **dict.fromkeys(roles.text, ("text", f"read by {roles.encoder}")),
    }
    outcomes = {role: getattr(roles, role) for role in ("label", "arm", "reward", "propensity", "offered")}
    stated_roles |= {name: (role, "as stated") for role, name in outcomes.items() if name is not None}
    if roles.arm is not None and roles.propensity is None:
        candidates = [name for name in source.columns if _PROPENSITY_NAME.fullmatch(name) and name not in stated_roles]
        if len(candidates) == 1 and source[candidates[0]].dtype.is_numeric():
            outcomes["propensity"] = candidates[0]
            reason = f"by its name; --number {candidates[0]} makes it a context, --drop ignores it"
            stated_roles[candidates[0]] = ("propensity", reason)
    for name in stated_roles:
        if name not in source.columns and not (name in roles.id and name in target.columns):
            hint = did_you_mean(name, source.columns)
            raise InvalidInput(f"the source has no column {name!r}{hint} (its columns: {', '.join(source.columns)})")
    _check_outcomes(source, roles)
    for name in roles.number:
        for table_name, frame in (("source", source), ("target", target)):
            if name in frame.columns:
                read_numbers(frame, name, table_name=table_name)
    types = []
    for name in (name for name in source.columns if name != ROW_COLUMN):
        column = _infer_type(name, source, target)
        if name in stated_roles:
            column = ColumnRole(name, *stated_roles[name], is_id=name in roles.id)
        elif roles.id:
            column = replace(column, is_id=False)
        if column.role in ("number", "category", "date", "text") and name not in target.columns:
            hint = did_you_mean(name, target.columns)
            column = ColumnRole(name, "ignored", f"the target has no such column{hint}", is_notable=bool(hint))
        types.append(column)
    context_roles = ("number", "category", "date", "text")
    by_role = {role: tuple(column.name for column in types if column.role == role) for role in context_roles}
    context = tuple(column.name for column in types if column.role in by_role)
    if not context:
        raise InvalidInput(f"no column can be used as context: {_list_reasons(types)}")
    ids = tuple(roles.id) or tuple(column.name for column in types if column.is_id)
    encoders = dict.fromkeys(by_role["text"], roles.encoder)
    return Columns(context, by_role["category"], dates=by_role["date"], id=ids, encoders=encoders, **outcomes), types


def _list_reasons(types: Sequence[ColumnRole]) -> str:
    """Return a text with the reason for the role of each column."""
    return "; ".join(f"{column.name}: {column.reason}" for column in types)


def _check_outcomes(source: pl.DataFrame, roles: StatedRoles) -> None:
    """Raise an error if the column of arms has one value or too many, or if all rewards are equal."""
    name = roles.label or roles.arm
    assert name is not None
    arms = source[name].drop_nulls()
    if arms.n_unique() == 1:
        raise InvalidInput(f"column {name!r} has only one arm, {arms[0]!r}: there is nothing to choose from")
    if arms.n_unique() > _MAX_CATEGORIES and len(arms) < _MIN_ROWS_PER_ARM * arms.n_unique():
        raise InvalidInput(
            f"column {name!r} has {arms.n_unique():,} different values in {len(arms):,} rows, such as {arms[0]!r}: "
            "these are not arms. For a log, use --arm COLUMN --reward COLUMN"
        )
    if roles.reward is not None and len(source) > 1 and source[roles.reward].drop_nulls().n_unique() == 1:
        raise InvalidInput(
            f"column {roles.reward!r} has the same reward in every row, {source[roles.reward].drop_nulls()[0]!r}: "
            "no arm is better than another"
        )


def _infer_type(name: str, source: pl.DataFrame, target: pl.DataFrame) -> ColumnRole:
    """Return the role that the values and the name of a column suggest."""
    tables = [frame for frame in ((source,) if target is source else (source, target)) if name in frame.columns]
    series = [column for column in (frame[name].drop_nulls() for frame in tables) if len(column)]
    n_rows = sum(len(column) for column in series)
    if not series:
        return ColumnRole(name, "ignored", "it has no value at all")
    dtypes = [column.dtype for column in series]
    unsupported = next((dtype for dtype in dtypes if not (dtype.is_numeric() or dtype in _get_readable_types())), None)
    if unsupported is not None:
        return ColumnRole(name, "ignored", f"of type {unsupported}, which is not a number, category or date")
    date_kinds = {_get_date_kind(column) for column in series}
    is_numeric = [column.dtype.is_numeric() or column.dtype == pl.Boolean for column in series]
    n_distinct = pl.concat([column.cast(pl.Float64 if all(is_numeric) else pl.String) for column in series]).n_unique()
    n_missing = sum(frame[name].null_count() for frame in tables)
    description = f"{n_distinct:,} different values" + (f", {n_missing:,} missing" if n_missing else "")
    if n_distinct == 1 and not n_missing:
        return ColumnRole(name, "ignored", "it has the same value in every row")
    identifies_rows = max(column.n_unique() / len(column) for column in series) > _MAX_UNIQUE_FRACTION
    if date_kinds == {"time"}:
        return ColumnRole(name, "date", "time of day, as sine and cosine")
    if date_kinds == {"date", "time"}:
        return ColumnRole(name, "ignored", "dates in one file and times of day in the other", is_notable=True)
    if date_kinds == {"date"}:
        increases = all(column.is_sorted() and column[0] != column[-1] for column in series)
        hint = f"; it increases from row to row, use --drop {name} if it is the time of logging" if increases else ""
        return ColumnRole(name, "date", f"year, and sine and cosine of month, weekday and time of day{hint}")
    if all(is_numeric):
        if all(column.dtype.is_integer() for column in series) and _ID_NAME.search(name) and identifies_rows:
            reason = f"an id: {n_distinct:,} different integers in {n_rows:,} rows"
            return ColumnRole(name, "ignored", reason, is_id=True)
        return ColumnRole(name, "number", description)
    remark = "numbers in one file and text in the other, " if any(is_numeric) else _describe_texts(series)
    if identifies_rows and n_distinct > _MAX_CATEGORIES // 2:
        reason = f"{remark or 'an id or free text: '}{n_distinct:,} different values in {n_rows:,} rows"
        return ColumnRole(name, "ignored", reason, is_id=not remark, is_notable=bool(remark))
    if n_distinct > _MAX_CATEGORIES and n_rows < _MIN_ROWS_PER_CATEGORY * n_distinct:
        reason = f"{remark}too many categories: {n_distinct:,} in {n_rows:,} rows; --category {name} uses it"
        return ColumnRole(name, "ignored", reason, is_notable=bool(remark))
    return ColumnRole(name, "category", f"{remark}{description}", is_notable=bool(remark))


def _get_readable_types() -> tuple[Any, ...]:
    """Return the column types, other than numbers, that can be contexts."""
    return (pl.Boolean, pl.String, pl.Categorical, pl.Enum, pl.Date, pl.Datetime, pl.Time)


def _get_date_kind(column: pl.Series) -> str:
    """Return "date" if all values of a column are dates, "time" if all are times of day, and otherwise ""."""
    if column.dtype != pl.String:
        return {pl.Date: "date", pl.Datetime: "date", pl.Time: "time"}.get(column.dtype.base_type(), "")
    try:
        are_times = {isinstance(as_date_or_time(value, column.name), time) for value in column}
    except InvalidInput:
        return ""
    if are_times == {True}:
        return "time"
    return "date" if are_times == {False} and all(len(value) >= 8 for value in column) else ""


def _describe_texts(columns: Sequence[pl.Series]) -> str:
    """Return a phrase about texts that look like numbers or dates but stay texts, or "" for other texts."""
    example = str(columns[0][0])
    texts = pl.concat([column.cast(pl.String) for column in columns])
    is_number = texts.str.contains(r"^[+-]?\d+([.,]\d+)?$")
    if 0.5 * len(texts) < is_number.sum() < len(texts):
        return f"numbers, except for texts such as {texts.filter(~is_number)[0]!r} (leave such cells empty); "
    codes = texts.filter(texts.str.contains(r"^[+-]?0\d"))
    if is_number.all() and len(codes):
        return f"numbers with leading zeros such as {codes[0]!r}, read as codes; "
    if re.fullmatch(r"\W*\d[\d.,' ]*\s*[^\d\s]{0,3}", example):
        return f"amounts such as {example!r}, read as text (write plain numbers); "
    if re.fullmatch(r"\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4}.*", example):
        return f"dates such as {example!r}, read as text (write 2024-05-31 or 31.05.2024); "
    return ""


def find_notices(
    source: pl.DataFrame,
    target: pl.DataFrame,
    types: Sequence[ColumnRole],
    *,
    units: Sequence[str] = (),
    domain: str | None = None,
) -> list[Notice]:
    """Return notices about possible mistakes, and about columns that may have another meaning in the target.

    A notice is returned for:

    * numbers with a very different median or standard deviation in the target, unless they are in ``units``;
    * categories that only the target has;
    * values that differ only in capitals or spaces;
    * numbers such as -999 that may mean a missing value;
    * a number that is extremely far from the others;
    * arms with one or two rows;
    * propensities that are all 1;
    * source rows with the id of an earlier row, of the same domain if ``domain`` names a column of domains.
    """
    notices = []
    ids = [column.name for column in types if column.is_id and column.name in source.columns]
    rows_with_id = source.select([*ids, *([domain] if domain and ids else [])]).drop_nulls()
    n_repeated = len(rows_with_id) - rows_with_id.n_unique() if ids else 0
    if n_repeated:
        text = (
            f"{n_repeated:,} of {len(source):,} source rows repeat an earlier row's value. Remove rows that are there "
        )
        notices.append(Notice(", ".join(ids), f"{text}twice by mistake: they make errors look smaller", True))
    tables = (source,) if target is source else (source, target)
    for column in types:
        name = column.name
        if column.role == "number":
            numbers = [read_numbers(frame, name) for frame in tables]
            notices += _find_missing_codes(name, numbers) or _find_outlier(name, np.concatenate(numbers))
            if name not in units:
                notices += _find_unit_change(name, read_numbers(source, name), read_numbers(target, name))
        if column.role == "propensity" and (source[name].drop_nulls() == 1).all():
            text = "it is 1 in every row, although several arms were chosen. If probabilities were not recorded, use "
            notices.append(Notice(name, f"{text}--drop {name}, and they are estimated"))
        if column.role not in ("category", "arm", "label"):
            continue
        texts_by_table = [read_categories(frame, name) for frame in tables if name in frame.columns]
        counts = [Counter(value for value in texts if value is not None) for texts in texts_by_table]
        spellings: dict[str, str] = {}
        for value in sorted(set().union(*counts)):
            spelling = spellings.setdefault(" ".join(value.casefold().split()), value)
            if spelling != value:
                notices.append(
                    Notice(name, f"{spelling!r} and {value!r} are two values; if they mean the same, use one spelling")
                )
        rare = sorted(value for value, count in counts[0].items() if count < _MIN_ROWS_PER_ARM)
        if column.role != "category" and rare:
            listed = ", ".join(f"{value!r}: {counts[0][value]}" for value in rare[:3]) + (", ..." if rare[3:] else "")
            text = f"arms with fewer than {_MIN_ROWS_PER_ARM} rows ({listed}). They may be chosen, although little is "
            notices.append(Notice(name, f"{text}known about them; drop these rows if they are mistakes"))
        new_values = [value for value in counts[-1].elements() if value not in counts[0]]
        if column.role == "category" and len(new_values) > _MAX_NEW_FRACTION * max(1, counts[-1].total()):
            example = Counter(new_values).most_common(1)[0][0]
            text = f"{len(new_values) / counts[-1].total():.0%} of target rows have a category that the source lacks"
            notices.append(Notice(name, f"{text}, such as {example!r}; only target rewards show its effect"))
    return notices


def _find_unit_change(name: str, source: Any, target: Any) -> list[Notice]:
    """Return a notice if the medians or standard deviations differ so much that the units may differ."""
    if np.isnan(source).all() or np.isnan(target).all():
        return []
    (median, std), (target_median, target_std) = (
        (middle, (high - low) / 1.349)  # the standard deviation of a normal distribution with the same quartiles
        for low, middle, high in (np.nanquantile(values, (0.25, 0.5, 0.75)) for values in (source, target))
    )
    if not (std > 0 and target_std > 0):
        return []
    difference = abs(median - target_median)
    if difference <= _MAX_SHIFT * min(std, target_std) and abs(math.log2(target_std / std)) <= _MAX_SHIFT:
        return []
    text = (
        f"its median is {median:.4g} in the source and {target_median:.4g} in the target, its standard deviation "
        f"{std:.3g} and {target_std:.3g}. If its unit differs, use --units {name}, or units=[{name!r}] in Python"
    )
    return [Notice(name, text, needs_decision=True)]


def _find_missing_codes(name: str, columns: Sequence[Any]) -> list[Notice]:
    """Return notices about numbers that may mean a missing value: far from all others, or the only one below 0."""
    values = np.concatenate(columns)
    notices = []
    for code in _MISSING_CODES:
        others = values[(values != code) & ~np.isnan(values)]
        count = np.count_nonzero(values == code)
        if count < 2 or not len(others) or others.min() <= code <= others.max():
            continue
        is_far = max(others.min() - code, code - others.max()) > others.max() - others.min()
        if is_far or code < 0 <= others.min():
            text = f"{code:g} is in {count:,} rows, all others are between {others.min():g} and {others.max():g}. "
            notices.append(Notice(name, f"{text}If it means a missing value, leave these cells empty", True))
    return notices


def _find_outlier(name: str, values: Any) -> list[Notice]:
    """Return a notice for the number that is farthest from the median, if it is extremely far."""
    low, median, high = np.nanquantile(values, (0.25, 0.5, 0.75)) if not np.isnan(values).all() else (0.0, 0.0, 0.0)
    distances = np.nan_to_num(np.abs(values - median))
    if high == low or distances.max() <= _MAX_OUTLIER_RANGES * (high - low):
        return []
    text = f"{values[distances.argmax()]:g} is extremely far from its median, {median:g}; in training it is clipped"
    return [Notice(name, f"{text}. Leave the cell empty if it is a mistake", True)]


def read_catalogue(arms: Any, arm_column: str, *, names: Sequence[str] | None = None) -> Catalogue:
    """Read a table of arms. Return the catalogue of arms with their features.

    Args:
        arms: a table with a row per arm, a mapping {"source": table, "target": table}, or features (K, m). A
            ``Catalogue`` is returned unchanged.
        arm_column: the name of the arm column in the log. The column of arm ids is the one called "id", or else the one
            with this name, or else the first.
        names: names of the arms if ``arms`` is an array.
    """
    if isinstance(arms, Catalogue):
        return arms
    if isinstance(arms, np.ndarray):
        features = as_numpy(arms, "arms").astype(np.float64)
        if features.ndim != 2 or not np.isfinite(features).all():
            raise InvalidInput(f"arms must be finite numbers (K, m), or a table, got shape {features.shape}")
        return Catalogue.fit(names or [str(index) for index in range(len(features))], features)
    if isinstance(arms, Mapping) and set(arms) != {"source", "target"}:
        raise InvalidInput(f'arms must be a table, or {{"source": table, "target": table}}, got {list(arms)}')
    tables_or_paths = [arms["source"], arms["target"]] if isinstance(arms, Mapping) else [arms]
    tables = [read_table(table) for table in tables_or_paths]
    ids_by_table = []
    for index, frame in enumerate(tables):
        column = next((column for column in ("id", arm_column) if column in frame.columns), frame.columns[0])
        row_names = [None if value is None else format_value(value) for value in frame[column].to_list()]
        if None in row_names or len(set(row_names)) < len(row_names) or not row_names:
            raise DataError(f"arms: column {column!r} must have a different name in every row")
        tables[index] = frame.drop(column)
        ids_by_table.append([str(name) for name in row_names])
    source_ids = set(ids_by_table[0])
    new_rows = [index for index, name in enumerate(ids_by_table[-1]) if name not in source_ids]
    all_ids = [*ids_by_table[0], *(ids_by_table[-1][index] for index in new_rows)]
    shared = [name for name in tables[0].columns if name in tables[-1].columns]
    frame = pl.concat([tables[0].select(shared), tables[-1].select(shared)[new_rows]], how="vertical_relaxed")
    types = [_infer_type(name, frame, frame) for name in shared]
    roles = {role: [column.name for column in types if column.role == role] for role in ("number", "category", "date")}
    words = [
        column.name for column in types if column.role in ("category", "ignored") and _has_words(column.name, frame)
    ]
    context = [column.name for column in types if column.role in roles and column.name not in words]
    unique_columns = [name for name in roles["category"] if not frame[name].drop_nulls().is_duplicated().any()]
    context = [name for name in context if name not in unique_columns]
    context += words
    if not context:
        raise InvalidInput(f"arms has no column that can be used as a feature: {_list_reasons(types)}")
    typed = {role: [name for name in roles[role] if name in context and name not in words] for role in roles}
    table = TableTransform.fit(frame, context=context, categorical=typed["category"], dates=typed["date"], words=words)
    offered = np.stack([np.isin(all_ids, domain_ids) for domain_ids in (ids_by_table[0], ids_by_table[-1])])
    return Catalogue.fit(all_ids, table.apply(frame), table=table, offered=offered)


def _has_words(name: str, frame: pl.DataFrame) -> bool:
    """Return True if most texts of a column are lists of words, some of which occur in several but not all texts."""
    if frame[name].dtype != pl.String:
        return False
    n_lists = sum("|" in text or ";" in text or len(split_words(text)) > 2 for text in frame[name].drop_nulls())
    return 2 * n_lists > len(frame) and bool(WordsColumn.fit(name, {"": frame}).words)
