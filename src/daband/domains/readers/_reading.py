"""Read tables and log files in the usual formats, and pandas, polars and arrow tables.

``read_table`` reads a table, and ``scan_log_file`` a file of a log. ``tidy_columns`` converts text
columns in the same way for all formats. The functions at the end read the arms of a log.
"""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from daband.base._arrays import count_processors
from daband.base._files import check_path
from daband.base._lazy_polars import pl
from daband.domains._contract import Contexts
from daband.errors import DataError, InvalidInput
from daband.features._table_transform import (
    MISSING_TEXTS,
    NUMBER_PATTERN,
)

#: The files of a log: a file, a folder, a glob, or a list of files.
LogFiles: TypeAlias = str | Path | Sequence[str | Path]
#: The number of bytes at the start of a CSV file from which its format is inferred.
_CSV_SAMPLE_BYTES = 1 << 16
#: Regular expression of an integer of at most 18 digits.
_INTEGER_PATTERN = r"[+-]?(?:0|[1-9][0-9]{0,17})"
#: Regular expression of a number with points between thousands, such as 3.854,17.
_THOUSANDS_PATTERN = r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?"
#: Regular expression of a number with a decimal comma.
_COMMA_NUMBER_PATTERN = rf"[+-]?(?:0|[1-9]\d*)(?:,\d+)?|{_THOUSANDS_PATTERN}"
#: Regular expressions by decimal mark, of numbers whose mark cannot be a thousands separator.
_CLEAR_MARK_PATTERNS = {
    ",": r"^[+-]?0,|\.\d{3},|,\d{1,2}$|,\d{4}",
    ".": r"^[+-]?0?\.|[eE]|\.\d{0,2}$|\.\d{4}",
}
#: Texts are converted by their distinct values if these are at most this fraction of the rows.
_MAX_DISTINCT_FRACTION = 0.5
#: The number of first texts that are tried before all texts of a column.
_N_SAMPLE_TEXTS = 100
#: The smallest integer of more than 18 digits, which may be an id.
_MIN_LONG_INTEGER = 1e18
#: The number of bytes that are searched for blank lines at a time.
_BLOCK_BYTES = 1 << 24
#: Suffixes of files that are read as CSV.
_CSV_SUFFIXES = (".csv", ".tsv")
#: Number of evenly spaced samples of a file from which its digest is computed.
_N_DIGEST_SAMPLES = 16
#: The number of bytes of each sample.
_DIGEST_SAMPLE_BYTES = 1 << 16
#: Minimum number of values of a context column that arms were drawn for.
_MIN_DRAWN_VALUES = 10
#: Minimum fraction of the repeated rows of such values that have the arm of the row before.
_MIN_SAME_FRACTION = 0.95


def read_table(table: Any) -> pl.DataFrame:
    """Return the table in a file, or a pandas, polars or arrow table, as a polars frame with tidy
    columns.

    An arrow table is an object with the method ``__arrow_c_stream__``, such as a relation of DuckDB.
    """
    if isinstance(table, str | Path):
        path = Path(table)
        with convert_polars_errors(f"{path} cannot be read as a table", path):
            return _read_table_file(path)
    library = type(table).__module__.partition(".")[0]
    frame = table
    if library == "pandas":
        _check_unique_names([str(name) for name in table.columns])
        frame = pl.DataFrame(
            [_convert_pandas_column(column, str(name)) for name, column in table.items()]
        )
    elif library != "polars" and hasattr(table, "__arrow_c_stream__"):
        _check_unique_names(getattr(getattr(table, "schema", None), "names", []))
        frame = pl.DataFrame(table)
    if not isinstance(frame, pl.DataFrame | pl.LazyFrame):
        raise InvalidInput(
            f"a table must be a path or a pandas, polars or arrow table, got {type(table).__name__}"
        )
    return tidy_columns(frame.lazy().collect())


def _convert_pandas_column(column: Any, name: str) -> pl.Series:
    """Return a pandas column as a polars series."""
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert(None)  # to UTC, as dates of all tables
    try:
        try:
            return pl.Series(name, pl.from_pandas(column))
        except ImportError:  # pyarrow, which converts categories and nullable types
            return pl.Series(name, column.astype(object).where(column.notna(), None).tolist())
    except (TypeError, ValueError):  # arrow raises either, without the name of the column
        type_names = sorted({type(value).__name__ for value in column})
        raise InvalidInput(
            f"column {name!r} has values of several types ({', '.join(type_names)}); convert it,"
            f" for example by frame[{name!r}].astype(str), or drop it"
        ) from None


