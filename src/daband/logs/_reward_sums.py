"""Fit ridge regressions of rewards from sums over the rounds of a log.

The models (``RidgeRewards``) are ridge regressions, one per arm, fitted from sums over rounds
(``RewardSums``). There is a sum per fold, so one pass over a log gives the models for all folds,
also models that exclude two folds. The penalty is chosen by generalised cross-validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from daband.base._arrays import FloatArray, IntArray, Weights, check_memory
from daband.linear._ridge import RidgeSums

#: The ridge penalties that are compared, divided by the number of rounds, for features of unit
#: variance.
_PENALTIES: FloatArray = np.geomspace(1e-3, 30.0, 16)
#: Minimum number of rounds for a regression; an arm with fewer rounds is predicted by its mean
#: reward.
_MIN_ROUNDS = 10
#: Maximum degrees of freedom of a regression, as a fraction of its number of rounds.
_MAX_FREEDOM_FRACTION = 0.9


class RidgePath:
    """Ridge regressions with an unpenalised intercept, for any penalty, computed from sums over
    rows.

    A row has features z (d,) and targets y (m,). A 1 is prepended to z for the intercept.

    Args:
        gram: (1 + d, 1 + d), the sum of (1, z) (1, z)'.
        moment: (1 + d, m), the sum of (1, z) y'.
        squares: (m,), the sum of y^2.
    """

    def __init__(self, gram: FloatArray, moment: FloatArray, squares: FloatArray) -> None:
        self.n_rows = float(gram[0, 0])
        self._feature_means = gram[0, 1:] / self.n_rows
        self._mean = moment[0] / self.n_rows
        covariance = gram[1:, 1:] / self.n_rows - np.outer(self._feature_means, self._feature_means)
        eigenvalues, self._eigenvectors = np.linalg.eigh(covariance)
        self._eigenvalues = np.maximum(eigenvalues, 0.0)
        centred_moment = moment[1:] / self.n_rows - np.outer(self._feature_means, self._mean)
        self._projected_moment = self._eigenvectors.T @ centred_moment
        self._variance = np.maximum(squares / self.n_rows - self._mean**2, 0.0)

    def choose_penalty(self) -> float:
        """Return the penalty with the smallest generalised cross-validation error, summed over the
        m targets.
        """
        penalised_eigenvalues = self._eigenvalues + _PENALTIES[:, None]
        shrinkage_factors = self._eigenvalues / penalised_eigenvalues
        degrees_of_freedom = 1.0 + shrinkage_factors.sum(axis=1)
        explained_variances = ((2.0 - shrinkage_factors) / penalised_eigenvalues) @ (
            self._projected_moment**2
        )
        residual_variance = np.maximum(self._variance - explained_variances, 0.0).sum(axis=1)
        residual_fraction = 1.0 - degrees_of_freedom / self.n_rows
        is_allowed = residual_fraction > 1.0 - _MAX_FREEDOM_FRACTION
        if not is_allowed.any():
            return float(_PENALTIES[-1])
        errors = np.where(
            is_allowed, residual_variance / np.maximum(residual_fraction, 1e-9) ** 2, np.inf
        )
        return float(_PENALTIES[np.argmin(errors)])

    def compute_coefficients(
        self, penalty: float, prior_mean: FloatArray | float | None = None
    ) -> FloatArray:
        """Return intercept and slopes, (1 + d, m), for a penalty that is divided by the number of
        rows.

        With ``prior_mean``, the mean of a target is computed as if one more row had the target
        ``prior_mean``.
        """
        slopes = self._eigenvectors @ (
            self._projected_moment / (self._eigenvalues + penalty)[:, None]
        )
        mean = (
            self._mean
            if prior_mean is None
            else (self.n_rows * self._mean + prior_mean) / (self.n_rows + 1.0)
        )
        return np.concatenate([(mean - self._feature_means @ slopes)[None], slopes])


def fit_ridge(design: FloatArray, targets: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the coefficients (m, features) of ridge regressions of targets (n, m) on a design
    (n, features) with a leading 1, for rounds with weights (n,).
    """
    weighted_design = (weights[:, None] * design).T
    path = RidgePath(
        weighted_design @ design, weighted_design @ targets, weights @ np.square(targets)
    )
    return path.compute_coefficients(path.choose_penalty()).T


