"""Compute the weights of several predictors in a common prediction, from the past errors of each.

Every predictor predicts a round before it learns that round, so its errors are errors on unseen
data. The weights w are non-negative, sum to one, and minimise

    sum_t (r_t - p_t . w)^2  +  100 v |w - w_0|^2

over the rounds so far (stacking: Breiman 1996; van der Laan, Polley and Hubbard 2007). The symbols
are:

* p_t are the predictions of all predictors in round t, and r_t is its reward.
* v is the variance of rewards; it is 1 if the policy does not standardise rewards, as for labels (0
  and 1).
* w_0 are the weights before the first round.
* The factor 100 was chosen on the development half of the data sets
  (benchmarks/records/split.json).

The weights sum to one, so only the errors e_t = p_t - r_t matter, and the first sum is w' (sum_t
e_t e_t') w. Scaling and shifting all rewards therefore does not change the weights. If exactly one
arm has reward 1 in each round, a reward of 1 reveals the rewards of all arms. Such a round may
count once for each arm (``find_revealed_predictions``). Then the errors of arms that were not
chosen count as well.

**Guarantee.** This is follow-the-regularised-leader on losses f_t(w) = (r_t - p_t . w)^2 over the
simplex. Predictions are clipped to the range of the rewards seen so far. If rewards are bounded,
the squared loss is exp-concave. Then, for any fixed weights u (a single predictor, or the best
mixture in hindsight),

    sum_t (r_t - p_t . w_t)^2  <=  sum_t (r_t - p_t . u)^2  +  O(M log n)

for M predictors and n rounds (Hazan, Agarwal and Kale 2007). The mean error exceeds that of the
best mixture by O(M log n / n). So the mixture is never much worse than its best member, on data
like those it was learned from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from daband.base._arrays import Arrays, FloatArray, IntArray, read_array

#: The strength of the prior weights: the factor 100 of the formula above.
_PRIOR_STRENGTH = 100.0
#: The minimum strength, relative to the sum of all squared errors.
_MIN_RELATIVE_STRENGTH = 1e-9
#: Weights are computed again when the number of rounds has grown by a sixteenth.
_UPDATE_DIVISOR = 16


class MixtureWeights:
    """The weights (M,) of M predictors in a common prediction.

    Args:
        prior: the weights before the first round, (M,), w_0 in the formula of the module.
    """

    def __init__(self, prior: Sequence[float] | FloatArray) -> None:
        self.prior: FloatArray = np.array(prior, np.float64)
        self.weights: FloatArray = self.prior.copy()
        #: True after ``start_target``.
        self.is_in_target = False
        #: The number of predicted rounds.
        self.n_rounds = 0
        #: The sum of e_t e_t', (M, M).
        self._error_products: FloatArray = np.zeros((len(prior), len(prior)))
        #: The number of rounds when the weights were last computed.
        self._n_rounds_at_update = 0

    def start_target(self) -> None:
        """Forget the errors in the source, and use its weights as the prior for the target."""
        self.__init__(self.weights)  # type: ignore[misc]
        self.is_in_target = True

    def add(
        self, predictions: FloatArray, rewards: FloatArray, *, reward_deviation: float = 1.0
    ) -> None:
        """Record the predictions (B, M) for rounds before they are learned, and the rewards (B,) of
        these rounds.

        ``reward_deviation`` is the square root of v in the formula of the module. The weights are
        computed again when the number of rounds has grown by a sixteenth.
        """
        # equal predictions have no influence on weights; before the first reward their errors are huge
        is_used = np.ptp(predictions, axis=1) > 0.0
        errors = (predictions - rewards[:, None])[is_used]
        self._error_products += errors.T @ errors
        self.n_rounds += len(rewards)
        if self.n_rounds - self._n_rounds_at_update < max(
            1, self._n_rounds_at_update // _UPDATE_DIVISOR
        ):
            return
        self._n_rounds_at_update = self.n_rounds
        # divided by the sum of all squared errors, which keeps the matrix far from singular if the
        # first rewards differ by rounding only
        total = float(np.trace(self._error_products)) or 1.0
        strength = max(
            _PRIOR_STRENGTH * (reward_deviation / math.sqrt(total)) ** 2, _MIN_RELATIVE_STRENGTH
        )
        gram = self._error_products / total + strength * np.eye(len(self.prior))
        self.weights = solve_on_simplex(gram, strength * self.prior)

    def state(self) -> Arrays:
        """Return all arrays needed to continue bit for bit."""
        round_counts = np.array([self.n_rounds, self._n_rounds_at_update], np.int64)
        return {
            "prior": self.prior,
            "weights": self.weights,
            "errors": self._error_products,
            "rounds": round_counts,
            "is_in_target": np.array(self.is_in_target),
        }

    def restore(self, state: Arrays) -> None:
        """Restore the arrays that ``state`` returned."""
        self.prior = read_array(state, "prior", self.prior)
        self.weights = read_array(state, "weights", self.weights)
        self.is_in_target = bool(read_array(state, "is_in_target", np.array(False)))
        self._error_products = read_array(state, "errors", self._error_products)
        self.n_rounds, self._n_rounds_at_update = (
            int(count) for count in read_array(state, "rounds", np.zeros(2, np.int64))
        )
        if not ((self.weights >= 0).all() and abs(self.weights.sum() - 1.0) < 1e-9):
            raise ValueError("weights must be >= 0 and sum to 1")


def find_revealed_predictions(
    means: FloatArray, arms: IntArray, rewards: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the predictions for arms whose reward is known (n, M), and these rewards (n,).

    This is for problems in which exactly one arm per round has reward 1. Then a reward of 1 reveals
    that all other arms have reward 0. Any other reward reveals only the reward of the chosen arm.
    ``means`` (B, K, M) are the predictions for all arms, ``arms`` (B,) the chosen arms, and
    ``rewards`` (B,) their rewards.

    >>> import numpy as np
    >>> from daband.linear._mixture_weights import find_revealed_predictions
    >>> means = np.array([[[0.9, 0.6], [0.2, 0.5]], [[0.3, 0.3], [0.4, 0.7]]])
    >>> predictions, rewards = find_revealed_predictions(means, np.array([0, 1]), np.array([1.0, 0.0]))
    >>> predictions.tolist(), rewards.tolist()
    ([[0.9, 0.6], [0.2, 0.5], [0.4, 0.7]], [1.0, 0.0, 0.0])
    """
    is_chosen = np.arange(means.shape[1]) == arms[:, None]
    is_known = is_chosen | (rewards == 1.0)[:, None]
    return means[is_known], (is_chosen * rewards[:, None])[is_known]


