"""A user's files as a pair: two tables (CSV, Parquet, ...) or two folders of images, by their paths.

Its options can be in a TOML file, so that every command that takes a preset takes files. ``daband choose --source
old.csv --target new.csv ...`` writes such a file.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from daband._files import checked_path
from daband._lazy_polars import pl
from daband._shift import ShiftLike
from daband._table_transform import ROW, CategoricalColumn, DateColumn, EncodedColumn, TableTransform
from daband.domains._contract import About, Pair
from daband.domains._registry import register_pair
from daband.domains.readers._columns import ColumnRoles, Columns, ColumnType, column_notices, infer_columns
from daband.domains.readers._images import from_images
from daband.domains.readers._reading import read_table
from daband.domains.readers._tables import from_table
from daband.errors import DataError, InvalidInput

#: Pixels per side of a user's images: with 64, one candidate of ``choose`` takes more than ten minutes on a CPU.
PICTURE_SIDE = 32
_READ_WHOLE = 1 << 28  # bytes; for a larger file, the digest covers size and time instead of the content


@dataclass(frozen=True)
class FilesRead:
    """Two tables and the roles of their columns. A column ``ROW`` has row numbers of the file."""

    source: pl.DataFrame
    target: pl.DataFrame
    columns: Columns
    types: list[ColumnType]


def read_files(source: str, target: str, roles: ColumnRoles, *, domain: str = "") -> FilesRead:
    """Read the tables at these paths, and infer the roles of their columns.

    With ``domain``, a column of the one table at ``source``, the target is the rows whose value ``target`` names.
    Source rows without a reward or label, which may come later, are ignored; the column's reason reports it.
    """
    old = read_table(_existing(source, "source"))
    if domain:
        if domain not in old.columns:
            raise InvalidInput(f"{source} has no column {domain!r} (its columns: {', '.join(old.columns)})")
        of_target = np.array([str(value) in _targets(target) for value in old[domain].to_list()])
        numbered = old.with_row_index(ROW)
        new, old = numbered.filter(of_target), numbered.filter(~of_target)
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
        old = (old if domain else old.with_row_index(ROW)).filter(pl.col(answer).is_not_null())
        why = f"as you say; {missing:,} rows have none yet and are ignored"
        types = [replace(column, why=why, notable=True) if column.name == answer else column for column in types]
    return FilesRead(old, new, columns, types)


def _targets(target: str) -> list[str]:
    return [name.strip() for name in target.split(",")]


def _resolve_paths(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with absolute paths and a file digest, so that runs on different data are never mixed."""
    if "source" not in options or "target" not in options:
        return options
    sides = ("source",) if options.get("domain") else ("source", "target")
    paths = {side: _existing(options[side], side).resolve() for side in sides}
    tables = [_existing(path, "arms").resolve() for path in _arm_paths(options.get("arms"))]
    resolved = {side: str(path) for side, path in paths.items()}
    if tables:
        resolved["arms"] = [str(path) for path in tables]  # type: ignore[assignment]
    return {**options, **resolved, "digest": _digest(*paths.values(), *tables)}


