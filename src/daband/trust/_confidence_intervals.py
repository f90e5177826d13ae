"""An interval for a mean from a stratified sample of bounded rewards: Wilson's, for strata and for any reward.

Wilson's interval holds the values theta that a score test does not reject, with the variance that theta itself implies.
Here the rewards come from strata h of known weight W_h, n_h of them drawn evenly from each. For every theta the
nonparametric maximum likelihood under sum_h W_h mean_h = theta says how the rewards are distributed in each stratum,
and so what the variance of the estimate is; theta is kept where

    (estimate - theta)^2 <= z^2 (d sum_h W_h^2 variance_h / n_h + sum_h W_h (mean_h - theta)^2 / N).

The ends of the reward's range belong to the support whether or not they were seen, so that a stratum of nothing but
successes may hide failures. The last term is there because the W_h are shares of N contexts, themselves a sample of the
domain. d = n / (n - H + 1) makes up for the H means that are fitted under one constraint. With one stratum and rewards
0 and 1 this is Wilson's interval (Wilson, 1927; for strata the score test of Miettinen and Nurminen, 1985).

The constrained likelihood is solved through its multiplier: in stratum h the reward y_i has the mass
1 / (nu_h + c_h y_i), c_h = multiplier W_h, and what is missing to 1 lies at the end of the range where the denominator
is 0. A multiplier > 0 gives a theta below the estimate. So each limit is one root in the multiplier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from daband._arrays import FloatArray

_STEPS = 80
"""Steps of a search at most."""
_SPAN = 40.0
"""The logarithm of the multiplier is sought this far around that of the smallest n_h / W_h, where something moves."""
_TOLERANCE = 1e-12
_ROUNDING = 1e-26
"""Squares of differences below this are rounding: a theta that is the estimate itself."""


@dataclass(frozen=True)
class Interval:
    """A mean and its two-sided limits."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Counts:
    """Rewards by stratum: values (..., H, V) within [0, 1] and how often each occurred, ``counts`` (..., H, V).

    A value that only fills a row up has count 0. Leading axes are samples of their own.
    """

    values: FloatArray
    counts: FloatArray

    @property
    def sizes(self) -> FloatArray:
        """How many rewards each stratum has, (..., H)."""
        return self.counts.sum(axis=-1)

    @property
    def means(self) -> FloatArray:
        """The mean reward of each stratum, (..., H)."""
        return (self.counts * self.values).sum(axis=-1) / self.sizes

    def mirrored(self) -> Counts:
        """The same with 1 - reward."""
        return Counts(1.0 - self.values, self.counts)


def counted(rewards: Sequence[FloatArray]) -> Counts:
    """The rewards of each stratum, H arrays (n_h,) within [0, 1], none of them empty, as ``Counts``."""
    distinct = [np.unique(part, return_counts=True) for part in rewards]
    width = max(len(values) for values, _ in distinct)
    values, counts = np.zeros((len(distinct), width)), np.zeros((len(distinct), width))
    for row, (distinct_values, often) in enumerate(distinct):
        values[row, : len(distinct_values)], counts[row, : len(distinct_values)] = distinct_values, often
    return Counts(values, counts)


def score_interval(
    sample: Counts, weights: FloatArray, *, n_contexts: int | None = None, confidence: float = 0.95
) -> Interval:
    """The mean reward over strata and its limits.

    Args:
        sample: the rewards that were drawn, (H, V).
        weights: the share of contexts in each stratum, (H,), of sum 1.
        n_contexts: N, of how many contexts these are the shares; None where they are known exactly.
        confidence: two-sided.
    """
    low, high = score_limits(sample, weights, n_contexts=n_contexts, confidence=confidence)
    return Interval(float((weights * sample.means).sum()), float(low), float(high))


