"""Register the pair ``files``, which reads a user's tables (CSV, Parquet, ...) or folders of images
from their paths.

Its options can be written in a TOML file, which commands accept instead of the name of a preset
(``daband presets``). ``daband choose --source old.csv --target new.csv ...`` writes such a file.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._files import check_path
from daband.base._lazy_polars import pl
from daband.domains._contract import About, Pair
from daband.domains._registry import register_pair
from daband.domains.readers._columns import (
    ColumnRole,
    Columns,
    StatedRoles,
    find_notices,
    infer_columns,
)
from daband.domains.readers._images import from_images
from daband.domains.readers._reading import read_table, record_log_file
from daband.domains.readers._tables import from_table
from daband.errors import DataError, InvalidInput
from daband.features._shift import ShiftLike
from daband.features._table_transform import (
    ROW_COLUMN,
    CategoricalColumn,
    DateColumn,
    EncodedColumn,
    TableTransform,
)

#: Default side of a user's images in pixels. With 64, a candidate of ``choose`` takes more than ten
#: minutes on a CPU.
IMAGE_SIDE = 32
#: The maximum size of a file whose content is hashed, in bytes. A larger file is hashed by size and
#: modification time.
_MAX_HASHED_BYTES = 1 << 28


@dataclass(frozen=True)
class UserTables:
    """Two tables and the roles of their columns."""

    #: Source rows. If rows were dropped, the column ``ROW_COLUMN`` has the row numbers in the file.
    source: pl.DataFrame
    #: Target rows.
    target: pl.DataFrame
    #: Columns by role.
    columns: Columns
    #: The role of every column, and the reason for it.
    column_roles: list[ColumnRole]


def read_user_tables(
    source: str, target: str, stated_roles: StatedRoles, *, domain: str = ""
) -> UserTables:
    """Read the tables at these paths, and infer the roles of their columns.

    Source rows without a reward or label are dropped. Their number is in the ``reason`` of that
    column's role.

    Args:
        source: the path of the source table.
        target: the path of the target table; with ``domain``, the values of that column that mark
            target rows, separated by commas.
        stated_roles: the roles that the user stated.
        domain: the column of the table ``source`` that names the domain of a row; empty if there
            are two tables.
    """
    source_rows = read_table(_require_path(source, "source"))
    if domain:
        if domain not in source_rows.columns:
            raise InvalidInput(
                f"{source} has no column {domain!r} (its columns: {', '.join(source_rows.columns)})"
            )
        is_target = np.array(
            [str(value) in _split_values(target) for value in source_rows[domain].to_list()]
        )
        numbered_rows = source_rows.with_row_index(ROW_COLUMN)
        target_rows = numbered_rows.filter(is_target)
        source_rows = numbered_rows.filter(~is_target)
        if not len(source_rows) or not len(target_rows):
            raise InvalidInput(
                f"column {domain!r} must have the value {target!r} for the target, and another"
                " value for the source"
            )
        stated_roles = replace(stated_roles, domain=domain)
    else:
        target_rows = (
            source_rows if target == source else read_table(_require_path(target, "target"))
        )
    for path, frame in ((source, source_rows), (target, target_rows)):
        if not len(frame):
            raise DataError(f"{path} has no rows")
    columns, column_roles = infer_columns(source_rows, target_rows, stated_roles)
    outcome_column = str(columns.reward or columns.label)
    n_missing = source_rows[outcome_column].null_count()
    if n_missing:
        numbered_rows = source_rows if domain else source_rows.with_row_index(ROW_COLUMN)
        source_rows = numbered_rows.filter(pl.col(outcome_column).is_not_null())
        reason = f"as stated; {n_missing:,} rows have none yet and are ignored"
        index = next(
            index for index, column in enumerate(column_roles) if column.name == outcome_column
        )
        column_roles[index] = replace(column_roles[index], reason=reason, is_notable=True)
    return UserTables(source_rows, target_rows, columns, column_roles)


def _split_values(comma_separated: str) -> list[str]:
    """Return the values in a comma-separated text."""
    return [value.strip() for value in comma_separated.split(",")]


def _resolve_paths(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with absolute paths and a digest of the files, so that runs on other data
    are detected.
    """
    if "source" not in options or "target" not in options:
        return options
    path_arguments = ("source",) if options.get("domain") else ("source", "target")
    paths = {
        argument: _require_path(options[argument], argument).resolve()
        for argument in path_arguments
    }
    arm_paths = [
        _require_path(path, "arms").resolve() for path in _list_arm_paths(options.get("arms"))
    ]
    path_options = {argument: str(path) for argument, path in paths.items()}
    if arm_paths:
        path_options["arms"] = [str(path) for path in arm_paths]  # type: ignore[assignment]
    return {**options, **path_options, "digest": _hash_files(*paths.values(), *arm_paths)}