def _check_unique_names(names: Sequence[Any]) -> None:
    """Raise an error if two columns have the same name."""
    duplicate_name = next((name for name in names if names.count(name) > 1), None)
    if duplicate_name is not None:
        raise InvalidInput(
            f"the table has two columns named {duplicate_name!r}; rename or drop one of them"
        )


def _read_table_file(path: Path) -> pl.DataFrame:
    """Return the rows of a file with tidy columns."""
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".parquet": pl.read_parquet,
        ".arrow": pl.read_ipc,
        ".feather": pl.read_ipc,
        ".jsonl": pl.read_ndjson,
    }
    suffix = _get_suffix(path)
    if suffix not in (*readers, *_CSV_SUFFIXES):
        suffixes_text = ", ".join((*readers, *_CSV_SUFFIXES))
        raise InvalidInput(
            f"{path} is not of a supported type ({suffixes_text}); save a spreadsheet as CSV"
        )
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    return _read_csv(path) if suffix in _CSV_SUFFIXES else tidy_columns(readers[suffix](path))


def _get_suffix(path: Path) -> str:
    """Return the suffix in lower case, without ".gz"."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _read_csv(path: Path) -> pl.DataFrame:
    """Return the rows of a CSV file, gzipped or not, in any of the usual spreadsheet formats.

    Amounts such as 3,854 or 12% stay text, because they are ambiguous. With decimal commas 3.854,17
    is a number. Blank lines are not rows, unless the file has a single column. Rows of empty cells
    are kept.
    """
    separator, decimal_marks, n_skipped_lines = _infer_csv_format(path)
    query = pl.scan_csv(path, infer_schema=False, skip_rows=n_skipped_lines, separator=separator)
    names = [name.strip().replace('""', '"') for name in query.collect_schema()]
    _check_unique_names(
        [name for name in (re.sub(r"_duplicated_\d+$", "", name) for name in names) if name]
    )
    rows = query.collect()
    rows.columns = names
    if len(names) > 1 and _has_blank_lines(path):
        rows = rows.filter(_find_records(path)[n_skipped_lines + 1 :])
    return tidy_columns(rows, decimal_marks)


def _has_blank_lines(path: Path) -> bool:
    """Return True if a file may have a blank line."""
    end = b"\n"
    with _open_binary(path) as file:
        while block := file.read(_BLOCK_BYTES):
            text = end + block
            if re.search(rb"\n[ \t\r\f\v]*\n", text):
                return True
            end = text[len(text.rstrip()) :]  # a blank line may end in the next block
    return bool(re.search(rb"\n[ \t\r\f\v]+$", end))


def _find_records(path: Path) -> pl.Series:
    """Return False for the blank lines of a CSV file, and True for its other records.

    Blank lines before the first record are not included.
    """
    is_record: list[bool] = []
    is_quoted = False
    with _open_binary(path) as file:
        for line in file:
            if not is_quoted and (is_record or line.strip()):
                is_record.append(bool(line.strip()))
            is_quoted ^= bool(line.count(b'"') % 2)
    return pl.Series(is_record, dtype=pl.Boolean)


def _open_binary(path: Path) -> Any:
    """Open a file, gzipped or not."""
    return gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb")


def tidy_columns(rows: pl.DataFrame, decimal_marks: str = ".") -> pl.DataFrame:
    """Return rows with stripped texts, None for texts that mean a missing value, and converted text
    columns.

    A text column becomes a column of integers, floats or booleans if all its texts can be
    converted. A column with leading zeros stays text. ``decimal_marks`` has the decimal marks of
    the file: "." or ","; with "," numbers are written as 3.854,17. With ",." each column has
    either, and a column for which both are possible stays text.
    """
    texts = [column for column in rows if column.dtype == pl.String]
    with ThreadPoolExecutor(count_processors()) as pool:  # polars does not hold Python's lock
        return rows.with_columns(
            pool.map(lambda column: _convert_column(column, decimal_marks), texts)
        )


def _convert_column(texts: pl.Series, decimal_marks: str) -> pl.Series:
    """Return a text column as ``tidy_columns`` does, by converting its distinct texts."""
    numbers = _read_plain_numbers(texts) if decimal_marks == "." else None
    if numbers is not None:
        return numbers
    distinct = texts.unique()
    if len(distinct) > _MAX_DISTINCT_FRACTION * len(texts):
        return _convert_texts(texts, decimal_marks)
    converted = _convert_texts(distinct, decimal_marks)
    if converted.dtype == pl.String and converted.equals(distinct, null_equal=True):
        return texts
    by_text = pl.DataFrame({"text": distinct, "value": converted})
    rows = texts.alias("text").to_frame()
    joined = rows.join(by_text, on="text", how="left", nulls_equal=True, maintain_order="left")
    return joined["value"].alias(texts.name)


def _read_plain_numbers(texts: pl.Series) -> pl.Series | None:
    """Return a column as integers or floats if every text is a plain number without spaces around
    it, and None otherwise.

    This finds most columns of numbers without a regular expression for each number.
    """
    has_numbers = texts.head(_N_SAMPLE_TEXTS).cast(pl.Float64, strict=False).count() > 0
    numbers = texts.cast(pl.Float64, strict=False) if has_numbers else None
    if numbers is None or numbers.null_count() > texts.null_count():
        return None
    # "nan" is a missing value, and integers of more than 18 digits are ids
    if numbers.is_nan().any() or not (numbers.abs() < _MIN_LONG_INTEGER).all():
        return None
    if texts.str.contains("^[+-]?0[0-9]").any():  # so are numbers with leading zeros
        return None
    if (numbers != numbers.floor()).any() or texts.str.contains("[.eE]").any():
        return numbers
    return texts.cast(pl.Int64)


def _convert_texts(texts: pl.Series, decimal_marks: str) -> pl.Series:
    """Return stripped texts, as numbers or booleans if all of them are."""
    stripped = texts.str.strip_chars()
    texts = stripped.set(stripped.is_in(MISSING_TEXTS), None)
    known_texts = texts.drop_nulls()
    if known_texts.is_empty():
        return texts

    def all_match(pattern: str) -> bool:
        """Return True if every text matches; most columns are decided by a few texts."""
        regex = f"^(?:{pattern})$"
        sample = known_texts.head(_N_SAMPLE_TEXTS)
        return bool(sample.str.contains(regex).all() and known_texts.str.contains(regex).all())

    if all_match(_INTEGER_PATTERN):
        return texts.cast(pl.Int64)
    number_patterns = {",": _COMMA_NUMBER_PATTERN, ".": NUMBER_PATTERN}
    for mark in decimal_marks:
        if not all_match(number_patterns[mark]) or (
            len(decimal_marks) > 1
            and not known_texts.str.contains(_CLEAR_MARK_PATTERNS[mark]).any()
        ):
            continue
        if mark == ",":
            texts = texts.str.replace_all(".", "", literal=True)
            texts = texts.str.replace(",", ".", literal=True)
        return texts.cast(pl.Float64)
    if all_match("(?i:true|false)"):
        return texts.str.to_lowercase() == "true"
    if decimal_marks == ",":  # numbers in text columns get a decimal point, as in other files
        is_number = texts.str.contains(r"^[+-]?(?:0|[1-9]\d*),\d+$")
        texts = texts.str.replace(",", ".").zip_with(is_number.fill_null(False), texts)
    return texts


def _infer_csv_format(path: Path) -> tuple[str, str, int]:
    """Return the separator of a CSV file, its decimal marks (".", "," or both), and the number of
    first lines to skip.

    They are inferred from the start of the file. If the separator is a semicolon, numbers may have
    a decimal comma, and points between thousands.
    """
    with _open_binary(path) as file:
        sample = file.read(_CSV_SAMPLE_BYTES)
        if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{path} is written in UTF-16; save it as UTF-8")
        *lines, last_line = sample.decode("utf-8-sig", errors="replace").splitlines() or [""]
        # drop the last line if the sample ends within it
        lines += [] if file.read(1) else [last_line]
    # Excel writes a line such as sep=;
    n_skipped_lines = int(bool(lines and re.fullmatch(r"sep=.\s*", lines[0])))
    header = lines[n_skipped_lines] if len(lines) > n_skipped_lines else last_line
    separator = ";" if header.count(";") > header.count(",") else ","
    if header.count("\t") > len(re.findall("[,;]", header)) or _get_suffix(path) == ".tsv":
        separator = "\t"
    cells = (
        [cell.strip(' "') for line in lines[1:] for cell in line.split(";")]
        if separator == ";"
        else []
    )
    has_decimal_points = any(
        re.fullmatch(r"[+-]?\d+\.\d+", cell) and not re.fullmatch(_THOUSANDS_PATTERN, cell)
        for cell in cells
    )
    has_decimal_commas = any(
        re.fullmatch(r"[+-]?[\d.]*\d,\d+", cell)
        and (not has_decimal_points or re.search(_CLEAR_MARK_PATTERNS[","], cell))
        for cell in cells
    )
    decimal_marks = "," * has_decimal_commas + "." * has_decimal_points or "."
    return separator, decimal_marks, n_skipped_lines


def _describe_long_row(path: Path) -> str:
    """Return a message about the first line of a CSV file that has more cells than the header."""
    separator, _, n_skipped_lines = _infer_csv_format(path)
    with (
        gzip.open(path, "rt", encoding="utf-8")
        if path.name.lower().endswith(".gz")
        else open(path, encoding="utf-8")
    ) as file:
        rows = csv.reader(file, delimiter=separator)
        header = [next(rows) for _ in range(n_skipped_lines + 1)][-1]
        line_number = next((rows.line_num for cells in rows if len(cells) > len(header)), None)
    return f"line {line_number} has more cells than the header, which has {len(header)}"


@contextmanager
def convert_polars_errors(message: str, path: Path | None = None) -> Iterator[None]:
    """Convert polars and disk errors to a ``DataError`` with ``message`` and the first line of the
    error.

    ``path`` is the CSV file that is read, if there is one; the error then names a line that is too
    long.
    """
    try:
        yield
    except BaseException as error:
        # A damaged file can raise a PanicException of polars, which is not an Exception. A NUL in a
        # file name raises a ValueError.
        is_expected = isinstance(error, pl.exceptions.PolarsError | OSError | ValueError)
        if isinstance(error, DataError | InvalidInput) or not (
            is_expected or type(error).__name__ == "PanicException"
        ):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        reason += "; save it as UTF-8" if "utf-8" in reason else ""
        reason = (
            _describe_long_row(path) if path is not None and "more fields" in reason else reason
        )
        raise DataError(f"{message}: {reason}") from None


# Files and arms of a log.


@dataclass(frozen=True)
class LogPart:
    """A part of a log: rows ``start`` to ``stop - 1`` of one file."""

    #: Path of the file.
    path: str
    #: The first row.
    start: int
    #: The row after the last one.
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def label(self) -> str:
        """The name of the part in messages."""
        return f"{self.path} (rows {self.start:,} to {self.stop - 1:,})"

    @property
    def name(self) -> str:
        """A unique name of the part: its absolute path and its rows."""
        return f"{Path(self.path).resolve()}:{self.start}-{self.stop}"


#: The prefix of the entries of ``Policy.log_parts`` that belong to target logs; ``compute_digests``
#: returns the rest.
TARGET_PREFIX = "target/"


def compute_digests(parts: Iterable[LogPart]) -> dict[LogPart, str]:
    """Return a text "DIGEST:START-STOP" for each part: a digest of its file's content, and the
    range of its rows.

    Only samples and the end of a large file are hashed, because reading all of it takes as long as
    learning it.
    """
    digest_by_path: dict[str, str] = {}
    digests = {}
    for part in parts:
        if part.path not in digest_by_path:
            size = os.path.getsize(part.path)
            hasher = hashlib.sha256(str(size).encode())
            with open(part.path, "rb") as file:
                for start in np.linspace(
                    0, max(0, size - _DIGEST_SAMPLE_BYTES), _N_DIGEST_SAMPLES
                ).astype(np.int64):
                    file.seek(int(start))
                    hasher.update(file.read(_DIGEST_SAMPLE_BYTES))
            digest_by_path[part.path] = hasher.hexdigest()[:32]
        digests[part] = f"{digest_by_path[part.path]}:{part.start}-{part.stop}"
    return digests


def record_log_file(log: Contexts, path: str | Path) -> None:
    """Record the file that a log was read from, so that ``evaluate_log`` rejects it once a policy
    has learned it.
    """
    digests = compute_digests([LogPart(str(path), 0, sys.maxsize)])
    for domain in log.by_name.values():
        domain.log_parts = frozenset(digests.values())  # type: ignore[attr-defined]


def list_log_files(log: LogFiles) -> list[Path]:
    """Return the files of a log: the sorted files of a folder or a glob, or the files of a list in
    their order.
    """
    if isinstance(log, str | Path):
        path = check_path(log, "log")
        suffixes = (".parquet", *_CSV_SUFFIXES)
        if path.is_dir():
            paths = sorted(file for file in path.iterdir() if _get_suffix(file) in suffixes)
            problem = (
                f"the folder {path} has no {' or '.join(f'*{suffix}' for suffix in suffixes)} file"
            )
        elif glob.has_magic(str(path)):
            paths = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
            problem = f"no file matches {path}"
        else:
            paths = [path] if path.exists() else []
            problem = f"{path} does not exist"
        if not paths:
            raise DataError(
                f"{problem}; a log is a folder of Parquet files, a glob such as logs/*.parquet, or"
                " a list"
            )
        return paths
    if not isinstance(log, Sequence) or not log:
        description = "an empty list" if isinstance(log, Sequence) else type(log).__name__
        remedy = "; write the frame to a file first" if hasattr(log, "columns") else ""
        raise InvalidInput(
            f"log must be a file, a folder, a glob or a list of files, got {description}{remedy}"
        )
    return [check_path(path, "log") for path in log]


def scan_log_file(path: Path) -> pl.LazyFrame:
    """Return the rows of a log file as a lazy frame. A CSV file is read into memory."""
    if not path.is_file():
        raise DataError(f"{path} is not a file")
    if _get_suffix(path) in _CSV_SUFFIXES:
        with convert_polars_errors(f"{path} cannot be read as CSV", path):
            return _read_table_file(path).lazy()
    with convert_polars_errors(f"{path} cannot be read as Parquet"):
        rows = pl.scan_parquet(path)
        rows.collect_schema()
    return rows


def describe_repeated_ids(rows: pl.DataFrame, *, is_context: bool = False) -> list[str]:
    """Return a warning if arms were drawn for each id and not for each row, otherwise nothing.

    They were, if two rows of one id have the same arm more often than independent draws would, by
    three standard deviations. Arms may depend on a context, so if the column ``is_context``, nearly
    all rows of a value must have the same arm, and neighbouring values must have the same arm as
    often as by chance. ``rows`` has a column of ids and a column of arms.
    """
    name, arm_name = rows.columns
    rows = rows.drop_nulls().sort(name)
    is_repeated = (rows[name] == rows[name].shift()).fill_null(False)
    n_repeated = len(rows.filter(is_repeated))
    n_same = len(rows.filter(is_repeated & (rows[arm_name] == rows[arm_name].shift())))
    frequencies = rows[arm_name].value_counts()["count"].to_numpy() / max(len(rows), 1)
    chance = float(frequencies @ frequencies)
    first_arms = rows.filter(~is_repeated)[arm_name]

    def exceeds_chance(n_same: int, n: int) -> bool:
        """Return True if more of n rows have the arm of the row before than by chance."""
        return bool(n_same - chance * n > 3.0 * (n * chance * (1.0 - chance)) ** 0.5)

    is_drawn = not is_context or (
        len(first_arms) >= _MIN_DRAWN_VALUES
        and n_same >= _MIN_SAME_FRACTION * n_repeated
        and not exceeds_chance(
            len(first_arms.filter(first_arms == first_arms.shift())), len(first_arms)
        )
    )
    if not is_drawn or not exceeds_chance(n_same, n_repeated):
        return []
    return [
        f"{n_repeated:,} rows repeat a value of {name!r}, {n_same:,} of them with the same arm. If"
        " the arm was drawn for each value, its rows are not independent: standard errors are too"
        " small, and intervals and verdicts are too sure. Name the column as the cluster (--cluster"
        f" {name}, Columns(cluster={name!r}), clusters=)"
    ]