def score_limits(
    sample: Counts, weights: FloatArray, *, n_contexts: int | None = None, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """The limits (...) of many samples at once; ``weights`` are (H,) or (..., H)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    low = _lower(sample, weights, n_contexts, z)
    high: FloatArray = 1.0 - _lower(sample.mirrored(), weights, n_contexts, z)
    return low, high


def _lower(sample: Counts, weights: FloatArray, n_contexts: int | None, z: float) -> FloatArray:
    value = (weights * sample.means).sum(axis=-1)
    unit = (sample.sizes / weights).min(axis=-1)
    # Bisection in the logarithm: multipliers range over many orders of magnitude.
    below, above = np.log(unit) - _SPAN, np.log(unit) + _SPAN
    for _ in range(_STEPS):
        if (above - below).max() < _TOLERANCE:
            break
        middle = (below + above) / 2.0
        theta, variance = _constrained(sample, weights, np.exp(middle), n_contexts)
        inside = np.square(value - theta) <= z * z * variance + _ROUNDING
        below, above = np.where(inside, middle, below), np.where(inside, above, middle)
    theta, _ = _constrained(sample, weights, np.exp(below), n_contexts)
    return np.where(value > 0.0, np.minimum(theta, value), 0.0)


def _constrained(
    sample: Counts, weights: FloatArray, multiplier: FloatArray, n_contexts: int | None
) -> tuple[FloatArray, FloatArray]:
    """The mean over strata that a multiplier > 0 gives, at most the estimate, and its variance, (...) each."""
    slope = multiplier[..., None] * weights
    nu = _offsets(sample, slope)[..., None]
    held = sample.counts * sample.values > 0  # rewards of 0 add nothing to a moment, and their denominator may be 0
    mass = np.where(held, sample.counts / np.where(held, nu + slope[..., None] * sample.values, 1.0), 0.0)
    means, squares = (mass * sample.values).sum(axis=-1), (mass * np.square(sample.values)).sum(axis=-1)
    theta = (weights * means).sum(axis=-1)
    sizes = sample.sizes
    n = sizes.sum(axis=-1)
    within = np.maximum(squares - np.square(means), 0.0)
    variance = (np.square(weights) * within / sizes).sum(axis=-1) * n / (n - weights.shape[-1] + 1.0)
    if n_contexts is not None:
        variance = variance + (weights * np.square(means - theta[..., None])).sum(axis=-1) / n_contexts
    return theta, variance


def _offsets(sample: Counts, slope: FloatArray) -> FloatArray:
    """The nu of each stratum, (..., H): masses count / (nu + slope value) sum to 1; 0 where they sum to less at 0."""
    sizes = sample.sizes
    zeros = np.where(sample.values == 0.0, sample.counts, 0.0).sum(axis=-1)
    if ((sample.values == 0.0) | (sample.values == 1.0)).all():
        half = (sizes - slope) / 2.0
        root = np.sqrt(np.square(half) + zeros * slope)
        # The larger root of nu^2 - 2 half nu - zeros slope, without cancellation.
        small = np.divide(zeros * slope, root - half, where=root > half, out=np.zeros_like(root))
        return np.where(half >= 0, half + root, small)
    # Newton's method from the left: the sum of masses is convex in nu, so that it never overshoots.
    nu: FloatArray = np.maximum(np.maximum(sizes - slope * sample.values.max(axis=-1), zeros), 0.0)
    for _ in range(_STEPS):
        denominator = nu[..., None] + slope[..., None] * sample.values
        used = (sample.counts > 0) & (denominator > 0)
        mass = np.divide(sample.counts, denominator, where=used, out=np.zeros_like(denominator))
        excess = mass.sum(axis=-1) - 1.0
        fall = np.divide(mass, denominator, where=used, out=np.zeros_like(denominator)).sum(axis=-1)
        step = np.where(excess > 0, excess / np.maximum(fall, 1e-300), 0.0)
        nu = nu + step
        if (step <= 1e-13 * sizes).all():
            break
    return nu


# An interval for the mean over a finite set of contexts that holds at every time at once: one may look and stop.
#
# Contexts are drawn one after the other without replacement, i among the remaining ones R with probability pi_i /
# pi(R). With g_i the predicted reward and r_i the reward,
#
#     X_t = (sum of rewards so far + sum of g over R + (r_i - g_i) pi(R) / pi_i) / N
#
# has the mean over all N contexts as its conditional expectation, whatever the predictions are. For every candidate m
# a gambler bets on X_t - m; the wealth is a non-negative martingale if m is the mean, so by Ville's inequality it
# reaches 2 / alpha with probability at most alpha / 2 at any time (Waudby-Smith and Ramdas, 2024; Shekhar, Xu,
# Lipton, Liang and Ramdas, 2023, for weighted sampling without replacement). One gambler bets on more, one on less;
# candidates on which neither has reached that wealth are the confidence sequence.


_GRID = 1001
_CAUTION = 0.5
"""The largest share of the wealth that one draw may lose."""


@dataclass(frozen=True)
class WeightedDraws:
    """What the order of questions rests on; rewards and predictions are scaled to [0, 1].

    ``predicted`` (n,) and ``probability`` (n,) are g and pi of the questions in their order; ``predicted_total`` is the
    sum of g over all ``n_contexts``; ``deepest`` and ``highest`` are the largest g / pi and (1 - g) / pi of a context.
    """

    predicted: FloatArray
    probability: FloatArray
    predicted_total: float
    n_contexts: int
    deepest: float
    highest: float


def confidence_sequence(draws: WeightedDraws, rewards: FloatArray, *, confidence: float = 0.95) -> Interval:
    """The mean over all contexts and its limits after the first ``len(rewards)`` questions.

    The limits are those of the running intersection. All of these hold at once with probability ``confidence``.

    Args:
        draws: the questions in the order in which they were drawn.
        rewards: the answers to the first of them, (t,) within [0, 1], t >= 0.
        confidence: two-sided.
    """
    n, t = draws.n_contexts, len(rewards)
    g, pi = draws.predicted[:t], draws.probability[:t]
    left = 1.0 - (np.cumsum(pi) - pi)  # pi(R) before each draw
    centre = (np.cumsum(rewards) - rewards + draws.predicted_total - (np.cumsum(g) - g)) / n
    drawn = centre + (rewards - g) * left / pi / n
    least, most = centre - draws.deepest * left / n, centre + draws.highest * left / n
    candidates = np.linspace(0.0, 1.0, _GRID)
    stakes = _stakes(drawn, np.maximum(most - least, 1e-12), confidence)
    wealth = np.zeros((2, _GRID))
    refuted = np.zeros(_GRID, dtype=np.bool_)
    threshold = math.log(2.0 / (1.0 - confidence))
    for x, low, high, stake in zip(drawn, least, most, stakes, strict=True):
        more = np.minimum(stake, _CAUTION / np.maximum(candidates - low, 1e-12))
        less = np.minimum(stake, _CAUTION / np.maximum(high - candidates, 1e-12))
        # A candidate outside the range of the draw is refuted by the bounds alone; the factor stays positive there too.
        wealth[0] += np.log(np.maximum(1.0 + more * (x - candidates), 1e-12))
        wealth[1] += np.log(np.maximum(1.0 - less * (x - candidates), 1e-12))
        refuted |= wealth.max(axis=0) >= threshold
    kept = candidates[~refuted]
    step = 1.0 / (_GRID - 1)
    value = float(drawn.mean()) if t else draws.predicted_total / n
    if not len(kept):  # only if the guarantee failed, or a reward left its range
        return Interval(min(max(value, 0.0), 1.0), 0.0, 1.0)
    low, high = max(float(kept[0]) - step, 0.0), min(float(kept[-1]) + step, 1.0)
    return Interval(min(max(value, low), high), low, high)


def _stakes(drawn: FloatArray, reach: FloatArray, confidence: float) -> FloatArray:
    """How much each draw is bet on, (t,), by the draws before it alone: the predictable plug-in for their variance."""
    t = np.arange(1, len(drawn) + 1)
    scaled = drawn / reach
    mean = (0.5 + np.cumsum(scaled)) / (t + 1)
    variance = (0.25 + np.cumsum(np.square(scaled - mean))) / (t + 1)
    before = np.concatenate([[0.25], variance[:-1]])[: len(drawn)]
    return np.sqrt(2.0 * math.log(2.0 / (1.0 - confidence)) / (before * t * np.log(t + 1.0))) / reach