def solve_on_simplex(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the w (M,) >= 0 with sum 1 that minimises w'G w - 2 m'w, for ``gram`` G (M, M) and
    ``moment`` m (M,).

    G must be positive definite.

    The result is exact: every set of non-zero weights is tried. There are 2^M - 1 sets, so M must
    be small.
    """
    n_weights = len(moment)
    best_weights = np.full(n_weights, 1.0 / n_weights)
    best_loss = np.inf
    for n_nonzero in range(1, n_weights + 1):
        for subset in combinations(range(n_weights), n_nonzero):
            nonzero_indices = list(subset)
            right_sides = np.stack([moment[nonzero_indices], np.ones(n_nonzero)], axis=1)
            unconstrained, direction = np.linalg.solve(
                gram[np.ix_(nonzero_indices, nonzero_indices)], right_sides
            ).T
            # the Lagrange multiplier makes the sum 1
            multiplier = (unconstrained.sum() - 1.0) / direction.sum()
            solution = unconstrained - multiplier * direction
            if (solution < 0).any():
                continue
            weights = np.zeros(n_weights)
            weights[nonzero_indices] = solution
            loss = float(weights @ gram @ weights - 2.0 * (moment @ weights))
            if loss < best_loss:
                best_weights = weights
                best_loss = loss
    return best_weights / best_weights.sum()
