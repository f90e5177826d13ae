"""A user's own files as a pair: two tables (CSV, Parquet, ...) or two folders of pictures, by their paths.

Its options can stand in a TOML file, so that every command that takes a preset takes files. ``daband choose --source
old.csv --target new.csv ...`` writes such a file.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from daband._arguments import RewardRange
from daband._lazy_polars import pl
from daband._shift import ShiftLike
from daband._table_transform import CategoricalColumn, DateColumn, TableTransform
from daband.domains._contract import About, Pair
from daband.domains._registry import register_pair
from daband.domains.readers._columns import ColumnRoles, Columns, ColumnType, column_differences, infer_columns
from daband.domains.readers._image_folder import from_image_folder
from daband.domains.readers._tables import from_table, read_table
from daband.errors import DataError, InvalidInput

PICTURE_SIDE = 32
"""Pixels a side of a user's pictures: with 64, one candidate of ``choose`` takes more than ten minutes on a CPU."""
_READ_WHOLE = 1 << 28  # bytes; of a larger file, size and time stand for its content


@dataclass(frozen=True)
class FilesRead:
    """Two tables and what their columns are."""

    source: pl.DataFrame
    target: pl.DataFrame
    columns: Columns
    types: list[ColumnType]
    rows: list[int]
    """Where each row of ``source`` stands in its file."""

    @contextmanager
    def errors_name_rows_of_the_file(self) -> Iterator[None]:
        """Errors that name a row of the source, from which rows were left out, name that of the file."""
        try:
            yield
        except (DataError, InvalidInput) as error:
            if "target" in str(error):
                raise
            text = re.sub(r"\brow (\d+)", lambda row: f"row {self.rows[int(row[1])]}", str(error))
            raise type(error)(text) from None


def read_files(source: str, target: str, roles: ColumnRoles, *, domain: str = "") -> FilesRead:
    """The tables at these paths, and what their columns are.

    With ``domain``, a column of the one table at ``source``, the target is the rows whose value ``target`` names.
    Source rows whose reward or label is missing, which may come later, are left out; the column's reason says so.
    """
    old = read_table(_existing(source, "source"))
    rows = np.arange(len(old))
    if domain:
        if domain not in old.columns:
            raise InvalidInput(f"{source} has no column {domain!r} (its columns: {', '.join(old.columns)})")
        of_target = np.array([str(value) in _targets(target) for value in old[domain].to_list()])
        new, old, rows = old.filter(of_target), old.filter(~of_target), rows[~of_target]
        if not len(old) or not len(new):
            raise InvalidInput(f"column {domain!r} must have {target!r}, the target, and another value, a source")
        roles = replace(roles, domain=domain)
    else:
        new = old if target == source else read_table(_existing(target, "target"))
    for path, frame in ((source, old), (target, new)):
        if not len(frame):
            raise DataError(f"{path} has no rows")
    columns, types = infer_columns(old, new, roles)
    answer = str(columns.reward or columns.label)
    missing = old[answer].null_count()
    if missing:
        rows, old = rows[old[answer].is_not_null().to_numpy()], old.filter(pl.col(answer).is_not_null())
        why = f"as you say; {missing:,} rows have none yet and are left out"
        types = [replace(column, why=why) if column.name == answer else column for column in types]
    return FilesRead(old, new, columns, types, rows.tolist())


def _targets(target: str) -> list[str]:
    return [name.strip() for name in target.split(",")]


def _resolve_paths(options: dict[str, Any]) -> dict[str, Any]:
    """The options with absolute paths and a digest of the files: a run is never mixed with one of other data."""
    if options.get("tiny") or "source" not in options or "target" not in options:
        return options
    sides = ("source",) if options.get("domain") else ("source", "target")
    paths = {side: _existing(options[side], side).resolve() for side in sides}
    return {**options, **{side: str(path) for side, path in paths.items()}, "digest": _digest(*paths.values())}


