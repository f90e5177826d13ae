"""A regression of rewards on contexts that needs no tuning: the direct model of doubly robust estimates.

Ridge regression on standardised features with an intercept, for each arm its own, or one for all where every arm has a
context. Predictions of an arm with few rounds shrink to the mean reward of all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray, unit_scale
from daband.linear._kernels import draw_key, uniforms
from daband.linear._pca import PCA
from daband.linear._primal_ridge import RidgeSums

_MOST_FEATURES = 256
"""Contexts of more numbers are reduced to their first principal components."""
_COMPONENTS = 64
_SAMPLE, _SAMPLE_BYTES = 4096, 1 << 28
"""Contexts of each batch that the principal components are fitted to, and their memory, at most."""


class RewardModel:
    """Predicts the reward of every arm.

    Args:
        features: (n, d), or (n, K, d) with one context per arm.
        arms: the arm that was chosen in each round, (n,).
        rewards: its reward, (n,).
        n_arms: how many arms there are.
        bounds: predictions are clipped to these: far from the contexts it was fitted to, a line leaves every range.
    """

    def __init__(
        self,
        features: FloatArray,
        arms: IntArray,
        rewards: FloatArray,
        *,
        n_arms: int,
        bounds: tuple[float, float] | None = None,
    ) -> None:
        self._bounds = bounds
        shared = features.ndim == 3
        played = features[np.arange(len(arms)), arms] if shared else features
        heads = np.zeros(len(arms), np.int64) if shared else arms
        self._begin(played.mean(axis=0), played.std(axis=0), float(rewards.mean()), 1 if shared else n_arms)
        for head in np.unique(heads).tolist():
            which = heads == head
            rows = self._design(played[which])
            self._fit(head, rows.T @ rows, rows.T @ (rewards[which] - self._middle))
        self._rounds = played, heads, rewards

    @classmethod
    def from_sums(
        cls,
        sums: RidgeSums,
        centre: FloatArray,
        scale: FloatArray,
        *,
        bounds: tuple[float, float] | None = None,
    ) -> RewardModel:
        """The model of rounds of which the sums are known, of rows (1, (features - centre) / scale).

        ``centre`` and ``scale`` (d,) are near those of the features: sums of large numbers would cost accuracy.
        """
        model = cls.__new__(cls)
        model._bounds = bounds
        n, total = int(sums.counts.sum()), sums.gram.sum(axis=0)
        mean = total[0, 1:] / n
        variance = np.maximum(total.diagonal()[1:] / n - mean**2, 0.0)
        middle = float(sums.moment[:, 0].sum() / n)
        model._begin(centre + scale * mean, scale * np.sqrt(variance), middle, len(sums.counts))
        # Rows of the design are those of the sums times this matrix.
        change = np.diag(np.concatenate([[1.0], scale / model._scale]))
        change[0, 1:] = (centre - model._centre) / model._scale
        for head in np.flatnonzero(sums.counts).tolist():
            gram = sums.gram[head]
            moment = sums.moment[head] - middle * gram[0]
            model._fit(head, change.T @ gram @ change, change.T @ moment)
        return model

    def _begin(self, centre: FloatArray, deviation: FloatArray, middle: float, heads: int) -> None:
        self._centre, self._middle = centre, middle
        varies = deviation > 1e-12 * (1.0 + np.abs(centre))
        self._scale = np.where(varies, deviation, np.inf)  # a constant becomes 0
        self.coefficients = np.zeros((heads, 1 + len(centre)))
        """(heads, 1 + d)."""
        self._grams: dict[int, FloatArray] = {}

    def _fit(self, head: int, gram: FloatArray, moment: FloatArray) -> None:
        self._grams[head] = gram + np.eye(len(gram))  # the penalty: 1, of the coefficients of standardised features
        self.coefficients[head] = np.linalg.solve(self._grams[head], moment)

    def predict(self, features: FloatArray) -> FloatArray:
        """Rewards of every arm, (n, K)."""
        predicted: FloatArray
        if features.ndim == 3:
            predicted = (self._design(features.reshape(-1, features.shape[-1])) @ self.coefficients[0]).reshape(
                len(features), -1
            )
        else:
            predicted = self._design(features) @ self.coefficients.T
        predicted += self._middle
        return predicted if self._bounds is None else np.clip(predicted, *self._bounds, out=predicted)

    def influence(self, features: FloatArray, shares: FloatArray) -> FloatArray:
        """How much each round it was fitted to moves the sum of predictions, (n,): weight times residual.

        The sum is over contexts with these features, (m, d) or (m, K, d), and arms by their ``shares`` (m, K). The sum
        of squares of influences is the variance of that sum that comes from the fitted rewards.
        """
        return self.influence_of(*self._rounds, self.gradients(features, shares))

    def gradients(self, features: FloatArray, shares: FloatArray) -> FloatArray:
        """How much each coefficient moves the sum of predictions over these contexts and shares: (heads, 1 + d)."""
        gradients: FloatArray
        if features.ndim == 3:
            gradients = (shares.reshape(-1) @ self._design(features.reshape(-1, features.shape[-1])))[None]
        else:
            gradients = shares.T @ self._design(features)
        return gradients

    def influence_of(
        self, features: FloatArray, heads: IntArray, rewards: FloatArray, gradients: FloatArray
    ) -> FloatArray:
        """``influence`` of some of the rounds that the model was fitted to: features (n, d), heads and rewards (n,)."""
        influence = np.zeros(len(heads))
        for head in np.unique(heads).tolist():
            which = heads == head
            rows = self._design(features[which])
            residuals = rewards[which] - self._middle - rows @ self.coefficients[head]
            influence[which] = (rows @ np.linalg.solve(self._grams[head], gradients[head])) * residuals
        return influence

    def _design(self, features: FloatArray) -> FloatArray:
        return np.concatenate([np.ones((len(features), 1)), (features - self._centre) / self._scale], axis=1)


def cross_fitted_rewards(
    features: FloatArray, arms: IntArray, rewards: FloatArray, *, n_arms: int, seed: int = 0
) -> FloatArray:
    """Predicted rewards of every arm (n, K), each row's by a model that was fitted to the other folds."""
    predicted = np.full((len(arms), n_arms), 0.5 if len(arms) < 2 else float(rewards.mean()))
    for fitted, held in split_folds(len(arms), 5, seed):
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


