"""Compute ridge regressions in the dual form, for contexts with more dimensions than there are
rounds.

Let X (n, d) be the contexts of one head's rounds, r (n,) their rewards, X X' + ridge I = L L' the
Cholesky factorisation, and T = L^-1. All quantities of a context x are computed from v = T X x. Its
predicted reward is v . (T r), its variance is (x.x - v.v) / ridge, and its covariance with another
context y is (x.y - v_x.v_y) / ridge. T [r, 1] (n, 2) is stored instead of T r, so that a prior mean
c of rewards can be chosen later: the prediction is then c + v . (T r - c T 1). A new round adds a
row to T. Rows never change once they are written, so rounding errors do not accumulate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray, read_array, to_floats
from daband.errors import InvalidInput
from daband.linear._primal_ridge import Episode, PrimalRidge, check_norm, compute_squared_norms

#: The number of rows of a tile of ``compute_inner_products``.
_TILE_ROWS = 256
#: All integers up to this one are exact in float32.
_MAX_EXACT_INTEGER = 1 << 24
#: The number of columns of a tile of ``compute_inner_products``, for floating-point numbers.
_TILE_COLUMNS = 2048
#: The size of a chunk of a ``ContextStore``, in bytes.
_CHUNK_BYTES = 32 << 20
#: The number of contexts that are scored at a time.
_SCORE_BLOCK_ROWS = 256


def compute_inner_products(left: AnyArray, right: AnyArray) -> FloatArray:
    """Return the inner products (m, n) of the rows of ``left`` (m, d) and ``right`` (n, d).

    Bytes are scaled from 0..255 to [0, 1]. Values are converted tile by tile, in one small buffer.
    Unsigned integers (bytes, or sums of bytes on the left) are multiplied exactly in float32, which
    is also faster than float64. To keep sums exact, 128 is subtracted from bytes on the right, and
    tiles have few columns. Tiles are summed in float64 and scaled last.
    """
    is_exact = left.dtype.kind == right.dtype.kind == "u"
    dtype: type[np.floating[Any]] = np.float32 if is_exact else np.float64
    left_values = left.astype(dtype)
    total = np.zeros((len(left), len(right)))
    tile_columns = _TILE_COLUMNS
    if is_exact:
        tile_columns = _MAX_EXACT_INTEGER // (128 * int(left.max(initial=1)))
        total += 128.0 * left_values.sum(axis=1, dtype=np.float64)[:, None]
    dim = left.shape[1]
    tile_rows = min(_TILE_ROWS, len(right))
    tile_columns = min(tile_columns, dim)
    buffer = np.empty((tile_rows, tile_columns), dtype)
    for first_row in range(0, len(right), tile_rows):
        rows = slice(first_row, first_row + tile_rows)
        for first_column in range(0, dim, tile_columns):
            columns = slice(first_column, first_column + tile_columns)
            right_part = right[rows, columns]
            tile = buffer[: right_part.shape[0], : right_part.shape[1]]
            np.copyto(tile, right_part)
            if is_exact:
                tile -= 128.0
            total[:, rows] += left_values[:, columns] @ tile.T
    for operand in (left, right):
        if operand.dtype.kind == "u":
            total /= 255.0
    return total


class ContextStore:
    """A growing array of contexts (n, d) in their original type.

    It is stored in chunks, so that growing copies no row.

    As long as all contexts are grey images with three equal channels, only one channel is stored.
    This saves memory and multiplications.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._chunks: list[AnyArray] = []
        #: The number of rows in the last chunk.
        self._n_filled = 0
        self._rows_per_chunk = 0
        #: The axis of the equal channels, 1 for (n, 3, d / 3) or 2 for (n, d / 3, 3); None if all
        #: channels are stored.
        self._channel_axis: int | None = None

    def __len__(self) -> int:
        return (
            (len(self._chunks) - 1) * self._rows_per_chunk + self._n_filled if self._chunks else 0
        )

    def append(self, rows: AnyArray) -> None:
        """Append rows (B, d).

        If their type differs from the stored rows, all rows are converted to float64.
        """
        rows = rows.reshape(len(rows), self.dim)
        if rows.dtype not in (np.uint8, np.float32, np.float64):
            rows = rows.astype(np.float64)
        if not self._chunks:
            self._channel_axis = next((axis for axis in (1, 2) if self._is_grey(rows, axis)), None)
        elif rows.dtype != self._chunks[0].dtype:
            self._replace_rows(to_floats(self.to_array()))
            rows = to_floats(rows)
        elif self._channel_axis is not None and not self._is_grey(rows, self._channel_axis):
            self._replace_rows(self.to_array())
        if self._channel_axis is not None:
            rows = self._split_channels(rows, self._channel_axis).take(0, axis=self._channel_axis)
        self._append_rows(rows)

    def _append_rows(self, rows: AnyArray) -> None:
        """Copy rows into the last chunk, and into new chunks as needed."""
        if not self._chunks:
            self._rows_per_chunk = max(
                16, _CHUNK_BYTES // max(1, rows.shape[1] * rows.dtype.itemsize)
            )
        while len(rows):
            if not self._chunks or self._n_filled == self._rows_per_chunk:
                self._chunks.append(np.empty((self._rows_per_chunk, rows.shape[1]), rows.dtype))
                self._n_filled = 0
            n_copied = min(len(rows), self._rows_per_chunk - self._n_filled)
            self._chunks[-1][self._n_filled : self._n_filled + n_copied] = rows[:n_copied]
            self._n_filled += n_copied
            rows = rows[n_copied:]

    def compute_inner_products(self, contexts: AnyArray) -> FloatArray:
        """Return the inner products of contexts (B, d) with all stored contexts, (B, n)."""
        if not self._chunks:
            return np.zeros((len(contexts), 0))
        if self._channel_axis is not None:
            dtype = np.uint16 if contexts.dtype == np.uint8 else np.float64
            contexts = self._split_channels(contexts, self._channel_axis).sum(
                axis=self._channel_axis, dtype=dtype
            )
        return np.concatenate(
            [compute_inner_products(contexts, chunk) for chunk in self._get_filled_chunks()], axis=1
        )

    def truncate(self, n: int) -> None:
        """Drop all rows but the first ``n``."""
        n_chunks = -(-n // self._rows_per_chunk) if n else 0
        self._chunks = self._chunks[:n_chunks]
        self._n_filled = n - (n_chunks - 1) * self._rows_per_chunk if n_chunks else 0

    def to_array(self) -> AnyArray:
        """Return a copy of all rows as one array, (n, d)."""
        if not self._chunks:
            return np.zeros((0, self.dim))
        rows = np.concatenate(self._get_filled_chunks())
        if self._channel_axis is None:
            return rows
        return np.repeat(
            np.expand_dims(rows, self._channel_axis), 3, axis=self._channel_axis
        ).reshape(-1, self.dim)

    def _get_filled_chunks(self) -> list[AnyArray]:
        """Return the chunks without unused rows."""
        return [*self._chunks[:-1], self._chunks[-1][: self._n_filled]]

    def _split_channels(self, rows: AnyArray, axis: int) -> AnyArray:
        """Return rows (n, d) as (n, 3, d / 3) if ``axis`` is 1, or (n, d / 3, 3) if it is 2."""
        n_pixels = self.dim // 3
        return rows.reshape((-1, 3, n_pixels) if axis == 1 else (-1, n_pixels, 3))

    def _is_grey(self, rows: AnyArray, axis: int) -> bool:
        """Return True if rows are byte images whose three channels along this axis are equal."""
        if rows.dtype != np.uint8 or self.dim % 3:
            return False
        channels = np.moveaxis(self._split_channels(rows, axis), axis, 0)
        return np.array_equal(channels[0], channels[1]) and np.array_equal(channels[0], channels[2])

    def _replace_rows(self, rows: AnyArray) -> None:
        """Replace all stored rows by these, with all channels."""
        self._chunks = []
        self._n_filled = 0
        self._channel_axis = None
        self._append_rows(rows)


#: The number of rows of T per block. A block has as many columns as its last row, so half of T is
#: not stored.
_BLOCK_ROWS = 256


class _InverseFactor:
    """The lower triangular matrix T = L^-1 (n, n) of one head; see the module docstring for the
    symbols.
    """

    def __init__(self) -> None:
        #: T in blocks of 256 rows. Block i has the columns up to its last row, (256, 256 (i + 1)).
        self.blocks: list[FloatArray] = []
        self.n_rounds = 0
        #: The indices of the rounds in the ``ContextStore``.
        self.round_indices: list[int] = []
        #: T [r, 1], (n, 2).
        self.projected_targets = np.zeros((0, 2))

    def apply(self, products: FloatArray) -> FloatArray:
        """Return v = T k, (n, B), for the inner products k (n, B) of this head's rounds with
        contexts.
        """
        v = np.empty((self.n_rounds, products.shape[1]))
        for index, block in enumerate(self.blocks):
            start = index * _BLOCK_ROWS
            stop = min(start + _BLOCK_ROWS, self.n_rounds)
            v[start:stop] = block[: stop - start, :stop] @ products[:stop]
        return v

    def compute_extension(
        self, v: FloatArray, gram: FloatArray, targets: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the rows of T (m, n + m) and of T [r, 1] (m, 2) for m new rounds, without changing
        anything.

        ``v`` (n, m) is the result of ``apply`` for the new contexts. ``gram`` (m, m) are the inner
        products of the new contexts, plus ridge I. ``targets`` (m, 2) are the rewards and ones.
        """
        right_block = np.linalg.inv(np.linalg.cholesky(gram - v.T @ v))
        left_block = -right_block @ self.apply_transposed(v)
        new_rows = np.concatenate([left_block, np.tril(right_block)], axis=1)
        return new_rows, right_block @ (targets - v.T @ self.projected_targets)

    def extend(
        self, rows: FloatArray, projected_targets: FloatArray, round_indices: IntArray
    ) -> None:
        """Append both results of ``compute_extension``, for rounds with these indices (m,)."""
        self.projected_targets = np.concatenate([self.projected_targets, projected_targets])
        self.round_indices.extend(int(index) for index in round_indices)
        n_before = self.n_rounds
        self.n_rounds += len(rows)
        for offset in range(len(rows)):
            index, row = divmod(n_before + offset, _BLOCK_ROWS)
            if index == len(self.blocks):
                self.blocks.append(np.zeros((_BLOCK_ROWS, (index + 1) * _BLOCK_ROWS)))
            n_columns = min(rows.shape[1], (index + 1) * _BLOCK_ROWS)
            self.blocks[index][row, :n_columns] = rows[offset, :n_columns]

    def truncate(self, n: int) -> None:
        """Drop all rounds but the first ``n``."""
        self.n_rounds = n
        self.round_indices = self.round_indices[:n]
        self.projected_targets = self.projected_targets[:n]
        self.blocks = self.blocks[: -(-n // _BLOCK_ROWS)]
        if n % _BLOCK_ROWS:
            self.blocks[-1][n % _BLOCK_ROWS :] = 0.0

    def apply_transposed(self, v: FloatArray) -> FloatArray:
        """Return (T' v)' for v (n, m), which is (m, n)."""
        products = np.zeros((v.shape[1], self.n_rounds))
        for index, block in enumerate(self.blocks):
            start = index * _BLOCK_ROWS
            stop = min(start + _BLOCK_ROWS, self.n_rounds)
            products[:, :stop] += v[start:stop].T @ block[: stop - start, :stop]
        return products


class DualRidge:
    """The regressions of ``PrimalRidge``, at a cost that grows with the number of rounds instead of
    dimensions.

    ``targets`` (B, 2) are the rewards of rounds and ones, as in ``PrimalRidge``.
    """

    def __init__(self, n_heads: int, dim: int, ridge: float) -> None:
        self.dim = dim
        self.ridge = ridge
        self.store = ContextStore(dim)
        #: The head of each stored round.
        self._heads: list[int] = []
        #: The targets of each stored round: its reward and 1, (n, 2).
        self._targets: FloatArray = np.zeros((0, 2))
        self._factors: list[_InverseFactor] = []
        #: The contexts of the last call of ``start_episode``, their inner products, and v of every
        #: head. If the next ``update`` has the same contexts, it uses them.
        self._last_episode: tuple[AnyArray, FloatArray, list[FloatArray]] | None = None
        self.add_heads(n_heads)

    @property
    def n_heads(self) -> int:
        """The number of regressions."""
        return len(self._factors)

    @property
    def counts(self) -> IntArray:
        """The number of rounds of each head, (heads,)."""
        return np.array([factor.n_rounds for factor in self._factors], np.int64)

    def compute_coefficients(self, centre: float = 0.0) -> FloatArray:
        """Return the coefficients (heads, d) of rewards minus ``centre``."""
        contexts = to_floats(self.store.to_array())
        combination = np.array([[1.0], [-centre]])  # rewards minus the centre times ones
        coefficients = [
            factor.apply_transposed(factor.projected_targets @ combination)[0]
            @ contexts[factor.round_indices]
            for factor in self._factors
        ]
        return np.stack(coefficients)

    def add_heads(self, n: int) -> None:
        """Append ``n`` heads without rounds."""
        self._last_episode = None
        self._factors.extend(_InverseFactor() for _ in range(n))

    def score(
        self, contexts: AnyArray, *, centre: float = 0.0, with_bonuses: bool = True
    ) -> tuple[FloatArray, FloatArray]:
        """Return predicted rewards and variances of contexts (B, d), each (B, heads).

        ``centre`` is the prior mean of rewards. If ``with_bonuses`` is False, variances are 0.
        """
        mean = np.empty((len(contexts), self.n_heads))
        variance = np.zeros((len(contexts), self.n_heads))
        for start in range(0, len(contexts), _SCORE_BLOCK_ROWS):
            rows = slice(start, start + _SCORE_BLOCK_ROWS)
            squares = compute_squared_norms(contexts[rows])
            products = self.store.compute_inner_products(contexts[rows]).T
            for head, factor in enumerate(self._factors):
                v = factor.apply(products[factor.round_indices])
                mean[rows, head] = centre + (factor.projected_targets @ (1.0, -centre)) @ v
                if with_bonuses:
                    variance[rows, head] = (squares - np.einsum("nb,nb->b", v, v)) / self.ridge
        return mean, np.maximum(variance, 0.0)

    def start_episode(self, contexts: AnyArray) -> Episode:
        """Return the predictions for an episode with these contexts (B, d)."""
        products = compute_inner_products(contexts, contexts)
        stored_products = self.store.compute_inner_products(contexts).T
        v_by_head = [
            factor.apply(stored_products[factor.round_indices]) for factor in self._factors
        ]
        self._last_episode = (contexts, products, v_by_head)
        covariance = np.empty((self.n_heads, len(contexts), len(contexts)))
        mean = np.empty((2, len(contexts), self.n_heads))
        for head, (factor, v) in enumerate(zip(self._factors, v_by_head, strict=True)):
            covariance[head] = (products - v.T @ v) / self.ridge
            mean[:, :, head] = factor.projected_targets.T @ v
        variance = np.maximum(np.ascontiguousarray(np.einsum("hbb->bh", covariance)), 0.0)
        return Episode(
            covariance,
            contexts=np.zeros((0, 0)),
            has_covariances=True,
            mean=mean,
            variance=variance,
        )

    def update(self, contexts: AnyArray, heads: IntArray, targets: FloatArray) -> None:
        """Learn from a batch of rounds: contexts (B, d), the head of each round and its targets (B,
        2).
        """
        check_norm(contexts, self.ridge)
        last_episode = self._last_episode
        self._last_episode = None
        n_before = len(self.store)
        n_by_head = [factor.n_rounds for factor in self._factors]
        try:
            if last_episode is not None and last_episode[0] is contexts:
                _, products, v_by_head = last_episode
                self._update_block(contexts, heads, targets, products, v_by_head)
                return
            for start in range(0, len(contexts), _BLOCK_ROWS):
                block = slice(start, start + _BLOCK_ROWS)
                products = compute_inner_products(contexts[block], contexts[block])
                stored_products = self.store.compute_inner_products(contexts[block]).T
                v_by_head = [
                    factor.apply(stored_products[factor.round_indices]) for factor in self._factors
                ]
                self._update_block(
                    contexts[block], heads[block], targets[block], products, v_by_head
                )
        except np.linalg.LinAlgError:
            self._truncate(n_before, n_by_head)
            raise InvalidInput(
                f"contexts are too large for ridge={self.ridge:g} in floating-point arithmetic (the"
                f" largest squared norm is {float(compute_squared_norms(contexts).max()):.3g});"
                " scale them down or raise the ridge"
            ) from None

    def to_primal(self) -> PrimalRidge:
        """Return the same regressions in the primal form."""
        primal = PrimalRidge(self.n_heads, self.dim, self.ridge)
        primal.fit(self.store.to_array(), np.array(self._heads, np.int64), self._targets)
        return primal

    def compute_decision_cost(self) -> float:
        """Return the number of multiplications per decision: inner products with all rounds, and T
        k of each head.
        """
        return float(len(self.store) * self.dim + (self.counts.astype(np.float64) ** 2).sum())

    def state(self) -> dict[str, AnyArray]:
        """Return the arrays from which ``restore`` rebuilds exactly the same regressions."""
        arrays: dict[str, AnyArray] = {
            "contexts": self.store.to_array(),
            "heads": np.array(self._heads, np.int64),
            "targets": self._targets,
            "n_heads": np.array([self.n_heads], np.int64),
        }
        for head, factor in enumerate(self._factors):
            arrays[f"weights.{head}"] = factor.projected_targets
            for index, block in enumerate(factor.blocks):
                arrays[f"factor.{head}.{index}"] = block
        return arrays

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        n = len(state["heads"])
        heads = read_array(state, "heads", np.zeros(n, np.int64))
        if state["n_heads"].tolist() != [self.n_heads] or (
            n and not (0 <= heads.min() <= heads.max() < self.n_heads)
        ):
            raise ValueError(f"the rounds must belong to heads 0..{self.n_heads - 1}")
        targets = read_array(state, "targets", np.zeros((n, 2)))
        store = ContextStore(self.dim)
        if n:
            store.append(
                read_array(state, "contexts", np.empty((n, self.dim), state["contexts"].dtype))
            )
        factors = []
        for head in range(self.n_heads):
            factor = _InverseFactor()
            factor.round_indices = np.flatnonzero(heads == head).tolist()
            factor.n_rounds = len(factor.round_indices)
            factor.projected_targets = read_array(
                state, f"weights.{head}", np.zeros((factor.n_rounds, 2))
            )
            factor.blocks = [
                read_array(
                    state,
                    f"factor.{head}.{index}",
                    np.empty((_BLOCK_ROWS, (index + 1) * _BLOCK_ROWS)),
                )
                for index in range(-(-factor.n_rounds // _BLOCK_ROWS))
            ]
            factors.append(factor)
        self._heads = heads.tolist()
        self._targets = targets
        self._last_episode = None
        self.store = store
        self._factors = factors

    def _update_block(
        self,
        contexts: AnyArray,
        heads: IntArray,
        targets: FloatArray,
        products: FloatArray,
        v_by_head: list[AnyArray],
    ) -> None:
        """Learn a block of rounds, given the inner products (B, B) of its contexts, and v (n, B) of
        each head.
        """
        first_round = len(self.store)
        extensions = []
        for head in np.unique(heads):
            rows = np.flatnonzero(heads == head)
            factor = self._factors[head]
            gram = products[np.ix_(rows, rows)] + self.ridge * np.eye(len(rows))
            extension = factor.compute_extension(v_by_head[head][:, rows], gram, targets[rows])
            extensions.append((factor, extension, first_round + rows))
        for factor, extension, round_indices in extensions:
            factor.extend(*extension, round_indices)
        self.store.append(contexts)
        self._heads.extend(int(head) for head in heads)
        self._targets = np.concatenate([self._targets, targets])

    def _truncate(self, n: int, n_by_head: list[int]) -> None:
        """Drop all rounds but the first ``n``; ``n_by_head`` are the numbers of these rounds of
        each head.
        """
        self._last_episode = None
        for factor, n_rounds in zip(self._factors, n_by_head, strict=True):
            factor.truncate(n_rounds)
        self._heads = self._heads[:n]
        self._targets = self._targets[:n]
        self.store.truncate(n)
