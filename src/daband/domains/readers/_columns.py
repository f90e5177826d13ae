"""Assign roles to the columns of tables, and read tables of arms.

``Columns`` has the columns by role. ``infer_columns`` infers roles that the user has not stated,
and ``find_notices`` reports possible mistakes in the values. ``read_catalogue`` reads a table of
arms with their features.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from daband.base._arrays import FloatArray, as_numpy
from daband.base._lazy_polars import pl
from daband.domains.readers._reading import describe_repeated_ids, read_table
from daband.errors import DataError, InvalidInput, did_you_mean
from daband.features._catalogue import Catalogue
from daband.features._table_transform import (
    ROW_COLUMN,
    TableTransform,
    WordsColumn,
    as_date,
    count_categories,
    format_value,
    read_numbers,
    split_words,
)


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a table by their role.

    Rewards are given in one of three ways: ``label`` names the right arm, ``rewards`` has a column
    per arm, and the log of another policy has ``arm`` and ``reward``. A log may have ``label`` or
    ``rewards`` as well, for ``target_test``. A column of arms, rewards, propensities or ids cannot
    be a context.
    """

    #: Columns that a policy sees; by default every column without another role.
    context: Sequence[str] = ()
    #: Context columns that are one-hot encoded; columns of texts are without being named.
    categorical: Sequence[str] = ()
    #: Column with the right arm, whose reward is 1. The rewards of all other arms are 0.
    label: str | None = None
    #: Columns with the reward of each arm.
    rewards: Sequence[str] = ()
    #: Column with the logged arm.
    arm: str | None = None
    #: Column with the reward of the logged arm.
    reward: str | None = None
    #: Column with the propensity of the logged arm; without it, ``from_table`` estimates
    #: propensities.
    propensity: str | None = None
    #: Column of the log of ``fit_log`` that states how much each round counts; None if each counts
    #: once.
    weights: str | None = None
    #: Column of a log with the arms that could be chosen, separated by ``|``; None if all could.
    offered: str | None = None
    #: Column of a log with the cluster that arms were drawn for, such as a school or a customer;
    #: None if arms were drawn for each row.
    cluster: str | None = None
    #: Context columns with dates; columns whose type or texts are dates need no mention.
    dates: Sequence[str] = ()
    #: Columns that name a row in the questions of an audit.
    id: Sequence[str] = ()
    #: Encoders of context columns with texts or images: names such as
    #: "words" or "sentence-transformers:all-MiniLM-L6-v2", paths or modules, as in ``from_texts``.
    encoders: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: The cost of arms by name, which is subtracted from rewards: a number, or a column with the
    #: cost in each row. A text names the column of the table of arms, or of a log, with the costs
    #: of all arms.
    costs: Mapping[str, float | str] | str = field(default_factory=dict, hash=False)
    #: Column of a log with a second outcome, which a policy must not make worse; "-returns" if
    #: smaller values are better.
    guardrail: str | None = None
    #: The largest loss of this outcome that is accepted.
    guardrail_margin: float = 0.0

    def __post_init__(self) -> None:
        for role in ("context", "categorical", "rewards", "dates", "id"):
            names = getattr(self, role)
            if isinstance(names, str) or not isinstance(names, Iterable):
                raise InvalidInput(f"columns.{role} must be a sequence of names, got {names!r}")
            object.__setattr__(self, role, tuple(names))
        if not isinstance(self.encoders, Mapping):
            raise InvalidInput(
                f"columns.encoders must be a mapping from columns to encoders, got {self.encoders!r}"
            )
        for role in ("categorical", "dates", "encoders"):
            unknown_name = next(
                (name for name in getattr(self, role) if name not in self.context), None
            )
            if self.context and unknown_name is not None:
                raise InvalidInput(
                    f"columns.{role} names {unknown_name!r}, which is not one of the context"
                    " columns"
                )
        if (self.arm or self.reward or self.propensity) and not (self.arm and self.reward):
            raise InvalidInput(
                "a log needs both columns.arm and columns.reward, and columns.propensity if it"
                " has any"
            )
        if (self.label is not None and self.rewards) or not (
            self.label or self.rewards or self.arm
        ):
            raise InvalidInput("columns needs either a label column or a reward column per arm")
        for role in ("weights", "offered", "cluster", "guardrail"):
            if getattr(self, role) and not self.arm:
                raise InvalidInput(
                    f"columns.{role} is for a log: name columns.arm and columns.reward as well"
                )
        for name, role in self._role_by_name().items():
            if name in self.context:
                raise InvalidInput(
                    f"columns.context has {name!r}, which columns.{role} names: no policy may"
                    " see it"
                )

    def _role_by_name(self) -> dict[str, str]:
        """Return the role of each column that is not a context."""
        role_by_name: dict[str, str] = {}
        for role in (
            *("label", "rewards", "arm", "reward", "propensity", "weights", "offered", "cluster"),
            *("id", "costs", "guardrail"),
        ):
            names = getattr(self, role)
            names = names.values() if isinstance(names, Mapping) else names
            names = [names.removeprefix("-")] if isinstance(names, str) else names or ()
            role_by_name |= dict.fromkeys(names, role)
        return role_by_name

    def with_context(self, names: Iterable[str]) -> Columns:
        """Return columns with a context: the names without another role, unless it is stated."""
        if self.context:
            return self
        others = self._role_by_name()
        context = tuple(name for name in names if name not in others and name != ROW_COLUMN)
        if not context:
            raise InvalidInput("columns.context: no column is left for the context")
        return replace(self, context=context)

    def with_types(self, *frames: pl.DataFrame) -> Columns:
        """Return columns with a context, whose columns of texts and dates in all frames have these
        types unless another is stated.
        """
        first_frame, *others = frames
        columns = self.with_context(
            name for name in first_frame.columns if all(name in frame.columns for frame in others)
        )
        categorical, dates = list(columns.categorical), list(columns.dates)
        for name in columns.context:
            is_stated = name in categorical or name in dates or name in columns.encoders
            if is_stated or not all(name in frame.columns for frame in frames):
                continue
            distinct = [frame[name].unique().drop_nulls() for frame in frames]
            if all(map(_are_dates, distinct)):
                dates.append(name)
            elif all(values.dtype in (pl.String, pl.Categorical, pl.Enum) for values in distinct):
                categorical.append(name)
        return replace(columns, categorical=categorical, dates=dates)