class RewardSums:
    """Sums over the rounds of a log, by fold and head, from which reward models are fitted.

    Args:
        n_folds: the number of folds.
        n_heads: the number of regressions: one per arm, or one in total if every arm has its own
            context.
        sample_features: the features of some rounds, (m, d). All features are standardised by the
            means and standard deviations of these before they are summed, which keeps rounding
            errors small.
        typical_reward: a reward that is subtracted from all rewards, for the same reason.
    """

    def __init__(
        self, n_folds: int, n_heads: int, sample_features: FloatArray, typical_reward: float
    ) -> None:
        self.n_folds = n_folds
        self.n_heads = n_heads
        self._feature_means = sample_features.mean(axis=0)
        deviation = sample_features.std(axis=0)
        is_varying = deviation > 1e-12 * (1.0 + np.abs(self._feature_means))
        self._scale = np.where(is_varying, deviation, np.inf)  # a constant feature becomes 0
        self._typical_reward = typical_reward
        self._low = math.inf
        self._high = -math.inf
        self._n_columns = 1 + len(self._feature_means)
        check_memory(
            8.0 * n_folds * n_heads * (self._n_columns + 1) ** 2,
            f"a reward model of {n_heads} arms and {self._n_columns} features",
        )
        self._sums = RidgeSums(n_folds * n_heads, self._n_columns + 1)

    def add(
        self,
        features: FloatArray,
        folds: IntArray,
        heads: IntArray,
        rewards: FloatArray,
        weights: Weights = None,
    ) -> None:
        """Add rounds: features (n, d) of the chosen arm, and the folds, heads, rewards and weights
        of the rounds, each (n,).
        """
        # contiguous columns are summed fastest
        rows = np.empty((len(features), self._n_columns + 1), order="F")
        rows[:, 0] = 1.0
        rows[:, 1:-1] = self._standardise(features)
        rows[:, -1] = rewards - self._typical_reward
        self._sums.add(rows, folds * self.n_heads + heads, rewards, weights)
        self._low, self._high = (
            min(self._low, float(rewards.min())),
            max(self._high, float(rewards.max())),
        )

    def fit(self, excluded: Iterable[int], penalties: FloatArray | None = None) -> RidgeRewards:
        """Fit a model to all folds except ``excluded``, with the given penalties (heads,) or the
        best ones.
        """
        grams, feature_scales = self._sum_grams(excluded)
        total_gram = grams.sum(axis=0)
        overall_mean = float(total_gram[0, -1] / max(1.0, total_gram[0, 0]))
        coefficients = np.zeros((self.n_heads, self._n_columns))
        for head, gram in enumerate(grams):
            n_rounds = gram[0, 0]
            if n_rounds < _MIN_ROUNDS:
                coefficients[head, 0] = (gram[0, -1] + overall_mean) / (n_rounds + 1.0)
            elif penalties is None:
                path = RidgePath(gram[:-1, :-1], gram[:-1, -1:], gram[-1:, -1])
                coefficients[head] = path.compute_coefficients(path.choose_penalty(), overall_mean)[
                    :, 0
                ]
            else:
                coefficients[head] = _solve_ridge(gram, float(penalties[head]), overall_mean)
        coefficients *= feature_scales[:-1]
        coefficients[:, 0] += self._typical_reward
        return RidgeRewards(coefficients, self._standardise, (self._low, self._high))

    def predict_held_out(
        self, features: FloatArray, folds: IntArray, excluded: int | None = None
    ) -> FloatArray:
        """Return the rewards (n, K) of rounds that were added, predicted by models that have not
        seen the round's fold, nor the fold ``excluded``, whose own predictions are 0.
        """
        predictions = np.zeros((len(features), self.n_heads))
        penalties = None if excluded is None else self.choose_penalties([excluded])
        for fold in range(self.n_folds):
            if fold != excluded:
                is_held_out = folds == fold
                model = self.fit({fold} if excluded is None else {fold, excluded}, penalties)
                predictions[is_held_out] = model.predict(features[is_held_out])
        return predictions

    def choose_penalties(self, excluded: Iterable[int]) -> FloatArray:
        """Return the best penalty of every head (heads,) on all folds except ``excluded``."""
        best_penalties = np.full(self.n_heads, _PENALTIES[-1])
        for head, gram in enumerate(self._sum_grams(excluded)[0]):
            if gram[0, 0] >= _MIN_ROUNDS:
                best_penalties[head] = RidgePath(
                    gram[:-1, :-1], gram[:-1, -1:], gram[-1:, -1]
                ).choose_penalty()
        return best_penalties

    def _sum_grams(self, excluded: Iterable[int]) -> tuple[FloatArray, FloatArray]:
        """Return the Gram matrices (heads, d + 2, d + 2) of all folds except ``excluded``, and the
        scales (d + 2,).

        The columns are a constant, d features with unit variance, and the reward. The scales are
        the factors that the columns were multiplied by for this; they are 1 for the constant and
        the reward.
        """
        is_included = np.ones(self.n_folds, np.bool_)
        is_included[list(excluded)] = False
        grams = self._sums.gram.reshape(self.n_folds, self.n_heads, self._n_columns + 1, -1)[
            is_included
        ].sum(axis=0)
        total_gram = grams.sum(axis=0)
        n_rounds = max(1.0, total_gram[0, 0])
        variance = total_gram.diagonal()[1:-1] / n_rounds - (total_gram[0, 1:-1] / n_rounds) ** 2
        # the standard deviations of the sample are only approximate
        scales = np.ones(self._n_columns + 1)
        scales[1:-1] = np.where(variance > 1e-12, 1.0 / np.sqrt(np.maximum(variance, 1e-12)), 0.0)
        return grams * np.outer(scales, scales), scales

    def _standardise(self, features: FloatArray) -> FloatArray:
        """Return features (n, d), centred and scaled by the sample."""
        return (features - self._feature_means) / self._scale


