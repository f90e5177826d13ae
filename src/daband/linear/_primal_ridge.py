"""Compute ridge regressions in the primal form: A = ridge I + Z'Z and theta = A^-1 Z'[r, 1], for
one or more heads.

Z (n, d) are the contexts of a head's rounds and r (n,) their rewards. Every regression has two
right-hand sides, rewards r and ones, hence two columns theta_r and theta_1. With a prior mean c,
the prediction for a context z is ``c + z.(theta_r - c theta_1)``. This is exactly the ridge
regression of r - c, plus c. So c may change at any time.

``PrimalRidge`` learns round by round, ``RidgeSums`` sums the rounds of a log.
``compute_ridge_scores`` predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from daband.base._arrays import (
    AnyArray,
    FloatArray,
    IntArray,
    Weights,
    get_thread_buffer,
    read_array,
    to_floats,
)
from daband.errors import InvalidInput
from daband.linear._kernels import kernels
from daband.linear._kernels_numpy import compute_variances
from daband.linear._reward_moments import RewardMoments

#: Minimum number of features for which single precision is faster.
_MIN_SINGLE_DIM = 16
#: Minimum number of rows for which single precision is faster.
_MIN_SINGLE_ROWS = 1024
#: The largest estimated rounding error of a bonus in single precision.
_MAX_ROUNDING_ERROR = 1e-4
#: The number of products that are computed at once. They take 1 MB, which fits in the cache.
_BLOCK_VALUES = 131_072


def compute_ridge_scores(
    theta: FloatArray, inverse: FloatArray | None, z: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return means z.theta and variances z'A^-1 z of features z (B, d) under every regression, (B,
    heads) each.

    theta is (heads, d). inverse is A^-1, (heads, d, d); if it is None, variances are 0. Variances
    of large batches are computed in single precision if contexts are small enough. The measured
    error of bonuses is below 3e-6.
    """
    n_heads, dim = theta.shape
    if len(z) == 1:  # vector products
        row = z[0]
        mean = theta.dot(row)[None]
        if inverse is None:
            return mean, np.zeros_like(mean)
        variance = inverse.reshape(-1, dim).dot(row).reshape(n_heads, dim).dot(row)
        np.maximum(variance, 0.0, out=variance)
        return mean, variance[None]
    if dim >= _MIN_SINGLE_DIM and len(z) >= max(_MIN_SINGLE_ROWS, 4 * dim):
        single_variance = (
            np.zeros((len(z), n_heads))
            if inverse is None
            else _compute_float32_variances(inverse, z)
        )
        if single_variance is not None:
            return z @ theta.T, single_variance
    mean = np.empty((len(z), n_heads))
    variance = np.zeros((len(z), n_heads))
    block_rows = max(64, _BLOCK_VALUES // (dim * n_heads))
    for start in range(0, len(z), block_rows):
        block = slice(start, start + block_rows)
        mean[block] = z[block] @ theta.T
        if inverse is not None:
            variance[block] = compute_variances(np.matmul(z[block], inverse), z[block])
    return mean, variance


def _compute_float32_variances(inverse: FloatArray, z: FloatArray) -> FloatArray | None:
    """Return variances (B, heads) in single precision, or None if they may be inaccurate.

    A variance is |R'z|^2 with A^-1 = R R' and R lower triangular. The norm of row i of R is the
    square root of the i-th diagonal element of A^-1. The estimated rounding error of a bonus |R'z|
    is the rounding unit times the sum over i of
    |z_i| times this norm; at most 1e-4 is accepted. It is an estimate and not a bound, because d products are summed.
    Their errors mostly cancel: the measured error is a twentieth of the estimate. Without
    cancellation it would be about 1.5 d times the estimate.
    """
    max_features = np.abs(z).max(axis=0)
    max_deviation = float(
        (max_features @ np.sqrt(np.abs(inverse.diagonal(axis1=1, axis2=2)).T)).max()
    )
    if not np.finfo(np.float32).eps / 2 * max_deviation <= _MAX_ROUNDING_ERROR:
        return None
    try:
        factor = np.linalg.cholesky(inverse).astype(np.float32)
    except np.linalg.LinAlgError:  # rounding left an inverse that is not positive definite
        return None
    n_heads, dim, _ = inverse.shape
    # Blocks of columns skip most of the zeros. One product covers the columns of all heads side by
    # side.
    block_columns = max(16, dim // 4)
    factor_blocks = [
        (
            column,
            factor[:, column:, column : column + block_columns]
            .transpose(1, 0, 2)
            .reshape(dim - column, -1),
        )
        for column in range(0, dim, block_columns)
    ]
    variance = np.zeros((len(z), n_heads))
    block_rows = max(64, 2 * _BLOCK_VALUES // (n_heads * block_columns))
    for start in range(0, len(z), block_rows):
        rows = z[start : start + block_rows].astype(np.float32)
        for column, factor_block in factor_blocks:
            products = (rows[:, column:] @ factor_block).reshape(len(rows), n_heads, -1)
            variance[start : start + block_rows] += np.einsum("nhd,nhd->nh", products, products)
    return variance


def mix_scores(
    scores: Sequence[tuple[FloatArray, FloatArray]],
    weights: Sequence[float],
    bonus_weights: Sequence[float],
) -> tuple[FloatArray, FloatArray]:
    """Return the weighted mean of several predictions: the means and bonuses, (B, K) each.

    Args:
        scores: the means and bonuses of each prediction, (B, K) each.
        weights: the weight of the means of each prediction.
        bonus_weights: the weight of the bonuses of each prediction.

    The error of a weighted mean is at most the weighted mean of the errors. So the weighted mean of
    the bonuses is a valid bonus.
    """
    mean = weights[0] * scores[0][0]
    bonus = bonus_weights[0] * scores[0][1]
    for (other_mean, other_bonus), weight, bonus_weight in zip(
        scores[1:], weights[1:], bonus_weights[1:], strict=True
    ):
        mean += weight * other_mean
        bonus += bonus_weight * other_bonus
    return mean, bonus


# The maximum size of a context, relative to the ridge.
#
# The largest eigenvalue of A is at least |z|^2 of any learned context. The smallest may be the
# ridge. The precision of means and bonuses decreases with the ratio of the two.


#: The largest squared norm of a context, in units of the ridge. Up to this limit, the rounding
#: error of means is about 1e-6, or 1e-4 in the dual form or if such a context repeats. Errors grow
#: in proportion to the squared norm. At 1e16, bonuses are noise.
MAX_SQUARED_NORM = 1e10


def compute_squared_norms(contexts: AnyArray) -> FloatArray:
    """Return the squared norm (B,) of each row of contexts (B, d). uint8 contexts are scaled to [0,
    1].
    """
    rows = contexts.astype(np.float64, copy=False)
    squares: FloatArray = np.einsum("bd,bd->b", rows, rows)
    return squares / (255.0 * 255.0) if contexts.dtype == np.uint8 else squares


def check_norm(contexts: AnyArray, ridge: float) -> None:
    """Raise an error if one of the contexts (..., d) is too large for the ridge."""
    max_square = MAX_SQUARED_NORM * ridge
    if contexts.dtype == np.uint8 and contexts.shape[-1] <= max_square:
        return
    # all rows at once
    if contexts.dtype == np.float64 and kernels.sum_of_squares(contexts.reshape(-1)) <= max_square:
        return
    squares = compute_squared_norms(contexts.reshape(-1, contexts.shape[-1]))
    if not (squares <= max_square).all():
        raise_too_large(squares, ridge)


def raise_too_large(squares: FloatArray, ridge: float) -> NoReturn:
    """Raise an error that names the largest of the contexts with these squared norms (B,),
    ``squares``.
    """
    row = int(np.argmax(squares))
    raise InvalidInput(
        f"contexts are too large for ridge={ridge:g} in accurate arithmetic: row {row} has squared"
        f" norm {float(squares[row]):.3g}, the maximum is {MAX_SQUARED_NORM:g} times the ridge."
        " Look for an outlier, scale the contexts down, or raise the ridge"
    )


# Sums over rounds.
#
# The sums over parts of a log add up to the sums over all its rounds, in any order and on any
# machine. So logs may be larger than memory. All sums are in double precision, for contexts of any
# type.


#: Rows are sorted by head and summed in tiles of about this size, which fit in the cache.
_TILE_BYTES = 1 << 22
#: Unused values between the columns of a tile. Columns at a distance of a power of two would use
#: few cache lines.
_COLUMN_PADDING = 8


class RidgeSums:
    """Sums over rounds, from which ridge regressions can be computed.

    Attributes:
        gram: Z'Z of each head, (heads, d, d). Unlike A, it does not include the ridge.
        moment: Z'r and Z'1 of each head, (heads, 2, d).
        counts: the number of rounds of each head, (heads,).
        reward_moments: the moments of all rewards.
    """

    def __init__(self, n_heads: int, dim: int) -> None:
        self.dim = dim
        self.gram: FloatArray = np.zeros((n_heads, dim, dim))
        self.moment: FloatArray = np.zeros((n_heads, 2, dim))
        self.counts: IntArray = np.zeros(n_heads, np.int64)
        self.reward_moments = RewardMoments(standardise=True)
        self._tile_rows = max(64, _TILE_BYTES // (8 * dim))

    def add(
        self, contexts: AnyArray, heads: IntArray, rewards: FloatArray, weights: Weights = None
    ) -> None:
        """Add rounds: contexts (B, d), and the head, reward and weight of each round, (B,).

        By default weights are 1.

        Contexts in Fortran order, as in tables, are summed fastest.
        """
        self.reward_moments.add(rewards, weights)
        for start in range(0, len(contexts), self._tile_rows):
            tile = slice(start, start + self._tile_rows)
            self._add_tile(
                contexts[tile],
                heads[tile],
                rewards[tile],
                None if weights is None else weights[tile],
            )

    def merge(self, other: RidgeSums) -> None:
        """Add the sums of other rounds."""
        self.gram += other.gram
        self.moment += other.moment
        self.counts += other.counts
        self.reward_moments.merge(other.reward_moments)

    def state(self) -> dict[str, AnyArray]:
        """Return the sums as arrays."""
        return {
            "gram": self.gram,
            "moment": self.moment,
            "counts": self.counts,
            "rewards": self.reward_moments.state(),
        }

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        for name in ("gram", "moment", "counts"):
            setattr(self, name, read_array(state, name, getattr(self, name)))
        self.reward_moments.restore(state["rewards"])

    def __getstate__(self) -> dict[str, AnyArray]:
        return self.state()

    def __setstate__(self, state: dict[str, AnyArray]) -> None:
        RidgeSums.__init__(self, len(state["moment"]), state["moment"].shape[2])
        self.restore(state)

    def _add_tile(
        self, contexts: AnyArray, heads: IntArray, rewards: FloatArray, weights: Weights
    ) -> None:
        """Add at most one tile of rounds: sort them by head, and sum each head's rows in one
        product.
        """
        n = len(contexts)
        n_heads = len(self.counts)
        dim = self.dim
        compact_heads = (
            heads.astype(np.uint8 if n_heads <= 256 else np.uint16) if n_heads <= 65_536 else heads
        )
        order = np.argsort(compact_heads, kind="stable")  # a radix sort for small integers
        # A row times the square root of its weight counts by its weight in every product of two
        # rows.
        weight_roots = np.ones(n) if weights is None else np.sqrt(weights[order])
        columns = get_thread_buffer("tile of rounds", (dim + 2, self._tile_rows + _COLUMN_PADDING))[
            :, :n
        ]
        sorted_columns = get_thread_buffer("sorted columns", (dim, n), contexts.dtype)
        # "raise" would copy ``out``
        np.take(contexts.T, order, axis=1, out=sorted_columns, mode="clip")
        np.multiply(sorted_columns, weight_roots, out=columns[:dim])
        np.multiply(rewards[order], weight_roots, out=columns[dim])
        columns[dim + 1] = weight_roots
        counts = np.bincount(heads, minlength=n_heads)
        stops = np.cumsum(counts)
        for head in np.flatnonzero(counts):
            rows = columns[:, stops[head] - counts[head] : stops[head]]
            # the last two rows are rewards and ones, so this has Z'Z and Z'[r, 1]
            products = rows @ rows.T
            self.gram[head] += products[:dim, :dim]
            self.moment[head] += products[dim:, :dim]
        self.counts += counts


#: A rank-one update with a variance of 10^k loses k digits. Above this variance, the inverse is
#: computed from A at once.
_LARGE_VARIANCE = 1e6
#: The largest condition number of A, scaled to a unit diagonal, for inversion. Above it, rank-one
#: updates are more accurate.
_MAX_CONDITION = 1e10
#: The number of rows that are collected before one matrix product adds them to A.
_MAX_PENDING = 32
#: Maximum dimension for which a batch is learned row by row (compiled). Larger ones use Woodbury's
#: identity (matrix products).
_MAX_SEQUENTIAL_DIM = 96


class Episode(NamedTuple):
    """The predictions for all B contexts of an episode before its first round; see
    ``_kernels_numpy.play_episode``.

    The covariances of contexts z are z_i'A^-1 z_j. The primal form stores A^-1 z, and the kernels
    compute only those covariances that they need. The dual form stores all covariances.
    """

    #: A^-1 z of every context, (heads, B, d); or covariances, (heads, B, B).
    products: FloatArray
    #: The contexts z, (B, d); empty if ``products`` are covariances.
    contexts: FloatArray
    #: True if ``products`` are covariances.
    has_covariances: bool
    #: The predictions of rewards and of ones, (2, B, heads).
    mean: FloatArray
    #: The variances z'A^-1 z, (B, heads).
    variance: FloatArray


class PrimalRidge:
    """Ridge regressions that learn round by round: ``n_heads`` regressions of dimension ``dim``.

    The targets (B, 2) of rounds are their rewards and ones. Rounding errors of rank-one updates add
    up. So A itself is stored as well, and summed in blocks to keep its error small. After
    ``max(1024, 16 dim)`` updates of a head, its inverse is computed from A. This costs an eighth of
    dim^2 multiplications per update, which is a small part of the update itself.

    Updates change the arrays in place, so reads and writes must not overlap. To replace statistics
    while they are being read, build new ones with ``fit`` on a new object.
    """

    #: The number of learned rounds, (heads,).
    counts: IntArray
    #: Coefficients of rewards and of ones, (heads, 2, d).
    theta: FloatArray
    #: A^-1, (heads, d, d).
    inverse: FloatArray
    #: A = ridge I + Z'Z without the pending rows, (heads, d, d).
    _gram: FloatArray
    #: Z'r and Z'1, (heads, 2, d).
    _moment: FloatArray
    #: Rows that are learned but not yet added to ``_gram``, (heads, 32, d).
    _pending: FloatArray
    #: The number of these rows, (heads,).
    _n_pending: IntArray
    #: The number of updates since the inverse was computed from A, (heads,).
    _since_refresh: IntArray

    def __init__(self, n_heads: int, dim: int, ridge: float) -> None:
        self.dim = dim
        self.ridge = ridge
        #: The number of updates of a head after which its inverse is computed from A.
        self.refresh_after = max(1024, 16 * dim)
        self._reset_heads(n_heads)

    def _reset_heads(self, n: int) -> None:
        """Replace all heads by ``n`` heads without rounds."""
        for name, array in self._make_empty_arrays(n).items():
            setattr(self, name, array)

    def _make_empty_arrays(self, n: int) -> dict[str, AnyArray]:
        """Return the arrays of ``n`` heads without rounds, by attribute name."""
        dim, eye = self.dim, np.eye(self.dim)
        return {
            "counts": np.zeros(n, np.int64),
            "theta": np.zeros((n, 2, dim)),
            "inverse": np.tile(eye / self.ridge, (n, 1, 1)),
            "_gram": np.tile(eye * self.ridge, (n, 1, 1)),
            "_moment": np.zeros((n, 2, dim)),
            "_pending": np.zeros((n, _MAX_PENDING, dim)),
            "_n_pending": np.zeros(n, np.int64),
            "_since_refresh": np.zeros(n, np.int64),
        }

    @property
    def n_heads(self) -> int:
        """The number of regressions."""
        return len(self.counts)

    def add_heads(self, n: int) -> None:
        """Append ``n`` heads without rounds."""
        for name, new_heads in self._make_empty_arrays(n).items():
            setattr(self, name, np.concatenate([getattr(self, name), new_heads]))

    def add_dimensions(self, n: int) -> None:
        """Append ``n`` features that were 0 in every learned round."""
        self.dim += n
        for name, larger_array in self._make_empty_arrays(self.n_heads).items():
            array = getattr(self, name)
            larger_array[tuple(map(slice, array.shape))] = array
            setattr(self, name, larger_array)
        self.refresh_after = max(1024, 16 * self.dim)

    def compute_gram(self, head: int) -> FloatArray:
        """Return A of this head, (d, d), including pending rows."""
        rows = self._pending[head, : self._n_pending[head]]
        return self._gram[head] + rows.T @ rows

    def compute_coefficients(self, centre: float = 0.0) -> FloatArray:
        """Return the coefficients (heads, d) of rewards minus ``centre``."""
        return self.theta[:, 0] if centre == 0.0 else self.theta[:, 0] - centre * self.theta[:, 1]

    def score(
        self, contexts: AnyArray, *, centre: float = 0.0, with_bonuses: bool = True
    ) -> tuple[FloatArray, FloatArray]:
        """Return predicted rewards and variances z'A^-1 z of contexts (B, d), each (B, heads).

        ``centre`` is the prior mean of rewards. If ``with_bonuses`` is False, variances are 0.
        """
        is_double = contexts.dtype == np.float64 and contexts.flags.c_contiguous
        inverse = self.inverse if with_bonuses else None
        z = contexts if is_double else to_floats(contexts)
        mean, variance = compute_ridge_scores(self.compute_coefficients(centre), inverse, z)
        return mean + centre if centre else mean, variance

    def start_episode(self, contexts: AnyArray) -> Episode:
        """Return the predictions for an episode with these contexts (B, d)."""
        z = to_floats(contexts)
        products = np.matmul(z, self.inverse)
        return Episode(
            products,
            z,
            False,
            np.matmul(z, self.theta.transpose(1, 2, 0)),
            compute_variances(products, z),
        )

    def update(self, contexts: AnyArray, heads: IntArray, targets: FloatArray) -> None:
        """Learn from a batch of rounds: contexts (B, d), the head of each round and its targets (B,
        2).
        """
        z = (
            contexts
            if contexts.dtype == np.float64 and contexts.flags.c_contiguous
            else to_floats(contexts)
        )
        if len(z) > 1 and self.dim > _MAX_SEQUENTIAL_DIM:
            check_norm(z, self.ridge)
            for head in np.unique(heads):
                rows = heads == head
                self._update_head(int(head), z[rows], targets[rows])
            return
        max_square = MAX_SQUARED_NORM * self.ridge
        max_variance, max_updates = kernels.learn_rounds(
            self._get_arrays(), z, heads, targets, max_square
        )
        if max_variance < 0.0:
            raise_too_large(compute_squared_norms(z), self.ridge)
        if max_variance > _LARGE_VARIANCE or max_updates >= self.refresh_after:
            for head in np.unique(heads).tolist():
                if (
                    max_variance > _LARGE_VARIANCE
                    or self._since_refresh[head] >= self.refresh_after
                ):
                    self._invert(head)

    def _get_arrays(self) -> tuple[AnyArray, ...]:
        """Return the arrays that ``kernels.learn_rounds`` changes, in the order that it expects."""
        return (
            self.inverse,
            self.theta,
            self._gram,
            self._moment,
            self._pending,
            self._n_pending,
            self.counts,
            self._since_refresh,
        )

    def fit(self, contexts: AnyArray, heads: IntArray, targets: FloatArray) -> None:
        """Discard all learned rounds, and learn these: contexts (n, d), heads (n,) and targets (n,
        2).
        """
        z = to_floats(contexts)
        self._reset_heads(self.n_heads)
        for head in range(self.n_heads):
            self._add_rows_and_invert(head, z[heads == head], targets[heads == head])

    def add_sums(self, sums: RidgeSums) -> None:
        """Learn rounds from their sums.

        Raise an error and change nothing if A is too ill-conditioned to invert.
        """
        old_state = {name: array.copy() for name, array in self.state().items()}
        for head in np.flatnonzero(sums.counts):
            self._gram[head] += sums.gram[head]
            self._moment[head] += sums.moment[head]
            self.counts[head] += sums.counts[head]
            if not self._invert(int(head)):
                self.restore(old_state)
                raise InvalidInput(
                    f"the rounds of regression {head} are too ill-conditioned for"
                    f" ridge={self.ridge:g} to be learned from sums; standardise the contexts"
                    " (transform=daband.Standardise()), or raise the ridge"
                )

    def state(self, *, with_rounds: bool = True) -> dict[str, AnyArray]:
        """Return all arrays needed to continue bit for bit.

        If ``with_rounds`` is False, pending rows are summed into A, so that the arrays do not
        contain single contexts.
        """
        arrays = {name.lstrip("_"): getattr(self, name) for name in self._make_empty_arrays(0)}
        if not with_rounds:
            arrays["gram"] = np.stack([self.compute_gram(head) for head in range(self.n_heads)])
            arrays["pending"], arrays["n_pending"] = (
                np.zeros_like(self._pending),
                np.zeros_like(self._n_pending),
            )
        return arrays

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        for name in self._make_empty_arrays(0):
            setattr(self, name, read_array(state, name.lstrip("_"), getattr(self, name)))
        if not (
            (self._n_pending >= 0) & (self._n_pending <= _MAX_PENDING) & (self.counts >= 0)
        ).all():
            raise ValueError(f"n_pending must be in 0..{_MAX_PENDING} and counts >= 0")

    def _update_head(self, head: int, z: FloatArray, targets: FloatArray) -> None:
        """Learn rounds of one head by Woodbury's identity, or by inverting A if that is cheaper or
        more accurate.
        """
        inverse = self.inverse[head]
        if 2 * len(z) < self.dim:
            products = z @ inverse
            gram_of_rows = np.eye(len(z)) + products @ z.T  # I + Z A^-1 Z'
            if gram_of_rows.diagonal().max() <= _LARGE_VARIANCE:
                inverse_factor = np.linalg.inv(np.linalg.cholesky(gram_of_rows))
                scaled_products = inverse_factor @ products
                self.theta[head] += (
                    inverse_factor @ (targets - z @ self.theta[head].T)
                ).T @ scaled_products
                # a matrix times its own transpose: exactly symmetric
                inverse -= scaled_products.T @ scaled_products
                self._record_rows(head, z, targets)
                return
        self._add_rows_and_invert(head, z, targets)

    def _record_rows(self, head: int, z: FloatArray, targets: FloatArray) -> None:
        """Add rows that the inverse already includes to the pending rows or to A, to Z'[r, 1], and
        to the counts.
        """
        n = len(z)
        n_pending = int(self._n_pending[head])
        if n_pending + n <= _MAX_PENDING:
            self._pending[head, n_pending : n_pending + n] = z
            self._n_pending[head] = n_pending + n
            self._moment[head] += targets.T @ z
            self.counts[head] += n
        else:
            self._add_rows(head, z, targets)
        self._since_refresh[head] += n
        if self._since_refresh[head] >= self.refresh_after:
            self._invert(head)

    def _add_rows(self, head: int, z: FloatArray, targets: FloatArray) -> None:
        """Add the pending rows and the rows ``z`` (n, d) to A.

        Add ``z`` also to Z'[r, 1], and n to the counts.
        """
        rows = np.concatenate([self._pending[head, : self._n_pending[head]], z])
        self._gram[head] += rows.T @ rows
        self._n_pending[head] = 0
        self._moment[head] += targets.T @ z
        self.counts[head] += len(z)

    def _add_rows_and_invert(self, head: int, z: FloatArray, targets: FloatArray) -> None:
        """Learn rows by inverting A, or by one rank-one update per row if A is too
        ill-conditioned.
        """
        self._add_rows(head, z, targets)
        if not self._invert(head):
            # The rows are already in A, so rank-one updates are applied to a copy of the
            # statistics.
            array_copies = tuple(array.copy() for array in self._get_arrays()[2:])
            kernels.learn_rounds(
                (self.inverse, self.theta, *array_copies), z, np.full(len(z), head), targets, np.inf
            )

    def _invert(self, head: int) -> bool:
        """Compute A^-1 and theta from A and return True, or return False and change nothing if that
        is less accurate.

        A is scaled to a unit diagonal first, so that features of different sizes do not count as
        ill-conditioning.
        """
        self._since_refresh[head] = 0
        gram = self.compute_gram(head)
        scales = 1.0 / np.sqrt(gram.diagonal())
        scale_products = np.outer(scales, scales)
        scaled_gram = gram * scale_products
        try:
            inverse = np.linalg.inv(scaled_gram)
        except np.linalg.LinAlgError:
            return False
        if (
            not np.abs(scaled_gram).sum(axis=0).max() * np.abs(inverse).sum(axis=0).max()
            <= _MAX_CONDITION
        ):
            return False
        self.inverse[head] = 0.5 * (inverse + inverse.T) * scale_products
        self.theta[head] = self._moment[head] @ self.inverse[head]
        return True
