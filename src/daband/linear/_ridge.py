"""Fit ridge regressions of rewards on features, for one or more heads.

Z (n, d) are the features of a head's rounds and r (n,) their rewards. A regression is

    A = P + Z'Z             P is the diagonal matrix of penalties
    b = Z'[r, 1]
    theta = A^-1 b
    mean = z.theta          the predicted reward of features z
    variance = z'A^-1 z     the square of the confidence bonus

Every regression has two right-hand sides, rewards r and ones, hence two columns theta_r and
theta_1. With a prior mean c, the prediction is ``c + z.(theta_r - c theta_1)``. This is exactly the
ridge regression of r - c, plus c. So c may change at any time.

``Ridge`` learns round by round, and ``RidgeSums`` sums the rounds of a log. ``RidgePredictor`` in
``_predictor.py`` predicts.
"""

from __future__ import annotations

import math

import numpy as np

from daband.base._arrays import (
    AnyArray,
    Arrays,
    FloatArray,
    IntArray,
    Weights,
    read_array,
    to_floats,
)
from daband.errors import InvalidInput
from daband.linear._reward_moments import RewardMoments

#: The largest squared norm of features, in units of the penalty. The largest eigenvalue of A is at
#: least the squared norm of any learned features, and the smallest may be the penalty. Up to this
#: ratio, the rounding error of means is about 1e-6, or 1e-4 if such features repeat.
#: Errors grow in proportion to the squared norm. At 1e16, bonuses are noise.
MAX_SQUARED_NORM = 1e10
#: An update of the inverse with a variance of 10^k loses k digits. Above this variance, the inverse
#: is computed from A.
_MAX_VARIANCE = 1e6
#: The largest condition number of A, scaled to a unit diagonal, for inversion. Above it, updates of
#: the inverse are more accurate.
_MAX_CONDITION = 1e10
#: ``RidgeSums`` sorts rows by head and sums them in tiles of about this size, which fit in the
#: cache.
_TILE_BYTES = 1 << 22


def check_norm(z: AnyArray, ridge: float) -> None:
    """Raise an error if one of the features (B, d) is too large for the ridge."""
    if z.dtype == np.float64 and np.vdot(z, z) <= MAX_SQUARED_NORM * ridge:
        return  # the sum is enough to accept nearly every batch
    rows = to_floats(z)
    squares = np.einsum("bd,bd->b", rows, rows)
    if not (squares <= MAX_SQUARED_NORM * ridge).all():
        row = int(np.argmax(squares))
        raise InvalidInput(
            f"contexts are too large for ridge={ridge:g} in accurate arithmetic: row {row} has"
            f" squared norm {float(squares[row]):.3g}, the maximum is {MAX_SQUARED_NORM:g} times"
            " the ridge. Look for an outlier, scale the contexts down, or raise the ridge"
        )


def weight_rounds(
    z: AnyArray, rewards: FloatArray, weights: Weights
) -> tuple[AnyArray, FloatArray]:
    """Return features (B, d) and targets (B, 2), which are rewards and ones.

    Both are multiplied by the square roots of the weights. So a round counts by its weight in every
    product of the two.
    """
    targets = np.ones((len(rewards), 2))
    targets[:, 0] = rewards
    if weights is None:
        return z, targets
    roots = np.sqrt(weights)[:, None]
    return to_floats(z) * roots, targets * roots