@register_pair(
    "files",
    about=About(
        summary="your tables or folders of images, by their paths",
        licence="the user's own",
        citation="",
    ),
    resolve=_resolve_paths,
)
def _load_files(
    *,
    source: str = "",
    target: str = "",
    domain: str = "",
    label: str | None = None,
    arm: str | None = None,
    reward: str | None = None,
    propensity: str | None = None,
    offered: str | None = None,
    id: Sequence[str] = (),  # noqa: A002
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    date: Sequence[str] = (),
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
    encoder: str = "",
    arms: Sequence[str] = (),
    side: int = IMAGE_SIDE,
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
        source: the path of a table, or of a folder.
        target: the path of the target table or folder. If it has labels, half of the rows are for
            the evaluator.
        domain: a column of the table ``source`` that names the domain of a row; ``target`` is then
            the value, or the values separated by commas, that are targets, and every other value is
            a separate source.
        label: the column with the right arm. For a log, use ``arm`` and ``reward`` instead.
        arm: the column with the chosen arm.
        reward: the column with the reward of the chosen arm.
        propensity: the column with the probability of the chosen arm; if the log has none, it is
            estimated.
        offered: the column with the arms that could be chosen, separated by |; by default all arms.
        id: columns that name a row; they are not used as contexts.
        category: columns to read as categories.
        number: columns to read as numbers.
        date: columns to read as dates.
        drop: columns to ignore.
        text: columns with texts for ``encoder``.
        encoder: for images and texts, a frozen encoder whose features are the contexts, as in
            ``from_images``.
        arms: the path of a table of arms with features; two paths if source and target have
            different arms.
        side: for images, pixels per side; training time is proportional to the number of pixels.
        shift: the assumed differences between the domains; see ``daband.features._shift``.
        units: the columns that are in other units in the target.
        source_test: the fraction of the source that training does not use.
        passes: how many times each source context may be shown.
        target_passes: how many times each target context may be shown; by default equal to
            ``passes``.
        transform: a fitted transform of contexts, for example a policy's; by default one is fitted.
        digest: the expected digest of the files; other files are rejected.
    """
    reader_options: dict[str, Any] = {
        "source_test": source_test,
        "passes": passes,
        "target_passes": target_passes,
    }
    reader_options |= {"shift": shift, "name": "files"}
    paths = [
        _require_path(source, "source"),
        *([] if domain else [_require_path(target, "target")]),
    ]
    if digest and digest != _hash_files(
        *paths, *(_require_path(path, "arms") for path in _list_arm_paths(arms))
    ):
        raise DataError(
            f"{source} or {target} has changed since these settings were written; start again with"
            " the new files"
        )
    if all(path.is_dir() for path in paths):
        if domain:
            raise InvalidInput("domain is a column of a table, but source is a folder")
        if label or arm:
            raise InvalidInput(
                "label and arm cannot be given for folders of images, whose sub-folders are the"
                " classes"
            )
        image_options: dict[str, Any] = {"encoder": encoder} if encoder else {"framing": side}
        if transform is not None and isinstance(transform.columns[0], EncodedColumn):
            image_options = {"encoder": transform.columns[0].encoder}
        pair = from_images(source=paths[0], target=paths[1], **image_options, **reader_options)
    else:
        stated_roles = StatedRoles(
            label,
            arm,
            reward,
            propensity,
            offered,
            id,
            category,
            number,
            date,
            drop,
            text=text,
            encoder=encoder,
        )
        user_tables = read_user_tables(source, target, stated_roles, domain=domain)
        if not digest:  # with a digest, the command line has printed these notices
            notices = [
                f"{column.name}: {column.reason}"
                for column in user_tables.column_roles
                if column.is_notable
            ]
            for notice in notices + find_notices(
                user_tables.source,
                user_tables.target,
                user_tables.column_roles,
                units=units or (),
                domain=domain,
            ):
                warnings.warn(str(notice), stacklevel=4)
        columns = (
            user_tables.columns
            if transform is None
            else _with_transform_columns(transform, user_tables.columns)
        )
        tables: dict[str, Any] = {"source": user_tables.source, "target": user_tables.target}
        if domain:
            all_rows = pl.concat([user_tables.source, user_tables.target])
            tables = {"source": all_rows, "domain": domain, "targets": _split_values(target)}
        pair = from_table(
            **tables,
            columns=columns,
            units=units,
            transform=transform,
            arms=read_arm_tables(arms),
            **reader_options,
        )
        if arm is not None:
            record_log_file(pair.source, paths[0])
    target_text = f"{domain} {target}" if domain else paths[1].name
    return replace(
        pair, about=About(summary=f"{paths[0].name} to {target_text}", licence="the user's own")
    )


def _list_arm_paths(arms: Any) -> list[str]:
    """Return the paths of the tables of arms: none, one, or one per domain."""
    paths = [arms] if isinstance(arms, str | Path) else list(arms or ())
    if len(paths) > 2:
        raise InvalidInput(
            "arms must be one table, or one for the source and one for the target, got"
            f" {len(paths)}"
        )
    return [str(path) for path in paths if str(path)]


def read_arm_tables(arms: Any) -> Any:
    """Return the tables at the paths ``arms``, as an argument of ``from_table``; None if there are
    no paths.
    """
    tables = [read_table(_require_path(path, "arms")) for path in _list_arm_paths(arms)]
    return (
        None
        if not tables
        else tables[0]
        if len(tables) == 1
        else {"source": tables[0], "target": tables[1]}
    )


def _with_transform_columns(transform: TableTransform, columns: Columns) -> Columns:
    """Return ``columns`` with the context columns of a fitted transform instead of its own."""
    type_by_name = {column.name: type(column) for column in transform.columns}
    return replace(
        columns,
        context=tuple(type_by_name),
        categorical=tuple(
            name for name, column_type in type_by_name.items() if column_type is CategoricalColumn
        ),
        dates=tuple(
            name for name, column_type in type_by_name.items() if column_type is DateColumn
        ),
    )


def _require_path(path: str, argument: str) -> Path:
    """Return a path as a ``Path``.

    Raise an error with the name of the ``argument`` if it does not exist.
    """
    if hasattr(path, "columns"):
        raise InvalidInput(
            f"{argument} must be a path, got a {type(path).__name__}; daband.domains.from_table"
            " takes frames"
        )
    checked_path = check_path(path, argument).expanduser()
    if not checked_path.exists():
        raise DataError(f"{argument}: {path} does not exist; check the path")
    return checked_path


def _hash_files(*paths: Path) -> str:
    """Return a digest of the content of files, or of the names and sizes of the files in
    folders.
    """
    hasher = hashlib.sha256()
    for path in paths:
        files = (
            [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        )
        for file in files:
            size = file.stat().st_size
            modified_ns = file.stat().st_mtime_ns
            hasher.update(f"{file.name} {size} ".encode())
            if path.is_file():
                hasher.update(
                    file.read_bytes() if size <= _MAX_HASHED_BYTES else str(modified_ns).encode()
                )
    return hasher.hexdigest()[:16]
