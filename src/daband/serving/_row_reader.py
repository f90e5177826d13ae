"""Read the rows for ``decide``: a mapping, a pandas or polars row or frame, an array, image files, or a batch."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from daband._arrays import AnyArray, FloatArray, as_numpy
from daband._image_layout import decode, image_bytes, image_errors, to_eight_bits
from daband._table_transform import FAR, RowWarning, TableRows
from daband.errors import InvalidInput

_FLOAT64, _FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)
_BYTES = (bytes, bytearray, memoryview)
_FAR_SQUARE = FAR * FAR
_LARGEST_PIXEL = 2.0
#: Largest ratio of the resized side to the context's side: larger images would only fill memory.
_MOST_TIMES = 16
#: For at most 64 numbers, ``math.hypot`` takes less time than ``np.errstate``.
_SHORT, _LARGE = 64, 1e100
#: Numbers of one array that are named in warnings; the rest are counted.
_MOST_NAMED = 8


@dataclass(frozen=True)
class ImageRule:
    """Turns an image file into a context: both sides are resized to ``resize``, then the centre ``crop`` is taken.

    Without ``resize`` an image must have the size of a context. ``layout`` is the order of a context's axes:
    "channels_first", "channels_last" or "grey".
    """

    layout: str
    resize: int | None = None
    crop: int | None = None

    def __post_init__(self) -> None:
        if self.layout not in ("channels_first", "channels_last", "grey"):
            raise ValueError(f"images lie {self.layout!r}")
        if (self.resize is None) != (self.crop is None):
            raise ValueError("images are resized and cropped, or neither")
        resize, crop = self.resize or 1, self.crop or 1
        if not 1 <= crop <= resize <= _MOST_TIMES * crop:
            raise ValueError(f"images are resized to {self.resize} and cropped to {self.crop}")


class ReadRows(NamedTuple):
    """Contexts (n, *shape) and the warnings of each; ``single`` is True if one row was given, not a batch of one."""

    contexts: AnyArray
    warnings: list[tuple[RowWarning, ...]]
    single: bool


class RowReader:
    """Reads rows for contexts of one shape; (K, *shape) with one context per arm.

    ``ranges`` are centre and standard deviation of each number of a context in training; None if they are not known.
    """

    def __init__(
        self,
        *,
        shape: tuple[int, ...],
        table: TableRows | None,
        images: ImageRule | None,
        ranges: tuple[FloatArray, FloatArray] | None,
        feature_names: Sequence[str],
        max_norm: float,
    ) -> None:
        self.shape = shape
        self.table = table
        self.images = images
        #: The input of the only column, "image" or "text", if a row may be given without its name.
        self._alone = "" if table is None or len(table.names) > 1 else table.encoded.get(table.names[0], "")
        self._names = tuple(feature_names)
        self._max_norm = max_norm
        self.ranges = ranges
        self._inverse: FloatArray | None = None
        self._short: tuple[FloatArray, FloatArray] | None = None
        if ranges is not None:
            centre, scale = ranges
            if centre.shape != scale.shape or centre.ndim != 1 or np.prod(shape) % len(centre) or not (scale > 0).all():
                raise ValueError(f"ranges have shapes {centre.shape} and {scale.shape}, rows {shape}")
            self._inverse = 1.0 / scale
            with np.errstate(over="ignore"):
                furthest = float(((max_norm + np.abs(centre)) * self._inverse).max())
            if len(centre) == math.prod(shape) <= _SHORT and furthest < _LARGE:
                self._short = centre, self._inverse

    def read(self, row: Any) -> ReadRows:
        """Read one row or several, depending on the type."""
        if type(row) is np.ndarray:
            return self._array(row)
        if type(row) is dict and self.table is not None:  # the usual case
            context, warnings = self.table.read(row)
            if not warnings:
                return ReadRows(context[None], [warnings], True)
        if isinstance(row, Mapping):
            return _single(*self._mapping(row))
        if self._is_file(row):
            return _single(*self._image(row))
        package = type(row).__module__.partition(".")[0]
        if package == "PIL":
            raise InvalidInput(
                "the row is an image of Pillow; give its file's bytes or path, which are read as in training"
            )
        if package in ("pandas", "polars"):
            return self._frame(row, package)
        if isinstance(row, list | tuple) and len(row):
            if isinstance(row[0], Mapping):
                return _each(self._mapping, row)
            if self._is_file(row[0]):
                return _each(self._image, row)
        if isinstance(row, str):
            raise InvalidInput(f"a row is a mapping, an array or an image file's bytes, got the text {row[:40]!r}")
        return self._array(as_numpy(row, "row"))

    def _is_file(self, row: Any) -> bool:
        return isinstance(row, (*_BYTES, os.PathLike)) or (isinstance(row, str) and bool(self.images or self._alone))

    def _mapping(self, row: Any) -> tuple[AnyArray, tuple[RowWarning, ...]]:
        if self.table is None:
            raise InvalidInput(
                f"a row of columns was given, but the policy was exported without a table; give an array of shape "
                f"{self.shape}, or export it again with pair=pair"
            )
        if not (type(row) is dict or isinstance(row, Mapping)):  # isinstance is slower
            raise InvalidInput(f"a row of a batch of mappings is {type(row).__name__}")
        context, warnings = self.table.read(row)
        if warnings:
            with np.errstate(over="ignore", invalid="ignore"):
                self._check_size(context)
        return context, warnings

    def _frame(self, frame: Any, package: str) -> ReadRows:
        if package == "pandas" and type(frame).__name__ == "Series":
            return _single(*self._mapping(frame.to_dict()))
        if type(frame).__name__ != "DataFrame":
            raise InvalidInput(f"a row of {package} is a DataFrame or a row of one, got {type(frame).__name__}")
        rows = frame.to_dict("records") if package == "pandas" else frame.to_dicts()
        if not rows:
            raise InvalidInput("the frame has no rows")
        return _each(self._mapping, rows)

    def _array(self, array: AnyArray) -> ReadRows:
        single = array.shape == self.shape
        if not single and array.shape[1:] != self.shape:
            raise InvalidInput(self._other_shape(array.shape))
        rows = array[None] if single else array
        if single and array.dtype is _FLOAT64:  # the usual case, with nothing to convert
            return ReadRows(rows, [self._checked(array)], True)
        if not len(rows):
            raise InvalidInput("the batch has no rows")
        if rows.dtype == np.uint8:
            return ReadRows(rows, [()] * len(rows), single)
        if rows.dtype not in (_FLOAT64, _FLOAT32):
            rows = as_numpy(rows, "row").astype(np.float64)
        if single:
            return ReadRows(rows, [self._checked(rows[0])], True)
        return _each(lambda one: (one, self._checked(one)), rows)._replace(contexts=rows)

    def _other_shape(self, shape: tuple[int, ...]) -> str:
        if 0 in shape:
            return "the batch has no rows"
        several = ", ".join(["n", *map(str, self.shape)])
        text = f"a row must have shape {self.shape}, several ({several}); got {shape}"
        if self.table is not None:
            return f"{text}. Or give a mapping with the columns {', '.join(self.table.names)}"
        last = shape[-len(self.shape) :]
        if last != self.shape and sorted(last) == sorted(self.shape):
            return f"{text}: the same sizes in another order, so transpose it"
        return text

    def _checked(self, context: AnyArray) -> tuple[RowWarning, ...]:
        """Return the warnings for one context of floating-point numbers."""
        flat: AnyArray = context if context.ndim == 1 else context.reshape(-1)
        if self._short is not None and math.hypot(*flat.tolist()) <= self._max_norm:  # so that nothing overflows
            apart = flat - self._short[0]
            apart *= self._short[1]
            # Usually the sum of squares over all numbers is below the limit for one number.
            if apart.dot(apart) <= _FAR_SQUARE:
                return ()
        with np.errstate(over="ignore", invalid="ignore"):  # the checks find overflows
            self._check_size(flat)
            bright = self._too_bright(flat)
            if bright:
                return bright
            if self.ranges is None or self._inverse is None:
                return ()
            if len(flat) != len(self._inverse):  # one context per arm
                flat = flat.reshape(-1, len(self._inverse))
            outside = np.abs(flat - self.ranges[0]) * self._inverse > FAR
        return self._far(flat, outside) if outside.any() else ()

    def _too_bright(self, flat: AnyArray) -> tuple[RowWarning, ...]:
        """Return a warning if numbers of an image are 0..255 but not bytes, and training used bytes."""
        if self.images is None:
            return ()
        largest = float(flat.max())
        if not _LARGEST_PIXEL < largest < np.inf:
            return ()
        text = f"a pixel is {largest:g}, but floating-point pixels lie in [0, 1]; give bytes (uint8), or divide by 255"
        return (RowWarning("far_outside", "image", text),)

    def _check_size(self, flat: AnyArray) -> None:
        """Raise an error for numbers (d,) that are not finite, or whose norm is larger than the policy accepts."""
        if float(flat.dot(flat)) <= self._max_norm * self._max_norm:
            return
        wrong = np.flatnonzero(~np.isfinite(flat))
        if len(wrong):
            raise InvalidInput(f"{self._name(int(wrong[0]))} of the row is {flat[wrong[0]]}; numbers must be finite")
        largest = float(np.abs(flat).max())
        norm = largest * float(np.linalg.norm(flat.astype(np.float64) / largest)) if largest else 0.0
        if norm > self._max_norm:
            raise InvalidInput(
                f"the row has a norm of {norm:g}, the largest that the policy accepts is {self._max_norm:g}"
            )

    def _far(self, flat: AnyArray, outside: AnyArray) -> tuple[RowWarning, ...]:
        assert self.ranges is not None
        centre, scale = self.ranges
        warnings = []
        for index in np.argwhere(outside)[:_MOST_NAMED]:
            at, value = int(index[-1]), float(flat[tuple(index)])
            name, apart = self._name(at), abs(value - centre[at]) / scale[at]
            text = f"{name} is {value:g}, {apart:.3g} deviations from the mean of training, {centre[at]:g}"
            warnings.append(RowWarning("far_outside", name, text))
        more = int(outside.sum()) - len(warnings)
        if more > 0:
            warnings.append(RowWarning("far_outside", "", f"{more} more numbers are far outside what training saw"))
        return tuple(warnings)

    def _name(self, at: int) -> str:
        return repr(self._names[at]) if at < len(self._names) else f"number {at}"

    def _image(self, given: Any) -> tuple[AnyArray, tuple[RowWarning, ...]]:
        if self._alone and self.table is not None:
            return self._mapping({self.table.names[0]: given})
        rule = self.images
        if rule is None:
            raise InvalidInput(
                f"an image file was given, but the policy takes contexts of shape {self.shape}, which are no images"
            )
        content = image_bytes(given)
        with image_errors(str(given)[-80:] if isinstance(given, str | os.PathLike) else "the row"):
            from PIL import Image

            with Image.open(io.BytesIO(content)) as opened:
                width, height = opened.size
                is_grey = {"grey": 1, "channels_first": self.shape[0], "channels_last": self.shape[-1]}[
                    rule.layout
                ] == 1
                grey = np.array(to_eight_bits(opened).convert("L")) if rule.resize is None and is_grey else None
            pixels = decode(io.BytesIO(content), rule.resize, rule.crop) if grey is None else grey[:, :, None]
        context: AnyArray = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        if rule.layout == "channels_last":
            context = pixels
        elif rule.layout == "grey":
            context = context[0]
        if context.shape != self.shape:
            raise InvalidInput(
                f"the image has {width} x {height} pixels, which gives a context of shape {context.shape}; the policy "
                f"was trained on {self.shape}"
            )
        if rule.resize is not None and min(width, height) < rule.resize:
            text = f"the image has {width} x {height} pixels and was enlarged to {rule.resize} x {rule.resize}"
            return context, (RowWarning("small_image", "image", text),)
        return context, ()


def _single(context: AnyArray, warnings: tuple[RowWarning, ...]) -> ReadRows:
    return ReadRows(context[None], [warnings], True)


def _each(read: Callable[[Any], tuple[AnyArray, tuple[RowWarning, ...]]], rows: Iterable[Any]) -> ReadRows:
    """Read several rows one by one. An error names the row."""
    pairs = []
    for number, row in enumerate(rows):
        try:
            pairs.append(read(row))
        except InvalidInput as error:
            raise InvalidInput(f"row {number}: {error}") from None
    return ReadRows(np.stack([context for context, _ in pairs]), [warnings for _, warnings in pairs], False)
