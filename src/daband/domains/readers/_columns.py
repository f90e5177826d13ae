"""The roles of table columns: given by the user, or inferred from the values."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time
from typing import Any

import numpy as np

from daband._arrays import as_numpy
from daband._lazy_polars import pl
from daband._table_transform import ROW, TableTransform, WordsColumn, as_moment, categories, numbers, spell, words_of
from daband.domains.readers._reading import read_table
from daband.errors import DataError, InvalidInput, did_you_mean
from daband.linear._catalogue import Catalogue


@dataclass(frozen=True)
class Columns:
    """The roles of columns.

    ``context`` are the columns that a policy sees. ``categorical`` are those that become one-hot, ``dates`` those
    with dates. Rewards are given in one of three ways: ``label`` (the reward is 1 for the arm that this column
    names, else 0), ``rewards`` (a column per arm), or, for a log of another policy, ``arm``, ``reward`` and
    ``propensity`` (without it, ``from_table`` estimates propensities). A log may have ``label`` or ``rewards`` too, for
    the target test. ``offered`` lists the arms that could be chosen in a row of a log, separated by |, if not all
    could. ``id`` names rows in the questions of an audit. None of these columns may be a context.
    ``encoders`` maps context columns with texts or images to an encoder: a name such as
    "sentence-transformers:all-MiniLM-L6-v2", a path or a module (see ``from_texts``).
    """

    context: Sequence[str]
    categorical: Sequence[str] = ()
    label: str | None = None
    rewards: Sequence[str] = ()
    arm: str | None = None
    reward: str | None = None
    propensity: str | None = None
    offered: str | None = None
    dates: Sequence[str] = ()
    id: Sequence[str] = ()
    encoders: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("context", "categorical", "rewards", "dates", "id"):
            if isinstance(getattr(self, name), str):
                raise InvalidInput(f"columns.{name} must be a sequence of names, got the text {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.context:
            raise InvalidInput("columns.context must name at least one column")
        for kind in ("categorical", "dates", "encoders"):
            unknown = [name for name in getattr(self, kind) if name not in self.context]
            if unknown:
                raise InvalidInput(f"columns.{kind} names {unknown[0]!r}, which is not one of the context columns")
        if (self.arm or self.reward or self.propensity) and not (self.arm and self.reward):
            raise InvalidInput("a log needs both columns.arm and columns.reward, and columns.propensity if it has any")
        if (self.label is not None and self.rewards) or not (self.label or self.rewards or self.arm):
            raise InvalidInput("columns needs either a label column or a reward column per arm")
        if self.offered and not self.arm:
            raise InvalidInput("columns.offered is for a log: name columns.arm and columns.reward as well")
        for role in ("label", "rewards", "arm", "reward", "propensity", "offered", "id"):
            named = getattr(self, role)
            answers = [name for name in (named if role in ("rewards", "id") else (named,)) if name in self.context]
            if answers:
                raise InvalidInput(
                    f"columns.context has {answers[0]!r}, which columns.{role} names: no policy may see it"
                )


_ID_NAME = re.compile(r"(^|[_ .-])(id|uuid|guid|key|index|nr|no)$|^unnamed|^$", re.IGNORECASE)
_PROPENSITY_NAME = re.compile(
    r"(logged[_ ]?)?(propensity([_ ]?score)?|propensities|p_?score|action[_ ]?prob(ability)?)", re.IGNORECASE
)
#: With more categories, each needs ``_ROWS_PER_CATEGORY`` rows.
_MAX_CATEGORIES = 50
_ROWS_PER_CATEGORY = 20
_ROWS_PER_ARM = 3
#: Fraction of different values above which text, or integers called an id, name a row.
_UNIQUE = 0.95
#: Standard deviations between medians, or log2 of the ratio of standard deviations, that look like other units.
_FAR = 2.0
#: Fraction of target rows with categories that the source never had, above which a notice is given.
_NEW_CATEGORIES = 0.01
#: Numbers that many tables use instead of a missing value.
_CODES = (-99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)


@dataclass(frozen=True)
class ColumnType:
    """One column: ``role`` is "number", "category", "date", "text", "left out", or "label", ...; ``why`` is the reason.

    ``is_id`` is True if the column names rows. ``notable`` is True if a user should check the role.
    """

    name: str
    role: str
    why: str
    is_id: bool = False
    notable: bool = False


@dataclass(frozen=True)
class Notice:
    """A possible mistake in a column; ``is_open`` is True if only the user can decide."""

    column: str
    text: str
    is_open: bool = False

    def __str__(self) -> str:
        return f"{self.column}: {self.text}"


@dataclass(frozen=True)
class ColumnRoles:
    """The roles that a user gives to columns; the others are inferred.

    ``label``, or ``arm`` and ``reward`` (and ``propensity``, which is recognised by its usual names) define the
    rewards. The others override inference: each is a column name, or several. ``encoder`` reads the columns in
    ``text``.
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
            raise InvalidInput("text and encoder go together: --text COLUMN --encoder sentence-transformers:NAME")


