"""How far effects move between the domains of an experiment, and the lower limit that follows.

The reference class has 25 hypotheses that were tested in 65 sites (Jin, Egami, Rothenhaeusler:
"Beyond reweighting", 2025), and 16 randomised experiments in two domains. The difference between
the effects of two domains has the variance of both estimates, plus

    (``ZERO_EFFECT_DEVIATION`` * standard deviation of rewards)^2 + (``EFFECT_DEVIATION`` * effect)^2.

``benchmarks/verdicts.py`` fits both constants by maximum likelihood. Each hypothesis and each
experiment has weight 1. ``_QUANTILE`` is the conformal quantile: 90% of the standardised differences
are above its negative. The constants are the fit to all of these data. They are also fitted to one
half of the collections and applied to the other half, so that the recorded rates of verdicts and
limits are of experiments that the constants were not fitted to.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

from daband.logs._mean_estimates import MeanEstimate

#: Standard deviation of the difference between two domains of an effect that is 0, in standard
#: deviations of rewards.
ZERO_EFFECT_DEVIATION = 0.0176
#: Standard deviation of the difference between two domains, as a fraction of the effect.
EFFECT_DEVIATION = 0.336
#: Number of hypotheses that were tested in many sites, and number of experiments in two domains.
N_HYPOTHESES = 25
#: Number of experiments in two domains.
N_EXPERIMENTS = 16
#: Number of standard deviations that the lower limit is below the estimate.
_QUANTILE = 1.4
#: Probability that the advantage is above the lower limit.
_CONFIDENCE_LEVEL = 0.9


def compute_between_deviation(effect: float, fraction: float, deviation: float) -> float:
    """Return the standard deviation of the difference between an effect in two domains.

    Args:
        effect: the advantage of one policy over another.
        fraction: the fraction of contexts for which the two policies choose different arms.
        deviation: the standard deviation of rewards.
    """
    return math.hypot(ZERO_EFFECT_DEVIATION * fraction * deviation, EFFECT_DEVIATION * effect)


def compute_target_limit(
    estimate: MeanEstimate, *, between_deviation: float = 0.0, n_contenders: int = 1
) -> float:
    """Return the lower limit of an advantage, which holds with probability 0.9.

    It is never above the limit without ``between_deviation``.

    Args:
        estimate: the estimated advantage.
        between_deviation: the standard deviation of the difference between the domains; 0 if
            rewards given contexts are the same in both.
        n_contenders: the number of policies from which the best one may have been chosen by chance.
    """
    if estimate.standard_error == 0.0 and between_deviation == 0.0:
        return estimate.value
    quantile = compute_maximum_quantile(n_contenders, _CONFIDENCE_LEVEL)
    half_width = estimate.value - compute_lower_limit(estimate, quantile)
    if not between_deviation:
        return estimate.value - half_width
    factor = max(1.0, _QUANTILE / quantile)
    return estimate.value - factor * math.hypot(half_width, quantile * between_deviation)


def compute_lower_limit(estimate: MeanEstimate, quantile: float) -> float:
    """Return the estimate minus ``quantile`` standard errors, for few clusters by Student's t.

    The correction for skewness may lower the limit but not raise it.
    """
    if estimate.standard_error == 0.0:
        return estimate.value
    if math.isfinite(estimate.dof):
        from scipy.special import stdtrit  # the service runs without scipy

        level = NormalDist().cdf(quantile)
        quantile = float(stdtrit(estimate.dof, level)) if estimate.dof > 0 else math.inf
    if not math.isfinite(quantile * estimate.standard_error):
        return -math.inf
    return min(
        estimate.compute_limit(-quantile), estimate.value - quantile * estimate.standard_error
    )


@cache
def compute_maximum_quantile(n: int, level: float) -> float:
    """Return a quantile of the largest of n normal variables with correlation 1/2.

    These are studentised differences between n means and one other mean, all with the same
    variance (Dunnett 1955).
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()
    low, high = 0.0, 10.0
    normal = NormalDist()
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        probabilities = np.array([normal.cdf(math.sqrt(2.0) * middle + node) for node in nodes])
        if weights @ probabilities**n < level:
            low = middle
        else:
            high = middle
    return high
