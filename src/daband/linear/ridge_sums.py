"""What some rounds teach a ridge regression, as sums: Z'Z, Z'r and how many there are.

Sums of parts add up to those of the whole, in any order and on any machine, which is what learns from logs larger than
memory. Everything is summed in double precision, whatever the type of the contexts.
"""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray, restored_array
from daband.linear.kernels import kernels

__all__ = ["RidgeSums"]

_TILE_BYTES = 1 << 22
"""Rows are sorted by head and summed in tiles of about this size, which stay in the cache."""
_APART = 8
"""Numbers left between the columns of a tile: at distances of a power of two they would share few lines of a cache."""


class RidgeSums:
    """``gram`` (heads, d, d), ``moment`` (heads, d) and ``counts`` (heads,) of the rounds that were added.

    Contexts whose columns lie one after the other (Fortran order), as tables give them, are summed fastest.
    """

    def __init__(self, n_heads: int, dim: int) -> None:
        self.dim = dim
        self.gram: FloatArray = np.zeros((n_heads, dim, dim))
        self.moment: FloatArray = np.zeros((n_heads, dim))
        self.counts: IntArray = np.zeros(n_heads, np.int64)
        self._tile = max(64, _TILE_BYTES // (8 * dim))
        self._columns: FloatArray = np.empty((dim + 1, 0))

    def add(self, contexts: AnyArray, heads: IntArray, rewards: FloatArray, weights: FloatArray | None = None) -> None:
        """Add rounds: contexts (B, d), the head of each, its reward, and its weight where rounds count unequally."""
        for start in range(0, len(contexts), self._tile):
            tile = slice(start, start + self._tile)
            self._add_tile(contexts[tile], heads[tile], rewards[tile], None if weights is None else weights[tile])

    def merge(self, other: RidgeSums) -> None:
        """Add the sums of other rounds."""
        self.gram += other.gram
        self.moment += other.moment
        self.counts += other.counts

    def state(self) -> dict[str, AnyArray]:
        """The sums as arrays."""
        return {"gram": self.gram, "moment": self.moment, "counts": self.counts}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""
        self.gram = restored_array(state, "gram", self.gram)
        self.moment = restored_array(state, "moment", self.moment)
        self.counts = restored_array(state, "counts", self.counts)

    def __getstate__(self) -> dict[str, AnyArray]:
        return self.state()

    def __setstate__(self, state: dict[str, AnyArray]) -> None:
        RidgeSums.__init__(self, *state["moment"].shape)
        self.__dict__.update(state)

    def _add_tile(self, contexts: AnyArray, heads: IntArray, rewards: FloatArray, weights: FloatArray | None) -> None:
        n, n_heads, dim = len(contexts), len(self.counts), self.dim
        if self._columns.shape[1] < n:
            self._columns = np.empty((dim + 1, self._tile + _APART))
        small = heads.astype(np.uint8 if n_heads <= 256 else np.uint16) if n_heads <= 65_536 else heads
        order = np.argsort(small, kind="stable")  # a radix sort for small integers
        # A row times the root of its weight counts by its weight in every product of two rows.
        root = np.ones(n) if weights is None else np.sqrt(weights[order])
        columns = self._columns[:, :n]
        kernels.gather_columns(contexts.T, order, root, columns[:dim])
        np.multiply(rewards[order], root, out=columns[dim])
        counts = np.bincount(heads, minlength=n_heads)
        stop = np.cumsum(counts)
        for head in np.flatnonzero(counts):
            own = columns[:, stop[head] - counts[head] : stop[head]]
            products = own @ own.T  # rewards stand in the last row: Z'Z and Z'r in one product
            self.gram[head] += products[:dim, :dim]
            self.moment[head] += products[dim, :dim]
        self.counts += counts