#: Regular expression of the usual names of id columns.
_ID_NAME_REGEX = re.compile(r"(^|[_ .-])(id|uuid|guid|key|index|nr|no)$|^unnamed|^$", re.IGNORECASE)
#: Regular expression of the usual names of propensity columns.
_PROPENSITY_REGEX = re.compile(
    r"(logged[_ ]?)?(propensity([_ ]?score)?|propensities|p_?score|action[_ ]?prob(ability)?)",
    re.IGNORECASE,
)
#: A text column with at most this many distinct values is read as categories, unless it may be an
#: id.
_MAX_CATEGORIES = 50
#: Minimum mean number of rows per category of a text column with more categories.
_MIN_ROWS_PER_CATEGORY = 20
#: Minimum number of rows per arm that is not reported.
_MIN_ROWS_PER_ARM = 3
#: Texts are ids if more than this fraction of their values is distinct. Integers also need the name
#: of an id column.
_MAX_UNIQUE_FRACTION = 0.95
#: Different integers are ids if random integers of their range would have at least this many
#: repetitions on average.
_MIN_EXPECTED_REPETITIONS = 5.0
#: Fewer integers are not enough to tell ids from numbers by their values.
_MIN_IDS = 20
#: Maximum difference between the medians of the domains, in standard deviations, that is not
#: reported.
_MAX_MEDIAN_SHIFT = 2.0
#: Maximum ratio between the standard deviations of the domains that is not reported.
_MAX_STD_RATIO = 4.0
#: Maximum fraction of target rows with new categories that is not reported.
_MAX_NEW_CATEGORY_FRACTION = 0.01
#: Maximum distance of a number from the median, in interquartile ranges, that is not reported.
_MAX_OUTLIER_IQRS = 1e4
#: The smallest integer with more digits than a float represents faithfully.
_MIN_CODE = 10.0**sys.float_info.dig
#: Start of the reason for ignoring a column that only the source has.
NOT_IN_TARGET = "the target has no such column"
#: Numbers that many tables contain in place of missing values.
_MISSING_CODES = (-99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)


@dataclass(frozen=True)
class ColumnRole:
    """The role of a column, and the reason for it."""

    #: Name of the column.
    name: str
    #: "number", "category", "date", "text", "ignored", "label", "arm", "reward", "propensity",
    #: "offered", "cluster", "cost" or "guardrail".
    role: str
    #: Reason for the role, as a phrase.
    reason: str
    #: True if the column identifies rows.
    is_id: bool = False
    #: True if the user should check the role.
    is_notable: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


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


