"""Compute weights of rounds for ``policy.update(..., weights=...)``, by age or by source.

A weight states how much a round counts. The probability with which its arm was chosen is not a
weight: pass it as ``propensities``. Each function returns an array (n,). Multiply the arrays to
combine weights.

>>> import numpy as np
>>> age = daband.weights.recency(time=[0.0, 30.0, 60.0], half_life=30.0)
>>> source = daband.weights.by_source(["de", "fr", "de"], {"fr": 0.5})
>>> (age * source).tolist()
[0.25, 0.25, 1.0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from daband.base._arguments import check_finite
from daband.base._arrays import ArrayLike, FloatArray, as_numpy
from daband.errors import InvalidInput

__all__ = ["by_source", "recency"]


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
