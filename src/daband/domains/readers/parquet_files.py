"""Parquet files as parts of one log: which they are, what their footers tell, and their rows in frames."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daband.arrays import AnyArray
from daband.domains.readers.columns import Columns
from daband.errors import DataError, InvalidInput, did_you_mean
from daband.files import checked_path

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "LogFile",
    "LogPart",
    "UnusableFile",
    "check_schema",
    "is_list",
    "lists_as_rows",
    "log_files",
    "read_footer",
    "read_frames",
    "refuse_nulls",
    "refuse_where",
    "resolve_columns",
]


@dataclass(frozen=True)
class LogPart:
    """Rows ``start`` to ``stop - 1`` of one file."""

    path: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.path} (rows {self.start:,} to {self.stop - 1:,})"


@dataclass(frozen=True)
class LogFile:
    """What is known of a file before its rows are read; ``mark`` changes when somebody writes the file anew."""

    path: str
    rows: int
    mark: str


def log_files(log: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that are meant, sorted: those of a folder (``*.parquet``), of a glob, or the ones listed."""
    if isinstance(log, str | Path):
        path = checked_path(log, "log")
        if path.is_dir():
            found, where = sorted(path.glob("*.parquet")), f"the folder {path} has no *.parquet file"
        elif glob.has_magic(str(path)):
            found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
            where = f"no file matches {path}"
        else:
            found, where = [path] if path.exists() else [], f"{path} is not there"
        if not found:
            raise DataError(f"{where}; a log is a folder of Parquet files, a glob such as logs/*.parquet, or a list")
        return found
    if not isinstance(log, Sequence) or not log:
        raise InvalidInput(f"log must be a folder, a glob or a list of Parquet files, got {log!r}")
    return [checked_path(path, "log") for path in log]


class UnusableFile(DataError):
    """A file that cannot be part of the log; the others may be."""


def _polars() -> Any:
    try:
        import polars
    except ImportError:
        raise DataError("Parquet files are read with polars: pip install polars") from None
    return polars


def read_footer(path: Path) -> tuple[dict[str, Any], int]:
    """The columns' types by name, and the number of rows."""
    pl = _polars()
    try:
        if not path.is_file():
            raise UnusableFile(f"{path} is not a file")
        if path.suffix.lower() in (".csv", ".tsv"):
            raise UnusableFile(f"{path} is no Parquet file; a log in CSV is read by daband.domains.from_table")
        schema = dict(pl.read_parquet_schema(path))
        return schema, int(pl.scan_parquet(path).select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, UnusableFile):
            raise
        raise UnusableFile(f"{path} cannot be read as Parquet: {_first_line(error)}") from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # polars' own bug, met on damaged bytes
            raise UnusableFile(f"{path} cannot be read as Parquet: {_first_line(error)}") from None
        raise


