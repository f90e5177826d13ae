"""Which columns of a table mean what: as a user says it, and as it is inferred from the data."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from daband._lazy_polars import pl
from daband._table_transform import category_texts, kind_of_dates, numbers
from daband.errors import InvalidInput, did_you_mean


@dataclass(frozen=True)
class Columns:
    """Which columns mean what.

    ``context`` are the columns that a policy sees, ``categorical`` those of them that are one-hot, ``dates`` those that
    hold dates and become their parts. What arms pay is given in one of three ways: ``label`` (the arm named by this
    column pays 1, every other 0), ``rewards`` (a column per arm), or, for a log of another policy, ``arm``, ``reward``
    and ``propensity`` (without which ``from_table`` estimates propensities). A log may have ``label`` or ``rewards``
    besides: the target's test uses them. ``id`` names rows for people, in the questions of an audit, and may stand in
    rows to decide on. None of these columns may be a context.
    """

    context: tuple[str, ...]
    categorical: tuple[str, ...] = ()
    label: str | None = None
    rewards: tuple[str, ...] = ()
    arm: str | None = None
    reward: str | None = None
    propensity: str | None = None
    dates: tuple[str, ...] = ()
    id: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("context", "categorical", "rewards", "dates", "id"):
            if isinstance(getattr(self, name), str):
                raise InvalidInput(f"columns.{name} must be a sequence of names, got the text {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.context:
            raise InvalidInput("columns.context must name at least one column")
        for kind in ("categorical", "dates"):
            unknown = [name for name in getattr(self, kind) if name not in self.context]
            if unknown:
                raise InvalidInput(f"columns.{kind} names {unknown[0]!r}, which is not one of the context columns")
        if (self.arm or self.reward or self.propensity) and not (self.arm and self.reward):
            raise InvalidInput("a log needs both columns.arm and columns.reward, and columns.propensity if it has any")
        if (self.label is not None and self.rewards) or not (self.label or self.rewards or self.arm):
            raise InvalidInput("columns needs either a label column or a reward column per arm")
        for role in ("label", "rewards", "arm", "reward", "propensity", "id"):
            named = getattr(self, role)
            answers = [name for name in (named if role in ("rewards", "id") else (named,)) if name in self.context]
            if answers:
                raise InvalidInput(
                    f"columns.context has {answers[0]!r}, which columns.{role} names: no policy may see it"
                )


# What the columns of two tables are, told from their values: numbers, categories, dates, ids, and what is left out.


_ID_NAME = re.compile(r"(^|[_ .-])(id|uuid|guid|key|index|nr|no)$|^unnamed|^$", re.IGNORECASE)
_PROPENSITY_NAME = re.compile(
    r"(logged[_ ]?)?(propensity([_ ]?score)?|propensities|p_?score|action[_ ]?prob(ability)?)", re.IGNORECASE
)
_MOST_CATEGORIES = 50
_ROWS_PER_CATEGORY = 20
"""More than 50 categories with fewer rows than this for each are too many to learn from."""
_ROWS_PER_ARM = 3
_UNIQUE = 0.95
"""A share of different values above which text, or whole numbers called an id, name a row."""


_FAR = 2.0
"""Standard deviations between medians, or the logarithm to base 2 of the ratio of deviations, that look like units."""
_NEW_SHARE = 0.01
_CODES = (-99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)
"""Numbers that many tables have where there is no value."""


@dataclass(frozen=True)
class ColumnType:
    """One column: ``role`` is "number", "category", "date", "left out", or "label", "arm", ...; ``why`` says why."""

    name: str
    role: str
    why: str


@dataclass(frozen=True)
class ColumnRoles:
    """What a user says of columns; what is not said is inferred.

    ``label``, or ``arm`` and ``reward`` (and ``propensity`` where the log has one, which is known by its usual names)
    say what arms pay. The others settle what inference would decide otherwise: each is a column's name, or several.
    """

    label: str | None = None
    arm: str | None = None
    reward: str | None = None
    propensity: str | None = None
    id: Sequence[str] = ()
    category: Sequence[str] = ()
    number: Sequence[str] = ()
    date: Sequence[str] = ()
    drop: Sequence[str] = ()
    domain: str | None = None

    def __post_init__(self) -> None:
        for role in ("id", "category", "number", "date", "drop"):
            names = getattr(self, role)
            object.__setattr__(self, role, (names,) if isinstance(names, str) else tuple(names))


def infer_columns(source: pl.DataFrame, target: pl.DataFrame, roles: ColumnRoles) -> tuple[Columns, list[ColumnType]]:
    """Which columns mean what, and why, for every column of the source in its order."""
    if (roles.label is None) == (roles.arm is None):
        raise InvalidInput(
            "name either the label's column (label: which arm is right), or the arm's and the reward's columns of a "
            f"log (arm and reward); the source has {', '.join(source.columns)}"
        )
    if roles.arm is not None and roles.reward is None:
        raise InvalidInput(
            f"arm {roles.arm!r} needs a reward: the column of what the chosen arm paid (--reward COLUMN)"
        )
    given = {
        **dict.fromkeys(roles.drop, ("left out", "dropped, as you say")),
        **({roles.domain: ("left out", "it names the domain, as you say")} if roles.domain else {}),
        **dict.fromkeys(roles.id, ("left out", "an id, as you say")),
        **dict.fromkeys(roles.category, ("category", "as you say")),
        **dict.fromkeys(roles.number, ("number", "as you say")),
        **dict.fromkeys(roles.date, ("date", "as you say")),
    }
    answers = {role: getattr(roles, role) for role in ("label", "arm", "reward", "propensity")}
    given |= {name: (role, "as you say") for role, name in answers.items() if name is not None}
    if roles.arm is not None and roles.propensity is None:
        named = [name for name in source.columns if _PROPENSITY_NAME.fullmatch(name) and name not in given]
        if len(named) == 1 and source[named[0]].dtype.is_numeric():
            answers["propensity"] = named[0]
            given[named[0]] = (
                "propensity",
                f"by its name; --number {named[0]} takes it as context, --drop leaves it out",
            )
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
    for name in source.columns:
        role, why = given.get(name) or _infer(name, source, target)
        if role in ("number", "category", "date") and name not in target.columns:
            role, why = "left out", f"the target has no such column{did_you_mean(name, target.columns)}"
        types.append(ColumnType(name, role, why))
    context = tuple(column.name for column in types if column.role in ("number", "category", "date"))
    if not context:
        raise InvalidInput("no column is left for the context: " + "; ".join(f"{one.name}: {one.why}" for one in types))
    chosen = {role: tuple(one.name for one in types if one.role == role) for role in ("category", "date")}
    return Columns(
        context=context,
        categorical=chosen["category"],
        dates=chosen["date"],
        id=tuple(roles.id) or tuple(one.name for one in types if one.why.startswith("an id")),
        **answers,
    ), types


def _check_answers(source: pl.DataFrame, roles: ColumnRoles) -> None:
    """Refuse what nothing can be learned from: one arm, amounts in the place of arms, one reward in every row."""
    name = roles.label or roles.arm
    assert name is not None
    arms = source[name].drop_nulls()
    if arms.n_unique() == 1:
        raise InvalidInput(f"column {name!r} has one arm alone, {arms[0]!r}: there is nothing to choose from")
    if arms.n_unique() > _MOST_CATEGORIES and len(arms) < _ROWS_PER_ARM * arms.n_unique():
        raise InvalidInput(
            f"column {name!r} has {arms.n_unique():,} different values in {len(arms):,} rows, such as {arms[0]!r}: "
            "these are no arms. What a chosen arm paid is a reward (--arm COLUMN --reward COLUMN)"
        )
    if roles.reward is not None and len(source) > 1 and source[roles.reward].drop_nulls().n_unique() == 1:
        raise InvalidInput(
            f"column {roles.reward!r} has the same reward in every row, {source[roles.reward].drop_nulls()[0]!r}: "
            "nothing tells the arms apart"
        )


def _infer(name: str, source: pl.DataFrame, target: pl.DataFrame) -> tuple[str, str]:
    tables = [frame for frame in ((source,) if target is source else (source, target)) if name in frame.columns]
    parts = [part for part in (frame[name].drop_nulls() for frame in tables) if len(part)]
    rows = sum(len(part) for part in parts)
    if not parts:
        return "left out", "it has no value at all"
    unread = next((kind for part in parts if not ((kind := part.dtype).is_numeric() or kind in _readable())), None)
    if unread is not None:
        return "left out", f"of type {unread}, which is no number, category or date"
    numeric = [part.dtype.is_numeric() or part.dtype == pl.Boolean for part in parts]
    different = len({text for part in parts for text in category_texts(part.to_frame(), name)})
    gaps = sum(frame[name].null_count() for frame in tables)
    if different == 1 and not gaps:
        return "left out", "it has the same value in every row"
    names_rows = max(part.n_unique() / len(part) for part in parts) > _UNIQUE
    dates = {kind_of_dates(part) for part in parts}
    if dates == {"time"}:
        return "date", "time of day on a circle"
    if dates == {"date", "time"}:
        return "left out", "dates in one file and times of day alone in the other"
    if dates == {"date"}:
        grows = f"; it grows from row to row: --drop {name} where it only says when a row was written"
        return "date", "year, and month, weekday and time of day on a circle" + (grows if _grows(parts) else "")
    if all(numeric):
        whole = all(part.dtype.is_integer() for part in parts)
        if whole and _ID_NAME.search(name) and names_rows:
            return "left out", f"an id: {different:,} different whole numbers in {rows:,} rows"
        return "number", f"{different:,} different values" + (f", {gaps:,} missing" if gaps else "")
    mixed = "numbers in one file and text in the other, " if any(numeric) else _unread(parts)
    if names_rows and different > _MOST_CATEGORIES // 2:
        return "left out", f"{mixed or 'an id or free text: '}{different:,} different values in {rows:,} rows"
    if different > _MOST_CATEGORIES and rows < _ROWS_PER_CATEGORY * different:
        return "left out", f"{mixed}too many categories: {different:,} in {rows:,} rows; --category {name} takes it in"
    return "category", f"{mixed}{different:,} different values" + (f", {gaps:,} missing" if gaps else "")


def _readable() -> tuple[Any, ...]:
    """Types of columns, besides numbers, that are read."""
    return (pl.Boolean, pl.String, pl.Categorical, pl.Enum, pl.Date, pl.Datetime, pl.Time)


def _unread(parts: Sequence[pl.Series]) -> str:
    """What texts seem to be that are read as neither numbers nor dates; empty where they are just text."""
    text = str(parts[0][0])
    texts = pl.concat([part.cast(pl.String) for part in parts])
    plain = texts.str.contains(r"^[+-]?\d+([.,]\d+)?$")
    if 0.5 * len(texts) < plain.sum() < len(texts):
        return f"numbers but for texts such as {texts.filter(~plain)[0]!r}, whose cells should be empty; "
    if re.fullmatch(r"\W*\d[\d.,' ]*\s*[^\d\s]{0,3}", text):
        return f"amounts such as {text!r}: write plain numbers to have them read as such; "
    if re.fullmatch(r"\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4}.*", text):
        return f"dates such as {text!r}, which are read as 2024-05-31 or 31.05.2024 alone, "
    return ""


def _grows(parts: Sequence[pl.Series]) -> bool:
    """Whether each part is in order and has more than one value: the moments at which rows were written are."""
    return all(part.is_sorted() and part[0] != part[-1] for part in parts)


def column_differences(
    source: pl.DataFrame, target: pl.DataFrame, types: Sequence[ColumnType], *, units: Sequence[str] = ()
) -> list[str]:
    """A line for each column that differs between the domains as if it meant something else there.

    Numbers with another median or deviation by far, unless they are in ``units``; categories that only the target has;
    values that differ by spaces and capitals alone. And what else looks like a mistake: numbers such as -999 that may
    stand for a missing value, arms of one or two rows, propensities that are all 1.
    """
    lines = []
    for column in types:
        name = column.name
        if column.role == "number":
            lines += _missing_codes(
                name, [frame[name] for frame in ((source,) if target is source else (source, target))]
            )
        if column.role == "propensity" and (source[name].drop_nulls() == 1).all():
            lines.append(
                f"{name}: it is 1 in every row, though several arms were chosen. Where nobody noted probabilities, "
                f"--drop {name}: they are estimated"
            )
        if column.role in ("arm", "label"):
            counts = Counter(text for text in category_texts(source, name) if text is not None)
            rare = sorted(text for text, rows in counts.items() if rows < _ROWS_PER_ARM)
            if rare:
                shown = ", ".join(f"{text!r}: {counts[text]}" for text in rare[:3]) + (", ..." if rare[3:] else "")
                lines.append(
                    f"{name}: arms with fewer than {_ROWS_PER_ARM} rows ({shown}). Little is learned of them, and they "
                    "may be chosen all the same; leave their rows out if they are mistakes"
                )
        if column.role == "number" and name not in units:
            (median, deviation), (other_median, other_deviation) = (
                _median_and_deviation(frame[name]) for frame in (source, target)
            )
            far = abs(median - other_median) > _FAR * max(min(deviation, other_deviation), 1e-12)
            varies = deviation > 0 and other_deviation > 0
            if varies and (far or abs(math.log2(other_deviation / deviation)) > _FAR):
                lines.append(
                    f"{name}: its median is {median:.4g} in the source and {other_median:.4g} in the target, its "
                    f"standard deviation {deviation:.3g} and {other_deviation:.3g}. Another unit? Say so: --units "
                    f"{name}, units=[{name!r}] in Python"
                )
        if column.role in ("category", "arm", "label"):
            spelled: dict[str, str] = {}
            both = [frame for frame in (source, target) if name in frame.columns]
            for text in sorted({text for frame in both for text in category_texts(frame, name) if text is not None}):
                twin = spelled.setdefault(" ".join(text.casefold().split()), text)
                if twin != text:
                    lines.append(
                        f"{name}: {twin!r} and {text!r} are two values; give both one spelling if they mean the same"
                    )
        if column.role == "category":
            source_texts = set(category_texts(source, name))
            texts = [text for text in category_texts(target, name) if text is not None]
            new = [text for text in texts if text not in source_texts]
            if len(new) > _NEW_SHARE * max(1, len(texts)):
                most = Counter(new).most_common(1)[0][0]
                lines.append(
                    f"{name}: {len(new) / len(texts):.0%} of the target's rows have a category that the source never "
                    f"had, such as {most!r}: nothing is learned of it before rewards of the target come"
                )
    return lines


def _missing_codes(name: str, parts: Sequence[pl.Series]) -> list[str]:
    """A line for a number that seems to stand for a missing value: far from all others, or alone below 0."""
    values = Counter(value for part in parts for value in part.drop_nulls().cast(float).to_list())
    lines = []
    for code in _CODES:
        others = [value for value in values if value != code]
        if values[code] < 2 or not others or min(others) <= code <= max(others):
            continue
        away = max(min(others) - code, code - max(others)) > max(others) - min(others)
        if away or code < 0 <= min(others):
            lines.append(
                f"{name}: {code:g} stands in {values[code]:,} rows, and all others lie from {min(others):g} to "
                f"{max(others):g}. If it means that there is no value, leave these cells empty"
            )
    return lines


def _median_and_deviation(column: pl.Series) -> tuple[float, float]:
    """The median, and the standard deviation of a normal distribution with the same quartiles."""
    low, middle, high = (column.drop_nulls().cast(float).quantile(share) or 0.0 for share in (0.25, 0.5, 0.75))
    return middle, (high - low) / 1.349
