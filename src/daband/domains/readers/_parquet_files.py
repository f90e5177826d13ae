"""Parquet files as parts of one log: which they are, what their footers tell, and their rows in frames."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._arrays import AnyArray
from daband._files import checked_path
from daband._lazy_polars import pl
from daband._table_transform import category_text, find_name, first_non_number
from daband.domains.readers._columns import Columns
from daband.errors import DataError, InvalidInput, did_you_mean

_TEXT = (".csv", ".tsv")
_DIGEST_SAMPLES = 16
"""Places of a file whose bytes its digest covers."""
_DIGEST_BYTES = 1 << 16
"""Bytes at each of these places."""
_SAMPLE = 1 << 16  # bytes of a CSV file that tell how it is written
_NULLS = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL"]
_WHOLE = r"[+-]?\d{1,18}"
_POINT = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_THOUSANDS = r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?"


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


def part_name(part: LogPart) -> str:
    """Return the name of a part: its file and its rows."""
    return f"{Path(part.path).resolve()}:{part.start}-{part.stop}"


def part_digests(parts: Iterable[LogPart]) -> dict[str, str]:
    """Return a digest of each part by its ``part_name``: of the file's content, with the part's rows.

    For a large file the digest covers samples and the footer: reading all of it would take as long as learning it.
    """
    files: dict[str, str] = {}
    digests = {}
    for part in parts:
        if part.path not in files:
            size = os.path.getsize(part.path)
            mark = hashlib.sha256(str(size).encode())
            with open(part.path, "rb") as file:
                for start in np.linspace(0, max(0, size - _DIGEST_BYTES), _DIGEST_SAMPLES).astype(np.int64):
                    file.seek(int(start))
                    mark.update(file.read(_DIGEST_BYTES))
            files[part.path] = mark.hexdigest()[:32]
        digests[part_name(part)] = f"{files[part.path]}:{part.start}-{part.stop}"
    return digests


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
            paths, where = sorted(path.glob("*.parquet")), f"the folder {path} has no *.parquet file"
        elif glob.has_magic(str(path)):
            paths = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
            where = f"no file matches {path}"
        else:
            paths, where = [path] if path.exists() else [], f"{path} is not there"
        if not paths:
            raise DataError(f"{where}; a log is a folder of Parquet files, a glob such as logs/*.parquet, or a list")
        return paths
    if not isinstance(log, Sequence) or not log:
        kind = "an empty list" if isinstance(log, Sequence) else type(log).__name__
        frame = "; write the frame to a file first" if hasattr(log, "columns") else ""
        raise InvalidInput(f"log must be a file, a folder, a glob or a list of files, got {kind}{frame}")
    return [checked_path(path, "log") for path in log]


@dataclass(frozen=True)
class LogColumns:
    """The columns of a log that say what was done and what came of it."""

    arm: str = "arm"
    reward: str = "reward"
    propensity: str = "propensity"

    @classmethod
    def of(cls, columns: Columns) -> LogColumns:
        """Those that ``columns`` names."""
        return cls(columns.arm or "arm", columns.reward or "reward", columns.propensity or "propensity")


class PlainLog:
    """The files of a user's log as Parquet files with numbered arms, in which every round has a reward.

    What is so already is taken as it is; of the others a copy is written to ``place``: of CSV files, of arms by their
    names, of columns by names of the user's own (unless ``rename`` is False), of rounds whose reward has not come.
    """

    def __init__(
        self,
        log: str | Path | Sequence[str | Path],
        place: Path,
        named: LogColumns,
        arm_names: Sequence[str] | None,
        *,
        rename: bool = True,
    ) -> None:
        if isinstance(log, str | Path) and checked_path(log, "log").is_dir():
            paths = sorted(path for path in Path(log).iterdir() if path.suffix.lower() in (".parquet", *_TEXT))
            if not paths:
                raise DataError(f"the folder {log} has no *.parquet and no *.csv file")
        else:
            paths = log_files(log)
        self.unrewarded: dict[str, int] = {}
        """By file, how many rounds were left out as they have no reward."""
        self._copies: dict[str, str] = {}
        self._named, self._arm_names, self._rename = named, arm_names, rename
        self.files = [self._plain(path, place / f"{number}-{path.name}.parquet") for number, path in enumerate(paths)]

    def original(self, message: str) -> str:
        """The message with the names of the user's files."""
        for copy, path in self._copies.items():
            if copy in message and path in self.unrewarded:
                message += f" (rows are counted without {self.unrewarded[path]:,} that have no reward)"
            message = message.replace(copy, path)
        return message

    @contextmanager
    def errors_name_originals(self) -> Iterator[None]:
        """Errors name the user's files."""
        try:
            yield
        except (DataError, InvalidInput) as error:
            raise type(error)(self.original(str(error))) from None

    def _plain(self, path: Path, copy: Path) -> Path:
        named = self._named
        text = path.suffix.lower() in _TEXT
        try:
            rows = scan_csv(path) if text else pl.scan_parquet(path)
            schema = dict(rows.collect_schema())
            absent = next((name for name in (named.arm, named.reward, named.propensity) if name not in schema), None)
            if absent is not None:
                raise DataError(
                    f"{path} has no column {absent!r}{did_you_mean(absent, schema)} (its columns: {', '.join(schema)}"
                    "); if it has another name, say so with arm=, reward= or propensity="
                )
            missing, count = rows.select(pl.col(named.reward).null_count(), pl.len().alias("")).collect().row(0)
            if 0 < missing == count:
                raise DataError(f"{path} has no reward yet: fill in the column {named.reward!r} as rewards come")
            numbers = _arm_numbers(rows.select(pl.col(named.arm).unique()).collect(), path, named.arm, self._arm_names)
            roles = ("arm", "reward", "propensity") if self._rename else ()
            renamed = {name: role for role in roles if (name := getattr(named, role)) != role}
            if not (text or missing or numbers or renamed):
                return path
            rows = rows.filter(pl.col(named.reward).is_not_null())
            if numbers is not None:
                rows = rows.with_columns(pl.col(named.arm).replace_strict(numbers, return_dtype=pl.Int64))
            if renamed:
                rows = rows.drop([role for role in renamed.values() if role in schema]).rename(renamed)
            rows.sink_parquet(copy)
        except (pl.exceptions.PolarsError, OSError) as error:
            if isinstance(error, DataError):
                raise
            if not text:
                return path  # whoever opens it says what is wrong, or leaves it out
            raise DataError(f"{path} cannot be read as CSV: {_first_line(error)}") from None
        if missing:
            self.unrewarded[str(path)] = missing
        self._copies[str(copy)] = str(path)
        return copy


