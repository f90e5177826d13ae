"""A regression of rewards on contexts that needs no tuning: the direct model of doubly robust estimates.

Ridge regression on standardised features with an intercept, for each arm its own, or one for all where every arm has a
context. Predictions of an arm with few rounds shrink to the mean reward of all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray, unit_scale
from daband.linear.pca import PCA

__all__ = ["RewardModel", "cross_fitted_rewards", "flat_features", "split_folds"]

_MOST_FEATURES = 256
"""Contexts of more numbers are reduced to their first principal components."""
_COMPONENTS = 64
_SAMPLE, _SAMPLE_BYTES = 4096, 1 << 28
"""Contexts of each batch that the principal components are fitted to, and their memory, at most."""


class RewardModel:
    """Predicts the reward of every arm.

    Args:
        features: (n, d), or (n, K, d) with one context per arm.
        arms: the arm that was pulled in each round, (n,).
        rewards: what it paid, (n,).
        n_arms: how many arms there are.
        ridge: the penalty of the coefficients, which are those of standardised features.
    """

    def __init__(
        self, features: FloatArray, arms: IntArray, rewards: FloatArray, *, n_arms: int, ridge: float = 1.0
    ) -> None:
        self.n_arms = n_arms
        shared = features.ndim == 3
        own = features[np.arange(len(arms)), arms] if shared else features
        heads = np.zeros(len(arms), np.int64) if shared else arms
        self._centre = own.mean(axis=0)
        deviation = own.std(axis=0)
        varies = deviation > 1e-12 * (1.0 + np.abs(self._centre))
        self._scale = np.where(varies, deviation, np.inf)  # a constant becomes 0
        self._middle = float(rewards.mean())
        size = 1 + own.shape[1]
        self.coefficients = np.zeros((1 if shared else n_arms, size))
        """(heads, 1 + d)."""
        self._grams: dict[int, FloatArray] = {}
        for head in np.unique(heads).tolist():
            which = heads == head
            rows = self._design(own[which])
            self._grams[head] = rows.T @ rows + ridge * np.eye(size)
            moment = rows.T @ (rewards[which] - self._middle)
            self.coefficients[head] = np.linalg.solve(self._grams[head], moment)
        self._rounds = own, heads, rewards

    def predict(self, features: FloatArray) -> FloatArray:
        """Rewards of every arm, (n, K)."""
        predicted: FloatArray
        if features.ndim == 3:
            predicted = (self._design(features.reshape(-1, features.shape[-1])) @ self.coefficients[0]).reshape(
                len(features), -1
            )
        else:
            predicted = self._design(features) @ self.coefficients.T
        return predicted + self._middle

    def influence(self, features: FloatArray, shares: FloatArray) -> FloatArray:
        """How much each round it was fitted to moves the sum of predictions, (n,): weight times residual.

        The sum is over contexts with these features, (m, d) or (m, K, d), and arms by their ``shares`` (m, K). The sum
        of squares of influences is the variance of that sum that comes from the fitted rewards.
        """
        if features.ndim == 3:
            flat = self._design(features.reshape(-1, features.shape[-1]))
            gradients = (shares.reshape(-1) @ flat)[None]
        else:
            gradients = shares.T @ self._design(features)
        own, heads, rewards = self._rounds
        influence = np.zeros(len(heads))
        for head, gram in self._grams.items():
            which = heads == head
            rows = self._design(own[which])
            residuals = rewards[which] - self._middle - rows @ self.coefficients[head]
            influence[which] = (rows @ np.linalg.solve(gram, gradients[head])) * residuals
        return influence

    def _design(self, features: FloatArray) -> FloatArray:
        return np.concatenate([np.ones((len(features), 1)), (features - self._centre) / self._scale], axis=1)


def cross_fitted_rewards(
    features: FloatArray, arms: IntArray, rewards: FloatArray, *, n_arms: int, folds: int = 5, seed: int = 0
) -> FloatArray:
    """Predicted rewards of every arm (n, K), each row's by a model that was fitted to the other folds."""
    predicted = np.full((len(arms), n_arms), 0.5 if len(arms) < 2 else float(rewards.mean()))
    for fitted, held in split_folds(len(arms), folds, seed):
        model = RewardModel(features[fitted], arms[fitted], rewards[fitted], n_arms=n_arms)
        predicted[held] = model.predict(features[held])
    return predicted


def split_folds(n: int, folds: int, seed: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows to fit and rows held out, fold by fold; none where there is but one row."""
    if n < 2:
        return
    order = np.random.default_rng([seed, n]).permutation(n)
    for held in np.array_split(order, min(folds, n)):
        keep = np.ones(n, np.bool_)
        keep[held] = False
        yield np.flatnonzero(keep), np.sort(held)


def flat_features(contexts: AnyArray, *more: AnyArray, lead: int = 1) -> list[FloatArray]:
    """Each of the batches of contexts with all but its first ``lead`` axes flattened, reduced where that is long.

    Contexts of more than 256 numbers become their first 64 principal components, those of all batches together.
    """
    size = math.prod(contexts.shape[lead:])
    flat = [batch.reshape(*batch.shape[:lead], size) for batch in (contexts, *more)]
    if size <= _MOST_FEATURES:
        return [unit_scale(batch) for batch in flat]
    shown = []
    for batch in flat:
        rows = batch.reshape(-1, size)
        most = min(_SAMPLE, len(rows), max(_COMPONENTS, _SAMPLE_BYTES // max(1, rows[0].nbytes)))
        shown.append(rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)])
    transform = PCA(min(_COMPONENTS, sum(map(len, shown)))).fit(*shown)
    return [transform(batch.reshape(-1, size)).reshape(*batch.shape[:lead], -1) for batch in flat]
