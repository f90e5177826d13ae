"""The probability that an arm has the largest of K independent Gaussian draws, by quadrature."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from daband.arrays import BoolArray, FloatArray, IntArray
from daband.linear import kernels_numpy

__all__ = ["gaussians", "probability_of_best"]

_REACH = 9.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_KNOTS = np.array([-_REACH, -5.0, -3.0, -1.5, 0.0, 1.5, 3.0, 5.0, _REACH])
_SMALLEST = 1e-13


def gaussians(uniform: FloatArray) -> FloatArray:
    """Standard normal numbers (B, K) from uniform ones (B, 2 K), each from a pair of its own (Box-Muller)."""
    first, second = uniform[:, 0::2], uniform[:, 1::2]
    radius = np.sqrt(-2.0 * np.log1p(-first))
    normal: FloatArray = radius * np.cos(2.0 * np.pi * second)
    return normal


def probability_of_best(mean: FloatArray, deviation: FloatArray, available: BoolArray, arms: IntArray) -> FloatArray:
    """P(draw of ``arms`` is the largest among the available) for each row; mean, deviation (B, K) to (B,).

    The integral of the arm's density times the other arms' distribution functions is cut where any of these bends (at
    fixed multiples of its deviation), and each piece gets twelve Gauss-Legendre nodes. A deviation of zero counts as
    a very small one, so that two certain arms of equal mean share evenly, as ties do.
    """
    loops = sys.modules.get("daband.linear.kernels_numba", kernels_numpy)  # serving alone loads none
    out = np.empty(len(mean))
    for row in range(len(mean)):
        arm = int(arms[row])
        rivals = np.flatnonzero(available[row])
        rivals = rivals[rivals != arm]
        out[row] = _one(mean[row], deviation[row], arm, rivals, loops)
    return out


def _one(mean: FloatArray, deviation: FloatArray, arm: int, rivals: IntArray, loops: Any) -> float:
    if len(rivals) == 0:
        return 1.0
    floor = _SMALLEST * (1.0 + np.abs(mean).max())
    own = max(float(deviation[arm]), floor)
    others = np.maximum(deviation[rivals], floor)
    # In units of the arm's own deviation: its draw is t, a rival's is centre + spread * N(0, 1).
    centre, spread = (mean[rivals] - mean[arm]) / own, others / own
    lowest = max(-_REACH, float((centre - _REACH * spread).max()))  # below, some rival is larger for certain
    if lowest >= _REACH:
        return 0.0
    knots = np.concatenate([_KNOTS, (centre[:, None] + spread[:, None] * _KNOTS).ravel()])
    knots = np.unique(np.concatenate([[lowest], knots[(knots > lowest) & (knots < _REACH)], [_REACH]]))
    half = 0.5 * np.diff(knots)
    t = (knots[:-1] + half)[:, None] + half[:, None] * _NODES
    density = np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
    for c, s in zip(centre, spread, strict=True):
        density *= loops.normal_cdf((t - c) / s)
    return min(max(float(half @ (density @ _WEIGHTS)), 0.0), 1.0)