def infer_columns(source: pl.DataFrame, target: pl.DataFrame, roles: ColumnRoles) -> tuple[Columns, list[ColumnType]]:
    """Return the roles of the columns, and the reason for every source column in its order."""
    if (roles.label is None) == (roles.arm is None):
        raise InvalidInput(
            "name either the label's column (label: which arm is right), or the arm's and the reward's columns of a "
            f"log (arm and reward); the source has {', '.join(source.columns)}"
        )
    if roles.arm is not None and roles.reward is None:
        raise InvalidInput(
            f"arm {roles.arm!r} needs a reward: the column with the reward of the chosen arm (--reward COLUMN)"
        )
    given = {
        **dict.fromkeys(roles.drop, ("left out", "dropped, as you say")),
        **({roles.domain: ("left out", "it names the domain, as you say")} if roles.domain else {}),
        **dict.fromkeys(roles.id, ("left out", "an id, as you say")),
        **dict.fromkeys(roles.category, ("category", "as you say")),
        **dict.fromkeys(roles.number, ("number", "as you say")),
        **dict.fromkeys(roles.date, ("date", "as you say")),
        **dict.fromkeys(roles.text, ("text", f"read by {roles.encoder}")),
    }
    answers = {role: getattr(roles, role) for role in ("label", "arm", "reward", "propensity", "offered")}
    given |= {name: (role, "as you say") for role, name in answers.items() if name is not None}
    if roles.arm is not None and roles.propensity is None:
        named = [name for name in source.columns if _PROPENSITY_NAME.fullmatch(name) and name not in given]
        if len(named) == 1 and source[named[0]].dtype.is_numeric():
            answers["propensity"] = named[0]
            why = f"by its name; --number {named[0]} takes it as context, --drop leaves it out"
            given[named[0]] = ("propensity", why)
    for name in given:
        if name not in source.columns:
            hint = did_you_mean(name, source.columns)
            raise InvalidInput(f"the source has no column {name!r}{hint} (its columns: {', '.join(source.columns)})")
    _check_answers(source, roles)
    for name in roles.number:
        for where, frame in (("source", source), ("target", target)):
            if name in frame.columns:
                numbers(frame, name, where=where)
    types = []
    for name in (name for name in source.columns if name != ROW):
        one = ColumnType(name, *given[name], is_id=name in roles.id) if name in given else _infer(name, source, target)
        if one.role in ("number", "category", "date", "text") and name not in target.columns:
            hint = did_you_mean(name, target.columns)
            one = ColumnType(name, "left out", f"the target has no such column{hint}", notable=bool(hint))
        types.append(one)
    roles_of_context = ("number", "category", "date", "text")
    by_role = {role: tuple(one.name for one in types if one.role == role) for role in roles_of_context}
    context = tuple(one.name for one in types if one.role in by_role)
    if not context:
        raise InvalidInput("no column is left for the context: " + "; ".join(f"{one.name}: {one.why}" for one in types))
    ids = tuple(roles.id) or tuple(one.name for one in types if one.is_id)
    encoders = dict.fromkeys(by_role["text"], roles.encoder)
    return Columns(context, by_role["category"], dates=by_role["date"], id=ids, encoders=encoders, **answers), types