def describe(text: str, default: Any = None) -> Any:
    """Return a dataclass field with a description, which is also the help text of its option on the
    command line.
    """
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class StatedRoles:
    """The roles of columns that a user states. The roles of other columns are inferred.

    One of ``label``, ``rewards``, or ``arm`` and ``reward`` is required. A propensity column is also
    recognised by its usual names.
    """

    label: str | None = describe("The column with the right arm, instead of --arm and --reward.")
    rewards: tuple[str, ...] = describe(
        "Columns with the reward of every arm, if all are known, e.g. gpt-4,mixtral.", ()
    )
    arm: str | None = describe("The column with the chosen arm of a log.")
    reward: str | None = describe("The column with the reward of a log, in any unit.")
    propensity: str | None = describe(
        "The column with the probability of the chosen arm; estimated by default."
    )
    offered: str | None = describe(
        "The column with the arms that could be chosen, separated by |; default: all."
    )
    cluster: str | None = describe(
        "The column that arms were drawn for, e.g. school; default: for each row."
    )
    id: tuple[str, ...] = describe(
        "Columns with ids, not used as context, e.g. customer,order.", ()
    )
    cost: tuple[str, ...] = describe(
        "Costs to subtract from rewards: coupon=2, coupon=COLUMN, or one COLUMN for all arms.", ()
    )
    category: tuple[str, ...] = describe("Columns to read as categories, e.g. city,channel.", ())
    number: tuple[str, ...] = describe("Columns to read as numbers.", ())
    date: tuple[str, ...] = describe("Columns to read as dates.", ())
    drop: tuple[str, ...] = describe("Columns to ignore.", ())
    guardrail: str | None = describe(
        "The column with a second outcome of a log that must not get worse; -COLUMN if less is"
        " better."
    )
    margin: float = describe("The largest loss of the --guardrail that is accepted.", 0.0)
    domain: str | None = describe(
        "The column of --source with the domain of each row; --target is then one of its values."
    )
    text: tuple[str, ...] = describe("Columns of texts for --encoder.", ())
    encoder: str | None = describe(
        "Encode texts by their frequent words (words), or images or texts by a frozen encoder:"
        " timm:NAME, sentence-transformers:NAME, model.onnx."
    )

    def __post_init__(self) -> None:
        for role in fields(self):
            names = getattr(self, role.name)
            if role.default == ():
                object.__setattr__(
                    self, role.name, (names,) if isinstance(names, str) else tuple(names)
                )
        if self.text and not self.encoder:
            raise InvalidInput(
                "text and encoder must be given together: --text COLUMN --encoder NAME"
            )
        if len(self.cost) > 1 and not all("=" in text for text in self.cost):
            raise InvalidInput(
                f"cost must be ARM=COST for each arm, or one column, got {self.cost}"
            )

    def parse_costs(self) -> dict[str, float | str] | str:
        """Return ``cost`` as in ``Columns.costs``."""
        if len(self.cost) == 1 and "=" not in self.cost[0]:
            return self.cost[0]
        costs: dict[str, float | str] = {}
        for text in self.cost:
            arm, _, cost = text.rpartition("=")
            try:
                costs[arm] = float(cost)
            except ValueError:
                costs[arm] = cost
        return costs


