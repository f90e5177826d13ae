"""Read logs that are larger than memory from Parquet files, in batches (``ParquetLog``).

CSV files can also be read, but must fit into memory. A log is split into parts. A part is a file,
or a range of rows of a large file. Several machines can read different parts, and a resumed run
skips the parts that it has read. The columns, types and numbers of rows of all files are checked
before the first row is read. Values are checked batch by batch, and errors name the file and the
row.

``train`` takes the same log as a source, like any other domain. It then reads all rounds into memory.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arguments import check_int
from daband.base._arrays import (
    AnyArray,
    IntArray,
    Shape,
    check_memory,
)
from daband.base._lazy_polars import pl
from daband.domains._contract import LoggedDomain
from daband.domains.readers._columns import Columns
from daband.domains.readers._reading import (
    LogFiles,
    LogPart,
    convert_polars_errors,
    describe_repeated_ids,
    list_log_files,
    scan_log_file,
)
from daband.domains.readers._rounds import check_no_nulls, find_arm_index, read_rounds
from daband.errors import DataError, InvalidInput, did_you_mean
from daband.features._costs import ArmCosts
from daband.features._image_layout import find_image_layout
from daband.features._row_reader import ImageRule, RowReader
from daband.features._table_transform import ROW_COLUMN, TableTransform, row_number
from daband.rounds._rounds import Rounds
from daband.serving._deployed_policy import DeployedPolicy

#: The number of rows that are read at a time. With 32 features, they take 8 MB.
BATCH_ROWS = 65536
#: Maximum number of rows of a part.
_MAX_PART_ROWS = 4_194_304
#: The roles of columns that every log has.
_LOG_ROLES = ("arm", "reward", "propensity")
#: The columns of a log by default.
DEFAULT_COLUMNS = Columns(arm="arm", reward="reward", propensity="propensity")
#: The default name of the column that lists the offered arms.
_OFFERED_COLUMN = "offered"
#: The log column with image paths, relative to the current folder or absolute.
FILE_COLUMN = "file"
#: The number of rows that are read at a time if an encoder reads images, which may be large.
_ENCODED_BATCH_ROWS = 256
#: Maximum number of bytes of images read at a time.
_MAX_BATCH_BYTES = 1 << 27
#: The end of error messages about context columns.
_CONTEXT_REMEDY = (
    "; name the context columns with columns=daband.domains.Columns(...), or --context"
)
#: The end of error messages about missing columns.
_NAME_REMEDY = (
    "; if it has another name, pass it as arm=, reward= or propensity= (--arm, --reward or"
    " --propensity), or pass columns=daband.domains.Columns(...)"
)
#: Maximum number of rows that are checked for repeated ids.
_MAX_CHECKED_ROWS = 1_000_000


@dataclass(frozen=True)
class LogFile:
    """A file of a log before its rows are read."""

    #: Path of the file.
    path: str
    #: The number of rounds.
    n_rows: int
    #: The names of the arms in the arm column, (K,).
    arm_names: Sequence[str]
    #: The query that reads the rounds. If rows were dropped, the column ``ROW_COLUMN`` has the row
    #: numbers in the file.
    query: pl.LazyFrame


class ParquetLog(LoggedDomain):
    """The log of another policy in Parquet or CSV files.

    Args:
        log: a folder, a glob, or a list of files.
        n_arms: the number of arms; the arm column has integers in 0..n_arms - 1, or names in
            ``arm_names``.
        columns: the columns by role. By default, the columns "arm", "reward" and "propensity" have
            these roles. The column "offered" has its role if it has texts or lists. Every other
            column is a feature of the context. A context may also be one column of lists of equal
            length.
        transform: turns the context columns into contexts, if they are not all numbers.
        context_shape: the shape of a context, if it is not a vector.
        shared: True if a row has the contexts of all arms, concatenated.
        arm_names: the names of the arms.
        skip_unrewarded: True to ignore rounds without a reward; ``unrewarded`` has their number by
            file.
        costs: the costs of arms, as in ``Columns.costs``, which are subtracted from rewards.

    ``batches`` reads a part in batches. ``train`` takes the log like any other source, and reads all
    rounds into memory.
    """

    def __init__(
        self,
        log: LogFiles,
        *,
        n_arms: int,
        columns: Columns | None = None,
        transform: TableTransform | ImagePathTransform | None = None,
        context_shape: Sequence[int] | None = None,
        shared: bool = False,
        arm_names: Sequence[str] | None = None,
        skip_unrewarded: bool = False,
        costs: Mapping[str, float | str] | ArmCosts | None = None,
    ) -> None:
        self.n_arms = check_int("n_arms", n_arms, minimum=1)
        #: The costs of arms; None without costs.
        self.costs = None
        if costs:
            names = arm_names or [str(index) for index in range(n_arms)]
            self.costs = ArmCosts.parse(costs, names)
        self.shared = shared
        self._transform = transform
        self._arm_names = arm_names
        self._skip_unrewarded = skip_unrewarded
        self.files: list[LogFile] = []
        #: By file, the number of rounds that were ignored because they have no reward.
        self.unrewarded: dict[str, int] = {}
        #: The types of the columns of the first file.
        self.schema: dict[str, Any] = {}
        self.columns: Columns
        for path in list_log_files(log):
            query = scan_log_file(path)
            with convert_polars_errors(f"{path} cannot be read"):
                schema = dict(query.collect_schema())
                if not self.schema:
                    self.schema = schema
                    self.columns = _resolve_columns(columns, schema, path, transform)
                self._check_schema(path, schema, is_default=not (columns and columns.context))
                if not self.files:
                    n_features = self._count_features(query, path)
                self.files.append(self._open_file(query, path))
        if not len(self):
            raise DataError(f"the log {path} has no rows")
        n_context_features, remainder = (
            divmod(n_features, self.n_arms) if shared else (n_features, 0)
        )
        self.context_shape = (
            (n_context_features,) if context_shape is None else tuple(context_shape)
        )
        if remainder or math.prod(self.context_shape) != n_context_features:
            arms_text = f" for each of {self.n_arms} arms" if shared else ""
            raise InvalidInput(
                f"log: a row of {self.files[0].path} has {n_features} context features, expected"
                f" contexts of shape {self.context_shape}{arms_text}{_CONTEXT_REMEDY}"
            )
        self._row_shape = (self.n_arms, *self.context_shape) if shared else self.context_shape

    def _open_file(self, query: pl.LazyFrame, path: Path) -> LogFile:
        """Return the file, without unrewarded rounds if they are skipped."""
        reward_column = str(self.columns.reward)
        n_missing = 0
        if self._skip_unrewarded:
            n_missing, n_rows = (
                query.select(pl.col(reward_column).null_count(), pl.len().alias(""))
                .collect()
                .row(0)
            )
            if 0 < n_missing == n_rows:
                raise DataError(
                    f"{path} has no reward yet; fill in the column {reward_column!r} as rewards"
                    " arrive"
                )
        if n_missing:
            self.unrewarded[str(path)] = n_missing
            query = query.with_row_index(ROW_COLUMN).filter(pl.col(reward_column).is_not_null())
        n_rows = int(query.select(pl.len()).collect().item())
        return LogFile(str(path), n_rows, self._find_arm_names(query, path), query)

    def _find_arm_names(self, query: pl.LazyFrame, path: Path) -> Sequence[str]:
        """Return the names of the arms in the arm column of a file: numbers are indices, unless all
        of them are arm names.
        """
        column = str(self.columns.arm)
        has_numbers = query.collect_schema()[column].is_numeric()
        index_names = [str(index) for index in range(self.n_arms)]
        if self._arm_names is None and has_numbers:
            return index_names
        names = self._arm_names or index_names
        index_by_name = {name: index for index, name in enumerate(names)}
        values = query.select(pl.col(column).drop_nulls().unique().sort()).collect()[column]
        unknown = [value for value in values if find_arm_index(value, index_by_name) is None]
        if unknown and has_numbers:
            return index_names
        if unknown:
            problem = f"{path} has {unknown[0]!r} in the arm's column {column!r}"
            if self._arm_names is None:
                raise DataError(
                    f"{problem}, and the policy has no arm names: set policy.arm_names = [...], or"
                    " log arm indices"
                )
            hint = did_you_mean(str(unknown[0]), names)
            raise DataError(f"{problem}, which is not an arm{hint} ({', '.join(names)})")
        return names

    def __len__(self) -> int:
        return sum(file.n_rows for file in self.files)

    @property
    def _role_columns(self) -> list[str]:
        """The columns that are read in addition to the context columns."""
        roles = (*_LOG_ROLES, "weights", "offered", "cluster")
        names = [getattr(self.columns, role) for role in roles]
        return [*filter(None, names), *([] if self.costs is None else self.costs.column_names)]

    # Reading the log in order, part by part.

    def parts(self, max_rows: int = _MAX_PART_ROWS) -> list[LogPart]:
        """Return the parts of the log in order: files, split into ranges of at most ``max_rows``
        rows.
        """
        return [
            LogPart(file.path, start, min(start + max_rows, file.n_rows))
            for file in self.files
            for start in range(0, file.n_rows, max_rows)
        ]

    def batches(self, part: LogPart, max_rows: int = BATCH_ROWS) -> Iterator[Rounds]:
        """Yield the rounds of a part, at most ``max_rows`` at a time.

        Raise a ``DataError`` if the file is damaged.
        """
        n_read = 0
        file = next(file for file in self.files if file.path == part.path)
        if isinstance(self._transform, ImagePathTransform):
            max_rows = min(max_rows, max(1, _MAX_BATCH_BYTES // math.prod(self._row_shape)))
        elif self._transform is not None and self._transform.row_reader.encoded:
            max_rows = min(max_rows, _ENCODED_BATCH_ROWS)
        columns = [*self.columns.context, *self._role_columns]
        for frame in self.read_frames(part, columns, max_rows):
            yield self._convert_rounds(frame, file)
            n_read += len(frame)
        if n_read != len(part):
            raise DataError(
                f"{part.path} is damaged: {part.start + n_read} rows, at least {part.stop} by its"
                " footer"
            )

    def read_frames(
        self, part: LogPart, names: Sequence[str], max_rows: int = BATCH_ROWS
    ) -> Iterator[pl.DataFrame]:
        """Yield columns of a part in frames of at most ``max_rows`` rows.

        ``ROW_COLUMN`` has their row numbers.
        """
        query = next(file.query for file in self.files if file.path == part.path)
        row_columns = [ROW_COLUMN] if ROW_COLUMN in query.collect_schema() else []
        with convert_polars_errors(f"{part.path} is damaged"):
            first_row = part.start
            query = query.select(list(dict.fromkeys([*row_columns, *names]))).slice(
                part.start, len(part)
            )
            for batch in query.collect_batches(chunk_size=max_rows, maintain_order=True):
                for start in range(0, len(batch), max_rows):
                    frame = batch[start : start + max_rows]
                    yield (
                        frame if row_columns else frame.with_row_index(ROW_COLUMN, offset=first_row)
                    )
                    first_row += len(frame)

    def read_values(self, part: LogPart, column: str | None) -> Iterator[Any]:
        """Yield the values of a column in the order of the part's rounds, or nothing if ``column``
        is None.
        """
        for frame in self.read_frames(part, [column]) if column is not None else ():
            check_no_nulls(frame, [str(column)], part.path)
            yield from frame[str(column)].to_list()

    def describe_repeated_ids(self, id_column: str | None = None) -> list[str]:
        """Return a warning if arms were drawn for each id and not for each row, otherwise nothing.

        The ids are in ``id_column`` or in ``columns.id``. The first million rows are checked, if
        they can be read.
        """
        texts: list[str] = []
        if self.columns.cluster is not None:
            return texts
        for name in self.columns.id if id_column is None else (id_column,):
            queries = [file.query.select(name, str(self.columns.arm)) for file in self.files]
            rows = pl.concat(queries, how="vertical_relaxed").head(_MAX_CHECKED_ROWS)
            with contextlib.suppress(DataError), convert_polars_errors("the log cannot be read"):
                texts += describe_repeated_ids(rows.collect())
        return texts

    def sample_contexts(self, n_rows: int) -> AnyArray:
        """Return about ``n_rows`` contexts from the first rows of up to 16 files, evenly spaced
        over the log.
        """
        file_indices = np.unique(np.linspace(0, len(self.files) - 1, 16).astype(int))
        files = [self.files[index] for index in file_indices if self.files[index].n_rows]
        rows_per_file = math.ceil(n_rows / max(1, len(files)))
        parts = [LogPart(file.path, 0, min(rows_per_file, file.n_rows)) for file in files]
        return np.concatenate([batch.contexts for part in parts for batch in self.batches(part)])

    # Reading the log as a domain, by index.

    @functools.cached_property
    def _all_rounds(self) -> Rounds:
        """All rounds of the log."""
        n_bytes = 8 * len(self) * math.prod(self._row_shape)
        check_memory(n_bytes, f"{len(self):,} logged rounds in memory (fit_log needs less)")
        batches = [batch for part in self.parts() for batch in self.batches(part)]
        return Rounds.join(batches)

    def read_rounds(self, indices: IntArray) -> Rounds:
        return self._all_rounds.select(indices)

    # Converting frames to rounds.

    def _check_schema(self, path: Path, schema: dict[str, Any], *, is_default: bool) -> None:
        """Raise an error if a file lacks a column, or if its types differ from those of the first
        file.

        ``schema`` has the types by column. ``is_default`` is True if the user did not name the
        context columns.
        """
        for name in (*self.columns.context, *self._role_columns):
            if name not in schema:
                remedy = _NAME_REMEDY if name in self._role_columns else ""
                raise DataError(f"{_describe_missing_column(path, name, schema)}{remedy}")
            if name in self._role_columns or self._transform is not None:
                continue  # columns of any type can be read
            type_class = _classify_type(schema[name])
            first_class = _classify_type(self.schema[name])
            problem = f"{path} has {schema[name]} in column {name!r}"
            if type_class != first_class and not {type_class, first_class} <= {"integer", "float"}:
                raise DataError(f"{problem}, but the first file has {self.schema[name]}")
            if is_default and type_class not in ("integer", "float", "list"):
                raise DataError(f"{problem}, which is not a number{_CONTEXT_REMEDY}")
        extra_columns = [name for name in schema if name not in self.schema]
        if is_default and extra_columns and self._transform is None:
            raise DataError(
                f"{path} has a column {extra_columns[0]!r} that the first file"
                f" lacks{_CONTEXT_REMEDY}"
            )

    def _count_features(self, query: pl.LazyFrame, path: Path) -> int:
        """Return the number of context features per row."""
        context_columns = self.columns.context
        if self._transform is not None:
            return len(self._transform.feature_names)
        if len(context_columns) > 1 or not _is_list_type(self.schema[context_columns[0]]):
            return len(context_columns)
        first_list = (
            query.select(context_columns[0]).head(1).collect()[context_columns[0]].to_list()
        )
        if not first_list:
            raise DataError(f"{path} has no row, so the length of its lists is not known")
        return len(first_list[0] or ())

    def _convert_rounds(self, frame: pl.DataFrame, file: LogFile) -> Rounds:
        """Return the rounds in a frame of a file. Raise an error for an invalid value."""
        if self._transform is None:
            check_no_nulls(frame, self.columns.context, file.path)
        try:
            contexts = self._convert_contexts(frame)
        except (InvalidInput, DataError) as error:
            raise DataError(f"{file.path}: {error}") from None
        return read_rounds(
            frame,
            self.columns,
            contexts,
            arm_names=file.arm_names,
            costs=self.costs,
            table_name=file.path,
        )

    def _convert_contexts(self, frame: pl.DataFrame) -> AnyArray:
        """Return the contexts in a frame, (n, *C). Raise an error for a value that is not
        finite.
        """
        context_columns = self.columns.context
        if self._transform is not None:
            features = self._transform.apply(frame)
        elif len(context_columns) == 1 and _is_list_type(frame.schema[context_columns[0]]):
            features = _stack_lists(frame, context_columns[0], math.prod(self._row_shape))
        else:
            features = frame.select(context_columns).to_numpy()
        flat_features = features.ravel(order="K")
        # The sum of squares is also infinite if a square overflows.
        if features.dtype.kind == "f" and not np.isfinite(np.dot(flat_features, flat_features)):
            is_invalid = ~np.isfinite(features)
            if is_invalid.any():
                row, column = (int(index) for index in np.argwhere(is_invalid)[0])
                name = (
                    context_columns[column]
                    if len(context_columns) == features.shape[1]
                    else context_columns[0]
                )
                raise DataError(
                    f"{features[row, column]} in row {row_number(frame, row)} of {name!r}; drop or"
                    " fill such rows"
                )
        return features.reshape(len(frame), *self._row_shape)


def _describe_missing_column(path: Path, name: str, schema: Iterable[str]) -> str:
    """Return a message about a column that a file lacks."""
    return (
        f"{path} has no column {name!r}{did_you_mean(name, schema)} (its columns:"
        f" {', '.join(schema)})"
    )


def _resolve_columns(
    columns: Columns | None,
    schema: dict[str, Any],
    path: Path,
    transform: TableTransform | ImagePathTransform | None,
) -> Columns:
    """Return the columns by role. By default every column without a role is a context."""
    if columns is None:
        columns = DEFAULT_COLUMNS
    if not isinstance(columns, Columns):
        raise InvalidInput(f"columns must be a daband.domains.Columns, got {columns!r}")
    if columns.arm is None or columns.propensity is None:
        raise InvalidInput("columns needs arm, reward and propensity for a log")
    _check_further_roles(columns, schema, path)
    if transform is not None:  # a context column, such as the path of an image, may be the id
        columns = replace(columns, id=[name for name in columns.id if name not in transform.names])
    if columns.context:
        if transform is not None and set(columns.context) != set(transform.names):
            raise InvalidInput(
                f"the context must be the policy's columns: {', '.join(transform.names)}"
            )
        return columns
    for name in (columns.arm, columns.reward, columns.propensity):
        if name not in schema:
            raise DataError(f"{_describe_missing_column(path, str(name), schema)}{_NAME_REMEDY}")
    offered_type = schema.get(_OFFERED_COLUMN)
    lists_arms = offered_type == pl.String or _is_list_type(offered_type)
    is_context = transform is not None and _OFFERED_COLUMN in transform.names
    if columns.offered is None and lists_arms and not is_context:
        columns = replace(columns, offered=_OFFERED_COLUMN)
    return columns.with_context(schema if transform is None else transform.names)


def _check_further_roles(columns: Columns, schema: Mapping[str, Any], path: str | Path) -> None:
    """Raise an error if a file lacks the column of weights, clusters or ids."""
    names_by_role = {"weights": [columns.weights], "cluster": [columns.cluster], "id": columns.id}
    for role, names in names_by_role.items():
        for name in names:
            if name is not None and name not in schema:
                hint = did_you_mean(name, schema)
                raise InvalidInput(
                    f"{role} names the column {name!r}, which {path} does not have{hint}"
                )


def add_roles(columns: Columns | None, **names: str | None) -> Columns:
    """Return columns that also have the roles of ``names``, if they are not None."""
    stated: dict[str, Any] = {role: name for role, name in names.items() if name is not None}
    if "id" in stated:
        stated["id"] = (stated["id"],)
    return replace(columns or DEFAULT_COLUMNS, **stated)


def _classify_type(dtype: Any) -> str:
    """Return "list", "integer", "float", or the name of another type.

    Integers and floats may have any size.
    """
    if _is_list_type(dtype):
        return "list"
    if dtype.is_integer() or dtype == pl.Boolean:
        return "integer"
    return "float" if dtype.is_numeric() else str(dtype)


def _is_list_type(dtype: Any) -> bool:
    """Return True for the type of a column of lists."""
    return isinstance(dtype, pl.List | pl.Array)


def _stack_lists(frame: pl.DataFrame, name: str, length: int) -> AnyArray:
    """Return a column of lists as (n, length)."""
    column = frame[name]
    if isinstance(column.dtype, pl.List):
        is_invalid = column.list.len().to_numpy() != length
        if is_invalid.any():
            row = int(np.argmax(is_invalid))
            raise DataError(
                f"{len(column[row])} numbers in row {row_number(frame, row)} of {name!r}, but"
                f" {length} are expected"
            )
    numbers = column.explode()
    if numbers.null_count():
        missing_row = row_number(frame, int(numbers.is_null().arg_max() or 0) // length)
        raise DataError(f"no value in row {missing_row} of {name!r}; drop or fill such rows")
    return numbers.to_numpy().reshape(len(column), length)


def open_log(
    log: LogFiles | ParquetLog,
    policy: Any,
    *,
    columns: Columns | None = None,
    skip_unrewarded: bool = False,
    **names: str | None,
) -> ParquetLog:
    """Return a log whose rows are read as contexts of a policy or a deployed policy.

    Args:
        log: a folder, a glob or a list of files, or an open log.
        policy: the policy. Its table transform reads the rows. A policy for images reads the image
            files in the column "file", resized and cropped as in training. The open log itself, if
            there is only a function that takes its contexts.
        columns: the columns by role, as in ``ParquetLog``.
        skip_unrewarded: as in ``ParquetLog``.
        names: the columns of further roles, by role; None has no effect. Those of an open log are
            "weights" and "cluster".
    """
    frozen_policy = policy.frozen if isinstance(policy, DeployedPolicy) else policy
    shared = policy.shared if isinstance(policy, ParquetLog) else frozen_policy.arms == "shared"
    if not isinstance(log, ParquetLog):
        transform = frozen_policy.table or (
            None if columns and columns.context else _build_image_transform(log, policy)
        )
        options = {name: getattr(policy, name) for name in ("n_arms", "arm_names", "context_shape")}
        options |= {"shared": shared, "columns": add_roles(columns, **names), "costs": policy.costs}
        return ParquetLog(log, transform=transform, skip_unrewarded=skip_unrewarded, **options)
    if columns is not None:
        raise InvalidInput(
            "columns cannot be given with an open ParquetLog, which has columns already"
        )
    new_roles = {role: name for role, name in names.items() if name is not None}
    if new_roles or log.costs != policy.costs:
        log = copy.copy(log)
        log.costs = log.costs or policy.costs
        log.__dict__.pop("_all_rounds", None)
        if names.get("id") in log.columns.context:
            names["id"] = None
        log.columns = add_roles(log.columns, **names)
        for file in log.files:
            _check_further_roles(log.columns, file.query.collect_schema(), file.path)
    if (log.context_shape, log.n_arms, log.shared) != (policy.context_shape, policy.n_arms, shared):
        raise InvalidInput(
            f"log has contexts of shape {log.context_shape} and {log.n_arms} arms, but the policy"
            f" has {policy.context_shape} and {policy.n_arms}"
        )
    return log


class ImagePathTransform:
    """A transform from rows with image paths to contexts, which reads images as deployed policies
    do.

    Args:
        shape: the shape of a context.
        rule: the layout, resizing and cropping of images.
    """

    names = (FILE_COLUMN,)

    def __init__(self, shape: Shape, rule: ImageRule) -> None:
        self.feature_names = range(math.prod(shape))
        self._reader = RowReader(
            shape=shape, table=None, image_rule=rule, feature_names=(), max_norm=math.inf
        )

    def apply(self, frame: pl.DataFrame) -> AnyArray:
        """Return the contexts of rows as vectors, (n, d)."""
        contexts = []
        for row, path in enumerate(frame[FILE_COLUMN].to_list()):
            row_name = f"row {row_number(frame, row)} of {FILE_COLUMN!r}"
            if not isinstance(path, str) or not path:
                raise DataError(f"{row_name} has no image path")
            if not Path(path).is_file():
                raise DataError(
                    f"{row_name} names {path}, which does not exist; paths are relative to"
                    f" {Path.cwd()}"
                )
            try:
                contexts.append(self._reader.read(path).contexts.reshape(1, -1))
            except InvalidInput as error:
                raise DataError(f"{row_name}: {error}") from None
        return np.concatenate(contexts)


def _build_image_transform(log: LogFiles, policy: Any) -> ImagePathTransform | None:
    """Return the transform for a log with a column of image paths if the policy takes images, else
    None.
    """
    layout = find_image_layout(policy.context_shape)
    if layout is None or (
        policy.per_arm if isinstance(policy, DeployedPolicy) else policy.arms == "shared"
    ):
        return None
    try:
        if scan_log_file(list_log_files(log)[0]).collect_schema().get(FILE_COLUMN) != pl.String:
            return None
    except DataError:  # opening the log raises the same error with more details
        return None
    if isinstance(policy, DeployedPolicy):
        return ImagePathTransform(
            policy.context_shape, policy.reader.image_rule or ImageRule(layout)
        )
    return ImagePathTransform(policy.context_shape, ImageRule(layout, *(policy.framing or ())))