def fold_numbers(first: int, n: int, folds: int, seed: int) -> IntArray:
    """The folds, 0..folds - 1, of rows ``first`` to ``first + n - 1``, (n,), whatever stands before and behind them.

    Of every ``folds`` rows that follow each other, each fold has one.
    """
    block, skipped = divmod(first, folds)
    draws = uniforms(draw_key(seed), block, -(-(skipped + n) // folds), folds)
    return draws.argsort(axis=1).reshape(-1)[skipped : skipped + n]


def flat_features(contexts: AnyArray, *more: AnyArray, lead: int = 1) -> list[FloatArray]:
    """Each of the batches of contexts with all but its first ``lead`` axes flattened, reduced where that is long.

    Contexts of more than 256 numbers become their first 64 principal components, those of all batches together.
    """
    size = math.prod(contexts.shape[lead:])
    rows = [batch.reshape(-1, size) for batch in (contexts, *more)]
    shown = [flat[sampled_places(len(flat), flat[0].nbytes)] for flat in rows] if needs_components(size) else []
    features = feature_map(size, shown)
    return [
        features(flat).reshape(*batch.shape[:lead], -1) for flat, batch in zip(rows, (contexts, *more), strict=True)
    ]


def feature_map(size: int, shown: Sequence[AnyArray]) -> Callable[[AnyArray], FloatArray]:
    """From rows of ``size`` numbers to features; of many numbers, principal components of the rows ``shown``."""
    if not needs_components(size):
        return unit_scale
    return PCA(min(_COMPONENTS, sum(map(len, shown)))).fit(*shown)


def needs_components(size: int) -> bool:
    """Whether contexts of so many numbers are reduced to principal components."""
    return size > _MOST_FEATURES


def sampled_places(n: int, row_bytes: int) -> IntArray:
    """Which of n rows ``feature_map`` is shown where it needs some."""
    most = min(_SAMPLE, n, max(_COMPONENTS, _SAMPLE_BYTES // max(1, row_bytes)))
    return np.linspace(0, n - 1, most).astype(np.int64)