def _check_answers(source: pl.DataFrame, roles: ColumnRoles) -> None:
    """Raise if nothing can be learned: one arm, amounts instead of arms, or one reward in every row."""
    name = roles.label or roles.arm
    assert name is not None
    arms = source[name].drop_nulls()
    if arms.n_unique() == 1:
        raise InvalidInput(f"column {name!r} has only one arm, {arms[0]!r}: there is nothing to choose from")
    if arms.n_unique() > _MAX_CATEGORIES and len(arms) < _ROWS_PER_ARM * arms.n_unique():
        raise InvalidInput(
            f"column {name!r} has {arms.n_unique():,} different values in {len(arms):,} rows, such as {arms[0]!r}: "
            "these are not arms. The reward of a chosen arm is given with --arm COLUMN --reward COLUMN"
        )
    if roles.reward is not None and len(source) > 1 and source[roles.reward].drop_nulls().n_unique() == 1:
        raise InvalidInput(
            f"column {roles.reward!r} has the same reward in every row, {source[roles.reward].drop_nulls()[0]!r}: "
            "nothing tells the arms apart"
        )


def _infer(name: str, source: pl.DataFrame, target: pl.DataFrame) -> ColumnType:
    tables = [frame for frame in ((source,) if target is source else (source, target)) if name in frame.columns]
    parts = [part for part in (frame[name].drop_nulls() for frame in tables) if len(part)]
    rows = sum(len(part) for part in parts)
    if not parts:
        return ColumnType(name, "left out", "it has no value at all")
    unread = next((kind for part in parts if not ((kind := part.dtype).is_numeric() or kind in _readable())), None)
    if unread is not None:
        return ColumnType(name, "left out", f"of type {unread}, which is not a number, category or date")
    dates = {_date_kind(part) for part in parts}
    numeric = [part.dtype.is_numeric() or part.dtype == pl.Boolean for part in parts]
    different = pl.concat([part.cast(pl.Float64 if all(numeric) else pl.String) for part in parts]).n_unique()
    gaps = sum(frame[name].null_count() for frame in tables)
    counted = f"{different:,} different values" + (f", {gaps:,} missing" if gaps else "")
    if different == 1 and not gaps:
        return ColumnType(name, "left out", "it has the same value in every row")
    names_rows = max(part.n_unique() / len(part) for part in parts) > _UNIQUE
    if dates == {"time"}:
        return ColumnType(name, "date", "time of day on a circle")
    if dates == {"date", "time"}:
        return ColumnType(name, "left out", "dates in one file and times of day alone in the other", notable=True)
    if dates == {"date"}:
        grows = all(part.is_sorted() and part[0] != part[-1] for part in parts)
        hint = f"; it grows from row to row: --drop {name} if it only says when a row was written" if grows else ""
        return ColumnType(name, "date", f"year, and month, weekday and time of day on a circle{hint}")
    if all(numeric):
        if all(part.dtype.is_integer() for part in parts) and _ID_NAME.search(name) and names_rows:
            why = f"an id: {different:,} different integers in {rows:,} rows"
            return ColumnType(name, "left out", why, is_id=True)
        return ColumnType(name, "number", counted)
    mixed = "numbers in one file and text in the other, " if any(numeric) else _unread(parts)
    if names_rows and different > _MAX_CATEGORIES // 2:
        why = f"{mixed or 'an id or free text: '}{different:,} different values in {rows:,} rows"
        return ColumnType(name, "left out", why, is_id=not mixed, notable=bool(mixed))
    if different > _MAX_CATEGORIES and rows < _ROWS_PER_CATEGORY * different:
        why = f"{mixed}too many categories: {different:,} in {rows:,} rows; --category {name} takes it in"
        return ColumnType(name, "left out", why, notable=bool(mixed))
    return ColumnType(name, "category", f"{mixed}{counted}", notable=bool(mixed))


def _readable() -> tuple[Any, ...]:
    """Return the column types, other than numbers, that are read."""
    return (pl.Boolean, pl.String, pl.Categorical, pl.Enum, pl.Date, pl.Datetime, pl.Time)


def _date_kind(column: pl.Series) -> str:
    """Return ``date`` if all values are dates, ``time`` if all are times of day, else an empty string."""
    if column.dtype != pl.String:
        return {pl.Date: "date", pl.Datetime: "date", pl.Time: "time"}.get(column.dtype.base_type(), "")
    try:
        are_times = {isinstance(as_moment(value, column.name), time) for value in column}
    except InvalidInput:
        return ""
    if are_times == {True}:
        return "time"
    return "date" if are_times == {False} and all(len(value) >= 8 for value in column) else ""


