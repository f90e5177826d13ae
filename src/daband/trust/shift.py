"""How well a fresh classifier tells the domains apart: a two-sample test (Lopez-Paz, Oquab, ICLR 2017).

The classifier is a regularised linear discriminant on a random projection of the contexts and its squares, fitted on
one half and judged on the other, both ways round. An accuracy near one half is necessary for a good transfer, and not
sufficient: domains that look alike may pay differently, and a difference may concern what no arm depends on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from daband.arrays import AnyArray, FloatArray

__all__ = ["Shift", "classifier_two_sample", "projected"]

_DIMENSION = 48
_MOST = 500
"""Contexts of each domain."""


@dataclass(frozen=True)
class Shift:
    """How far the domains can be told apart, by contexts as they come and by latents."""

    before: float
    """Accuracy of a fresh classifier on contexts, .5 being chance."""
    before_p_value: float
    after: float | None
    """The same on the first policy's latents; None for a policy that has none."""
    after_p_value: float | None


def classifier_two_sample(source: FloatArray, target: FloatArray) -> tuple[float, float]:
    """The cross-fitted accuracy of a classifier of domains, features being (N, d) and (L, d), and its p-value."""
    n = min(len(source), len(target), _MOST)
    if n < 4:
        return 0.5, 1.0
    rows = np.concatenate([source[:n], target[:n]])
    centre, spread = rows.mean(axis=0), rows.std(axis=0)
    scaled = (rows - centre) / np.where(spread > 1e-9, spread, 1.0)
    features = np.concatenate([scaled, np.square(scaled)], axis=1)
    features -= features.mean(axis=0)
    sign = np.repeat([-1.0, 1.0], n)
    fold = np.concatenate([np.arange(n) % 2, np.arange(n) % 2]) == 0
    right = 0
    for train in (fold, ~fold):
        x, y = features[train], sign[train]
        gram = x.T @ x + 0.1 * len(x) * np.eye(x.shape[1])
        weights = np.linalg.solve(gram, x.T @ y)
        right += int((np.sign(features[~train] @ weights) == sign[~train]).sum())
    accuracy = right / (2 * n)
    z = (accuracy - 0.5) * 2.0 * math.sqrt(2 * n)
    return accuracy, 0.5 * math.erfc(z / math.sqrt(2.0))


def projected(contexts: AnyArray, *, most: int = _MOST) -> FloatArray:
    """At most so many contexts as vectors of at most 48 numbers: a random projection where they are longer."""
    flat = np.asarray(contexts[:most]).reshape(min(most, len(contexts)), -1).astype(np.float64)
    if flat.shape[1] <= _DIMENSION:
        return flat
    draw = np.random.default_rng(0).standard_normal((flat.shape[1], _DIMENSION)) / math.sqrt(flat.shape[1])
    short: FloatArray = flat @ draw
    return short
