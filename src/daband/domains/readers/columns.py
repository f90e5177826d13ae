"""Which columns of a table mean what: as a user says it, and as it is inferred from the data."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daband.errors import InvalidInput, did_you_mean
from daband.table_transform import category_texts, parses_as_dates

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ColumnType", "Columns", "column_differences", "infer_columns"]


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
            strangers = [name for name in getattr(self, kind) if name not in self.context]
            if strangers:
                raise InvalidInput(f"columns.{kind} names {strangers[0]!r}, which is not one of the context columns")
        if (self.arm or self.reward or self.propensity) and not (self.arm and self.reward):
            raise InvalidInput("a log needs both columns.arm and columns.reward, and columns.propensity if it has any")
        if (self.label is not None and self.rewards) or not (self.label or self.rewards or self.arm):
            raise InvalidInput("columns needs either a label column or a reward column per arm")
        for role in ("label", "rewards", "arm", "reward", "propensity", "id"):
            named = getattr(self, role)
            told = [name for name in (named if role in ("rewards", "id") else (named,)) if name in self.context]
            if told:
                raise InvalidInput(f"columns.context has {told[0]!r}, which columns.{role} names: no policy may see it")


# What the columns of two tables are, told from their values: numbers, categories, dates, ids, and what is left out.


_ID_NAME = re.compile(r"(^|[_ .-])(id|uuid|guid|key|index|nr|no)$|^unnamed|^$", re.IGNORECASE)
_MOST_CATEGORIES = 50
_ROWS_PER_CATEGORY = 20
"""More than 50 categories with fewer rows than this for each are too many to learn from."""
_UNIQUE = 0.95
"""A share of different values above which text, or whole numbers called an id, name a row."""


_FAR = 2.0
"""Standard deviations between medians, or the logarithm to base 2 of the ratio of spreads, that look like units."""
_NEW_SHARE = 0.01


@dataclass(frozen=True)
class ColumnType:
    """One column: ``role`` is "number", "category", "date", "left out", or "label", "arm", ...; ``why`` says why."""

    name: str
    role: str
    why: str


def infer_columns(
    source: pl.DataFrame,
    target: pl.DataFrame,
    *,
    label: str | None = None,
    arm: str | None = None,
    reward: str | None = None,
    propensity: str | None = None,
    ids: Sequence[str] = (),
    categories: Sequence[str] = (),
    numbers: Sequence[str] = (),
    dates: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> tuple[Columns, list[ColumnType]]:
    """Which columns mean what, and why, for every column of the source in its order.

    ``label``, or ``arm`` and ``reward`` (and ``propensity`` where the log has one) say what arms pay. The others settle
    what inference would decide otherwise.
    """
    if (label is None) == (arm is None):
        raise InvalidInput(
            "name either the label's column (label: which arm is right), or the arm's and the reward's columns of a "
            f"log (arm and reward); the source has {', '.join(source.columns)}"
        )
    said = {
        **dict.fromkeys(drop, ("left out", "dropped, as you say")),
        **dict.fromkeys(ids, ("left out", "an id, as you say")),
        **dict.fromkeys(categories, ("category", "as you say")),
        **dict.fromkeys(numbers, ("number", "as you say")),
        **dict.fromkeys(dates, ("date", "as you say")),
    }
    answers = {"label": label, "arm": arm, "reward": reward, "propensity": propensity}
    said |= {name: (role, "as you say") for role, name in answers.items() if name is not None}
    for name in said:
        if name not in source.columns:
            hint = did_you_mean(name, source.columns)
            raise InvalidInput(f"the source has no column {name!r}{hint} (its columns: {', '.join(source.columns)})")
    types = []
    for name in source.columns:
        role, why = said.get(name) or _infer(name, source, target)
        if role in ("number", "category", "date") and name not in target.columns:
            role, why = "left out", "the target has no such column"
        types.append(ColumnType(name, role, why))
    context = tuple(column.name for column in types if column.role in ("number", "category", "date"))
    if not context:
        raise InvalidInput("no column is left for the context: " + "; ".join(f"{one.name}: {one.why}" for one in types))
    chosen = {role: tuple(one.name for one in types if one.role == role) for role in ("category", "date")}
    return Columns(
        context=context,
        categorical=chosen["category"],
        dates=chosen["date"],
        label=label,
        arm=arm,
        reward=reward,
        propensity=propensity,
        id=tuple(ids) or tuple(one.name for one in types if one.why.startswith("an id")),
    ), types


def _infer(name: str, source: pl.DataFrame, target: pl.DataFrame) -> tuple[str, str]:
    import polars as pl

    parts = [frame[name].drop_nulls() for frame in (source, target) if name in frame.columns]
    parts = [part for part in parts if len(part)]
    rows = sum(len(part) for part in parts)
    if not parts:
        return "left out", "it has no value at all"
    numeric = [part.dtype.is_numeric() or part.dtype == pl.Boolean for part in parts]
    different = len({text for part in parts for text in category_texts(part.to_frame(), name)})
    gaps = sum(frame[name].null_count() for frame in (source, target) if name in frame.columns)
    if different == 1 and not gaps:
        return "left out", "it has the same value in every row"
    names_rows = max(part.n_unique() / len(part) for part in parts) > _UNIQUE
    if all(part.dtype.is_temporal() for part in parts) or (
        not any(numeric) and all(parses_as_dates(part) for part in parts)
    ):
        return "date", "year, and month, weekday and time of day on a circle"
    if all(numeric):
        whole = all(part.dtype.is_integer() for part in parts)
        if whole and _ID_NAME.search(name) and names_rows:
            return "left out", f"an id: {different:,} different whole numbers in {rows:,} rows"
        return "number", f"{different:,} different values" + (f", {gaps:,} missing" if gaps else "")
    if any(numeric):
        return "category", "numbers in one file and text in the other"
    if names_rows and different > _MOST_CATEGORIES // 2:
        return "left out", f"an id or free text: {different:,} different values in {rows:,} rows"
    if different > _MOST_CATEGORIES and rows < _ROWS_PER_CATEGORY * different:
        return "left out", f"too many categories: {different:,} in {rows:,} rows; --category {name} takes it in"
    return "category", f"{different:,} different values" + (f", {gaps:,} missing" if gaps else "")


def column_differences(
    source: pl.DataFrame, target: pl.DataFrame, types: Sequence[ColumnType], *, units: Sequence[str] = ()
) -> list[str]:
    """A line for each column that differs between the domains as if it meant something else there.

    Numbers whose middle or spread is another by far, unless they are in ``units``; categories that only the target has.
    """
    lines = []
    for column in types:
        name = column.name
        if column.role == "number" and name not in units:
            (here, spread), (there, other) = (_middle_and_spread(frame[name]) for frame in (source, target))
            far = abs(here - there) > _FAR * max(min(spread, other), 1e-12)
            if spread > 0 and other > 0 and (far or abs(math.log2(other / spread)) > _FAR):
                lines.append(
                    f"{name}: its median is {here:.4g} in the source and {there:.4g} in the target, its spread "
                    f"{spread:.3g} and {other:.3g}. Another unit? Say so: --units {name}, units=[{name!r}] in Python"
                )
        if column.role == "category":
            known = set(category_texts(source, name))
            texts = [text for text in category_texts(target, name) if text is not None]
            new = [text for text in texts if text not in known]
            if len(new) > _NEW_SHARE * max(1, len(texts)):
                most = Counter(new).most_common(1)[0][0]
                lines.append(
                    f"{name}: {len(new) / len(texts):.0%} of the target's rows have a category that the source never "
                    f"had, such as {most!r}: nothing is learned of it before rewards of the target come"
                )
    return lines


def _middle_and_spread(column: pl.Series) -> tuple[float, float]:
    """The median, and the standard deviation of a normal distribution with the same quartiles."""
    low, middle, high = (column.drop_nulls().cast(float).quantile(share) or 0.0 for share in (0.25, 0.5, 0.75))
    return middle, (high - low) / 1.349