class RidgeRewards:
    """A model of the reward of every arm.

    It is linear in features, and clipped to the range of observed rewards.

    Args:
        coefficients: intercept and slopes, (heads, 1 + d).
        standardise: the function that standardises features (n, d) before they are multiplied by
            the coefficients.
        bounds: the smallest and the largest prediction.
    """

    def __init__(
        self,
        coefficients: FloatArray,
        standardise: Callable[[FloatArray], FloatArray],
        bounds: tuple[float, float],
    ) -> None:
        self._coefficients = coefficients
        self._standardise = standardise
        self._bounds = bounds

    def compute_theta(self) -> FloatArray:
        """Return coefficients (heads, 1 + d) of a constant 1 and the features as they are given.

        Predictions with these are not clipped.
        """
        offsets = self._standardise(np.zeros((1, self._coefficients.shape[1] - 1)))[0]
        scales = self._standardise(np.ones((1, len(offsets))))[0] - offsets
        theta = self._coefficients * np.append(1.0, scales)
        theta[:, 0] += self._coefficients[:, 1:] @ offsets
        return theta

    def predict(self, features: FloatArray) -> FloatArray:
        """Return rewards (n, K) for features (n, d), or (n, K, d) with a context per arm."""
        rows = self._standardise(
            features.reshape(math.prod(features.shape[:-1]), features.shape[-1])
        )
        predictions = (rows @ self._coefficients[:, 1:].T + self._coefficients[:, 0]).reshape(
            len(features), -1
        )
        return np.clip(predictions, *self._bounds, out=predictions)


def _solve_ridge(gram: FloatArray, penalty: float, prior_mean: float) -> FloatArray:
    """Return ``RidgePath.compute_coefficients`` (1 + d,) for one penalty and one target, but
    faster.

    ``gram`` (d + 2, d + 2) has the columns of ``RewardSums``: a constant, the features and the
    reward.
    """
    n_rounds = gram[0, 0]
    centre = gram[0, 1:] / n_rounds
    covariance = gram[1:, 1:] / n_rounds - np.outer(centre, centre)
    penalised_covariance = covariance[:-1, :-1] + penalty * np.eye(len(covariance) - 1)
    slopes = np.linalg.solve(penalised_covariance, covariance[:-1, -1])
    mean = (gram[0, -1] + prior_mean) / (n_rounds + 1.0)
    return np.concatenate([[mean - centre[:-1] @ slopes], slopes])
