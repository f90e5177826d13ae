"""``from_table``: a pair of what stands in Parquet or CSV files, or in pandas, polars or arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains.contract import About, Pair
from daband.domains.readers.arrays import from_arrays
from daband.domains.readers.logs import from_log
from daband.domains.readers.table_transform import TableTransform, numbers
from daband.domains.splits import require_classes, split_half
from daband.errors import DataError, InvalidInput

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Columns", "from_table", "read_table"]

_NULLS = ["", "NA", "N/A", "NaN", "nan", "null", "NULL"]


@dataclass(frozen=True)
class Columns:
    """Which columns mean what.

    ``context`` are the columns that a policy sees, ``categorical`` those of them that are one-hot. What pays is told
    in one of three ways: ``label`` (the arm named by this column pays 1, every other 0), ``rewards`` (a column per
    arm), or, for a log of another policy, ``arm``, ``reward`` and ``propensity``; a log still needs ``label`` or
    ``rewards`` for the test. None of these may be a context.
    """

    context: tuple[str, ...]
    categorical: tuple[str, ...] = ()
    label: str | None = None
    rewards: tuple[str, ...] = ()
    arm: str | None = None
    reward: str | None = None
    propensity: str | None = None

    def __post_init__(self) -> None:
        for name in ("context", "categorical", "rewards"):
            if isinstance(getattr(self, name), str):
                raise InvalidInput(f"columns.{name} must be a sequence of names, got the text {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.context:
            raise InvalidInput("columns.context must name at least one column")
        strangers = [name for name in self.categorical if name not in self.context]
        if strangers:
            raise InvalidInput(f"columns.categorical names {strangers[0]!r}, which is not one of the context columns")
        if (self.label is None) == (not self.rewards):
            raise InvalidInput("columns needs either a label column or a reward column per arm")
        logged = [self.arm, self.reward, self.propensity]
        if any(logged) and not all(logged):
            raise InvalidInput("a log needs all of columns.arm, columns.reward and columns.propensity")
        for role in ("label", "rewards", "arm", "reward", "propensity"):
            named = getattr(self, role)
            told = [name for name in (named if role == "rewards" else (named,)) if name in self.context]
            if told:
                raise InvalidInput(f"columns.context has {told[0]!r}, which columns.{role} names: no policy may see it")


def from_table(
    *,
    source: Any,
    target: Any,
    target_test: Any = None,
    columns: Columns,
    transform: TableTransform | None = None,
    passes: int = 1,
    name: str = "table",
) -> Pair:
    """A pair made of tables.

    Args:
        source: a path to a .parquet, .csv, .tsv, .arrow or .feather file, or a pandas, polars or arrow table.
        target: the same, of the target; training sees its context columns only.
        target_test: the same, with the label or reward columns; without it, ``target`` must have them, and one half
            of it, the same in every run, is kept for the evaluator.
        columns: which columns mean what.
        transform: a fitted transform, to treat new data as before; by default one is fitted on the context columns of
            the source and of the target that training sees.
        passes: how many times each context may be shown.
        name: what reports call the pair; it also fixes how the target is split.

    The pair's ``feature_names`` tell what the numbers of a context are. Fit and save a transform of your own with
    ``TableTransform.fit(...)`` and ``save`` to use it elsewhere.
    """
    if not isinstance(columns, Columns):
        raise InvalidInput(f"columns must be a daband.domains.Columns, got {columns!r}")
    source_frame, target_frame = read_table(source), read_table(target)
    if target_test is None:
        classes, strata = _classes(source_frame, columns), _strata(target_frame, columns)
        seen, held = split_half(strata, name=name)
        test_frame, target_frame = target_frame[held], target_frame[seen]
        has_rewards = True
    else:
        classes, test_frame = _classes(source_frame, columns), read_table(target_test)
        needed = {columns.label} if columns.label else set(columns.rewards)
        has_rewards = needed <= set(target_frame.columns)
    for frame, what in ((source_frame, "source"), (target_frame, "target"), (test_frame, "target_test")):
        if not len(frame):
            raise DataError(f"the {what} table has no rows")
    if transform is None:
        both = _stacked(source_frame, target_frame, columns)
        transform = TableTransform.fit(both, context=columns.context, categorical=columns.categorical)
    contexts = transform.apply(target_frame)
    test = (transform.apply(test_frame), _pays(test_frame, columns, classes, "target_test"))
    if columns.label and test_frame is not None and not columns.arm:
        require_classes(test[1], classes, where="the target's table")
    paying = (contexts.copy(), _pays(target_frame, columns, classes, "target")) if has_rewards else None
    rest: dict[str, Any] = {
        "target": contexts,
        "target_test": test,
        "target_labelled": paying,
        "n_arms": len(classes),
        "class_names": classes,
        "passes": passes,
        "name": name,
    }
    if columns.arm is None:
        pays = _pays(source_frame, columns, classes, "source")
        pair = from_arrays(source=(transform.apply(source_frame), pays), **rest)
    else:
        pair = from_log(source=_log(source_frame, transform, columns, classes), **rest)
    about = About(summary="tables given by the user", licence="the user's own")
    return replace(pair, about=about, feature_names=transform.feature_names)


def read_table(table: Any) -> pl.DataFrame:
    """Any of the supported tables as a polars frame."""
    try:
        import polars as pl
    except ImportError:
        raise DataError("tables are read with polars: pip install polars") from None
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, pl.LazyFrame):
        return table.collect()
    if isinstance(table, (str, Path)):
        return _read_file(Path(table))
    kind = type(table).__module__.partition(".")[0]
    try:
        if kind == "pandas":
            return pl.from_pandas(table)
        if kind == "pyarrow":
            frame = pl.from_arrow(table)
            assert isinstance(frame, pl.DataFrame)
            return frame
    except ImportError as error:
        raise DataError(f"this {kind} table cannot be read: {error}") from None
    raise InvalidInput(f"a table is a path or a pandas, polars or arrow table, got {type(table).__name__}")


def _read_file(path: Path) -> pl.DataFrame:
    import polars as pl

    readers: dict[str, Any] = {
        ".parquet": pl.read_parquet,
        ".arrow": pl.read_ipc,
        ".feather": pl.read_ipc,
        ".csv": lambda at: pl.read_csv(at, null_values=_NULLS, infer_schema_length=None),
        ".tsv": lambda at: pl.read_csv(at, null_values=_NULLS, infer_schema_length=None, separator="\t"),
    }
    if path.suffix.lower() not in readers:
        raise InvalidInput(f"{path} is not of a known kind ({', '.join(readers)})")
    try:
        frame: pl.DataFrame = readers[path.suffix.lower()](path)
    except FileNotFoundError:
        raise DataError(f"{path} is not there") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from None
    return frame


def _classes(frame: pl.DataFrame, columns: Columns) -> list[str]:
    if columns.rewards:
        return list(columns.rewards)
    if columns.arm is not None:
        return _sorted_values(_values(frame, columns.arm))
    assert columns.label is not None
    return _sorted_values(_values(frame, columns.label))


def _sorted_values(values: list[Any]) -> list[str]:
    try:
        return [str(value) for value in sorted(set(values))]
    except TypeError:
        return sorted({str(value) for value in values})


def _values(frame: pl.DataFrame, name: str) -> list[Any]:
    if name not in frame.columns:
        raise InvalidInput(f"the table has no column {name!r} (its columns: {', '.join(frame.columns)})")
    values = frame[name].to_list()
    if any(value is None for value in values):
        row = next(at for at, value in enumerate(values) if value is None)
        raise DataError(f"column {name!r} has no value in row {row}; drop such rows first")
    return values


def _strata(frame: pl.DataFrame, columns: Columns) -> IntArray:
    """What the split of the target balances: the best arm of every row."""
    if columns.rewards:
        table: IntArray = _reward_table(frame, columns, "target").argmax(axis=1)
        return table
    assert columns.label is not None
    labels: IntArray = np.unique([str(value) for value in _values(frame, columns.label)], return_inverse=True)[1]
    return labels


def _pays(frame: pl.DataFrame, columns: Columns, classes: Sequence[str], where: str) -> AnyArray:
    if columns.rewards:
        return _reward_table(frame, columns, where)
    assert columns.label is not None
    return _positions(_values(frame, columns.label), classes, columns.label, where)


def _positions(values: list[Any], classes: Sequence[str], column: str, where: str) -> IntArray:
    place = {name: at for at, name in enumerate(classes)}
    unknown = next((str(value) for value in values if str(value) not in place), None)
    if unknown is not None:
        raise DataError(
            f"{where} has {unknown!r} in column {column!r}, which the source never has ({', '.join(classes)})"
        )
    return np.array([place[str(value)] for value in values], dtype=np.int64)


def _reward_table(frame: pl.DataFrame, columns: Columns, where: str) -> FloatArray:
    table = np.stack([numbers(frame, name) for name in columns.rewards], axis=1)
    if np.isnan(table).any():
        row, arm = np.argwhere(np.isnan(table))[0]
        raise DataError(f"{where} has no reward in row {row} of column {columns.rewards[arm]!r}")
    return table


def _log(
    frame: pl.DataFrame, transform: TableTransform, columns: Columns, classes: Sequence[str]
) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
    assert columns.arm is not None
    assert columns.reward is not None
    assert columns.propensity is not None
    arms = _positions(_values(frame, columns.arm), classes, columns.arm, "source")
    return transform.apply(frame), arms, numbers(frame, columns.reward), numbers(frame, columns.propensity)


def _stacked(source: pl.DataFrame, target: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """The context columns of both, one below the other, of a type that holds both."""
    import polars as pl

    parts = []
    for frame in (source, target):
        missing = [name for name in columns.context if name not in frame.columns]
        if missing:
            numbers(frame, missing[0])  # raises the error that names the column and the nearest there is
        parts.append(
            frame.select(
                pl.col(name).cast(pl.String) if name in columns.categorical else pl.col(name)
                for name in columns.context
            )
        )
    try:
        return pl.concat(parts, how="vertical_relaxed")
    except pl.exceptions.PolarsError:
        for frame in parts:
            for name in columns.context:
                if name not in columns.categorical:
                    numbers(frame, name)  # raises the error that names the column which is not numeric
        raise
