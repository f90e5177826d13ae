"""Products between contexts of very many dimensions, exact for ``uint8``, without a float copy of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from daband.arrays import AnyArray, FloatArray, unit_scale

__all__ = ["ContextStore", "inner_products"]

_ROWS = 256
_EXACT_COLUMNS = 256
"""255 * 255 * 256 < 2^24: a float32 product over so many uint8 dimensions has no rounding error at all."""
_WIDE_COLUMNS = 2048
_CHUNK_BYTES = 32 << 20


def inner_products(left: AnyArray, right: AnyArray) -> FloatArray:
    """Left (m, d) times right (n, d) transposed, in the scale of ``unit_scale``: uint8 counts as 0..1.

    Values are widened tile by tile, into one small buffer. ``uint8`` contexts are multiplied exactly: as float32 over
    so few dimensions at a time that the whole numbers fit, and summed in float64, with the scale last. That is faster
    than products in float64 as well.
    """
    exact = left.dtype == right.dtype == np.uint8
    kind: type[np.floating[Any]] = np.float32 if exact else np.float64
    columns = _EXACT_COLUMNS if exact else _WIDE_COLUMNS
    total = np.zeros((len(left), len(right)))
    wide = left.astype(kind)
    dim = left.shape[1]
    rows, columns = min(_ROWS, len(right)), min(columns, dim)
    buffer = np.empty((rows, columns), kind)
    for top in range(0, len(right), rows):
        for start in range(0, dim, columns):
            part = right[top : top + rows, start : start + columns]
            tile = buffer[: part.shape[0], : part.shape[1]]
            np.copyto(tile, part)
            total[:, top : top + rows] += wide[:, start : start + columns] @ tile.T
    for side in (left, right):
        if side.dtype == np.uint8:
            total /= 255.0
    return total


class ContextStore:
    """Contexts in the type they came in, in chunks, so that growing never copies what is stored."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._chunks: list[AnyArray] = []
        self._filled = 0  # rows in the last chunk
        self._rows_per_chunk = 0

    def __len__(self) -> int:
        return (len(self._chunks) - 1) * self._rows_per_chunk + self._filled if self._chunks else 0

    @property
    def dtype(self) -> np.dtype[np.generic] | None:
        """The type of what is stored, None while empty."""
        return self._chunks[0].dtype if self._chunks else None

    def append(self, rows: AnyArray) -> None:
        """Add rows (B, d). A second type turns the store into float64."""
        rows = rows.reshape(len(rows), self.dim)
        if rows.dtype not in (np.uint8, np.float32, np.float64):
            rows = rows.astype(np.float64)
        if self._chunks and rows.dtype != self._chunks[0].dtype:
            self._widen()
            rows = unit_scale(rows)
        if not self._chunks:
            self._rows_per_chunk = max(16, _CHUNK_BYTES // max(1, self.dim * rows.dtype.itemsize))
        while len(rows):
            if not self._chunks or self._filled == self._rows_per_chunk:
                self._chunks.append(np.empty((self._rows_per_chunk, self.dim), rows.dtype))
                self._filled = 0
            n = min(len(rows), self._rows_per_chunk - self._filled)
            self._chunks[-1][self._filled : self._filled + n] = rows[:n]
            self._filled += n
            rows = rows[n:]

    def chunks(self) -> list[AnyArray]:
        """The stored contexts, in order."""
        return [*self._chunks[:-1], self._chunks[-1][: self._filled]] if self._chunks else []

    def products(self, contexts: AnyArray) -> FloatArray:
        """Products of contexts (B, d) with everything stored, (B, n)."""
        if not self._chunks:
            return np.zeros((len(contexts), 0))
        return np.concatenate([inner_products(contexts, chunk) for chunk in self.chunks()], axis=1)

    def truncate(self, n: int) -> None:
        """Drop all rows but the first ``n``."""
        keep = -(-n // self._rows_per_chunk) if n else 0
        self._chunks = self._chunks[:keep]
        self._filled = n - (keep - 1) * self._rows_per_chunk if keep else 0

    def array(self) -> AnyArray:
        """All rows as one array (a copy)."""
        return np.concatenate(self.chunks()) if self._chunks else np.zeros((0, self.dim))

    def _widen(self) -> None:
        n = len(self)
        wide = np.concatenate([unit_scale(chunk) for chunk in self.chunks()])
        self._chunks, self._filled = [], 0
        assert len(wide) == n
        self.append(wide)
