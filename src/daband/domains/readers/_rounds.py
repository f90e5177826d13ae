"""Read rounds from the rows of a frame (``read_rounds``): of a table, a batch of a log, or a file of
events.

Every column is checked here, and errors name the column and the row of the user's file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from daband.base._arrays import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    check_clusters,
    check_propensities,
    check_rewards,
    check_weights,
    take_chosen,
)
from daband.base._lazy_polars import pl
from daband.errors import DataError, InvalidInput, did_you_mean
from daband.features._costs import ArmCosts
from daband.features._table_transform import (
    find_distinct,
    format_value,
    get_column,
    read_numbers,
    row_number,
)
from daband.rounds._rounds import Guardrail, Rounds

if TYPE_CHECKING:
    from daband.domains.readers._columns import Columns


def read_rounds(
    frame: pl.DataFrame,
    columns: Columns,
    contexts: AnyArray,
    *,
    arm_names: Sequence[str],
    costs: ArmCosts | None = None,
    table_name: object,
) -> Rounds:
    """Return the rounds in a frame after checking every column but the contexts.

    Args:
        frame: the rows of a log.
        columns: the names of its columns by role.
        contexts: the contexts of the rows, (n, *C).
        arm_names: the names of the arms, (K,).
        costs: the costs of arms, which are subtracted from the rewards.
        table_name: the name of the log in error messages, such as its path.
    """
    n = len(frame)
    to_row = partial(row_number, frame)

    def read(name: str | None, check: Callable[[FloatArray], Any]) -> Any:
        """Return a column of numbers after ``check``; None without a column."""
        if name is None:
            return None
        try:
            return check(require_numbers(frame, name, table_name))
        except InvalidInput as error:
            raise DataError(f"{table_name}: column {name!r}: {error}") from None

    arms = read_arms(frame, str(columns.arm), arm_names, table_name)
    rewards = read(columns.reward, lambda values: check_rewards(values, (n,), to_row))
    if costs is not None:
        rewards = rewards - costs.compute(
            arms, lambda name: require_numbers(frame, name, table_name)
        )
    offered = clusters = guardrail = None
    if columns.offered is not None:
        offered = read_offered_arms(frame, columns.offered, arm_names, arms, table_name)
    if columns.cluster is not None:
        values, codes = require_distinct(frame, columns.cluster, table_name)
        names = np.array([format_value(value) for value in values])
        clusters = check_clusters(names, len(names))[codes]  # type: ignore[index]
    if columns.guardrail is not None:
        outcome = require_numbers(frame, columns.guardrail.removeprefix("-"), table_name)
        guardrail = Guardrail(outcome, columns.guardrail_margin, columns.guardrail)
    return Rounds(
        contexts,
        arms,
        rewards,
        read(columns.propensity, lambda values: check_propensities(values, n, to_row)),
        read(columns.weights, lambda values: check_weights(values, n, to_row)),
        offered,
        clusters,
        guardrail=guardrail,
    )


def require_numbers(frame: pl.DataFrame, name: str, table_name: object) -> FloatArray:
    """Return a column of numbers, (n,). Raise an error that names a row if a value is missing or is
    not a number.
    """
    try:
        values = read_numbers(frame, name, is_context=False)
    except (InvalidInput, DataError) as error:
        raise DataError(f"{table_name}: {error}") from None
    if np.isnan(values).any():
        row = row_number(frame, int(np.isnan(values).argmax()))
        raise DataError(
            f"{table_name}: column {name!r} has no value in row {row}; drop or fill such rows"
        )
    return values


def require_distinct(
    frame: pl.DataFrame, name: str, table_name: object = "the table"
) -> tuple[list[Any], IntArray]:
    """Return the distinct values of a column and the index of each row's value, (n,).

    Raise an error if a value is missing.
    """
    column = get_column(frame, name, "")
    check_no_nulls(frame, [name], table_name)
    return find_distinct(column)


def check_no_nulls(frame: pl.DataFrame, names: Sequence[str], table_name: object) -> None:
    """Raise an error if one of these columns has a missing value."""
    for name in names:
        if frame[name].null_count():
            row = row_number(frame, int(frame[name].is_null().arg_max() or 0))
            raise DataError(
                f"{table_name}: column {name!r} has no value in row {row}; drop or fill such rows"
            )


def read_arms(
    frame: pl.DataFrame, column: str, arm_names: Sequence[str], table_name: object
) -> IntArray:
    """Return the arm index of each row, (n,). Raise an error for a value that is not an arm."""
    values, codes = require_distinct(frame, column, table_name)
    index_by_name = {name: index for index, name in enumerate(arm_names)}
    indices = [find_arm_index(value, index_by_name) for value in values]
    if None in indices:
        code = indices.index(None)
        row = row_number(frame, int((codes == code).argmax()))
        arm = format_value(values[code])
        raise DataError(
            f"{table_name} has {arm!r} in column {column!r}, row {row}, which is not an"
            f" arm{did_you_mean(arm, arm_names)} ({', '.join(arm_names)})"
        )
    return np.array(indices, np.int64)[codes]


def find_arm_index(value: Any, index_by_name: Mapping[str, int]) -> int | None:
    """Return the index of the arm with this name, or None.

    True also matches "true", and 1.0 also matches "1".
    """
    name = value.strip() if isinstance(value, str) else format_value(value)
    integer_match = (
        re.fullmatch(r"(-?\d+)(\.0)?", name) if isinstance(value, int | float | str) else None
    )
    spellings = (
        name,
        str(value),
        *((integer_match[1], f"{integer_match[1]}.0") if integer_match else ()),
    )
    matches = list(dict.fromkeys(spelling for spelling in spellings if spelling in index_by_name))
    # Two arm names that differ as texts may be equal as numbers or booleans.
    if len(matches) > 1 and isinstance(value, bool | float):
        raise DataError(
            f"{value!r} may be {matches[0]!r} or {matches[1]!r}, which are two arms; rename one"
        )
    return index_by_name[matches[0]] if matches else None


def read_offered_arms(
    frame: pl.DataFrame, column: str, arm_names: Sequence[str], arms: IntArray, table_name: object
) -> BoolArray:
    """Return a mask (n, K) of the arms that each row lists in a column.

    Raise an error for an unknown arm, and if the chosen arm of a row is not listed.

    Args:
        frame: the rows of the log.
        column: a column of names separated by |, or of lists of names or indices. In a column of
            lists, a row without a list offers all arms.
        arm_names: the names of all arms, (K,).
        arms: the chosen arms, (n,).
        table_name: the name of the table in error messages.
    """
    index_by_name = {arm: index for index, arm in enumerate(arm_names)}
    values, codes = find_distinct(get_column(frame, column, ""))
    masks = np.zeros((len(values), len(arm_names)), np.bool_)
    if not isinstance(frame[column].dtype, pl.List):
        check_no_nulls(frame, [column], table_name)
    for code, value in enumerate(values):
        masks[code] = value is None
        listed_arms = [] if value is None else value
        if not isinstance(listed_arms, list):
            listed_arms = format_value(value).split("|")
        for arm in listed_arms:
            index = find_arm_index(arm, index_by_name)
            if index is None and isinstance(arm, int) and 0 <= arm < len(arm_names):
                index = arm
            if index is None:
                row = row_number(frame, int((codes == code).argmax()))
                problem = f"{table_name} has {arm!r} in column {column!r}, row {row}"
                raise DataError(f"{problem}, which is not an arm ({', '.join(index_by_name)})")
            masks[code, index] = True
    offered = masks[codes]
    invalid_rows = np.flatnonzero(~take_chosen(offered, arms))
    if len(invalid_rows):
        row = row_number(frame, int(invalid_rows[0]))
        arm = arm_names[arms[invalid_rows[0]]]
        raise DataError(f"{table_name}: row {row} has chosen {arm!r}, which {column!r} lacks")
    return offered