@register_pair(
    "files",
    about=About(
        summary="your own tables or folders of pictures, by their paths", licence="the user's own", citation=""
    ),
    resolve=_resolve_paths,
)
def _files(
    *,
    source: str = "",
    target: str = "",
    domain: str = "",
    label: str | None = None,
    arm: str | None = None,
    reward: str | None = None,
    propensity: str | None = None,
    offered: str | None = None,
    id: Sequence[str] = (),  # noqa: A002 - as the option is called
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    date: Sequence[str] = (),
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
    encoder: str = "",
    arms: Sequence[str] = (),
    side: int = PICTURE_SIDE,
    shift: ShiftLike = None,
    units: Sequence[str] | None = None,
    source_test: float | None = 0.1,
    passes: int = 1,
    target_passes: int | None = None,
    transform: TableTransform | None = None,
    digest: str = "",
) -> Pair:
    """Build a pair from two files, or two folders of images with a sub-folder per class.

    Args:
        tiny: use 300 + 300 synthetic rows instead.
        source: the path of a table, or of a folder.
        target: the same for the target. If it has the label column, half of its rows are for the evaluator.
        domain: a column of the table ``source`` that names the domain of a row; ``target`` is then the value, or the
            values separated by commas, that are targets, and every other value is a separate source.
        label: the column that names the right arm. For a log, use the next three instead.
        arm: the column that names the chosen arm.
        reward: the column with the reward of the chosen arm.
        propensity: the column with the probability of the chosen arm; if the log has none, it is estimated.
        offered: the column with the arms that could be chosen, separated by |; by default all arms.
        id: columns that name a row; they are not used as contexts.
        category: columns to read as categories.
        number: columns to read as numbers.
        date: columns to read as dates.
        drop: columns to ignore.
        text: columns of texts, which ``encoder`` reads.
        encoder: for images and texts, a frozen encoder whose features are the contexts, as in ``from_images``.
        arms: the path of a table of arms with features; two paths if source and target have different arms.
        side: for images, pixels per side; training time is proportional to the number of pixels.
        shift: the assumed differences between the domains; see ``daband._shift``.
        units: the columns in other units in the target.
        source_test: the fraction of the source that training does not use.
        passes: how many times each source context may be shown.
        target_passes: how many times each target context may be shown; by default equal to ``passes``.
        transform: reads the columns instead of a transform that is fitted here, for example a policy's transform.
        digest: the digest of the files when the settings were resolved; other files are rejected.
    """
    common: dict[str, Any] = {"source_test": source_test, "passes": passes, "target_passes": target_passes}
    paths = [_existing(source, "source"), *([] if domain else [_existing(target, "target")])]
    if digest and digest != _digest(*paths, *(_existing(path, "arms") for path in _arm_paths(arms))):
        raise DataError(
            f"{source} or {target} has changed since these settings were made; start anew with the new files"
        )
    if all(path.is_dir() for path in paths):
        if domain:
            raise InvalidInput("--domain names a column of a table, and the source is a folder")
        if label or arm:
            raise InvalidInput("folders of pictures have sub-folders for their classes: leave label and arm out")
        read_as: dict[str, Any] = {"encoder": encoder} if encoder else {"framing": side}
        if transform is not None and isinstance(transform.columns[0], EncodedColumn):
            read_as = {"encoder": transform.columns[0].encoder}
        pair = from_images(source=paths[0], target=paths[1], **read_as, shift=shift, name="files", **common)
    else:
        roles = ColumnRoles(
            label, arm, reward, propensity, offered, id, category, number, date, drop, text=text, encoder=encoder
        )
        read = read_files(source, target, roles, domain=domain)
        if not digest:  # the command line, which resolves its settings, has shown them
            notes = [f"{one.name}: {one.why}" for one in read.types if one.notable]
            for line in notes + column_notices(read.source, read.target, read.types, units=units or ()):
                warnings.warn(str(line), stacklevel=4)
        columns = read.columns if transform is None else _columns_of(transform, read.columns)
        tables: dict[str, Any] = {"source": read.source, "target": read.target}
        if domain:
            tables = {"source": pl.concat(tables.values()), "domain": domain, "targets": _targets(target)}
        pair = from_table(
            **tables,
            columns=columns,
            shift=shift,
            units=units,
            transform=transform,
            arms=arm_tables(arms),
            name="files",
            **common,
        )
    new_name = f"{domain} {target}" if domain else paths[1].name
    return replace(pair, about=About(summary=f"{paths[0].name} to {new_name}", licence="the user's own"))


def _arm_paths(arms: Any) -> list[str]:
    """Return the paths of the tables of arms: none, one, or one for each domain."""
    paths = [arms] if isinstance(arms, str | Path) else list(arms or ())
    if len(paths) > 2:
        raise InvalidInput(f"arms must be one table, or one for the source and one for the target, got {len(paths)}")
    return [str(path) for path in paths if str(path)]


def arm_tables(arms: Any) -> Any:
    """Return the tables at the paths of ``arms`` as ``from_table`` takes them; None if there are none."""
    tables = [read_table(_existing(path, "arms")) for path in _arm_paths(arms)]
    return None if not tables else tables[0] if len(tables) == 1 else {"source": tables[0], "target": tables[1]}


def _columns_of(transform: TableTransform, columns: Columns) -> Columns:
    """Return the same roles, with the contexts that a fitted transform reads."""
    kinds = {column.name: type(column) for column in transform.columns}
    return replace(
        columns,
        context=tuple(kinds),
        categorical=tuple(name for name, kind in kinds.items() if kind is CategoricalColumn),
        dates=tuple(name for name, kind in kinds.items() if kind is DateColumn),
    )


def _existing(path: str, what: str) -> Path:
    if hasattr(path, "columns"):
        raise InvalidInput(
            f"{what} must be a path, got a {type(path).__name__}; daband.domains.from_table takes frames"
        )
    existing = checked_path(path, what).expanduser()
    if not existing.exists():
        raise DataError(f"{what}: {path} is not there")
    return existing


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
