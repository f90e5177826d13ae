"""How much more likely a context is in the target than in the source."""

from __future__ import annotations

import math

import numpy as np

from daband._arrays import FloatArray, IntArray

#: Squares, and products, are used if each coefficient has this many contexts of the smaller sample.
_ROWS_PER_COEFFICIENT = 20
_MAX_STEPS = 50
_MAX_LOGIT = 30.0


class DensityRatio:
    """The ratio of the target's density to the source's, from samples of both.

    A logistic regression tells the two samples apart; its odds, times the ratio of the sample sizes, estimate the ratio
    of the densities (Bickel, Bruckner, Scheffer 2009). Features are standardised. Squares and products are added if
    there are enough contexts: the log ratio of two normal densities is quadratic.

    Args:
        source: features of source contexts, (n, d).
        target: features of target contexts, (m, d).
    """

    def __init__(self, source: FloatArray, target: FloatArray) -> None:
        from sklearn.linear_model import LogisticRegression  # takes a second to import

        both = np.concatenate([source, target])
        self._centre = both.mean(axis=0)
        deviation = both.std(axis=0)
        varies = deviation > 1e-12 * (1.0 + np.abs(self._centre))
        self._scale = np.where(varies, deviation, np.inf)  # a constant becomes 0
        dim, most = source.shape[1], min(len(source), len(target)) // _ROWS_PER_COEFFICIENT
        self._squares = 1 + 2 * dim <= most
        self._products = 1 + dim + dim * (dim + 1) // 2 <= most
        self._offset = math.log(len(source) / len(target))
        is_target = np.concatenate([np.zeros(len(source)), np.ones(len(target))])
        model = LogisticRegression(solver="newton-cholesky", tol=1e-8, max_iter=_MAX_STEPS)
        model.fit(self._design(both)[:, 1:], is_target)
        #: (1 + d,); (1 + 2 d,) with squares; (1 + d + d (d + 1) / 2,) with products as well.
        self.coefficients = np.concatenate([model.intercept_, model.coef_[0]])

    def __call__(self, features: FloatArray) -> FloatArray:
        """Return the ratio at these contexts, (n,)."""
        logits = np.clip(self._design(features) @ self.coefficients, -_MAX_LOGIT, _MAX_LOGIT)
        return np.exp(logits + self._offset)

    def _design(self, features: FloatArray) -> FloatArray:
        standard = (features - self._centre) / self._scale
        columns = [np.ones((len(features), 1)), standard]
        if self._products:
            first, second = np.triu_indices(features.shape[1])
            columns.append(standard[:, first] * standard[:, second])
        elif self._squares:
            columns.append(standard**2)
        return np.concatenate(columns, axis=1)


def cross_fitted_ratio(
    source: FloatArray, source_folds: IntArray, target: FloatArray, target_folds: IntArray
) -> tuple[FloatArray, float]:
    """Return the ratio at the source's contexts (n,), scaled to a mean of 1, and its mean before that.

    Each ratio is from samples without the context's fold. The mean is below 1 if the target has contexts that the
    source has not.
    """
    ratio, mass = np.empty(len(source)), 0.0
    for fold in np.unique(source_folds):
        held = source_folds == fold
        density = DensityRatio(source[~held], target[target_folds != fold])(source[held])
        ratio[held] = density / density.mean()
        mass += float(density.sum()) / len(source)
    return ratio, mass
