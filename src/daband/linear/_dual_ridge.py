"""Fit ridge regressions in the dual form, for features with more dimensions than rounds.

This form is for raw images, whose primal matrices (d x d per arm) are slow or do not fit in memory:
12,288 features and 10 arms would need 24 GB. Contexts of fewer than 512 features use ``Ridge``.

Let X (n, d) be the features of one head's rounds, r (n,) their rewards, X X' + ridge I = L L' the
Cholesky factorisation, T = L^-1 and w = T [r, 1]. For a context x let v = T X x. Then

    mean = v.w                                      w has a column for rewards and one for ones
    variance = (x.x - v.v) / ridge
    covariance of x and y = (x.y - v_x.v_y) / ridge

A new round adds a row to T and w. Rows never change once they are written, so rounding errors do
not accumulate.
"""

from __future__ import annotations

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray, Weights, read_array, to_floats
from daband.linear._ridge import (
    Episode,
    Ridge,
    check_norm,
    compute_squared_norms,
    weight_rounds,
)

#: The number of rows that are stored, scored and learned together.
_BLOCK_ROWS = 512


class DualRidge:
    """The regressions of ``Ridge``, at a cost that grows with the number of rounds instead of
    dimensions.
    """

    def __init__(self, n_heads: int, dim: int, ridge: float) -> None:
        self.dim = dim
        self.ridge = ridge
        #: The features of all rounds in their original type, in blocks of 512 rows.
        self._blocks: list[AnyArray] = []
        #: The head of each round, (n,).
        self._heads: IntArray = np.zeros(0, np.int64)
        #: The reward of each round and 1, times the root of its weight, (n, 2).
        self._targets: FloatArray = np.zeros((0, 2))
        #: T of each head, (n, n).
        self._T: list[FloatArray] = []
        #: w = T [r, 1] of each head, (n, 2).
        self._w: list[FloatArray] = []
        #: The last features that were projected, and the result.
        self._last_projection: tuple[AnyArray, list[FloatArray]] | None = None
        self.add_heads(n_heads)

    @property
    def n_heads(self) -> int:
        """The number of regressions."""
        return len(self._T)

    @property
    def counts(self) -> IntArray:
        """The number of rounds of each head, (heads,)."""
        return np.bincount(self._heads, minlength=self.n_heads)

    def add_heads(self, n: int) -> None:
        """Append ``n`` heads without rounds."""
        self._last_projection = None
        self._T.extend(np.zeros((0, 0)) for _ in range(n))
        self._w.extend(np.zeros((0, 2)) for _ in range(n))

    def _project(self, x: AnyArray) -> list[FloatArray]:
        """Return v = T X x of each head, (n, B), for features x (B, d)."""
        if self._last_projection is not None and self._last_projection[0] is x:
            return self._last_projection[1]
        columns = to_floats(x).T
        products = np.concatenate(
            [np.zeros((0, len(x))), *(to_floats(block) @ columns for block in self._blocks)]
        )
        v_by_head = [T @ products[self._heads == head] for head, T in enumerate(self._T)]
        self._last_projection = x, v_by_head
        return v_by_head

    def compute_coefficients(self, centre: float = 0.0) -> FloatArray:
        """Return the coefficients (heads, d) of rewards minus ``centre``."""
        x = to_floats(self._join_blocks())
        combination = np.array([1.0, -centre])  # rewards minus the centre times ones
        return np.stack(
            [
                (w @ combination) @ T @ x[self._heads == head]
                for head, (T, w) in enumerate(zip(self._T, self._w, strict=True))
            ]
        )

    def score(
        self, x: AnyArray, *, centre: float = 0.0, with_bonuses: bool = True
    ) -> tuple[FloatArray, FloatArray]:
        """Return predicted rewards and variances of features (B, d), each (B, heads).

        ``centre`` is the prior mean of rewards. If ``with_bonuses`` is False, variances are 0.
        """
        mean = np.empty((len(x), self.n_heads))
        variance = np.zeros((len(x), self.n_heads))
        for start in range(0, len(x), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            squares = compute_squared_norms(x[rows])
            for head, v in enumerate(self._project(x[rows])):
                mean[rows, head] = centre + (self._w[head] @ (1.0, -centre)) @ v
                if with_bonuses:
                    variance[rows, head] = (squares - np.einsum("nb,nb->b", v, v)) / self.ridge
        return mean, np.maximum(variance, 0.0)

    def start_episode(self, x: AnyArray) -> Episode:
        """Return the predictions for an episode with these features (B, d)."""
        v_by_head = self._project(x)
        products = to_floats(x) @ to_floats(x).T
        return Episode(
            np.stack([w.T @ v for w, v in zip(self._w, v_by_head, strict=True)], axis=2),
            np.stack([products - v.T @ v for v in v_by_head]) / self.ridge,
        )

    def update(
        self, x: AnyArray, heads: IntArray, rewards: FloatArray, weights: Weights = None
    ) -> None:
        """Learn rounds: features (B, d), and the head, reward and weight of each round, (B,)."""
        x, targets = weight_rounds(x, rewards, weights)
        check_norm(x, self.ridge)
        for start in range(0, len(x), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            block = x if len(x) <= _BLOCK_ROWS else x[rows]
            self._learn_block(block, heads[rows], targets[rows])

    def _learn_block(self, x: AnyArray, heads: IntArray, targets: FloatArray) -> None:
        """Learn a block of rounds: features (B, d), heads (B,) and targets (B, 2).

        For new rounds with features Y of one head, the factor of Y Y' + ridge I - V'V is C, and the
        new rows of T are [-C^-1 V'T, C^-1].
        """
        v_by_head = self._project(x)
        floats = to_floats(x)
        for head in np.unique(heads):
            rows = heads == head
            T = self._T[head]
            w = self._w[head]
            V = v_by_head[head][:, rows]
            Y = floats[rows]
            C_inv = np.linalg.inv(
                np.linalg.cholesky(Y @ Y.T + self.ridge * np.eye(len(Y)) - V.T @ V)
            )
            n = len(T)
            new_T = np.zeros((n + len(Y), n + len(Y)))
            new_T[:n, :n] = T
            new_T[n:, :n] = -C_inv @ (V.T @ T)
            new_T[n:, n:] = np.tril(C_inv)
            self._T[head] = new_T
            self._w[head] = np.concatenate([w, C_inv @ (targets[rows] - V.T @ w)])
        self._heads = np.concatenate([self._heads, heads])
        self._targets = np.concatenate([self._targets, targets])
        self._last_projection = None
        if self._blocks and self._blocks[0].dtype != x.dtype:
            x = floats
            self._blocks = [to_floats(block) for block in self._blocks]
        self._store(x)

    def _store(self, x: AnyArray) -> None:
        """Append features (B, d) to the blocks. All blocks but the last have 512 rows."""
        is_partial = self._blocks and len(self._blocks[-1]) < _BLOCK_ROWS
        rows = np.concatenate([self._blocks.pop(), x]) if is_partial else x.copy()
        for start in range(0, len(rows), _BLOCK_ROWS):
            self._blocks.append(rows[start : start + _BLOCK_ROWS])

    def _join_blocks(self) -> AnyArray:
        """Return the features of all rounds, (n, d)."""
        return np.concatenate(self._blocks) if self._blocks else np.zeros((0, self.dim))

    def to_primal(self) -> Ridge:
        """Return the same regressions in the primal form."""
        primal = Ridge(self.n_heads, self.dim, self.ridge)
        features = to_floats(self._join_blocks())
        for head in np.flatnonzero(self.counts):
            rows = self._heads == head
            primal.add_rows(int(head), features[rows], self._targets[rows])
        return primal

    def compute_decision_cost(self) -> float:
        """Return the number of multiplications per decision: inner products with all rounds, and T
        X x of each head.
        """
        return float(len(self._heads) * self.dim + (self.counts.astype(np.float64) ** 2).sum())

    def state(self) -> dict[str, AnyArray]:
        """Return the arrays from which ``restore`` rebuilds exactly the same regressions."""
        arrays = {"x": self._join_blocks(), "heads": self._heads, "targets": self._targets}
        for head, (T, w) in enumerate(zip(self._T, self._w, strict=True)):
            arrays[f"T.{head}"] = T
            arrays[f"w.{head}"] = w
        return arrays

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        n = len(state["heads"])
        heads = read_array(state, "heads", np.zeros(n, np.int64))
        if n and not 0 <= heads.min() <= heads.max() < self.n_heads:
            raise ValueError(f"the rounds must belong to heads 0..{self.n_heads - 1}")
        targets = read_array(state, "targets", np.zeros((n, 2)))
        x = read_array(state, "x", np.zeros((n, self.dim), state["x"].dtype))
        sizes = np.bincount(heads, minlength=self.n_heads)
        self._T = [
            read_array(state, f"T.{head}", np.zeros((size, size)))
            for head, size in enumerate(sizes)
        ]
        self._w = [
            read_array(state, f"w.{head}", np.zeros((size, 2))) for head, size in enumerate(sizes)
        ]
        self._heads = heads
        self._targets = targets
        self._blocks = []
        self._store(x)
        self._last_projection = None
