"""One round at a time on packed inverses, compiled: what a loop of single decisions and updates runs on.

Such a loop reads K symmetric matrices per decision, and at many dimensions memory is what limits it. So each inverse is
kept as panels of eight rows of its upper half, one after the other: half the bytes, read in one sweep. The 8 x 8 blocks
on the diagonal are stored whole at half weight, so that z'Mz = 2 * (sum over the panels of z_i P_ij z_j) needs no case
for them. Dimensions are rounded up to a multiple of eight, with zeros.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from daband.linear.kernels_numba import FAST, _dot, _uniform, choose

_PANEL = 8


@njit(cache=True)
def packed_size(d: int) -> int:
    """Numbers that a packed d x d matrix takes."""
    wide = (d + _PANEL - 1) // _PANEL * _PANEL
    return wide * (wide + _PANEL) // 2


@njit(cache=True)
def pack(matrix: Any, packed: Any) -> None:
    """Write the upper half of ``matrix`` (d, d) into ``packed``."""
    d = matrix.shape[0]
    wide = (d + _PANEL - 1) // _PANEL * _PANEL
    at = 0
    for i in range(0, wide, _PANEL):
        for row in range(i, i + _PANEL):
            for column in range(i, wide):
                value = 0.0
                if row < d and column < d:
                    value = matrix[row, column] if row <= column else matrix[column, row]
                packed[at] = 0.5 * value if column < i + _PANEL else value
                at += 1


@njit(cache=True)
def unpack(packed: Any, matrix: Any) -> None:
    """Write both halves of ``matrix`` (d, d) from ``packed``; what was packed comes back to the bit."""
    d = matrix.shape[0]
    wide = (d + _PANEL - 1) // _PANEL * _PANEL
    at = 0
    for i in range(0, wide, _PANEL):
        for row in range(i, i + _PANEL):
            for column in range(i, wide):
                if row <= column < d:
                    value = 2.0 * packed[at] if column < i + _PANEL else packed[at]
                    matrix[row, column] = value
                    matrix[column, row] = value
                at += 1


@njit(cache=True, fastmath=FAST)
def _quadratic(packed: Any, z: Any, sums: Any) -> Any:
    """Z' M z; z and the scratch ``sums`` are padded."""
    wide = z.shape[0]
    for j in range(wide):
        sums[j] = 0.0
    at = 0
    for i in range(0, wide, _PANEL):
        n = wide - i
        z0, z1, z2, z3 = z[i], z[i + 1], z[i + 2], z[i + 3]
        z4, z5, z6, z7 = z[i + 4], z[i + 5], z[i + 6], z[i + 7]
        row0, row1 = packed[at : at + n], packed[at + n : at + 2 * n]
        row2, row3 = packed[at + 2 * n : at + 3 * n], packed[at + 3 * n : at + 4 * n]
        row4, row5 = packed[at + 4 * n : at + 5 * n], packed[at + 5 * n : at + 6 * n]
        row6, row7 = packed[at + 6 * n : at + 7 * n], packed[at + 7 * n : at + 8 * n]
        part = sums[i:]
        for j in range(n):
            part[j] += (
                z0 * row0[j] + z1 * row1[j] + z2 * row2[j] + z3 * row3[j]
                + z4 * row4[j] + z5 * row5[j] + z6 * row6[j] + z7 * row7[j]
            )  # fmt: skip
        at += _PANEL * n
    return 2.0 * _dot(sums, z)