class RidgeSums:
    """Sums over the rounds of each head, from which ridge regressions can be computed.

    The sums of parts of a log add up to the sums of all its rounds, in any order and on any
    machine. So logs may be larger than memory. All sums are in double precision.

    Attributes:
        gram: Z'Z of each head, (heads, d, d).
        b: Z'[r, 1] of each head, (heads, 2, d).
        counts: the number of rounds of each head, (heads,).
        reward_moments: the moments of all rewards.
    """

    def __init__(self, n_heads: int, dim: int) -> None:
        self.dim = dim
        self.gram: FloatArray = np.zeros((n_heads, dim, dim))
        self.b: FloatArray = np.zeros((n_heads, 2, dim))
        self.counts: IntArray = np.zeros(n_heads, np.int64)
        self.reward_moments = RewardMoments(standardise=True)

    def add(
        self, z: AnyArray, heads: IntArray, rewards: FloatArray, weights: Weights = None
    ) -> None:
        """Add rounds: features (B, d), and the head, reward and weight of each round, (B,)."""
        self.reward_moments.add(rewards, heads, weights)
        tile_rows = max(64, _TILE_BYTES // (8 * self.dim))
        for start in range(0, len(z), tile_rows):
            tile = slice(start, start + tile_rows)
            order = np.argsort(heads[tile], kind="stable")
            rows, targets = weight_rounds(
                z[tile][order],
                rewards[tile][order],
                None if weights is None else weights[tile][order],
            )
            # the last two columns are rewards and ones, so one product has Z'Z and Z'[r, 1]
            columns = np.concatenate([to_floats(rows), targets], axis=1)
            counts = np.bincount(heads[tile], minlength=len(self.counts))
            stops = np.cumsum(counts)
            for head in np.flatnonzero(counts):
                head_columns = columns[stops[head] - counts[head] : stops[head]]
                products = head_columns.T @ head_columns
                self.gram[head] += products[:-2, :-2]
                self.b[head] += products[-2:, :-2]
            self.counts += counts

    def merge(self, other: RidgeSums) -> None:
        """Add the sums of other rounds."""
        self.gram += other.gram
        self.b += other.b
        self.counts += other.counts
        self.reward_moments.merge(other.reward_moments)

    def state(self) -> Arrays:
        """Return the sums as arrays."""
        return {
            "gram": self.gram,
            "b": self.b,
            "counts": self.counts,
            "rewards": self.reward_moments.state(),
        }

    def restore(self, state: Arrays) -> None:
        """Restore the arrays that ``state`` returned."""
        for name in ("gram", "b", "counts"):
            setattr(self, name, read_array(state, name, getattr(self, name)))
        self.reward_moments.restore(state["rewards"])


class Ridge:
    """``n_heads`` ridge regressions on ``dim`` features that learn round by round.

    Rounding errors of updates of A^-1 add up. So after ``max(1024, 16 dim)`` rounds of a head, its
    inverse is computed from A.

    Updates change the arrays in place, so reads and writes must not overlap.

    Attributes:
        penalties: the diagonal of P, (d,).
        gram: Z'Z, (heads, d, d). After target rounds it is that of the base of ``SourceWorth``, in
            which a source round counts by its worth.
        b: Z'[r, 1], (heads, 2, d). After target rounds it is the b of the base plus a shift, which
            makes theta the mean of all experts of ``SourceWorth``.
        A_inv: A^-1 = (P + gram)^-1, (heads, d, d).
        theta: A^-1 b, the coefficients of rewards and of ones, (heads, 2, d).
        counts: the number of learned rounds, (heads,).
    """

    #: The arrays with a row per head, in a saved state.
    _ARRAYS = ("gram", "b", "A_inv", "theta", "counts", "updates")

    def __init__(self, n_heads: int, dim: int, ridge: float) -> None:
        self.dim = dim
        self.ridge = ridge
        self.penalties: FloatArray = np.full(dim, ridge)
        self.gram: FloatArray = np.zeros((n_heads, dim, dim))
        self.b: FloatArray = np.zeros((n_heads, 2, dim))
        self.A_inv: FloatArray = np.tile(np.eye(dim) / ridge, (n_heads, 1, 1))
        self.theta: FloatArray = np.zeros((n_heads, 2, dim))
        self.counts: IntArray = np.zeros(n_heads, np.int64)
        #: The number of rounds since the inverse was computed from A, (heads,).
        self.updates: IntArray = np.zeros(n_heads, np.int64)

    @property
    def n_heads(self) -> int:
        """The number of regressions."""
        return len(self.counts)

    def add_heads(self, n: int) -> None:
        """Append ``n`` heads without rounds."""
        new_heads = Ridge(n, self.dim, self.ridge)
        for name in self._ARRAYS:
            setattr(self, name, np.concatenate([getattr(self, name), getattr(new_heads, name)]))

    def add_features(self, penalties: FloatArray) -> None:
        """Append features with these penalties (n,) that were 0 in every learned round."""
        new = np.arange(self.dim, self.dim + len(penalties))
        margin = (0, len(penalties))
        self.dim += len(penalties)
        self.penalties = np.concatenate([self.penalties, penalties])
        self.gram = np.pad(self.gram, ((0, 0), margin, margin))
        self.A_inv = np.pad(self.A_inv, ((0, 0), margin, margin))
        self.A_inv[:, new, new] = 1.0 / penalties
        self.b = np.pad(self.b, ((0, 0), (0, 0), margin))
        self.theta = np.pad(self.theta, ((0, 0), (0, 0), margin))

    def compute_coefficients(self, centre: float = 0.0) -> FloatArray:
        """Return the coefficients (heads, d) of rewards minus ``centre``."""
        return self.theta[:, 0] if centre == 0.0 else self.theta[:, 0] - centre * self.theta[:, 1]

    def update(
        self, z: AnyArray, heads: IntArray, rewards: FloatArray, weights: Weights = None
    ) -> None:
        """Learn rounds: features (B, d), and the head, reward and weight of each round, (B,)."""
        z, targets = weight_rounds(z, rewards, weights)
        z = to_floats(z)
        check_norm(z, self.ridge)
        if len(z) == 1:
            self.add_rows(int(heads[0]), z, targets)
            return
        for head in np.unique(heads):
            rows = heads == head
            self.add_rows(int(head), z[rows], targets[rows])

    def add_rows(self, head: int, z: FloatArray, targets: FloatArray) -> None:
        """Learn rounds of one head: features (n, d) and targets (n, 2), rewards and ones."""
        n = len(z)
        self.gram[head] += z.T @ z if n > 1 else z.T * z
        self.b[head] += targets.T @ z
        self.counts[head] += n
        self.updates[head] += n
        is_due = self.updates[head] >= max(1024, 16 * self.dim)
        if not is_due and (n == 1 or 2 * n < self.dim):  # cheaper than an inversion
            update = self._add_row if n == 1 else self._add_batch
            if update(head, z, targets, _MAX_VARIANCE):
                return
        if not self._invert(head):  # A is ill-conditioned
            for row in range(n):
                self._add_row(head, z[row : row + 1], targets[row : row + 1])

    def _add_row(
        self, head: int, z: FloatArray, targets: FloatArray, max_variance: float = math.inf
    ) -> bool:
        """Update A^-1 and theta by one row (1, d), and return True.

        The Sherman-Morrison formula is

            (A + z z')^-1 = A^-1 - u u' / (1 + z'u)    for u = A^-1 z.

        If the variance z'u is larger than ``max_variance``, nothing changes and the result is
        False.
        """
        A_inv = self.A_inv[head]
        theta = self.theta[head]
        row = z[0]
        u = A_inv @ row
        variance = float(u @ row)
        if variance > max_variance:
            return False
        scale = 1.0 / math.sqrt(1.0 + max(variance, 0.0))
        u *= scale
        theta += (scale * (targets[0] - theta @ row))[:, None] * u
        A_inv -= u[:, None] * u
        return True

    def _add_batch(
        self, head: int, z: FloatArray, targets: FloatArray, max_variance: float
    ) -> bool:
        """Update A^-1 and theta by n rows (n, d), as ``_add_row`` does for one.

        Woodbury's identity is

            (A + Z'Z)^-1 = A^-1 - U'S^-1 U    for U = Z A^-1 and S = I + U Z'.

        With S = L L' and V = L^-1 U it is A^-1 - V'V, which is exactly symmetric.
        """
        A_inv = self.A_inv[head]
        theta = self.theta[head]
        U = z @ A_inv
        S = np.eye(len(z)) + U @ z.T
        if S.diagonal().max() > max_variance:
            return False
        L_inv = np.linalg.inv(np.linalg.cholesky(S))
        V = L_inv @ U
        theta += (L_inv @ (targets - z @ theta.T)).T @ V
        A_inv -= V.T @ V
        return True

    def _invert(self, head: int) -> bool:
        """Compute A^-1 and theta from A and return True, or return False and change nothing if that
        is less accurate.

        A is scaled to a unit diagonal first, so that features of different sizes do not count as
        ill-conditioning.
        """
        self.updates[head] = 0
        A = self.gram[head] + np.diag(self.penalties)
        scales = 1.0 / np.sqrt(A.diagonal())
        scale_products = np.outer(scales, scales)
        scaled_A = A * scale_products
        try:
            inverse = np.linalg.inv(scaled_A)
        except np.linalg.LinAlgError:
            return False
        condition = np.abs(scaled_A).sum(axis=0).max() * np.abs(inverse).sum(axis=0).max()
        if not condition <= _MAX_CONDITION:
            return False
        self.A_inv[head] = 0.5 * (inverse + inverse.T) * scale_products
        self.theta[head] = self.b[head] @ self.A_inv[head]
        return True

    def add_sums(self, sums: RidgeSums, weight: float = 1.0) -> None:
        """Learn rounds, each with the same weight, from their sums.

        Raise an error and change nothing if A is too ill-conditioned to invert.
        """
        if not self.set_sums(self.gram + weight * sums.gram, self.b + weight * sums.b):
            raise InvalidInput(
                f"the rounds are too ill-conditioned for ridge={self.ridge:g} to be learned from"
                " sums; standardise the contexts (transform=daband.Standardise()), or raise the"
                " ridge"
            )
        self.counts = self.counts + sums.counts

    def set_sums(self, gram: FloatArray, b: FloatArray) -> bool:
        """Replace the sums Z'Z (heads, d, d) and Z'[r, 1] (heads, 2, d), and compute all regressions
        again.

        Return False and change nothing if an A is too ill-conditioned to invert.
        """
        old_state = {name: array.copy() for name, array in self.state().items()}
        self.gram = gram
        self.b = b
        is_inverted = all(self._invert(head) for head in range(self.n_heads))
        if not is_inverted:
            self.restore(old_state)
        return is_inverted

    def set_b(self, b: FloatArray) -> None:
        """Replace the sums Z'[r, 1] (heads, 2, d), and compute the coefficients again."""
        self.b = b
        self.theta = b @ self.A_inv

    def set_penalties(self, penalties: FloatArray) -> None:
        """Replace the penalties (d,), and compute all regressions again.

        Nothing changes if an A is too ill-conditioned to invert.
        """
        old_penalties = self.penalties
        self.penalties = penalties
        if not self.set_sums(self.gram, self.b):
            self.penalties = old_penalties

    def state(self) -> Arrays:
        """Return all arrays needed to continue bit for bit."""
        return {name: getattr(self, name) for name in self._ARRAYS}

    def restore(self, state: Arrays) -> None:
        """Restore the arrays that ``state`` returned."""
        for name in self._ARRAYS:
            setattr(self, name, read_array(state, name, getattr(self, name)))
        if (self.counts < 0).any() or (self.updates < 0).any():
            raise ValueError("counts and updates must be >= 0")