def scan_csv(path: Path) -> pl.LazyFrame:
    """The rows of a CSV file, gzipped or not, however a spreadsheet wrote it.

    What 3,854 or 12% means is not guessed: such a column is text. Where a decimal comma says it, 3.854,17 is a number.
    """
    form, skipped = _csv_form(path)
    rows = pl.scan_csv(path, null_values=_NULLS, infer_schema_length=None, skip_rows=skipped, **form)
    names = [name.strip() for name in rows.collect_schema()]
    if len(set(names)) == len(names):
        rows = rows.rename(dict(zip(rows.collect_schema(), names, strict=True)))
    rows = _without_spaces(rows, decimal_comma=form["decimal_comma"])
    return rows.filter(~pl.all_horizontal(pl.all().is_null())) if len(names) > 1 else rows  # lines may be blank


def _csv_form(path: Path) -> tuple[dict[str, Any], int]:
    """How the beginning of a CSV file is written, as polars' options, and how many lines stand before its header.

    Where ; separates, as in much of Europe, numbers may have a decimal comma, and points between their thousands.
    """
    with gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb") as file:
        sample = file.read(_SAMPLE)
        if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{path} is written in UTF-16; save it as UTF-8")
        *lines, last = sample.decode("utf-8-sig", errors="replace").splitlines() or [""]
        lines += [] if file.read(1) else [last]  # the sample may end within a line
    skipped = bool(re.fullmatch(r"sep=.\s*", lines[0])) if lines else False  # a line that Excel writes and reads
    header = lines[skipped] if len(lines) > skipped else last
    separator = ";" if header.count(";") > header.count(",") else ","
    if header.count("\t") > len(re.findall("[,;]", header)) or re.search(r"\.tsv(\.gz)?$", path.name.lower()):
        separator = "\t"
    cells = [cell.strip(' "') for line in lines[1:] for cell in line.split(";")] if separator == ";" else []
    points = any(re.fullmatch(r"[+-]?\d+\.\d+", cell) and not re.fullmatch(_THOUSANDS, cell) for cell in cells)
    commas = not points and any(re.fullmatch(r"[+-]?[\d.]*\d,\d+", cell) for cell in cells)
    return {"separator": separator, "decimal_comma": commas}, int(skipped)


def long_row(path: Path) -> str:
    """Which line of a CSV file has more cells than its header."""
    form, skipped = _csv_form(path)
    with gzip.open(path, "rt") if path.name.lower().endswith(".gz") else open(path, encoding="utf-8") as file:
        lines = csv.reader(file, delimiter=form["separator"])
        header = [next(lines) for _ in range(skipped + 1)][-1]
        number = next((lines.line_num for cells in lines if len(cells) > len(header)), None)
    return f"line {number} has more cells than the header, which has {len(header)}"