def infer_columns(
    source: pl.DataFrame, target: pl.DataFrame, stated: StatedRoles
) -> tuple[Columns, list[ColumnRole]]:
    """Return the columns by role, and the role of every source column with the reason for it.

    ``stated`` has the roles that the user stated.
    """
    if [stated.label is None, stated.arm is None, not stated.rewards].count(False) != 1:
        raise InvalidInput(
            "name either the column with the right arm (label), or the columns with the arm and"
            " the reward of a log (arm and reward), or the columns with the reward of every arm"
            f" (rewards); the source has {', '.join(source.columns)}"
        )
    if stated.arm is not None and stated.reward is None:
        raise InvalidInput(
            f"arm {stated.arm!r} needs a reward: the column with the reward of the chosen arm"
            " (--reward COLUMN)"
        )
    # The stated role of each column, and the reason for it.
    role_and_reason = {
        **dict.fromkeys(stated.drop, ("ignored", "dropped, as stated")),
        **({stated.domain: ("ignored", "it names the domain, as stated")} if stated.domain else {}),
        **dict.fromkeys(stated.id, ("ignored", "an id, as stated")),
        **dict.fromkeys(stated.category, ("category", "as stated")),
        **dict.fromkeys(stated.number, ("number", "as stated")),
        **dict.fromkeys(stated.date, ("date", "as stated")),
        **dict.fromkeys(stated.text, ("text", f"read by {stated.encoder}")),
    }
    feedback_columns = {
        role: getattr(stated, role)
        for role in ("label", "arm", "reward", "propensity", "offered", "cluster")
    }
    role_and_reason |= {
        name: (role, "as stated") for role, name in feedback_columns.items() if name is not None
    }
    guardrail = stated.guardrail
    if guardrail is not None:
        role_and_reason[guardrail.removeprefix("-")] = ("guardrail", "as stated")
    costs = stated.parse_costs()
    cost_columns = [costs] if isinstance(costs, str) else costs.values()
    is_cost = [isinstance(name, str) and name in source.columns for name in cost_columns]
    role_and_reason |= {
        str(name): ("cost", "as stated")
        for name, is_column in zip(cost_columns, is_cost, strict=True)
        if is_column
    }
    role_and_reason |= dict.fromkeys(stated.rewards, ("reward", "as stated"))
    if stated.arm is not None and stated.propensity is None:
        other_columns = [name for name in source.columns if name not in role_and_reason]
        candidates = [name for name in other_columns if _PROPENSITY_REGEX.fullmatch(name)]
        if len(candidates) == 1 and source[candidates[0]].dtype.is_numeric():
            feedback_columns["propensity"] = candidates[0]
            reason = f"by its name; --number {candidates[0]} makes it a context, --drop ignores it"
            role_and_reason[candidates[0]] = ("propensity", reason)
    for name in role_and_reason:
        if name not in source.columns and not (name in stated.id and name in target.columns):
            hint = did_you_mean(name, source.columns)
            raise InvalidInput(
                f"the source has no column {name!r}{hint} (its columns:"
                f" {', '.join(source.columns)})"
            )
    _check_arms_and_rewards(source, stated)
    for name in stated.number:
        for table_name, frame in (("source", source), ("target", target)):
            if name in frame.columns:
                read_numbers(frame, name, table_name=table_name)
    column_roles = []
    for name in (name for name in source.columns if name != ROW_COLUMN):
        column = _infer_role(name, source, target)
        if name in role_and_reason:
            column = ColumnRole(name, *role_and_reason[name], is_id=name in stated.id)
        elif stated.id:
            column = replace(column, is_id=False)
        if column.role in ("number", "category", "date", "text") and name not in target.columns:
            hint = did_you_mean(name, target.columns)
            column = ColumnRole(name, "ignored", f"{NOT_IN_TARGET}{hint}", is_notable=bool(hint))
        is_discrete = column.role == "category" or source[name].dtype.is_integer()
        may_be_cluster = column.is_id or (is_discrete and name not in role_and_reason)
        if (
            stated.arm is not None
            and feedback_columns["cluster"] is None
            and may_be_cluster
            and describe_repeated_ids(source.select(name, stated.arm), is_context=True)
        ):
            feedback_columns["cluster"] = name
            reason = "all rows of a value have the same arm, so arms were drawn for each value"
            column = ColumnRole(name, "cluster", reason, is_id=column.is_id, is_notable=True)
        column_roles.append(column)
    context_columns = [
        column for column in column_roles if column.role in ("number", "category", "date", "text")
    ]
    if not context_columns:
        raise InvalidInput(f"no column can be used as context: {_list_reasons(column_roles)}")
    categorical, dates, texts = (
        [column.name for column in context_columns if column.role == role]
        for role in ("category", "date", "text")
    )
    ids = tuple(stated.id) or tuple(column.name for column in column_roles if column.is_id)
    context = [column.name for column in context_columns]
    encoders = dict.fromkeys(texts, stated.encoder)
    columns = Columns(
        context,
        categorical,
        dates=dates,
        id=ids,
        encoders=encoders,
        rewards=stated.rewards,
        costs=costs,
        guardrail=guardrail,
        guardrail_margin=stated.margin,
        **feedback_columns,
    )
    return columns, column_roles


def describe_missing_clusters(log: pl.DataFrame, columns: Columns) -> list[str]:
    """Return a warning for each id, category and integer of a log that arms were drawn for, if the
    log has no clusters.
    """
    texts: list[str] = []
    for name in dict.fromkeys((*columns.id, *columns.context)):
        is_id = name in columns.id
        is_checked = name in log.columns and (
            is_id or name in columns.categorical or log[name].dtype.is_integer()
        )
        if is_checked and columns.arm and columns.cluster is None:
            texts += describe_repeated_ids(log.select(name, columns.arm), is_context=not is_id)
    return texts


