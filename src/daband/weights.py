"""Compute weights of rounds for ``policy.update(..., weights=...)``, by age, logging propensity or
source.

A round of weight 2 counts as two rounds. Each function returns an array (n,). Multiply the arrays
to combine weights.

>>> import numpy as np
>>> age = daband.weights.recency(time=[0.0, 30.0, 60.0], half_life=30.0)
>>> source = daband.weights.by_source(["de", "fr", "de"], {"fr": 0.5})
>>> (age * source).tolist()
[0.25, 0.25, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from daband._arguments import check_finite
from daband._arrays import ArrayLike, FloatArray, as_numpy
from daband.errors import InvalidInput

__all__ = ["by_source", "importance", "recency"]


def recency(time: ArrayLike, half_life: float, now: float | None = None) -> FloatArray:
    """Return the weights of rounds by age, (n,): 1 at the time ``now``, and half as much for each
    half-life before.

    Args:
        time: the time of each round, (n,), in any unit.
        half_life: the age at which the weight is 0.5, in the same unit.
        now: the time at which the weight is 1, by default the latest of ``time``. A policy that
            learns several batches needs the same ``now`` for all of them. Rounds after ``now`` have
            weights above 1.
    """
    times = np.asarray(as_numpy(time, "time"), np.float64)
    if times.ndim != 1 or not np.isfinite(times).all():
        raise InvalidInput(f"time must be finite numbers of shape (n,), got shape {times.shape}")
    if not check_finite("half_life", half_life) > 0:
        raise InvalidInput(f"half_life must be a number > 0, got {half_life!r}")
    reference_time = max(times.tolist(), default=0.0) if now is None else check_finite("now", now)
    return np.exp2((times - reference_time) / half_life)


def importance(
    propensity: ArrayLike, n_arms: int | ArrayLike, *, power: float = 1.0, max_weight: float = 10.0
) -> FloatArray:
    """Return importance weights (n,) of logged rounds: ``(1 / (n_arms * propensity)) ** power``.

    A logging policy that prefers some arms in some contexts biases the sample of contexts of each
    arm. These weights remove the bias, but increase the variance. A power between 0 and 1 is a
    compromise (Shimodaira, "Improving predictive inference under covariate shift", 2000). If the
    log chose arms uniformly, all weights are 1.

    Args:
        propensity: the probability with which each logged arm was chosen, (n,), in (0, 1].
        n_arms: the number of arms; (n,) if a different number of arms was offered in each round.
        power: 1 for full importance weights, 0 for none. ``daband.train`` and ``daband.fit_log``
            use 0.25 for regressions, which was best by measurement.
        max_weight: larger weights are clipped to this value. Otherwise a few rounds could dominate
            all others.
    """
    propensities = check_propensities(propensity)
    if (
        not 0.0 <= check_finite("power", power) <= 1.0
        or not check_finite("max_weight", max_weight) > 0
    ):
        raise InvalidInput(
            f"power must be in [0, 1] and max_weight above 0, got {power!r} and {max_weight!r}"
        )
    counts = as_numpy(n_arms, "n_arms")
    if (
        counts.shape not in ((), propensities.shape)
        or counts.dtype.kind not in "iu"
        or counts.min(initial=1) < 1
    ):
        raise InvalidInput(f"n_arms must be an integer >= 1, or one for each round, got {n_arms!r}")
    weights: FloatArray = (1.0 / (counts * propensities)) ** power
    return np.minimum(weights, max_weight)


def by_source(names: Sequence[str] | ArrayLike, weights: Mapping[str, float]) -> FloatArray:
    """Return the weight of each round's source, (n,).

    Sources that are not in ``weights`` have weight 1.

    Args:
        names: the source of each round, (n,).
        weights: the weight of the rounds of each source, by source name, at least 0.
    """
    for name, weight in weights.items():
        if check_finite(f"the weight of {name!r}", weight) < 0:
            raise InvalidInput(f"weights must be >= 0, got {weight!r} for {name!r}")
    return np.array([float(weights.get(str(name), 1.0)) for name in names], np.float64)


def check_propensities(
    propensity: ArrayLike, n: int | None = None, to_row: Callable[[int], int] = int
) -> FloatArray:
    """Return propensities (n,) as float64. Raise an error unless each is in (0, 1].

    ``to_row(index)`` returns the row number that the error message states for an index.
    """
    propensities: FloatArray = as_numpy(propensity, "propensity").astype(np.float64, copy=False)
    if propensities.ndim != 1 or n not in (None, len(propensities)):
        raise InvalidInput(
            f"propensity must have shape ({'n' if n is None else n},), got {propensities.shape}"
        )
    # NaN is outside every bound
    invalid_indices = np.flatnonzero(~((propensities > 0) & (propensities <= 1)))
    if len(invalid_indices):
        row = to_row(int(invalid_indices[0]))
        value = propensities[invalid_indices[0]]
        remedy = (
            "divide percentages by 100"
            if value > 1
            else "drop such rounds: a chosen arm has more than 0"
        )
        raise InvalidInput(f"propensity must be in (0, 1], row {row} has {value:g} ({remedy})")
    return propensities
