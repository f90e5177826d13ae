"""``DataOptions``: a user's files, and the roles of their columns, for Python and the command line.

``DataOptions.read`` reads the files and returns their pair. ``read_tables`` returns the tables with
the roles of their columns, which the command line prints.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._files import check_path, read_json, write_json
from daband.base._lazy_polars import pl
from daband.domains._contract import About, Pair
from daband.domains.readers._columns import (
    ColumnRole,
    Columns,
    Notice,
    StatedRoles,
    describe,
    find_notices,
    infer_columns,
)
from daband.domains.readers._images import from_images
from daband.domains.readers._reading import read_table, record_log_file
from daband.domains.readers._tables import from_table
from daband.errors import DataError, InvalidInput
from daband.features._table_transform import ROW_COLUMN

#: Default side of images in pixels. With 64, a candidate of ``choose`` takes more than ten minutes
#: on a CPU.
_IMAGE_SIDE = 32
#: Maximum number of tables of arms: one for the source and one for the target.
_MAX_ARM_TABLES = 2


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
    #: Possible mistakes in the values of columns.
    notices: list[Notice]

    def describe_mistakes(self) -> list[str]:
        """Return a text for each role that the user should check, and for each notice."""
        roles = [column for column in self.column_roles if column.is_notable]
        return [*map(str, roles), *map(str, self.notices)]


@dataclass(frozen=True, kw_only=True)
class DataOptions(StatedRoles):
    r"""A user's files, and the roles of their columns.

    Source and target are two tables (CSV, Parquet, JSON lines), or two folders of images with a
    sub-folder per class. Roles that are not stated are inferred from the values. The fields are the
    options of ``daband choose``, whose help describes them.

    >>> import pathlib
    >>> rows = [f"{age},{'card' if age > 40 else 'loan'}" for age in 2 * [*range(20, 60)]]
    >>> size = pathlib.Path("old.csv").write_text("\n".join(["age,offer", *rows]))
    >>> options = daband.domains.DataOptions(source="old.csv", target="old.csv", label="offer")
    >>> options.read().class_names
    ('card', 'loan')
    """

    source: str = describe("The source data: a CSV or Parquet file, or a folder of images.", "")
    target: str = describe("The target data, in the same format; training ignores its rewards.", "")
    arms: tuple[str, ...] = describe(
        "A table of arms with features; one per domain if they differ: old.csv,new.csv.", ()
    )
    side: int = describe("Side of images in pixels; larger takes longer.", _IMAGE_SIDE)
    shift: str | None = describe("The assumed shift: covariate, units, style, labels, or several.")
    units: tuple[str, ...] = describe("Columns whose unit differs in the target, e.g. price.", ())
    feedback: str | None = describe(
        "full (learn the rewards of all arms, the default for labels) or bandit (play rounds)."
    )
    #: A digest of the files. If it is given, files with other content raise an error.
    digest: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.arms) > _MAX_ARM_TABLES:
            raise InvalidInput(
                "arms must be one table, or one for the source and one for the target, got"
                f" {len(self.arms)}"
            )

    @property
    def name(self) -> str:
        """The names of source and target, such as "old-to-new"."""
        stems = (Path(path).name.partition(".")[0] for path in (self.source, self.target))
        # targets in a column may have characters that Windows forbids in file names
        return "-to-".join(re.sub(r'[<>:"|?*\\]+', "-", stem) or "files" for stem in stems)

    @property
    def targets(self) -> list[str]:
        """The values of the column ``domain`` that mark target rows."""
        return [value.strip() for value in self.target.split(",")]

    def resolve(self) -> DataOptions:
        """Return the options with absolute paths and the digest of the files.

        Raise an error if a file does not exist, or if its content is not that of ``digest``.
        """
        source = _find_path(self.source, "source")
        target = self.target if self.domain else _find_path(self.target, "target")
        arms = tuple(_find_path(path, "arms") for path in self.arms)
        encoder = self.encoder
        if encoder and Path(encoder).exists():
            encoder = str(Path(encoder).resolve())
        digest = _compute_digest(source, *([] if self.domain else [target]), *arms)
        if self.digest not in ("", digest):
            raise DataError(
                f"{self.source} or {self.target} has changed since it was read before; start again"
                " with the new files"
            )
        return replace(
            self, source=source, target=target, arms=arms, encoder=encoder, digest=digest
        )

    def read(self, tables: UserTables | None = None) -> Pair:
        """Read the files, and return their pair.

        Possible mistakes in the tables are warnings. If the target has labels, half of its rows are
        for the evaluator.

        Args:
            tables: the result of ``read_tables``, if the caller has reported its notices.
        """
        options = self.resolve()
        # Splits are seeded by the name, so it must not depend on the names of files.
        reader_options: dict[str, Any] = {"shift": self.shift, "name": "files"}
        if options.has_images:
            if self.label or self.arm or self.domain:
                raise InvalidInput(
                    "label, arm and domain cannot be given for folders of images, whose sub-folders"
                    " are the classes"
                )
            encoding = {"encoder": options.encoder} if options.encoder else {"framing": self.side}
            pair = from_images(
                source=options.source, target=options.target, **encoding, **reader_options
            )
        else:
            if tables is None:
                tables = options.read_tables()
                if not self.digest:  # with a digest, they were reported before
                    for text in tables.describe_mistakes():
                        warnings.warn(text, stacklevel=2)
            frames: dict[str, Any] = {"source": tables.source, "target": tables.target}
            if self.domain is not None:
                all_rows = pl.concat([tables.source, tables.target])
                frames = {"source": all_rows, "domain": self.domain, "targets": self.targets}
            pair = from_table(
                **frames,
                columns=tables.columns,
                units=self.units or None,
                feedback=self.feedback,
                arms=options.read_arms(),
                **reader_options,
            )
            if self.arm is not None:
                record_log_file(pair.source, options.source)
        target = f"{self.domain} {self.target}" if self.domain else Path(options.target).name
        about = About(f"{Path(options.source).name} to {target}", licence="the user's own")
        return replace(pair, about=about, options=options)

    @property
    def has_images(self) -> bool:
        """True if the source is a folder of images."""
        return Path(self.source).is_dir()

    def read_tables(self) -> UserTables:
        """Read the tables, and infer the roles of their columns.

        Source rows without a reward or label are dropped. Their number is in the ``reason`` of that
        column's role.
        """
        if self.encoder and not self.text:
            raise InvalidInput(
                "text and encoder must be given together: --text COLUMN --encoder NAME"
            )
        source = read_table(_find_path(self.source, "source"))
        if self.domain is not None:
            source, target = self._split_domains(source)
        elif self.target == self.source:
            target = source
        else:
            target = read_table(_find_path(self.target, "target"))
        for path, frame in ((self.source, source), (self.target, target)):
            if not len(frame):
                raise DataError(f"{path} has no rows")
        columns, column_roles = infer_columns(source, target, self)
        outcomes = columns.rewards or (str(columns.reward or columns.label),)
        has_outcome = pl.all_horizontal(pl.col(outcomes).is_not_null())
        n_missing = len(source) - len(source.filter(has_outcome))
        if n_missing:
            if ROW_COLUMN not in source.columns:
                source = source.with_row_index(ROW_COLUMN)
            source = source.filter(has_outcome)
            reason = f"as stated; {n_missing:,} rows have none yet and are ignored; write 0 if that is one"
            column_roles = [
                replace(column, reason=reason, is_notable=True)
                if column.name in outcomes
                else column
                for column in column_roles
            ]
        numbers = [column.name for column in column_roles if column.role == "number"]
        for name in self.units:
            if name not in numbers:
                raise InvalidInput(
                    f"units: {name} is not a numeric column ({', '.join(numbers) or 'none'})"
                )
        notices = find_notices(source, target, column_roles, units=self.units, domain=self.domain)
        return UserTables(source, target, columns, column_roles, notices)

    def _split_domains(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the source rows and the target rows of a table with a column of domains."""
        if self.domain not in rows.columns:
            raise InvalidInput(
                f"{self.source} has no column {self.domain!r} (its columns:"
                f" {', '.join(rows.columns)})"
            )
        is_target = np.array([str(value) in self.targets for value in rows[self.domain].to_list()])
        if is_target.all() or not is_target.any():
            raise InvalidInput(
                f"column {self.domain!r} must have the value {self.target!r} for the target, and"
                " another value for the source"
            )
        numbered_rows = rows.with_row_index(ROW_COLUMN)
        return numbered_rows.filter(~is_target), numbered_rows.filter(is_target)

    def read_arms(self) -> Any:
        """Return the tables of arms, as the argument ``arms`` of ``from_table``."""
        tables = [read_table(_find_path(path, "arms")) for path in self.arms]
        if len(tables) == _MAX_ARM_TABLES:
            return {"source": tables[0], "target": tables[1]}
        return tables[0] if tables else None

    def save(self, path: str | Path) -> None:
        """Write the options as JSON, with absolute paths and the digest of the files."""
        write_json(path, asdict(self if self.digest else self.resolve()))

    @classmethod
    def load(cls, path: str | Path) -> DataOptions:
        """Return the options that ``save`` wrote."""
        content = read_json(path)
        names = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or not content.keys() <= names:
            raise DataError(f"{path} does not hold the options of user files")
        return cls(**content)


def _find_path(path: str, argument: str) -> str:
    """Return a path as an absolute path. Raise an error with the ``argument`` if it does not
    exist.
    """
    if hasattr(path, "columns"):
        raise InvalidInput(
            f"{argument} must be a path, got a {type(path).__name__}; daband.domains.from_table"
            " takes frames"
        )
    checked_path = check_path(path, argument).expanduser()
    if not checked_path.exists():
        raise DataError(f"{argument}: {path} does not exist; check the path")
    return str(checked_path.resolve())


def _compute_digest(*paths: str) -> str:
    """Return a digest of the content of files, or of the names and sizes of the files in
    folders.
    """
    digest = hashlib.sha256()
    for path in map(Path, paths):
        is_folder = path.is_dir()
        files = sorted(path.rglob("*")) if is_folder else [path]
        for file in filter(Path.is_file, files):
            digest.update(f"{file.name} {file.stat().st_size} ".encode())
            if not is_folder:
                with open(file, "rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]
