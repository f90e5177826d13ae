"""How much each of several experts counts in a common prediction, from how well it has predicted so far.

Every round is predicted by every expert before any of them learns it: the errors are honest and cost nothing. The
shares s of the experts, non-negative with sum one, are those of the least squares

    sum_t (r_t - p_t . s)^2  +  100 |s - s_0|^2

over the rounds so far (stacking: Breiman 1996; van der Laan, Polley and Hubbard 2007), with p_t the experts'
predictions of round t, r_t its reward, and s_0 the shares to begin with. The strength, 100, was chosen on the
development half of the data sets (benchmarks/records/split.json). Where exactly one arm pays, a reward of 1 tells of
every arm: such a round may count once for each (``revealed_predictions``). Then an expert that would have chosen
another arm has its error counted too.

**Guarantee.** This is follow-the-regularised-leader on losses f_t(s) = (r_t - p_t . s)^2 over the simplex. With rewards
and predictions in [0, 1] squared loss is exp-concave, and for any fixed shares u (one expert alone, or the best mixture
in hindsight)

    sum_t (r_t - p_t . s_t)^2  <=  sum_t (r_t - p_t . u)^2  +  O(M log n)

for M experts and n rounds (Hazan, Agarwal and Kale 2007): the mean error exceeds that of the best mixture by
O(M log n / n). So the mixture is never much worse than its best expert, on data like those it was learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray, restored_array

_PRIOR_ROUNDS = 100.0
_REVISED_EVERY = 16
"""Shares are computed anew after a sixteenth more rounds."""


class ExpertShares:
    """The shares of experts in a common prediction: ``shares`` (M,), those of ``prior`` before the first round."""

    def __init__(self, prior: Sequence[float]) -> None:
        self.prior: FloatArray = np.array(prior, np.float64)
        self.shares: FloatArray = self.prior.copy()
        self.n = 0
        """Rounds that were predicted."""
        self._gram: FloatArray = np.zeros((len(prior), len(prior)))
        self._moment: FloatArray = np.zeros(len(prior))
        self._square = 0.0
        self._revised_at = 0

    def add(self, predictions: FloatArray, rewards: FloatArray) -> bool:
        """Note what every expert predicted (B, M) of rounds that none of them had learned, and their rewards (B,).

        Returns whether the shares changed.
        """
        clipped = np.clip(predictions, 0.0, 1.0)
        self._gram += clipped.T @ clipped
        self._moment += rewards @ clipped
        self._square += float(rewards @ rewards)
        self.n += len(rewards)
        if self.n - self._revised_at < max(1, self._revised_at // _REVISED_EVERY):
            return False
        self._revised_at = self.n
        penalised = self._gram + _PRIOR_ROUNDS * np.eye(len(self.prior))
        self.shares = simplex_least_squares(penalised, self._moment + _PRIOR_ROUNDS * self.prior)
        return True

    def errors(self) -> FloatArray:
        """The mean squared error of each expert so far, (M,); NaN before the first round."""
        squares = self._square - 2.0 * self._moment + self._gram.diagonal()
        return squares / self.n if self.n else np.full(len(self.shares), np.nan)

    def state(self) -> dict[str, AnyArray]:
        """Everything needed to continue to the last bit."""
        return {
            "shares": self.shares, "gram": self._gram, "moment": self._moment, "square": np.array([self._square]),
            "rounds": np.array([self.n, self._revised_at], np.int64),
        }  # fmt: skip

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""
        self.shares = restored_array(state, "shares", self.shares)
        self._gram = restored_array(state, "gram", self._gram)
        self._moment = restored_array(state, "moment", self._moment)
        self._square = float(restored_array(state, "square", np.zeros(1))[0])
        self.n, self._revised_at = (int(count) for count in restored_array(state, "rounds", np.zeros(2, np.int64)))
        if not ((self.shares >= 0).all() and abs(self.shares.sum() - 1.0) < 1e-9):
            raise ValueError("shares must not be negative, and sum to 1")


def revealed_predictions(means: FloatArray, arms: IntArray, rewards: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The predictions that rewards tell of, where exactly one arm pays 1, and what they should have been.

    ``means`` (B, K, M) are the experts' predictions. A reward of 1 tells that all other arms have 0, a reward of 0
    tells of the chosen arm alone.

    >>> import numpy as np
    >>> from daband.linear import revealed_predictions
    >>> means = np.array([[[0.9, 0.6], [0.2, 0.5]], [[0.3, 0.3], [0.4, 0.7]]])
    >>> predictions, rewards = revealed_predictions(means, np.array([0, 1]), np.array([1.0, 0.0]))
    >>> predictions.tolist(), rewards.tolist()
    ([[0.9, 0.6], [0.2, 0.5], [0.4, 0.7]], [1.0, 0.0, 0.0])
    """
    chosen = np.arange(means.shape[1]) == arms[:, None]
    known = chosen | (rewards == 1.0)[:, None]
    return means[known], (chosen * rewards[:, None])[known]


def simplex_least_squares(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """The s >= 0 with sum 1 that minimises s'G s - 2 m's, exactly: over every set of non-zero shares.

    There are 2^M - 1 sets, so this is for few experts; G is positive definite.
    """
    m = len(moment)
    best, value = np.full(m, 1.0 / m), np.inf
    for size in range(1, m + 1):
        for members in combinations(range(m), size):
            part = list(members)
            solved = np.linalg.solve(gram[np.ix_(part, part)], np.stack([moment[part], np.ones(size)], axis=1))
            inner = solved[:, 0] - solved[:, 1] * ((solved[:, 0].sum() - 1.0) / solved[:, 1].sum())
            if (inner < 0).any():
                continue
            shares = np.zeros(m)
            shares[part] = inner
            loss = float(shares @ gram @ shares - 2.0 * (moment @ shares))
            if loss < value:
                best, value = shares, loss
    return best / best.sum()