@njit(cache=True)
def _padded(z: Any) -> Any:
    out = np.zeros((z.shape[0] + _PANEL - 1) // _PANEL * _PANEL)
    for i in range(z.shape[0]):
        out[i] = z[i]
    return out


@njit(cache=True, fastmath=FAST)
def decide_one(
    packed: Any,
    theta: Any,
    context: Any,
    available: Any,
    alpha: Any,
    epsilon: Any,
    key: Any,
    round_number: int,
    mean: Any,
    width: Any,
    arm: Any,
    chance: Any,
) -> None:
    """A whole decision for one context (1, d) and K heads, written to the last four: (1, K) twice, (1,) twice.

    ``alpha`` 0 is greedy.
    """
    n_arms = theta.shape[0]
    row = context[0]
    z = _padded(row)
    sums, scores = np.empty(z.shape[0]), np.empty(n_arms)
    for position in range(n_arms):
        # To and fro: what was read last in one round is read first in the next, and is still in the cache.
        a = n_arms - 1 - position if round_number & 1 else position
        mean[0, a] = _dot(theta[a], row)
        width[0, a] = math.sqrt(max(_quadratic(packed[a], z, sums), 0.0))
        scores[a] = mean[0, a] + alpha * width[0, a]
    coin, pick = _uniform(key, round_number, 0), _uniform(key, round_number, 1)
    arm[0], chance[0] = choose(scores, available[0], epsilon, coin, pick)


@njit(cache=True, fastmath=FAST)
def _times(packed: Any, z: Any, out: Any) -> None:
    """M z, all padded: each panel serves its rows and, mirrored, its columns."""
    wide = z.shape[0]
    for j in range(wide):
        out[j] = 0.0
    at = 0
    for i in range(0, wide, _PANEL):
        n = wide - i
        below, own = out[i:], z[i:]
        for k in range(0, _PANEL, 4):
            row0, row1 = packed[at : at + n], packed[at + n : at + 2 * n]
            row2, row3 = packed[at + 2 * n : at + 3 * n], packed[at + 3 * n : at + 4 * n]
            z0, z1, z2, z3 = own[k], own[k + 1], own[k + 2], own[k + 3]
            sum0, sum1, sum2, sum3 = 0.0, 0.0, 0.0, 0.0
            for j in range(_PANEL):
                sum0 += row0[j] * own[j]
                sum1 += row1[j] * own[j]
                sum2 += row2[j] * own[j]
                sum3 += row3[j] * own[j]
            sum0, sum1, sum2, sum3 = 2.0 * sum0, 2.0 * sum1, 2.0 * sum2, 2.0 * sum3
            for j in range(_PANEL, n):
                c = own[j]
                sum0 += row0[j] * c
                sum1 += row1[j] * c
                sum2 += row2[j] * c
                sum3 += row3[j] * c
                below[j] += z0 * row0[j] + z1 * row1[j] + z2 * row2[j] + z3 * row3[j]
            below[k] += sum0
            below[k + 1] += sum1
            below[k + 2] += sum2
            below[k + 3] += sum3
            at += 4 * n


@njit(cache=True, fastmath=FAST)
def update_one(
    packed: Any,
    theta: Any,
    moment: Any,
    pending: Any,
    n_pending: Any,
    counts: Any,
    since_refresh: Any,
    context: Any,
    head: int,
    reward: Any,
) -> None:
    """Sherman-Morrison for one round of one head, and the bookkeeping; a free pending row is the caller's to see to."""
    z = _padded(context)
    wide = z.shape[0]
    matrix, u = packed[head], np.empty(wide)
    _times(matrix, z, u)
    scale = 1.0 / (1.0 + _dot(u, z))
    coefficients, sums, row = theta[head], moment[head], pending[head, n_pending[head]]
    residual = (reward - _dot(coefficients, context)) * scale
    for j in range(context.shape[0]):
        coefficients[j] += residual * u[j]
        sums[j] += reward * context[j]
        row[j] = context[j]
    at = 0
    for i in range(0, wide, _PANEL):
        n = wide - i
        own = u[i:]
        for k in range(_PANEL):
            c = own[k] * scale
            half = 0.5 * c
            line = matrix[at + k * n : at + (k + 1) * n]
            for j in range(_PANEL, n):
                line[j] -= c * own[j]
            # One value for both places of a block on the diagonal: rounding must not tell them apart.
            for j in range(k, _PANEL):
                value = line[j] - half * own[j]
                line[j] = value
                matrix[at + j * n + k] = value
        at += _PANEL * n
    n_pending[head] += 1
    counts[head] += 1
    since_refresh[head] += 1


@njit(cache=True, fastmath=FAST)
def sum_of_squares(x: Any) -> Any:
    """X . x of a flat array, without numpy's warnings."""
    return _dot(x, x)
