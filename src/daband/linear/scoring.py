"""From features to predicted rewards and widths: ridge regressions, and the weighted mean of several predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.arrays import FloatArray

__all__ = ["mixed_scores", "ridge_scores"]

_BLOCK = 131_072
"""Numbers of a block's products: about 1 MB, which stays in the cache."""


def ridge_scores(theta: FloatArray, inverse: FloatArray, z: FloatArray, loops: Any) -> tuple[FloatArray, FloatArray]:
    """Mean z.theta and variance z'A^-1 z of features (B, d) under every regression, (B, heads) each.

    theta is (heads, d), inverse (heads, d, d); ``loops`` is the module of kernels that runs.
    """
    n_heads, dim = theta.shape
    if len(z) == 1:  # products with a vector
        row = z[0]
        variance = inverse.reshape(-1, dim).dot(row).reshape(n_heads, dim).dot(row)
        np.maximum(variance, 0.0, out=variance)
        return theta.dot(row)[None], variance[None]
    mean, variance = np.empty((len(z), n_heads)), np.empty((len(z), n_heads))
    rows = max(64, _BLOCK // (dim * n_heads))
    for start in range(0, len(z), rows):
        part = z[start : start + rows]
        mean[start : start + rows] = part @ theta.T
        variance[start : start + rows] = loops.diagonal(np.matmul(part, inverse), part)
    return mean, variance


def mixed_scores(
    scores: Sequence[tuple[FloatArray, FloatArray]], shares: Sequence[float], width_shares: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    """The weighted mean of several predictions, each of means and widths (B, K).

    The error of a mean is at most the mean of the errors: so the same mean of the widths is a width of it.
    """
    if len(scores) == 1:
        return scores[0]
    mean, width = shares[0] * scores[0][0], width_shares[0] * scores[0][1]
    for (one_mean, one_width), share, width_share in zip(scores[1:], shares[1:], width_shares[1:], strict=True):
        mean += share * one_mean
        width += width_share * one_width
    return mean, width