def _unread(parts: Sequence[pl.Series]) -> str:
    """Return the apparent type of texts that are read as neither numbers nor dates; empty for plain text."""
    text = str(parts[0][0])
    texts = pl.concat([part.cast(pl.String) for part in parts])
    plain = texts.str.contains(r"^[+-]?\d+([.,]\d+)?$")
    if 0.5 * len(texts) < plain.sum() < len(texts):
        return f"numbers but for texts such as {texts.filter(~plain)[0]!r}, whose cells should be empty; "
    if plain.all() and texts.str.contains(r"^[+-]?0\d").any():
        return f"numbers with leading zeros such as {text!r}: codes, so text; "
    if re.fullmatch(r"\W*\d[\d.,' ]*\s*[^\d\s]{0,3}", text):
        return f"amounts such as {text!r}: write plain numbers to have them read as such; "
    if re.fullmatch(r"\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4}.*", text):
        return f"dates such as {text!r}, which are read as 2024-05-31 or 31.05.2024 alone, "
    return ""


def column_notices(
    source: pl.DataFrame, target: pl.DataFrame, types: Sequence[ColumnType], *, units: Sequence[str] = ()
) -> list[Notice]:
    """Return a notice for each column that looks like a mistake, or that may have another meaning in the target.

    Numbers with a very different median or standard deviation, unless they are in ``units``; categories that only the
    target has; values that differ only by capitals; numbers such as -999 that may stand for a missing value; arms of
    one or two rows; propensities that are all 1.
    """
    notices = []
    tables = (source,) if target is source else (source, target)
    for column in types:
        name = column.name
        if column.role == "number":
            notices += _missing_codes(name, [numbers(frame, name) for frame in tables])
            if name not in units:
                notices += _other_units(name, numbers(source, name), numbers(target, name))
        if column.role == "propensity" and (source[name].drop_nulls() == 1).all():
            text = "it is 1 in every row, though several arms were chosen. If probabilities were not recorded, "
            notices.append(Notice(name, f"{text}--drop {name}: they are estimated"))
        if column.role not in ("category", "arm", "label"):
            continue
        values = [categories(frame, name) for frame in tables if name in frame.columns]
        counts = [Counter(text for text in texts if text is not None) for texts in values]
        spelled: dict[str, str] = {}
        for text in sorted(set().union(*counts)):
            twin = spelled.setdefault(" ".join(text.casefold().split()), text)
            if twin != text:
                notices.append(
                    Notice(name, f"{twin!r} and {text!r} are two values; give both one spelling if they mean the same")
                )
        rare = sorted(text for text, rows in counts[0].items() if rows < _ROWS_PER_ARM)
        if column.role != "category" and rare:
            shown = ", ".join(f"{text!r}: {counts[0][text]}" for text in rare[:3]) + (", ..." if rare[3:] else "")
            text = f"arms with fewer than {_ROWS_PER_ARM} rows ({shown}). Little is learned of them, and they may be "
            notices.append(Notice(name, f"{text}chosen all the same; leave their rows out if they are mistakes"))
        new = [text for text in counts[-1].elements() if text not in counts[0]]
        if column.role == "category" and len(new) > _NEW_CATEGORIES * max(1, counts[-1].total()):
            most = Counter(new).most_common(1)[0][0]
            text = f"{len(new) / counts[-1].total():.0%} of the target's rows have a category that the source never had"
            notices.append(Notice(name, f"{text}, such as {most!r}: nothing is learned of it before target rewards"))
    return notices


def _other_units(name: str, source: Any, target: Any) -> list[Notice]:
    """Return a notice if the quartiles differ so much that the units may differ."""
    if np.isnan(source).all() or np.isnan(target).all():
        return []
    (median, std), (other, other_std) = (
        (middle, (high - low) / 1.349)  # the standard deviation of a normal distribution with the same quartiles
        for low, middle, high in (np.nanquantile(values, (0.25, 0.5, 0.75)) for values in (source, target))
    )
    if not (std > 0 and other_std > 0):
        return []
    if abs(median - other) <= _FAR * min(std, other_std) and abs(math.log2(other_std / std)) <= _FAR:
        return []
    text = (
        f"its median is {median:.4g} in the source and {other:.4g} in the target, its standard deviation {std:.3g} and "
        f"{other_std:.3g}. Another unit? Say so: --units {name}, units=[{name!r}] in Python"
    )
    return [Notice(name, text, is_open=True)]