def _list_reasons(column_roles: Sequence[ColumnRole]) -> str:
    """Return a text with the reason for the role of each column."""
    return "; ".join(map(str, column_roles))


def _check_arms_and_rewards(source: pl.DataFrame, stated: StatedRoles) -> None:
    """Raise an error if the column of arms has one value or too many, or if all rewards are
    equal.
    """
    name = stated.label or stated.arm
    if name is None:
        return
    arms = source[name].drop_nulls()
    if arms.n_unique() == 1:
        raise InvalidInput(
            f"column {name!r} has only one arm, {arms[0]!r}: there is nothing to choose from"
        )
    if arms.n_unique() > _MAX_CATEGORIES and len(arms) < _MIN_ROWS_PER_ARM * arms.n_unique():
        raise InvalidInput(
            f"column {name!r} has {arms.n_unique():,} different values in {len(arms):,} rows, such"
            f" as {arms[0]!r}: these are not arms. For a log, use --arm COLUMN --reward COLUMN"
        )
    rewards = None if stated.reward is None else source[stated.reward].drop_nulls()
    if rewards is not None and len(source) > 1 and rewards.n_unique() == 1:
        problem = f"column {stated.reward!r} has the same reward in every row, {rewards[0]!r}"
        raise InvalidInput(f"{problem}: no arm is better than another")


def _infer_role(name: str, source: pl.DataFrame, target: pl.DataFrame) -> ColumnRole:
    """Return the role that the values and the name of a column suggest."""
    frames = [
        frame
        for frame in ((source,) if target is source else (source, target))
        if name in frame.columns
    ]
    series = [values for values in (frame[name].drop_nulls() for frame in frames) if len(values)]
    n_rows = sum(len(values) for values in series)
    if not series:
        return ColumnRole(name, "ignored", "it has no value at all")
    dtypes = [values.dtype for values in series]
    readable = (pl.Boolean, pl.String, pl.Categorical, pl.Enum, pl.Date, pl.Datetime)
    unreadable_dtypes = [dtype for dtype in dtypes if not (dtype.is_numeric() or dtype in readable)]
    if unreadable_dtypes:
        return ColumnRole(
            name,
            "ignored",
            f"of type {unreadable_dtypes[0]}, which is not a number, category or date",
        )
    # Numbers have at most 15 digits. Longer integers are codes, which are texts.
    are_codes = any(
        values.dtype.is_integer() and (values.cast(pl.Float64).abs() >= _MIN_CODE).any()
        for values in series
    )
    are_numeric = [
        not are_codes and (values.dtype.is_numeric() or values.dtype == pl.Boolean)
        for values in series
    ]
    distinct = [values.unique() for values in series]
    n_distinct = pl.concat(
        [values.cast(pl.Float64 if all(are_numeric) else pl.String) for values in distinct]
    ).n_unique()
    n_missing = sum(frame[name].null_count() for frame in frames)
    description = f"{n_distinct:,} different values" + (
        f", {n_missing:,} missing" if n_missing else ""
    )
    if n_distinct == 1 and not n_missing:
        return ColumnRole(name, "ignored", "it has the same value in every row")
    unique_fractions = [len(d) / len(v) for d, v in zip(distinct, series, strict=True)]
    identifies_rows = max(unique_fractions) > _MAX_UNIQUE_FRACTION
    if all(map(_are_dates, distinct)):
        is_sorted = all(values.is_sorted() and values[0] != values[-1] for values in series)
        hint = (
            f"; it increases from row to row, use --drop {name} if it is the time of logging"
            if is_sorted
            else ""
        )
        return ColumnRole(
            name, "date", f"year, and sine and cosine of month, weekday and time of day{hint}"
        )
    if all(are_numeric):
        are_integers = all(values.dtype.is_integer() for values in series)
        if are_integers and _ID_NAME_REGEX.search(name) and identifies_rows:
            reason = f"an id: {n_distinct:,} different integers in {n_rows:,} rows"
            return ColumnRole(name, "ignored", reason, is_id=True)
        if are_integers and _are_row_numbers(series):
            reason = (
                f"an id: {n_distinct:,} integers in {n_rows:,} rows, all different within a file;"
                f" --number {name} makes it a context"
            )
            return ColumnRole(name, "ignored", reason, is_id=True, is_notable=True)
        return ColumnRole(name, "number", description)
    remark = "" if are_codes else _describe_texts(series)
    if any(are_numeric):
        remark = "numbers in one file and text in the other, "
    if identifies_rows and n_distinct > _MAX_CATEGORIES // 2:
        reason = (
            f"{remark or 'an id or free text: '}{n_distinct:,} different values in {n_rows:,} rows"
        )
        return ColumnRole(name, "ignored", reason, is_id=not remark, is_notable=bool(remark))
    if n_distinct > _MAX_CATEGORIES and n_rows < _MIN_ROWS_PER_CATEGORY * n_distinct:
        reason = (
            f"{remark}too many categories: {n_distinct:,} in {n_rows:,} rows; --category {name}"
            " uses it"
        )
        return ColumnRole(name, "ignored", reason, is_notable=bool(remark))
    return ColumnRole(name, "category", f"{remark}{description}", is_notable=bool(remark))


