"""Compute the weights of several predictors in a common prediction, based on the past errors of each.

Every predictor predicts every round before it learns that round, so the errors are those of unseen data. The
weights w, non-negative with sum one, minimise

    sum_t (r_t - p_t . w)^2  +  100 v |w - w_0|^2

over the rounds so far (stacking: Breiman 1996; van der Laan, Polley and Hubbard 2007), with p_t the predictions of
round t, r_t its reward, v the variance of rewards (1 if they are labels), and w_0 the weights before the first round.
As the weights sum to one, only the errors e_t = p_t - r_t matter, and the first sum is w' (sum_t e_t e_t') w: rewards
``a r + b`` lead to the same weights. The strength, 100, was chosen on the development half of the data sets
(benchmarks/records/split.json). If exactly one arm has reward 1 in each round, a reward of 1 reveals the reward of
every arm: such a round may count once for each (``revealed_predictions``). Then a predictor that would have chosen
another arm has its error counted too.

**Guarantee.** This is follow-the-regularised-leader on losses f_t(w) = (r_t - p_t . w)^2 over the simplex. Predictions
are clipped to the range of the rewards seen so far. With rewards and predictions in a bounded range squared loss is
exp-concave, and for any fixed weights u (a single predictor, or the best mixture in hindsight)

    sum_t (r_t - p_t . w_t)^2  <=  sum_t (r_t - p_t . u)^2  +  O(M log n)

for M predictors and n rounds (Hazan, Agarwal and Kale 2007): the mean error exceeds the best mixture's by
O(M log n / n). So the mixture is never much worse than its best member, on data like those it was learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray, restored_array

#: The strength of the prior weights: the factor 100 of the formula above.
_PRIOR_ROUNDS = 100.0
#: Weights are computed again after the number of rounds has grown by one part in this many.
_UPDATE_DIVISOR = 16


class MixtureWeights:
    """The weights (M,) of predictors in a common prediction; equal to ``prior`` before the first round."""

    def __init__(self, prior: Sequence[float] | FloatArray) -> None:
        self.prior: FloatArray = np.array(prior, np.float64)
        self.weights: FloatArray = self.prior.copy()
        #: The number of predicted rounds.
        self.n = 0
        self._errors: FloatArray = np.zeros((len(prior), len(prior)))
        self._updated_at = 0

    def add(self, predictions: FloatArray, rewards: FloatArray, *, scale: float = 1.0) -> bool:
        """Record the predictions (B, M) of rounds that no predictor had learned, and their rewards (B,).

        ``scale`` is the standard deviation of rewards. Return True if the weights changed.
        """
        errors = predictions - rewards[:, None]
        self._errors += errors.T @ errors
        self.n += len(rewards)
        if self.n - self._updated_at < max(1, self._updated_at // _UPDATE_DIVISOR):
            return False
        self._updated_at = self.n
        penalised = self._errors / (scale * scale) + _PRIOR_ROUNDS * np.eye(len(self.prior))
        self.weights = simplex_least_squares(penalised, _PRIOR_ROUNDS * self.prior)
        return True

    def state(self) -> dict[str, AnyArray]:
        """Return all arrays needed to continue bit for bit."""
        rounds = np.array([self.n, self._updated_at], np.int64)
        return {"weights": self.weights, "errors": self._errors, "rounds": rounds}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        self.weights = restored_array(state, "weights", self.weights)
        self._errors = restored_array(state, "errors", self._errors)
        self.n, self._updated_at = (int(count) for count in restored_array(state, "rounds", np.zeros(2, np.int64)))
        if not ((self.weights >= 0).all() and abs(self.weights.sum() - 1.0) < 1e-9):
            raise ValueError("weights must be >= 0 and sum to 1")


def revealed_predictions(means: FloatArray, arms: IntArray, rewards: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the predictions whose rewards are known (n, M), and these rewards (n,), if one arm per round has reward 1.

    ``means`` (B, K, M) are the predictions. A reward of 1 reveals that all other arms have reward 0; any other reward
    reveals only the reward of the chosen arm.

    >>> import numpy as np
    >>> from daband.linear._mixture_weights import revealed_predictions
    >>> means = np.array([[[0.9, 0.6], [0.2, 0.5]], [[0.3, 0.3], [0.4, 0.7]]])
    >>> predictions, rewards = revealed_predictions(means, np.array([0, 1]), np.array([1.0, 0.0]))
    >>> predictions.tolist(), rewards.tolist()
    ([[0.9, 0.6], [0.2, 0.5], [0.4, 0.7]], [1.0, 0.0, 0.0])
    """
    chosen = np.arange(means.shape[1]) == arms[:, None]
    known = chosen | (rewards == 1.0)[:, None]
    return means[known], (chosen * rewards[:, None])[known]


def simplex_least_squares(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the minimiser w (M,) of w'G w - 2 m'w with w >= 0 and sum 1, for a positive definite G.

    It is exact: every set of non-zero weights is tried. There are 2^M - 1 sets, so M must be small.
    """
    n_weights = len(moment)
    best, best_loss = np.full(n_weights, 1.0 / n_weights), np.inf
    for size in range(1, n_weights + 1):
        for subset in combinations(range(n_weights), size):
            used = list(subset)
            solved = np.linalg.solve(gram[np.ix_(used, used)], np.stack([moment[used], np.ones(size)], axis=1))
            solution = solved[:, 0] - solved[:, 1] * ((solved[:, 0].sum() - 1.0) / solved[:, 1].sum())
            if (solution < 0).any():
                continue
            weights = np.zeros(n_weights)
            weights[used] = solution
            loss = float(weights @ gram @ weights - 2.0 * (moment @ weights))
            if loss < best_loss:
                best, best_loss = weights, loss
    return best / best.sum()
