"""Estimate means of a log for the contexts of the target.

A log's mean is a mean over the source's contexts. If the target has other contexts, and values
depend on contexts, the target's mean differs. Only the dependence on an index u of contexts matters,
which is larger the more likely a context is in the target (Rosenbaum and Rubin, "The central role
of the propensity score", 1983). For values v_i, indices u_i and weights w_i with sum 1,

    m = sum_i w_i v_i                       the mean of the log
    q_i = w_i exp(t u_i) / sum              tilted weights, whose mean index is the target's
    d = sum_i q_i v_i - m                   the difference between the domains
    estimate = m + k d

The factor k in [0, 1] is the same for all values of a log, so that estimates are consistent: the
advantage of a policy over an arm is the difference between the estimated mean rewards of both. It
is fitted to the contrasts of the arms, which are their scores minus the mean score of the round,
with the differences d_a of the contrasts, and their standard errors s_a:

    k = max(0, 1 - 1.645^2 sum_a s_a^2 / sum_a d_a^2)       a positive-part James-Stein factor

So k is 0 unless the differences are clear against their standard errors. The error of m is the mean
of n w_i (v_i - m). The error of the tilted mean is the mean of n q_i e_i / (1 - l_i), with the residuals
e_i of the regression of v on u with the weights q, and the leverages l_i. These are near 1 if few
rounds resemble the target, so that k is 0.

The estimate is a weighted mean of the values, whose weights balance the mean index (Hainmueller,
"Entropy balancing for causal effects", 2012). Weights are never negative, so the estimate is
inside the range of the values. A gain of choosing by context grows on both sides of the contexts for
which arms are equal; a linear extrapolation of it can be negative for a target with older customers.
Ratios of densities of all contexts are much worse on experiments.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from daband.base._arrays import FloatArray, IntArray
from daband.features._piecewise import fit_ramps
from daband.logs._mean_estimates import MeanEstimate, compute_effective_size, estimate_means
from daband.logs._reward_sums import RidgePath

#: The number of standard errors by which the difference between the domains must differ from 0.
_MIN_STANDARD_ERRORS = 1.645
#: Maximum number of ramps per column in the regression that fits the index.
_MAX_PIECES = 8
#: Maximum absolute tilt t of weights, times the standard deviation of the index.
_MAX_TILT = 8.0
#: The index is clipped at this quantile and at one minus this quantile of the log's contexts.
_CLIP_QUANTILE = 0.01


def compute_shift_index(contexts: FloatArray, target: FloatArray) -> tuple[FloatArray, float]:
    """Return the index (n,) of a log's contexts (n, d), and its mean in the target.

    The index is a ridge regression of the domain on contexts, in which both domains have the same
    weight.
    """
    rng = np.random.default_rng(0)
    n = min(len(contexts), len(target))
    # the same number of both, in turns
    pooled = np.stack([rng.permutation(rows)[:n] for rows in (contexts, target)], axis=1)
    step = fit_ramps(pooled.reshape(2 * n, -1), _MAX_PIECES)
    designs = [step(rows) for rows in (contexts, target)]
    grams = [design.T @ design * (n / len(design)) for design in designs]
    moments = [n * design.mean(axis=0) for design in designs]
    path = RidgePath(grams[0] + grams[1], (moments[1] - moments[0])[:, None], np.array([2.0 * n]))
    theta = path.compute_coefficients(path.choose_penalty())[:, 0]
    index = designs[0] @ theta
    limits = np.quantile(index, [_CLIP_QUANTILE, 1.0 - _CLIP_QUANTILE])
    return np.clip(index, *limits), float(np.clip(designs[1] @ theta, *limits).mean())


def weigh_for_target(contexts: FloatArray, target: FloatArray) -> FloatArray:
    """Return the weight of each context of a log, (n,), with mean 1, by which the log's mean index
    is the target's: an estimate of the ratio of the target's density to the log's.
    """
    uniform = np.full(len(contexts), 1.0 / len(contexts))
    index, target_index = compute_shift_index(contexts, target)
    if not np.ptp(index) > 0.0:
        return np.ones(len(contexts))
    return len(contexts) * _tilt_weights(uniform, index, target_index)


class MixEstimate(NamedTuple):
    """The mean of values of a log, for the contexts of the target."""

    #: The mean with its standard error.
    mean: MeanEstimate
    #: The part of each round in the error of the mean, (n,). Their mean is about 0.
    terms: FloatArray


class TargetMix:
    """Estimate means for the contexts of the target.

    Args:
        weights: the weights of the log's rounds, (n,).
        clusters: the index of each round's cluster, (n,); None if rounds are independent.
        index: the index of the log's contexts, (n,); None without a target.
        target_index: the mean index of the target's contexts.
        contrasts: the contrasts of the arms, (n, k), which determine ``factor``; None without a
            target.
    """

    def __init__(
        self,
        weights: FloatArray,
        clusters: IntArray | None = None,
        index: FloatArray | None = None,
        target_index: float = 0.0,
        contrasts: FloatArray | None = None,
    ) -> None:
        #: The weights of the rounds, (n,), with sum 1.
        self.weights = weights / weights.sum()
        #: k, the fraction of the difference between the domains that is added, in [0, 1].
        self.factor = 0.0
        self._clusters = clusters
        #: q, the weights of the rounds whose mean index is the target's, (n,), with sum 1.
        self._tilted_weights = self.weights
        #: The index, with mean 0 and variance 1 in the tilted weights, (n,).
        self._scaled_index = np.zeros(len(weights))
        if index is not None and contrasts is not None and np.ptp(index) > 0.0:
            self._tilted_weights = _tilt_weights(self.weights, index, target_index)
            deviations = index - self._tilted_weights @ index
            self._scaled_index = deviations / math.sqrt(self._tilted_weights @ deviations**2)
            self.factor = self._fit_factor(contrasts)

    def without_target(self) -> TargetMix:
        """Return the estimator of means for the contexts of the log."""
        return TargetMix(self.weights, self._clusters)

    @property
    def target_weights(self) -> FloatArray:
        """The weights of the rounds, (n,), with sum 1, that give means for the contexts of the
        target.
        """
        return self.weights + self.factor * (self._tilted_weights - self.weights)

    @property
    def effective_rounds(self) -> float:
        """The number of rounds of equal weight that would give the same variance."""
        return compute_effective_size(self.target_weights)

    def estimate_all(self, values: FloatArray) -> list[MixEstimate]:
        """Return the mean m + k d of each column of values (n, t) for the contexts of the target."""
        terms = np.column_stack([self._compute_error_terms(column) for column in values.T])
        weights = self.target_weights
        return [
            MixEstimate(mean._replace(value=float(weights @ column)), column_terms)
            for mean, column, column_terms in zip(
                estimate_means(terms, self._clusters), values.T, terms.T, strict=True
            )
        ]

    def estimate(self, values: FloatArray) -> MixEstimate:
        """Return the mean of values (n,) for the contexts of the target."""
        return self.estimate_all(values[:, None])[0]

    def _compute_error_terms(self, values: FloatArray) -> FloatArray:
        """Return the part of each round in the error of m + k d, (n,)."""
        terms = self._compute_terms(values)
        return (
            terms + self.factor * self._compute_difference_terms(values) if self.factor else terms
        )

    def _fit_factor(self, contrasts: FloatArray) -> float:
        """Return k for the contrasts of the arms, (n, k)."""
        differences = (self._tilted_weights - self.weights) @ contrasts
        if not differences.any():
            return 0.0
        terms = np.column_stack([self._compute_difference_terms(column) for column in contrasts.T])
        errors = [mean.standard_error for mean in estimate_means(terms, self._clusters)]
        ratio = np.square(errors).sum() / np.square(differences).sum()
        return max(0.0, 1.0 - float(_MIN_STANDARD_ERRORS**2 * ratio))

    def _compute_terms(self, values: FloatArray) -> FloatArray:
        """Return the part of each round in the error of m, (n,)."""
        return len(values) * self.weights * (values - self.weights @ values)

    def _compute_difference_terms(self, values: FloatArray) -> FloatArray:
        """Return the part of each round in the error of d, (n,)."""
        tilted, index = self._tilted_weights, self._scaled_index
        residuals = values - tilted @ values - (tilted * index) @ values * index
        residuals /= np.maximum(1.0 - tilted * (1.0 + index**2), 1e-9)
        return len(values) * tilted * residuals - self._compute_terms(values)


def _tilt_weights(weights: FloatArray, index: FloatArray, target_index: float) -> FloatArray:
    """Return the weights (n,) times exp(t index), scaled to sum 1, whose mean index is
    ``target_index``; t is found by bisection.
    """
    deviation = math.sqrt(weights @ (index - weights @ index) ** 2)
    low, high = -_MAX_TILT, _MAX_TILT
    tilted = weights
    while high - low > 1e-9:
        tilt = 0.5 * (low + high)
        exponents = tilt / deviation * (index - target_index)
        tilted = weights * np.exp(exponents - exponents.max())
        tilted /= tilted.sum()
        if tilted @ index > target_index:
            high = tilt
        else:
            low = tilt
    return tilted