def _are_row_numbers(series: Sequence[pl.Series]) -> bool:
    """Return True if integers identify rows: no file repeats one, and they are either (nearly)
    consecutive, or in another range in each file.

    Measurements with so many values in a range, such as ages, would repeat some of them.
    """
    if any(len(values) < _MIN_IDS or values.n_unique() < len(values) for values in series):
        return False
    columns = [values.cast(pl.Int64).to_numpy() for values in series]
    both = np.concatenate(columns)
    if len(np.unique(both)) == len(both):
        first, *others = sorted(columns, key=np.min)
        if others and first.max() < others[0].min():
            return True
        columns = [both]
    return all(
        len(column) ** 2 / (2 * (column.max() - column.min() + 1)) >= _MIN_EXPECTED_REPETITIONS
        for column in columns
    )


def _are_dates(values: pl.Series) -> bool:
    """Return True if all values of a column are dates."""
    if values.dtype != pl.String:
        return values.dtype.base_type() in (pl.Date, pl.Datetime)
    if values.is_empty():
        return False
    try:
        return all(len(value) >= 8 and as_date(value, values.name) for value in values)
    except InvalidInput:
        return False


def _describe_texts(series: Sequence[pl.Series]) -> str:
    """Return a phrase about texts that look like numbers or dates but stay texts, or "" for other
    texts.
    """
    example = str(series[0][0])
    texts = pl.concat([values.cast(pl.String) for values in series])
    is_number = texts.str.contains(r"^[+-]?\d+([.,]\d+)?$")
    if 0.5 * len(texts) < is_number.sum() < len(texts):
        return (
            f"numbers, except for texts such as {texts.filter(~is_number)[0]!r} (leave such cells"
            " empty); "
        )
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
    column_roles: Sequence[ColumnRole],
    *,
    units: Sequence[str] = (),
    domain: str | None = None,
) -> list[Notice]:
    """Return notices about possible mistakes, and about columns that may have another meaning in
    the target.

    A notice is returned for:

    * numbers with a very different median or standard deviation in the target, unless they are in
      ``units``;
    * categories that only the target has;
    * values that differ only in capitals or spaces;
    * numbers such as -999 that may mean a missing value;
    * a number that is extremely far from the others;
    * arms with one or two rows;
    * source rows with the id of an earlier row, of the same domain if ``domain`` names a column of
    domains.
    """
    notices = []
    id_columns = [
        column.name for column in column_roles if column.is_id and column.name in source.columns
    ]
    rows_with_id = source.select(
        [*id_columns, *([domain] if domain and id_columns else [])]
    ).drop_nulls()
    n_repeated = len(rows_with_id) - rows_with_id.n_unique() if id_columns else 0
    if n_repeated:
        problem = f"{n_repeated:,} of {len(source):,} source rows repeat an earlier row's value"
        remedy = "Remove rows that are there twice by mistake: they make errors look smaller"
        notices.append(Notice(", ".join(id_columns), f"{problem}. {remedy}", needs_decision=True))
    frames = (source,) if target is source else (source, target)
    for column in column_roles:
        name = column.name
        if column.role == "number":
            numbers = np.concatenate([read_numbers(frame, name) for frame in frames])
            notices += find_missing_codes(name, numbers) or _find_outlier(name, numbers)
            if name not in units:
                notices += _find_unit_change(
                    name, read_numbers(source, name), read_numbers(target, name)
                )
        if column.role == "reward":
            notices += find_missing_codes(name, read_numbers(source, name, is_context=False))
        if column.role not in ("category", "arm", "label"):
            continue
        counts_by_frame = [
            Counter(
                {text: n for text, n in count_categories(frame, name).items() if text is not None}
            )
            for frame in frames
            if name in frame.columns
        ]
        source_counts = counts_by_frame[0]
        target_counts = counts_by_frame[-1]
        first_spellings: dict[str, str] = {}
        for value in sorted({*source_counts, *target_counts}):
            spelling = first_spellings.setdefault(" ".join(value.casefold().split()), value)
            if spelling != value:
                problem = f"{spelling!r} and {value!r} are two values"
                notices.append(Notice(name, f"{problem}; if they mean the same, use one spelling"))
        rare_arms = sorted(
            value for value, count in source_counts.items() if count < _MIN_ROWS_PER_ARM
        )
        if column.role != "category" and rare_arms:
            examples = ", ".join(f"{arm!r}: {source_counts[arm]}" for arm in rare_arms[:3])
            problem = (
                f"arms with fewer than {_MIN_ROWS_PER_ARM} rows"
                f" ({examples}{', ...' if rare_arms[3:] else ''})"
            )
            remedy = (
                "They may be chosen, although little is known about them; drop these rows if they"
                " are mistakes"
            )
            notices.append(Notice(name, f"{problem}. {remedy}"))
        new_counts = Counter(
            {value: n for value, n in target_counts.items() if value not in source_counts}
        )
        new_fraction = new_counts.total() / max(1, target_counts.total())
        if column.role == "category" and new_fraction > _MAX_NEW_CATEGORY_FRACTION:
            example = new_counts.most_common(1)[0][0]
            problem = (
                f"{new_fraction:.0%} of target rows have a category that the source lacks, such as"
                f" {example!r}"
            )
            notices.append(Notice(name, f"{problem}; only target rewards show its effect"))
    return notices