def _missing_codes(name: str, parts: Sequence[Any]) -> list[Notice]:
    """Return a notice for a number that may stand for a missing value: far from all others, or the only one below 0."""
    values = np.concatenate(parts)
    notices = []
    for code in _CODES:
        others = values[(values != code) & ~np.isnan(values)]
        count = np.count_nonzero(values == code)
        if count < 2 or not len(others) or others.min() <= code <= others.max():
            continue
        away = max(others.min() - code, code - others.max()) > others.max() - others.min()
        if away or code < 0 <= others.min():
            text = f"{code:g} is in {count:,} rows, and all others lie from {others.min():g} to {others.max():g}. "
            notices.append(Notice(name, f"{text}If it means that there is no value, leave these cells empty", True))
    return notices


def read_catalogue(arms: Any, arm_column: str, *, names: Sequence[str] | None = None) -> Catalogue:
    """Return the catalogue of a table of arms, of one table per domain, or of features (K, m).

    ``arm_column`` is the column of the log with arms, whose name the column of ids may have.
    """
    if isinstance(arms, Catalogue):
        return arms
    if isinstance(arms, np.ndarray):
        features = as_numpy(arms, "arms").astype(np.float64)
        if features.ndim != 2 or not np.isfinite(features).all():
            raise InvalidInput(f"arms must be finite numbers (K, m), or a table, got shape {features.shape}")
        return Catalogue.fit(names or [str(at) for at in range(len(features))], features)
    if isinstance(arms, Mapping) and set(arms) != {"source", "target"}:
        raise InvalidInput(f'arms must be a table, or {{"source": table, "target": table}}, got {list(arms)}')
    tables = [read_table(part) for part in ([arms["source"], arms["target"]] if isinstance(arms, Mapping) else [arms])]
    ids = []
    for number, frame in enumerate(tables):
        column = next((one for one in ("id", arm_column) if one in frame.columns), frame.columns[0])
        listed = [None if value is None else spell(value) for value in frame[column].to_list()]
        if None in listed or len(set(listed)) < len(listed) or not listed:
            raise DataError(f"arms: column {column!r} must name each arm once, in every row")
        tables[number] = frame.drop(column)
        ids.append([str(name) for name in listed])
    known = set(ids[0])
    new = [at for at, name in enumerate(ids[-1]) if name not in known]
    every = [*ids[0], *(ids[-1][at] for at in new)]
    shared = [name for name in tables[0].columns if name in tables[-1].columns]
    frame = pl.concat([tables[0].select(shared), tables[-1].select(shared)[new]], how="vertical_relaxed")
    types = [_infer(name, frame, frame) for name in shared]
    roles = {role: [one.name for one in types if one.role == role] for role in ("number", "category", "date")}
    words = [one.name for one in types if one.role in ("category", "left out") and _has_words(one.name, frame)]
    columns = [one.name for one in types if one.role in roles and one.name not in words]
    columns = [one for one in columns if one not in roles["category"] or frame[one].drop_nulls().is_duplicated().any()]
    columns += words
    if not columns:
        raise InvalidInput("arms has no column with features: " + "; ".join(f"{one.name}: {one.why}" for one in types))
    kept = {role: [one for one in roles[role] if one in columns and one not in words] for role in roles}
    table = TableTransform.fit(frame, context=columns, categorical=kept["category"], dates=kept["date"], words=words)
    offered = np.stack([np.isin(every, of_domain) for of_domain in (ids[0], ids[-1])])
    return Catalogue.fit(every, table.apply(frame), table=table, offered=offered)


def _has_words(name: str, frame: pl.DataFrame) -> bool:
    """True if most texts of a column have several words, and some words occur in several texts, but not in all."""
    if frame[name].dtype != pl.String:
        return False
    listed = sum("|" in text or ";" in text or len(words_of(text)) > 2 for text in frame[name].drop_nulls())
    return 2 * listed > len(frame) and bool(WordsColumn.fit(name, {"": frame}).words)
