"""Estimators of a policy's value from rounds that another policy played, as pure functions of arrays.

In all of them ``weights`` (n,) is the probability of the logged arm under the policy that is valued over its
probability under the logging policy, ``predicted`` (n,) what a reward model expects of the logged arm, and ``direct``
(m,) what it expects of the policy: the model's rewards of every arm, averaged by the policy's probabilities.

Where the policy is valued in another domain than the log's, ``direct`` is of contexts of that domain, and ``weights``
are multiplied by the ratio of the two domains' densities (Uehara, Kato, Yasui: "Off-policy evaluation and learning for
external validity under a covariate shift", 2020). The log and those contexts are then two samples: ``paired`` is False.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from daband._arrays import FloatArray, IntArray
from daband.errors import InvalidInput

_LARGEST_WEIGHT = 1e100
"""Its square, and sums of them, are still finite."""
THRESHOLDS: FloatArray = np.exp2(np.arange(-8, 41, dtype=np.float64) / 2)
"""Thresholds that ``switch_doubly_robust`` may have besides infinity: 1/16 to a million, by steps of the root of 2."""


class MeanEstimate(NamedTuple):
    """A value and its standard error."""

    value: float
    error: float


def mean_estimate(values: FloatArray) -> MeanEstimate:
    """The mean of independent values (n,); with one value its error is infinite."""
    n = len(values)
    return MeanEstimate(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf)


def normal_interval(estimate: MeanEstimate, confidence: float) -> tuple[float, float]:
    """The interval that holds the truth with probability ``confidence`` where the estimate is normal."""
    reach = NormalDist().inv_cdf(0.5 + 0.5 * confidence) * estimate.error
    return estimate.value - reach, estimate.value + reach


def effective_sample_size(weights: FloatArray) -> float:
    """How many equally weighted rounds have the variance of these (Kish): (sum w)^2 / sum w^2; 0 without weight."""
    squares = float(weights @ weights)
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


def importance_weights(probabilities: FloatArray, arms: IntArray, propensities: FloatArray) -> FloatArray:
    """Weights (n,) from the policy's probabilities (n, K), the logged arms and their propensities (n,)."""
    with np.errstate(over="ignore"):
        weights: FloatArray = probabilities[np.arange(len(arms)), arms] / propensities
    too_large = ~(weights < _LARGEST_WEIGHT)
    if too_large.any():
        row = int(np.argmax(too_large))
        raise InvalidInput(
            f"log: the propensity {propensities[row]:g} makes a weight of {weights[row]:.2g}, with which nothing can "
            "be estimated; see whether propensities are probabilities of the logged arm, and drop such rounds"
        )
    return weights


def direct_method(direct: FloatArray, model_error: float = 0.0) -> MeanEstimate:
    """What the reward model expects; biased as far as the model is wrong, and the error does not show that.

    ``model_error`` is the part of the standard error that comes from the rewards which the model was fitted to.
    """
    estimate = mean_estimate(direct)
    return MeanEstimate(estimate.value, math.hypot(estimate.error, model_error))


def inverse_propensity(rewards: FloatArray, weights: FloatArray) -> MeanEstimate:
    """Weighted rewards: unbiased, with a variance that grows with the largest weights."""
    return mean_estimate(weights * rewards)


def self_normalised(rewards: FloatArray, weights: FloatArray) -> MeanEstimate:
    """The weighted mean of rewards; its error by the delta method (Swaminathan, Joachims 2015)."""
    total = float(weights.sum())
    if total == 0.0:  # the policy takes no arm that was logged
        return MeanEstimate(float("nan"), float("inf"))
    value = float(weights @ rewards) / total
    return MeanEstimate(value, mean_estimate(weights * (rewards - value) / weights.mean()).error)


def doubly_robust(
    rewards: FloatArray, weights: FloatArray, predicted: FloatArray, direct: FloatArray, *, paired: bool = True
) -> MeanEstimate:
    """The direct method plus the weighted error of its model (Dudik, Langford, Li 2011)."""
    correction = weights * (rewards - predicted)
    if paired:
        return mean_estimate(direct + correction)
    first, second = mean_estimate(direct), mean_estimate(correction)
    return MeanEstimate(first.value + second.value, math.hypot(first.error, second.error))


def switch_doubly_robust(
    rewards: FloatArray,
    weights: FloatArray,
    predicted: FloatArray,
    direct: FloatArray,
    *,
    threshold: float,
    paired: bool = True,
) -> MeanEstimate:
    """Doubly robust where weights are at most ``threshold``, else the direct method (Wang, Agarwal, Dudik 2017)."""
    kept = np.where(weights <= threshold, weights, 0.0)
    return doubly_robust(rewards, kept, predicted, direct, paired=paired)


def choose_threshold(
    rewards: FloatArray, weights: FloatArray, predicted: FloatArray, direct: FloatArray, *, paired: bool = True
) -> float:
    """The threshold of ``switch_doubly_robust`` with the smallest bound on its mean squared error.

    That is its squared error plus the square of the largest bias that the corrections left out can have: their mean
    size, and at most the largest residual, as their weights are those of some share of the policy's rounds. Candidates
    are infinity and those of ``THRESHOLDS`` that keep at least half of all rounds.
    """
    kept = np.searchsorted(np.sort(weights), THRESHOLDS, side="right")
    candidates = THRESHOLDS[2 * kept >= len(weights)]
    residuals = np.abs(rewards - predicted)
    sizes = weights * residuals
    best, lowest = math.inf, math.inf
    for threshold in [math.inf, *candidates[::-1].tolist()]:
        estimate = switch_doubly_robust(rewards, weights, predicted, direct, threshold=threshold, paired=paired)
        bias = min(float(sizes[weights > threshold].sum() / len(sizes)), float(residuals.max()))
        bound = estimate.error**2 + bias**2
        if bound < lowest:
            best, lowest = threshold, bound
    return best