def read_frames(part: LogPart, names: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
    """The rows of a part in frames of at most ``rows`` rows."""
    pl = _polars()
    try:
        query = pl.scan_parquet(part.path).select(list(dict.fromkeys(names))).slice(part.start, len(part))
        if hasattr(query, "collect_batches"):
            for frame in query.collect_batches(chunk_size=rows, maintain_order=True):
                for start in range(0, len(frame), rows):
                    yield frame[start : start + rows]
            return
        for start in range(0, len(part), rows):  # polars before 1.34
            yield query.slice(start, rows).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{part.path} is damaged: {_first_line(error)}") from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise DataError(f"{part.path} is damaged: {_first_line(error)}") from None
        raise


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def resolve_columns(columns: Columns | None, schema: dict[str, Any], path: Path) -> Columns:
    """The columns that are meant: those given, or the usual names with every other column as context."""
    if columns is not None:
        if not isinstance(columns, Columns):
            raise InvalidInput(f"columns must be a daband.domains.Columns, got {columns!r}")
        if columns.arm is None or columns.propensity is None:
            raise InvalidInput("columns needs arm, reward and propensity: a log says what was done and what it paid")
        return columns
    logged = ("arm", "reward", "propensity")
    missing = [name for name in logged if name not in schema]
    if missing:
        raise UnusableFile(
            f"{path} has no column {missing[0]!r}{did_you_mean(missing[0], schema)} (its columns: "
            f"{', '.join(schema)}); if it has another name, pass columns=daband.domains.Columns(...)"
        )
    context = tuple(name for name in schema if name not in logged)
    if not context:
        raise UnusableFile(f"{path} has no column besides {', '.join(logged)}: what was the context?")
    return Columns(context=context, arm="arm", reward="reward", propensity="propensity")


def check_schema(path: Path, schema: dict[str, Any], columns: Columns, first: dict[str, Any], *, implied: bool) -> None:
    """Refuse a file whose columns do not mean what those of the first file mean."""
    needed = [*columns.context, columns.arm, columns.reward, columns.propensity]
    for name in needed:
        assert name is not None
        if name not in schema:
            raise UnusableFile(
                f"{path} has no column {name!r}{did_you_mean(name, schema)} (its columns: {', '.join(schema)})"
            )
        kind = _kind(schema[name])
        if kind != _kind(first[name]) and not {kind, _kind(first[name])} <= {"integer", "float"}:
            raise UnusableFile(f"{path} has {schema[name]} in column {name!r}, where the first file has {first[name]}")
        wanted = {"arm": ("integer",), "reward": ("integer", "float"), "propensity": ("integer", "float")}
        for role, allowed in wanted.items():
            if name == getattr(columns, role) and kind not in allowed:
                raise UnusableFile(f"{path} has {schema[name]} in the {role}'s column {name!r}: {allowed[0]} expected")
        if implied and name in columns.context and kind not in ("integer", "float", "list"):
            raise UnusableFile(
                f"{path} has {schema[name]} in column {name!r}, which is no number; name the context columns with "
                "columns=daband.domains.Columns(...)"
            )
    extra = [name for name in schema if name not in first]
    if implied and extra:
        raise UnusableFile(
            f"{path} has a column {extra[0]!r} that the first file has not; name the context columns with "
            "columns=daband.domains.Columns(...)"
        )


def _kind(dtype: Any) -> str:
    """What a type can be used for: integers and floats of any width are alike."""
    if is_list(dtype):
        return "list"
    if dtype.is_integer() or dtype == _polars().Boolean:
        return "integer"
    return "float" if dtype.is_numeric() else str(dtype)


def is_list(dtype: Any) -> bool:
    """Whether a column of this type holds lists."""
    pl = _polars()
    return isinstance(dtype, pl.List | pl.Array)


def lists_as_rows(column: pl.Series, length: int, path: str, at: int) -> AnyArray:
    """A column of lists as (n, length)."""
    pl = _polars()
    if isinstance(column.dtype, pl.List):
        wrong = column.list.len().to_numpy() != length
        if wrong.any():
            row = int(np.argmax(wrong))
            found = len(column[row])
            raise DataError(
                f"{path} has {found} numbers in row {at + row} of {column.name!r}, where {length} are expected"
            )
    flat = column.explode()
    if flat.null_count():
        row = int(flat.is_null().arg_max() or 0) // length
        raise DataError(f"{path} has no value in row {at + row} of {column.name!r}; drop or fill such rows")
    values: AnyArray = flat.to_numpy().reshape(len(column), length)
    return values


def refuse_nulls(frame: pl.DataFrame, names: Sequence[str], path: str, at: int) -> None:
    """Raise where one of these columns has a gap; ``at`` is the frame's first row in the file."""
    for name in names:
        if frame[name].null_count():
            row = at + int(frame[name].is_null().arg_max() or 0)
            raise DataError(f"{path} has no value in row {row} of {name!r}; drop or fill such rows")


def refuse_where(wrong: AnyArray, values: AnyArray, name: str, rule: str, path: str, at: int) -> None:
    """Raise where a value breaks ``rule``; ``at`` is the frame's first row in the file."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{path} has {values[row]} in row {at + row} of {name!r}: {rule}")
