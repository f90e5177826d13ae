"""Cross-fitted reward predictions."""

from __future__ import annotations

import numpy as np

from daband._arrays import FloatArray, IntArray
from daband.linear._doubly_robust import RewardSums, flat_features, fold_numbers

__all__ = ["cross_fitted_rewards", "flat_features"]


def cross_fitted_rewards(
    features: FloatArray, arms: IntArray, rewards: FloatArray, *, n_arms: int, seed: int = 0
) -> FloatArray:
    """Return the predicted reward of every arm (n, K), for each row by a model that was fitted to the other folds."""
    n, shared = len(arms), features.ndim == 3
    if n < 2:
        return np.full((n, n_arms), 0.5)
    folds = fold_numbers(0, n, min(5, n), seed)
    chosen = features[np.arange(n), arms] if shared else features
    sums = RewardSums(min(5, n), 1 if shared else n_arms, chosen, float(rewards.mean()))
    sums.add(chosen, folds, np.zeros(n, np.int64) if shared else arms, rewards)
    predicted = np.empty((n, n_arms))
    for fold in np.unique(folds):
        predicted[folds == fold] = sums.fit([fold]).predict(features[folds == fold])
    return predicted