@register_pair(
    "files",
    about=About(
        summary="your own tables or folders of pictures, by their paths", licence="the user's own", citation=""
    ),
    resolve=_resolve_paths,
)
def _files(
    *,
    tiny: bool = False,
    source: str = "",
    target: str = "",
    domain: str = "",
    label: str | None = None,
    arm: str | None = None,
    reward: str | None = None,
    propensity: str | None = None,
    id: Sequence[str] = (),  # noqa: A002 - as the option is called
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    date: Sequence[str] = (),
    drop: Sequence[str] = (),
    side: int = PICTURE_SIDE,
    shift: ShiftLike = None,
    units: Sequence[str] | None = None,
    reward_range: RewardRange | None = None,
    source_test: float | None = 0.1,
    passes: int = 1,
    target_passes: int | None = None,
    transform: TableTransform | None = None,
    digest: str = "",
) -> Pair:
    """Two files, or two folders of pictures with a sub-folder per class, as source and target.

    Args:
        tiny: 300 + 300 made-up rows instead.
        source: the path of a table, or of a folder.
        target: the same, of the target. Where it has the label's column, half of its rows are for the evaluator.
        domain: a column of the table ``source`` that names the domain of a row; ``target`` is then the value, or the
            values separated by commas, that are targets, and every other value is a source of its own.
        label: the column that names the right arm; or
        arm: the column that names the arm that was chosen,
        reward: what it paid,
        propensity: and with which probability it was chosen; where a log has none, propensities are estimated.
        id: columns that name a row; they are left out.
        category: columns to read as categories.
        number: columns to read as numbers.
        date: columns to read as dates.
        drop: columns to leave out.
        side: of pictures, pixels a side; training takes as much longer as there are more pixels.
        shift: what may differ between the domains; see ``daband._shift``.
        units: the columns in other units in the target.
        reward_range: the smallest and largest reward, or "auto".
        source_test: the share of the source that training does not use.
        passes: how many times each source context may be shown.
        target_passes: how many times each target context may be shown; by default as ``passes``.
        transform: reads the columns in place of one that is fitted here, such as a policy's own.
        digest: what the files held when the settings were resolved; other files are refused.
    """
    common: dict[str, Any] = {"source_test": source_test, "passes": passes, "target_passes": target_passes}
    if tiny:
        old, new = _made_up()
        columns = Columns(context=("age", "city"), categorical=("city",), label="offer")
        return from_table(source=old, target=new, columns=columns, shift=shift, name="files", **common)
    if not source or not target:
        raise InvalidInput("the pair 'files' needs source and target: --source old.csv --target new.csv")
    paths = [_existing(source, "source"), *([] if domain else [_existing(target, "target")])]
    if digest and digest != _digest(*paths):
        raise DataError(
            f"{source} or {target} has changed since these settings were made; start anew with the new files"
        )
    if all(path.is_dir() for path in paths):
        if domain:
            raise InvalidInput("--domain names a column of a table, and the source is a folder")
        if label or arm:
            raise InvalidInput("folders of pictures have sub-folders for their classes: leave label and arm out")
        pair = from_image_folder(source=paths[0], target=paths[1], framing=side, shift=shift, name="files", **common)
    else:
        roles = ColumnRoles(label, arm, reward, propensity, id, category, number, date, drop)
        read = read_files(source, target, roles, domain=domain)
        if not digest:  # the command line, which resolves its settings, has shown them
            worth_saying = ("left out", "did you mean", "numbers in one file", "numbers but for", "amounts", "dates")
            left_out = [f"{one.name}: {one.why}" for one in read.types if any(text in one.why for text in worth_saying)]
            for line in left_out + column_differences(read.source, read.target, read.types, units=units or ()):
                warnings.warn(line, stacklevel=4)
        columns = read.columns if transform is None else _columns_of(transform, read.columns)
        with read.errors_name_rows_of_the_file():
            pair = from_table(
                **(
                    {"source": pl.concat([read.source, read.target]), "domain": domain, "targets": _targets(target)}
                    if domain
                    else {"source": read.source, "target": read.target}
                ),
                columns=columns,
                shift=shift,
                units=units,
                transform=transform,
                reward_range=tuple(reward_range) if isinstance(reward_range, list) else reward_range,
                name="files",
                **common,
            )
    new_name = f"{domain} {target}" if domain else paths[1].name
    return replace(pair, about=About(summary=f"{paths[0].name} to {new_name}", licence="the user's own"))


def _columns_of(transform: TableTransform, columns: Columns) -> Columns:
    """The same roles, with the contexts that a fitted transform reads."""
    kinds = {column.name: type(column) for column in transform.columns}
    return replace(
        columns,
        context=tuple(kinds),
        categorical=tuple(name for name, kind in kinds.items() if kind is CategoricalColumn),
        dates=tuple(name for name, kind in kinds.items() if kind is DateColumn),
    )


def _existing(path: str, what: str) -> Path:
    place = Path(path).expanduser()
    if not place.exists():
        raise DataError(f"{what}: {path} is not there")
    return place


def _digest(*paths: Path) -> str:
    marks = hashlib.sha256()
    for path in paths:
        files = [path] if path.is_file() else sorted(below for below in path.rglob("*") if below.is_file())
        for file in files:
            size = file.stat().st_size
            marks.update(f"{file.name} {size} ".encode())
            if path.is_file() and size <= _READ_WHOLE:
                marks.update(file.read_bytes())
            elif path.is_file():
                marks.update(str(file.stat().st_mtime_ns).encode())
    return marks.hexdigest()[:16]


def _made_up() -> tuple[pl.DataFrame, pl.DataFrame]:
    generator = np.random.default_rng(5)
    tables = []
    for offset in (0.0, 4.0):
        age = generator.normal(40.0 + offset, 9.0, 300)
        offer = np.digitize(age + generator.normal(0.0, 2.0, 300), [35.0, 45.0])
        city = generator.choice(["Oslo", "Rome"], size=300)
        tables.append(pl.DataFrame({"age": age, "city": city, "offer": offer}))
    return tables[0], tables[1]
