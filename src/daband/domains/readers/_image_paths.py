"""Images of a log by the paths of their files, as ``daband decide`` writes them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from daband._arrays import AnyArray
from daband._lazy_polars import pl
from daband._table_transform import row_number
from daband.errors import DataError, InvalidInput
from daband.serving._row_reader import ImageRule, RowReader

#: The column of a log that has the paths, relative to the current folder or absolute.
FILE_COLUMN = "file"


class ImagePaths:
    """Turns rows with the path of an image file into contexts, by the code that decides on image files.

    Args:
        shape: the shape of a context.
        rule: how an image file becomes a context.
    """

    def __init__(self, shape: tuple[int, ...], rule: ImageRule) -> None:
        self.feature_names = range(math.prod(shape))
        self._reader = RowReader(
            shape=shape, table=None, images=rule, ranges=None, feature_names=(), largest_norm=math.inf
        )

    def apply(self, frame: pl.DataFrame) -> AnyArray:
        """Return the contexts (n, d) of rows."""
        contexts = []
        for row, name in enumerate(frame[FILE_COLUMN].to_list()):
            at = f"row {row_number(frame, row)} of {FILE_COLUMN!r}"
            if not isinstance(name, str) or not name:
                raise DataError(f"no path of an image in {at}")
            if not Path(name).is_file():
                raise DataError(f"{at} names {name}, which is not there; paths are relative to {Path.cwd()}")
            try:
                contexts.append(self._reader.read(name).contexts.reshape(1, -1))
            except InvalidInput as error:
                raise DataError(f"{at}: {error}") from None
        return np.concatenate(contexts)