def _without_spaces(rows: pl.LazyFrame, *, decimal_comma: bool) -> pl.LazyFrame:
    """Text without spaces around it, and numbers where these, or points between thousands, made text of them."""
    texts = pl.col([name for name, kind in rows.collect_schema().items() if kind == pl.String])
    stripped = texts.str.strip_chars()
    unread = _columns_where(rows, (texts != stripped).any() | decimal_comma)
    rows = rows.with_columns(pl.when(stripped.is_in(_NULLS)).then(None).otherwise(stripped).name.keep())
    number = rf"[+-]?\d+(,\d+)?|{_THOUSANDS}" if decimal_comma else _POINT
    for pattern, kind in ((_WHOLE, pl.Int64), (number, pl.Float64)):
        column = pl.col(unread)
        read = _columns_where(rows, column.str.contains(rf"^({pattern})$").all() & (column.count() > 0))
        digits = pl.col(read)
        if decimal_comma:
            digits = digits.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        rows = rows.with_columns(digits.cast(kind))
        unread = [name for name in unread if name not in read]
    return rows


def _columns_where(rows: pl.LazyFrame, condition: pl.Expr) -> list[str]:
    frame = rows.select(condition).collect()
    return [name for name in frame.columns if frame[name].item()]


def _arm_numbers(column: pl.DataFrame, path: Path, name: str, arm_names: Sequence[str] | None) -> dict[Any, Any] | None:
    """The number of each arm that a log has by its name; None where the log has numbers."""
    column = column.drop_nulls()
    numbers_by_name = {arm: number for number, arm in enumerate(arm_names or ())}
    numbers = {value: find_name(value, numbers_by_name) for value in column[name].to_list()}
    unknown = next((category_text(value) for value, number in numbers.items() if number is None), None)
    if unknown is None:
        return None if all(value == number for value, number in numbers.items()) else numbers
    if column.schema[name].is_numeric():
        return None
    if arm_names is None:
        raise DataError(
            f"{path} has {unknown!r} in the arm's column {name!r}, and the policy does not know its arms by name: set "
            "policy.arm_names = [...], or log their numbers"
        )
    raise DataError(
        f"{path} has {unknown!r} in the arm's column {name!r}, which is no arm{did_you_mean(unknown, numbers_by_name)} "
        f"({', '.join(numbers_by_name)})"
    )


class UnusableFile(DataError):
    """A file that cannot be part of the log; the others may be."""


def read_footer(path: Path) -> tuple[dict[str, Any], int]:
    """The columns' types by name, and the number of rows."""
    if not path.is_file():
        raise UnusableFile(f"{path} is not a file")
    if path.suffix.lower() in _TEXT:
        raise UnusableFile(f"{path} is no Parquet file; a log in CSV is read by daband.domains.from_table")
    with _polars_errors(UnusableFile, f"{path} cannot be read as Parquet"):
        schema = dict(pl.read_parquet_schema(path))
        return schema, int(pl.scan_parquet(path).select(pl.len()).collect().item())


def read_frames(part: LogPart, names: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
    """The rows of a part in frames of at most ``rows`` rows."""
    with _polars_errors(DataError, f"{part.path} is damaged"):
        query = pl.scan_parquet(part.path).select(list(dict.fromkeys(names))).slice(part.start, len(part))
        if hasattr(query, "collect_batches"):
            for frame in query.collect_batches(chunk_size=rows, maintain_order=True):
                for start in range(0, len(frame), rows):
                    yield frame[start : start + rows]
            return
        for start in range(0, len(part), rows):  # polars before 1.34
            yield query.slice(start, rows).collect()


@contextmanager
def _polars_errors(kind: type[DataError], message: str) -> Iterator[None]:
    """Errors of polars and of the disk as ``kind``: the message, and the first line of what went wrong."""
    try:
        yield
    except BaseException as error:
        # A panic is polars' own bug, met on damaged bytes; it is no Exception.
        foreign = isinstance(error, pl.exceptions.PolarsError | OSError) or type(error).__name__ == "PanicException"
        if isinstance(error, DataError) or not foreign:
            raise
        raise kind(f"{message}: {_first_line(error)}") from None


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
                row, value = first_non_number(pl.scan_parquet(path).select(name).collect()[name])
                number = f"{'a whole' if role == 'arm' else 'a'} number"
                raise UnusableFile(
                    f"{path} has {schema[name]} in the {role}'s column {name!r}, {value!r} in row {row}, where "
                    f"{number} is expected"
                )
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
    if dtype.is_integer() or dtype == pl.Boolean:
        return "integer"
    return "float" if dtype.is_numeric() else str(dtype)


def is_list(dtype: Any) -> bool:
    """Whether a column of this type holds lists."""
    return isinstance(dtype, pl.List | pl.Array)


def lists_as_rows(column: pl.Series, length: int, path: str, at: int) -> AnyArray:
    """A column of lists as (n, length)."""
    if isinstance(column.dtype, pl.List):
        wrong = column.list.len().to_numpy() != length
        if wrong.any():
            row = int(np.argmax(wrong))
            count = len(column[row])
            raise DataError(
                f"{path} has {count} numbers in row {at + row} of {column.name!r}, where {length} are expected"
            )
    flat = column.explode()
    if flat.null_count():
        row = int(flat.is_null().arg_max() or 0) // length
        raise DataError(f"{path} has no value in row {at + row} of {column.name!r}; drop or fill such rows")
    return flat.to_numpy().reshape(len(column), length)


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
