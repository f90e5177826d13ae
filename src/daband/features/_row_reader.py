"""Convert the rows that ``decide`` accepts to contexts: mappings, pandas or polars frames, arrays,
and image files.

Start with ``RowReader.read``, which calls one method for each kind of row.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from daband.base._arrays import AnyArray, Shape, as_numpy
from daband.errors import InvalidInput
from daband.features._image_layout import (
    convert_image_errors,
    read_image_bytes,
    read_pixels,
    to_eight_bits,
)
from daband.features._table_transform import RowWarning, TableRowReader, row_number

_BYTE_TYPES = (bytes, bytearray, memoryview)
#: If a floating-point pixel is larger, pixels are assumed to be in 0..255 instead of 0..1.
_MAX_UNIT_PIXEL = 2.0


@dataclass(frozen=True)
class ImageRule:
    """The layout of image contexts, and the resizing and cropping of image files."""

    #: The order of the axes of a context: "channels_first", "channels_last" or "grey".
    layout: str
    #: The number of pixels to which both sides of an image are resized; None if images must have
    #: the size of a context.
    resize: int | None = None
    #: The side in pixels of the centre crop after resizing.
    crop: int | None = None


class ReadRows(NamedTuple):
    """The contexts of one row or of a batch, with warnings."""

    #: The contexts, (n, *shape).
    contexts: AnyArray
    #: The warnings of each row, (n,).
    warnings: list[tuple[RowWarning, ...]]
    #: True if one row was given, instead of a batch.
    is_single: bool


class RowReader:
    """A reader that converts rows to contexts, and checks them.

    Args:
        shape: the shape of the input of one decision: one context, or one context per arm.
        table: reads mappings; None if the policy has no table.
        image_rule: how image files are read; None if contexts are not images.
        feature_names: the names of the features, (d,), or empty.
        max_norm: the largest norm of a context that is accepted.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        table: TableRowReader | None,
        image_rule: ImageRule | None,
        feature_names: Sequence[str],
        max_norm: float,
    ) -> None:
        self.shape = shape
        self.table = table
        self.image_rule = image_rule
        #: "image" or "text" if the table has only one encoded column, so that a row may be given
        #: without its name.
        self._only_input_kind = (
            "" if table is None or len(table.names) > 1 else table.encoded.get(table.names[0], "")
        )
        self._feature_names = tuple(feature_names)
        self._max_norm = max_norm

    def read(self, row: Any) -> ReadRows:
        """Return the contexts and warnings of one row or of a batch, depending on the type of
        ``row``.
        """
        if type(row) is np.ndarray:
            return self._read_array(row)
        if isinstance(row, Mapping):
            return _make_single(*self._read_mapping(row))
        if self._is_file_or_text(row):
            return _make_single(*self._read_file_or_text(row))
        package = type(row).__module__.partition(".")[0]
        if package == "PIL":
            raise InvalidInput(
                "row is a Pillow image; pass the bytes or the path of its file, so that it is read"
                " as in training"
            )
        if package in ("pandas", "polars"):
            return self._read_frame(row, package)
        if isinstance(row, list | tuple) and len(row):
            if isinstance(row[0], Mapping):
                return _read_batch(self._read_mapping, row)
            if self._is_file_or_text(row[0]):
                return _read_batch(self._read_file_or_text, row)
        if isinstance(row, str):
            raise InvalidInput(
                "row must be a mapping, an array or the bytes of an image, got the text"
                f" {row[:40]!r}"
            )
        return self._read_array(as_numpy(row, "row"))

    def _is_file_or_text(self, row: Any) -> bool:
        """Return True if the row is the bytes or the path of an image file, or a text for an
        encoder.
        """
        is_text = isinstance(row, str) and bool(self.image_rule or self._only_input_kind)
        return is_text or isinstance(row, (*_BYTE_TYPES, os.PathLike))

    def _read_mapping(self, row: Any) -> tuple[AnyArray, tuple[RowWarning, ...]]:
        """Return the context and the warnings of a mapping from column names to values."""
        if self.table is None:
            raise InvalidInput(
                "row is a mapping, but the policy was exported without a table; pass an array of"
                f" shape {self.shape}, or export it again with pair=pair"
            )
        if not isinstance(row, Mapping):
            raise InvalidInput(
                f"the rows of a batch must all be mappings, got {type(row).__name__}"
            )
        context, warnings = self.table.read(row)
        if warnings:
            self._check_norm(context)
        return context, warnings

    def _read_frame(self, frame: Any, package: str) -> ReadRows:
        """Return the contexts and warnings of a pandas row, or of a pandas or polars frame."""
        if package == "pandas" and type(frame).__name__ == "Series":
            return _make_single(*self._read_mapping(frame.to_dict()))
        if type(frame).__name__ != "DataFrame":
            raise InvalidInput(
                f"row must be a {package} DataFrame or a row of one, got {type(frame).__name__}"
            )
        rows = frame.to_dict("records") if package == "pandas" else frame.to_dicts()
        if not rows:
            raise InvalidInput("the frame has no rows")
        return _read_batch(self._read_mapping, rows, partial(row_number, frame))

    def _read_array(self, array: AnyArray) -> ReadRows:
        """Return the contexts and warnings of an array with one row or a batch."""
        is_single = array.shape == self.shape
        if not is_single and array.shape[1:] != self.shape:
            raise InvalidInput(self._describe_wrong_shape(array.shape))
        rows = array[None] if is_single else array
        if not len(rows):
            raise InvalidInput("the batch has no rows")
        if rows.dtype == np.uint8:
            return ReadRows(rows, [()] * len(rows), is_single)
        if rows.dtype not in (np.float64, np.float32):
            rows = as_numpy(rows, "row").astype(np.float64)
        if is_single:
            return ReadRows(rows, [self._find_warnings(rows[0])], True)
        return _read_batch(lambda context: (context, self._find_warnings(context)), rows)._replace(
            contexts=rows
        )

    def _describe_wrong_shape(self, shape: Shape) -> str:
        """Return the error message for an array of this shape, which is neither a row nor a
        batch.
        """
        if 0 in shape:
            return "the batch has no rows"
        batch_shape = ", ".join(["n", *map(str, self.shape)])
        message = f"row must have shape {self.shape}, or ({batch_shape}) for a batch, got {shape}"
        if self.table is not None:
            return f"{message}. Or pass a mapping with the columns {', '.join(self.table.names)}"
        last_sizes = shape[-len(self.shape) :]
        if last_sizes != self.shape and sorted(last_sizes) == sorted(self.shape):
            return f"{message}: the sizes are in another order; transpose it"
        return message

    def _find_warnings(self, context: AnyArray) -> tuple[RowWarning, ...]:
        """Return the warnings for one context of floats.

        Raise an error if it is not finite or too large.
        """
        self._check_norm(context.reshape(-1))
        largest = 0.0 if self.image_rule is None else float(context.max())
        if not _MAX_UNIT_PIXEL < largest < np.inf:
            return ()
        message = (
            f"a pixel is {largest:g}, but floating-point pixels must be in [0, 1]; pass uint8, or"
            " divide by 255"
        )
        return (RowWarning("far_outside", "image", message),)

    def _check_norm(self, features: AnyArray) -> None:
        """Raise an error if features (d,) are not finite, or if their norm is larger than the
        policy accepts.
        """
        # unlike ``features.dot``, ``vdot`` does not warn of an overflow
        if float(np.vdot(features, features)) <= self._max_norm * self._max_norm:
            return
        invalid_indices = np.flatnonzero(~np.isfinite(features))
        if len(invalid_indices):
            index = int(invalid_indices[0])
            has_name = index < len(self._feature_names)
            name = repr(self._feature_names[index]) if has_name else f"number {index}"
            raise InvalidInput(f"{name} of the row is {features[index]}; numbers must be finite")
        largest = float(np.abs(features).max())
        norm = (
            largest * float(np.linalg.norm(features.astype(np.float64) / largest))
            if largest
            else 0.0
        )
        if norm > self._max_norm:
            raise InvalidInput(
                f"the row has a norm of {norm:g}, the largest that the policy accepts is"
                f" {self._max_norm:g}"
            )

    def _read_file_or_text(self, row: Any) -> tuple[AnyArray, tuple[RowWarning, ...]]:
        """Return the context and the warnings of an image file, or of a text for an encoder."""
        if self._only_input_kind and self.table is not None:
            return self._read_mapping({self.table.names[0]: row})
        rule = self.image_rule
        if rule is None:
            raise InvalidInput(
                f"row is an image file, but the policy takes contexts of shape {self.shape}, which"
                " are not images"
            )
        content = read_image_bytes(row)
        with convert_image_errors(
            str(row)[-80:] if isinstance(row, str | os.PathLike) else "the row"
        ):
            from PIL import Image

            with Image.open(io.BytesIO(content)) as image:
                width, height = image.size
                n_channels_by_layout = {
                    "grey": 1,
                    "channels_first": self.shape[0],
                    "channels_last": self.shape[-1],
                }
                if rule.resize is None and n_channels_by_layout[rule.layout] == 1:
                    pixels = np.array(to_eight_bits(image).convert("L"))[:, :, None]
                else:
                    pixels = read_pixels(io.BytesIO(content), rule.resize, rule.crop)
        context: AnyArray = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        if rule.layout == "channels_last":
            context = pixels
        elif rule.layout == "grey":
            context = context[0]
        if context.shape != self.shape:
            raise InvalidInput(
                f"the image has {width} x {height} pixels, which is a context of shape"
                f" {context.shape}; the policy takes {self.shape}"
            )
        if rule.resize is not None and min(width, height) < rule.resize:
            message = (
                f"the image has {width} x {height} pixels and was enlarged to {rule.resize} x"
                f" {rule.resize}"
            )
            return context, (RowWarning("small_image", "image", message),)
        return context, ()


def _make_single(context: AnyArray, warnings: tuple[RowWarning, ...]) -> ReadRows:
    """Return one context (*shape) and its warnings as ``ReadRows``."""
    return ReadRows(context[None], [warnings], True)


def _read_batch(
    read_one: Callable[[Any], tuple[AnyArray, tuple[RowWarning, ...]]],
    rows: Iterable[Any],
    to_row: Callable[[int], object] = int,
) -> ReadRows:
    """Return the contexts and warnings of a batch. ``read_one`` reads each row.

    ``to_row(index)`` returns the row number that an error states for an index.
    """
    results = []
    for index, row in enumerate(rows):
        try:
            results.append(read_one(row))
        except InvalidInput as error:
            raise InvalidInput(f"row {to_row(index)}: {error}") from None
    return ReadRows(
        np.stack([context for context, _ in results]), [warnings for _, warnings in results], False
    )