def _find_unit_change(
    name: str, source_numbers: FloatArray, target_numbers: FloatArray
) -> list[Notice]:
    """Return a notice if the medians or standard deviations differ so much that the units may
    differ.
    """
    if np.isnan(source_numbers).all() or np.isnan(target_numbers).all():
        return []
    source_low, source_median, source_high = np.nanquantile(source_numbers, (0.25, 0.5, 0.75))
    target_low, target_median, target_high = np.nanquantile(target_numbers, (0.25, 0.5, 0.75))
    # These are the standard deviations of normal distributions with the same quartiles.
    source_std = (source_high - source_low) / 1.349
    target_std = (target_high - target_low) / 1.349
    if not (source_std > 0 and target_std > 0):
        return []
    difference = abs(source_median - target_median)
    std_ratio = max(target_std / source_std, source_std / target_std)
    if (
        difference <= _MAX_MEDIAN_SHIFT * min(source_std, target_std)
        and std_ratio <= _MAX_STD_RATIO
    ):
        return []
    message = (
        f"its median is {source_median:.4g} in the source and {target_median:.4g} in the target,"
        f" its standard deviation {source_std:.3g} and {target_std:.3g}. If its unit differs, use"
        f" --units {name}, or units=[{name!r}] in Python"
    )
    return [Notice(name, message, needs_decision=True)]


def find_missing_codes(name: str, numbers: FloatArray) -> list[Notice]:
    """Return notices about numbers that may mean a missing value: far from all others, or the only
    one below 0.
    """
    notices = []
    for code in _MISSING_CODES:
        others = numbers[(numbers != code) & ~np.isnan(numbers)]
        count = np.count_nonzero(numbers == code)
        if count < 2 or not len(others) or others.min() <= code <= others.max():
            continue
        is_far = max(others.min() - code, code - others.max()) > others.max() - others.min()
        if is_far or code < 0 <= others.min():
            problem = (
                f"{code:g} is in {count:,} rows, all others are between {others.min():g} and"
                f" {others.max():g}"
            )
            remedy = "If it means a missing value, leave these cells empty"
            notices.append(Notice(name, f"{problem}. {remedy}", needs_decision=True))
    return notices


def _find_outlier(name: str, numbers: FloatArray) -> list[Notice]:
    """Return a notice for the number that is farthest from the median, if it is extremely far."""
    known = numbers[~np.isnan(numbers)]
    low, median, high = np.quantile(known, (0.25, 0.5, 0.75)) if len(known) else np.zeros(3)
    if high == low or np.abs(known - median).max() <= _MAX_OUTLIER_IQRS * (high - low):
        return []
    outlier = known[np.abs(known - median).argmax()]
    message = (
        f"{outlier:g} is extremely far from its median, {median:g}; in training it is clipped."
        " Leave the cell empty if it is a mistake"
    )
    return [Notice(name, message, needs_decision=True)]


