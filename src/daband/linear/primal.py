"""Ridge statistics in the space of contexts: A = ridge I + Z'Z and theta = A^-1 Z'r, for one head or for many."""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray, restored_array, unit_scale
from daband.linear.kernels import kernels, packed

__all__ = ["PrimalRidge"]

_PENDING = 32
"""Rows kept aside before they are summed into A: few enough to be small, enough to make the sum one matrix product."""
_SEQUENTIAL_DIM = 96
"""Up to this dimension a batch is absorbed row by row (compiled); above, by Woodbury's identity (matrix products)."""


class PrimalRidge:
    """``n_heads`` ridge regressions of dimension ``dim``; the inverses follow every update.

    Rank-one updates of an inverse drift: rounding errors add up. So A itself is kept as well (summed in blocks, which
    keeps its own error small), and after ``max(1024, 16 dim)`` updates of a head its inverse is computed afresh. That
    costs an eighth of dim^2 multiplications an update, a small part of the update itself.
    """

    def __init__(self, n_heads: int, dim: int, ridge: float) -> None:
        self.dim = dim
        self.ridge = ridge
        self.refresh_after = max(1024, 16 * dim)
        self.counts: IntArray = np.zeros(0, np.int64)
        self.theta: FloatArray = np.zeros((0, dim))
        self._inverse: FloatArray = np.zeros((0, dim, dim))
        self._packed: FloatArray | None = None
        self._inverse_stale: set[int] = set()
        self._packed_stale: set[int] = set()
        self._gram: FloatArray = np.zeros((0, dim, dim))
        self._moment: FloatArray = np.zeros((0, dim))
        self._pending: FloatArray = np.zeros((0, _PENDING, dim))
        self._n_pending: IntArray = np.zeros(0, np.int64)
        self._since_refresh: IntArray = np.zeros(0, np.int64)
        self.add_heads(n_heads)

    @property
    def n_heads(self) -> int:
        """How many regressions there are."""
        return len(self.counts)

    def add_heads(self, n: int) -> None:
        """Append ``n`` heads that have seen nothing."""
        eye = np.eye(self.dim)
        self.counts = np.concatenate([self.counts, np.zeros(n, np.int64)])
        self.theta = np.concatenate([self.theta, np.zeros((n, self.dim))])
        self._inverse = np.concatenate([self.inverse, np.broadcast_to(eye / self.ridge, (n, *eye.shape))])
        self._packed = None
        self._gram = np.concatenate([self._gram, np.broadcast_to(eye * self.ridge, (n, *eye.shape))])
        self._moment = np.concatenate([self._moment, np.zeros((n, self.dim))])
        self._pending = np.concatenate([self._pending, np.zeros((n, _PENDING, self.dim))])
        self._n_pending = np.concatenate([self._n_pending, np.zeros(n, np.int64)])
        self._since_refresh = np.concatenate([self._since_refresh, np.zeros(n, np.int64)])

    @property
    def inverse(self) -> FloatArray:
        """A^-1 of every head, (heads, d, d)."""
        for head in self._inverse_stale:
            assert self._packed is not None
            packed.unpack(self._packed[head], self._inverse[head])
        self._inverse_stale.clear()
        return self._inverse

    @property
    def packed_inverse(self) -> FloatArray:
        """The same, packed for single rounds, (heads, size); see ``kernels_packed``. Only where there is a compiler.

        Single rounds change the packed form, batches the square one; each is brought up to date when it is asked for.
        """
        if self._packed is None:
            self._packed = np.empty((self.n_heads, packed.packed_size(self.dim)))
            self._packed_stale = set(range(self.n_heads))
        for head in self._packed_stale:
            packed.pack(self._inverse[head], self._packed[head])
        self._packed_stale.clear()
        return self._packed

    def gram(self, head: int) -> FloatArray:
        """A = ridge I + the sum of z z' of this head, (d, d)."""
        rows = self._pending[head, : self._n_pending[head]]
        gram: FloatArray = self._gram[head] + rows.T @ rows
        return gram

    def score(self, contexts: AnyArray) -> tuple[FloatArray, FloatArray]:
        """Mean z.theta and variance z'A^-1 z of contexts (B, d) under every head, each (B, heads)."""
        z = unit_scale(contexts)
        mean, variance = np.empty((len(z), self.n_heads)), np.empty((len(z), self.n_heads))
        rows = max(64, 131_072 // (self.dim * self.n_heads))  # products of about 1 MB stay in the cache
        for start in range(0, len(z), rows):
            part = z[start : start + rows]
            mean[start : start + rows] = part @ self.theta.T
            variance[start : start + rows] = kernels.diagonal(np.matmul(part, self.inverse), part)
        return mean, variance

    def products(self, contexts: AnyArray) -> tuple[FloatArray, FloatArray, bool]:
        """What an episode's loop multiplies to get covariances: A^-1 z (heads, B, d), z (B, d); they are not direct."""
        z = unit_scale(contexts)
        return np.matmul(z, self.inverse), z, False

    def score_products(self, products: FloatArray, contexts: FloatArray, direct: bool) -> tuple[FloatArray, FloatArray]:
        """Means and variances (B, heads) from what ``products`` returned."""
        assert not direct
        return contexts @ self.theta.T, kernels.diagonal(products, contexts)

    def update(self, contexts: AnyArray, heads: IntArray, rewards: FloatArray) -> None:
        """Absorb a batch of rounds: contexts (B, d), the head of each and its reward."""
        z = unit_scale(contexts)
        if len(z) == 1 and packed is not None and self.n_heads > 1:  # one head serves shared arms: scored as a batch
            self._update_one(z[0], int(heads[0]), float(rewards[0]))
            return
        self._changed(heads)
        sequential = len(z) == 1 or self.dim <= _SEQUENTIAL_DIM
        if sequential:
            kernels.update_rounds(self._inverse, self.theta, heads, z, rewards)
        absorb = self._remember if sequential else self._update_head
        for head in np.unique(heads):
            rows = heads == head
            absorb(int(head), z[rows], rewards[rows])

    def refit(self, contexts: AnyArray, heads: IntArray, rewards: FloatArray) -> None:
        """Forget everything and fit these rounds, each counted once."""
        z = unit_scale(contexts)
        self._changed(np.arange(self.n_heads))
        for head in range(self.n_heads):
            rows = heads == head
            part = z[rows]
            self._gram[head] = self.ridge * np.eye(self.dim) + part.T @ part
            self._moment[head] = part.T @ rewards[rows]
            self._n_pending[head] = 0
            self.counts[head] = len(part)
            self._invert(head)

    def state(self, *, rounds: bool = True) -> dict[str, AnyArray]:
        """Everything needed to go on to the last bit; without ``rounds``, pending rows are summed into A."""
        arrays: dict[str, AnyArray] = {
            "counts": self.counts,
            "theta": self.theta,
            "inverse": self.inverse,
            "gram": self._gram,
            "moment": self._moment,
            "pending": self._pending,
            "n_pending": self._n_pending,
            "since_refresh": self._since_refresh,
        }
        if not rounds:
            arrays["gram"] = np.stack([self.gram(head) for head in range(self.n_heads)])
            arrays["pending"], arrays["n_pending"] = np.zeros_like(self._pending), np.zeros_like(self._n_pending)
        return arrays

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Take over what ``state`` returned."""
        self.counts = restored_array(state, "counts", self.counts)
        self.theta = restored_array(state, "theta", self.theta)
        self._inverse = restored_array(state, "inverse", self._inverse)
        self._packed = None
        self._inverse_stale.clear()
        self._gram = restored_array(state, "gram", self._gram)
        self._moment = restored_array(state, "moment", self._moment)
        self._pending = restored_array(state, "pending", self._pending)
        self._n_pending = restored_array(state, "n_pending", self._n_pending)
        self._since_refresh = restored_array(state, "since_refresh", self._since_refresh)
        if not ((self._n_pending >= 0) & (self._n_pending <= _PENDING) & (self.counts >= 0)).all():
            raise ValueError(f"n_pending must lie in 0..{_PENDING} and counts must not be negative")

    def _changed(self, heads: IntArray) -> None:
        """These heads' inverses are about to change in their square form."""
        _ = self.inverse
        if self._packed is not None:
            self._packed_stale.update(heads.tolist())

    def _update_one(self, z: FloatArray, head: int, reward: float) -> None:
        """One round, compiled as a whole; the rest is due once in a while only."""
        if self._n_pending[head] == _PENDING:
            self._sum_up(head, np.zeros((0, self.dim)), np.zeros(0))
        inverse = self.packed_inverse
        packed.update_one(
            inverse,
            self.theta,
            self._moment,
            self._pending,
            self._n_pending,
            self.counts,
            self._since_refresh,
            z,
            head,
            reward,
        )
        self._inverse_stale.add(head)
        if self._since_refresh[head] >= self.refresh_after:
            self._inverse_stale.discard(head)
            self._packed_stale.add(head)
            self._invert(head)

    def _update_head(self, head: int, z: FloatArray, rewards: FloatArray) -> None:
        """Woodbury's identity for the rows of one head, or a fresh inverse where that is cheaper."""
        if 2 * len(z) >= self.dim:
            self._sum_up(head, z, rewards)
            self._invert(head)
            return
        inverse = self._inverse[head]
        u = z @ inverse
        try:
            whiten = np.linalg.inv(np.linalg.cholesky(np.eye(len(z)) + u @ z.T))
        except np.linalg.LinAlgError:  # only when contexts are huge against the ridge; the long way round is sturdier
            self._sum_up(head, z, rewards)
            self._invert(head)
            return
        root = whiten @ u
        self.theta[head] += root.T @ (whiten @ (rewards - z @ self.theta[head]))
        inverse -= root.T @ root  # a matrix with its own transpose: symmetric to the last bit
        self._remember(head, z, rewards)

    def _remember(self, head: int, z: FloatArray, rewards: FloatArray) -> None:
        """Note rows that the inverse already holds."""
        n = len(z)
        filled = int(self._n_pending[head])
        if filled + n <= _PENDING:
            self._pending[head, filled : filled + n] = z
            self._n_pending[head] = filled + n
            self._moment[head] += rewards[0] * z[0] if n == 1 else rewards @ z
            self.counts[head] += n
        else:
            self._sum_up(head, z, rewards)
        self._since_refresh[head] += n
        if self._since_refresh[head] >= self.refresh_after:
            self._invert(head)

    def _sum_up(self, head: int, z: FloatArray, rewards: FloatArray) -> None:
        rows = np.concatenate([self._pending[head, : self._n_pending[head]], z])
        self._gram[head] += rows.T @ rows
        self._n_pending[head] = 0
        self._moment[head] += rewards @ z
        self.counts[head] += len(z)

    def _invert(self, head: int) -> None:
        inverse = np.linalg.inv(self.gram(head))
        self._inverse[head] = 0.5 * (inverse + inverse.T)
        self.theta[head] = self._inverse[head] @ self._moment[head]
        self._since_refresh[head] = 0
