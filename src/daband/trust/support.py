"""Which share of the target lies outside the source's support, by the distance to the nearest source contexts."""

from __future__ import annotations

import numpy as np

from daband.arrays import FloatArray

__all__ = ["outside_support"]

_NEIGHBOUR = 5
_QUANTILE = 0.99


def outside_support(source: FloatArray, target: FloatArray) -> float:
    """The share of target features (L, d) farther from the source's (N, d) than 99% of the source's are from another.

    The distance is that to the fifth nearest of one half of the source; the other half says which distances are usual.
    The 1% that lies outside by construction is taken off.
    """
    half = len(source) // 2
    if half <= _NEIGHBOUR or not len(target):
        return 0.0
    spread = source.std(axis=0)
    scale = np.where(spread > 1e-9, spread, max(float(spread.max()), 1e-9))
    reference, usual = source[:half] / scale, source[half:] / scale
    limit = np.quantile(_distance(usual, reference), _QUANTILE)
    beyond = float((_distance(target / scale, reference) > limit * (1.0 + 1e-9)).mean())
    return max(0.0, (beyond - (1.0 - _QUANTILE)) / _QUANTILE)


def _distance(rows: FloatArray, reference: FloatArray) -> FloatArray:
    """Squared distance to the fifth nearest reference, (N,)."""
    squared = np.square(rows).sum(1)[:, None] - 2.0 * rows @ reference.T + np.square(reference).sum(1)[None, :]
    nearest: FloatArray = np.partition(squared, _NEIGHBOUR - 1, axis=1)[:, _NEIGHBOUR - 1]
    return np.maximum(nearest, 0.0)
