"""How much more likely a context is in the target than in the source, from samples of both.

A logistic regression tells the two samples apart; its odds, times the ratio of the sample sizes, estimate the ratio of
the densities (Bickel, Bruckner, Scheffer 2009). Features are standardised, with their squares and products beside them
where there are contexts enough: the log ratio of two normal densities is quadratic.
"""

from __future__ import annotations

import math

import numpy as np

from daband.arrays import FloatArray

__all__ = ["DensityRatio"]

_ROWS_PER_COEFFICIENT = 20
"""Squares, and products, are used where each coefficient has as many contexts of the smaller sample."""
_STEPS = 50
_LARGEST_LOGIT = 30.0


class DensityRatio:
    """The ratio of densities, target over source.

    Args:
        source: features of source contexts, (n, d).
        target: features of target contexts, (m, d).
        ridge: the penalty of the coefficients but for the intercept.
    """

    def __init__(self, source: FloatArray, target: FloatArray, *, ridge: float = 1.0) -> None:
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
        self.coefficients = _fit_logistic(self._design(both), is_target, ridge)
        """(1 + d,); (1 + 2 d,) with squares; (1 + d + d (d + 1) / 2,) with products as well."""

    def __call__(self, features: FloatArray) -> FloatArray:
        """The ratio at these contexts, (n,)."""
        logits = np.clip(self._design(features) @ self.coefficients, -_LARGEST_LOGIT, _LARGEST_LOGIT)
        ratio: FloatArray = np.exp(logits + self._offset)
        return ratio

    def _design(self, features: FloatArray) -> FloatArray:
        standard = (features - self._centre) / self._scale
        columns = [np.ones((len(features), 1)), standard]
        if self._products:
            first, second = np.triu_indices(features.shape[1])
            columns.append(standard[:, first] * standard[:, second])
        elif self._squares:
            columns.append(standard**2)
        return np.concatenate(columns, axis=1)


def _fit_logistic(design: FloatArray, labels: FloatArray, ridge: float) -> FloatArray:
    """Newton's method with halved steps; the penalty leaves out the first coefficient, the intercept."""
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = 1e-9  # where every column is constant, there is still one solution
    coefficients = np.zeros(design.shape[1])

    def loss(at: FloatArray) -> float:
        logits = design @ at
        return float((np.logaddexp(0.0, logits) - labels * logits).sum() + 0.5 * penalty @ at**2)

    now = loss(coefficients)
    for _ in range(_STEPS):
        logits = np.clip(design @ coefficients, -_LARGEST_LOGIT, _LARGEST_LOGIT)
        share = 1.0 / (1.0 + np.exp(-logits))
        gradient = design.T @ (share - labels) + penalty * coefficients
        curvature = (design.T * (share * (1.0 - share))) @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while size > 1e-6 and not loss(coefficients - size * step) <= now:
            size *= 0.5
        if size <= 1e-6:
            break
        coefficients = coefficients - size * step
        before, now = now, loss(coefficients)
        if before - now <= 1e-10 * (1.0 + abs(now)):
            break
    return coefficients