def find_id_column(frame: pl.DataFrame, arm_column: str) -> str:
    """Return the column with the names of arms in a table of arms."""
    return next((name for name in ("id", arm_column) if name in frame.columns), frame.columns[0])


def read_catalogue(arms: Any, arm_column: str, *, names: Sequence[str] | None = None) -> Catalogue:
    """Read a table of arms. Return the catalogue of arms with their features.

    Args:
        arms: a table with a row per arm, a mapping {"source": table, "target": table}, or features
            (K, m). A ``Catalogue`` is returned unchanged.
        arm_column: the name of the arm column in the log. The column of arm ids is the one called
            "id", or else the one with this name, or else the first.
        names: names of the arms if ``arms`` is an array.
    """
    if isinstance(arms, Catalogue):
        return arms
    if isinstance(arms, np.ndarray):
        feature_array = as_numpy(arms, "arms").astype(np.float64)
        if feature_array.ndim != 2 or not np.isfinite(feature_array).all():
            raise InvalidInput(
                f"arms must be finite numbers (K, m), or a table, got shape {feature_array.shape}"
            )
        return Catalogue.fit(
            names or [str(index) for index in range(len(feature_array))], feature_array
        )
    if isinstance(arms, Mapping) and set(arms) != {"source", "target"}:
        raise InvalidInput(
            f'arms must be a table, or {{"source": table, "target": table}}, got {list(arms)}'
        )
    tables = [arms["source"], arms["target"]] if isinstance(arms, Mapping) else [arms]
    frames = []
    ids_by_frame = []
    for frame in map(read_table, tables):
        id_column = find_id_column(frame, arm_column)
        ids = [
            None if value is None else format_value(value) for value in frame[id_column].to_list()
        ]
        if None in ids or len(set(ids)) < len(ids) or not ids:
            raise DataError(f"arms: column {id_column!r} must have a different name in every row")
        frames.append(frame.drop(id_column))
        ids_by_frame.append([str(arm_id) for arm_id in ids])
    source_ids = ids_by_frame[0]
    target_ids = ids_by_frame[-1]
    known_ids = set(ids_by_frame[0])
    new_rows = [row for row, arm_id in enumerate(target_ids) if arm_id not in known_ids]
    all_ids = [*source_ids, *(target_ids[row] for row in new_rows)]
    common_columns = [name for name in frames[0].columns if name in frames[-1].columns]
    source_frame = frames[0].select(common_columns)
    target_frame = frames[-1].select(common_columns)
    all_arms = pl.concat([source_frame, target_frame[new_rows]], how="vertical_relaxed")
    column_roles = [_infer_role(name, all_arms, all_arms) for name in common_columns]
    word_columns = [
        column.name
        for column in column_roles
        if column.role in ("category", "ignored") and _has_words(column.name, all_arms)
    ]
    number_columns, date_columns, category_columns = (
        [
            column.name
            for column in column_roles
            if column.role == role and column.name not in word_columns
        ]
        for role in ("number", "date", "category")
    )
    # A category that no two arms share is uninformative about other arms.
    category_columns = [
        name for name in category_columns if all_arms[name].drop_nulls().is_duplicated().any()
    ]
    feature_columns = [
        name
        for name in common_columns
        if name in {*number_columns, *date_columns, *category_columns}
    ] + word_columns
    if not feature_columns:
        raise InvalidInput(
            f"arms has no column that can be used as a feature: {_list_reasons(column_roles)}"
        )
    transform = TableTransform.fit(
        all_arms,
        context=feature_columns,
        categorical=category_columns,
        dates=date_columns,
        words=word_columns,
    )
    offered = np.stack([np.isin(all_ids, source_ids), np.isin(all_ids, target_ids)])
    return Catalogue.fit(all_ids, transform.apply(all_arms), table=transform, offered=offered)


def _has_words(name: str, frame: pl.DataFrame) -> bool:
    """Return True if most texts of a column are lists of words, some of which occur in several but
    not all texts.
    """
    if frame[name].dtype != pl.String:
        return False
    n_lists = sum(
        "|" in text or ";" in text or len(split_words(text)) > 2
        for text in frame[name].drop_nulls()
    )
    return 2 * n_lists > len(frame) and bool(WordsColumn.fit(name, {"": frame}).words)
