"""Diagnostics of the target that need no reward: distance between domains, support, signs of a collapse."""

from __future__ import annotations

import math

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray

#: Distances are measured to this nearest source context.
_NEIGHBOUR = 5
#: A context farther away than this fraction of source contexts is outside the support.
_QUANTILE = 0.99
#: A policy that chooses one arm for this fraction of target contexts, and not in the source, collapsed.
_TOP_FRACTION = 0.95
#: So did one whose predictions vary less than this fraction of what they vary in the source.
_LOST_DEVIATION = 0.1
#: So did one that no longer uses this fraction of its arms.
_UNUSED = 0.5
#: Longer contexts are projected to this many numbers.
_DIMENSION = 48
#: Contexts of each domain, at most.
MAX_CONTEXTS = 500


def classifier_two_sample(source: FloatArray, target: FloatArray) -> tuple[float, float]:
    """Return the accuracy of a classifier of domains and its p-value, for features (N, d) and (L, d).

    A two-sample test (Lopez-Paz, Oquab, ICLR 2017): a regularised linear discriminant on the features and their
    squares, fitted on one half and judged on the other, both ways round.
    """
    n = min(len(source), len(target), MAX_CONTEXTS)
    if n < 4:
        return 0.5, 1.0
    rows = np.concatenate([source[:n], target[:n]])
    centre, deviation = rows.mean(axis=0), rows.std(axis=0)
    scaled = (rows - centre) / np.where(deviation > 1e-9, deviation, 1.0)
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


def projected(contexts: AnyArray) -> FloatArray:
    """Return at most 500 contexts as vectors of at most 48 numbers, by a random projection if they are longer."""
    flat = np.asarray(contexts[:MAX_CONTEXTS]).reshape(min(MAX_CONTEXTS, len(contexts)), -1).astype(np.float64)
    if flat.shape[1] <= _DIMENSION:
        return flat
    draw = np.random.default_rng(0).standard_normal((flat.shape[1], _DIMENSION)) / math.sqrt(flat.shape[1])
    return flat @ draw


def outside_support(source: FloatArray, target: FloatArray) -> float:
    """Return the fraction of target features (L, d) farther from the source (N, d) than 99% of source features are.

    The distance is that to the fifth nearest of one half of the source; the other half says which distances are usual.
    The 1% that lies outside by construction is taken off.
    """
    half = len(source) // 2
    if half <= _NEIGHBOUR or not len(target):
        return 0.0
    deviation = source.std(axis=0)
    scale = np.where(deviation > 1e-9, deviation, max(float(deviation.max()), 1e-9))
    reference, usual = source[:half] / scale, source[half:] / scale
    limit = np.quantile(_distance(usual, reference), _QUANTILE)
    beyond = float((_distance(target / scale, reference) > limit * (1.0 + 1e-9)).mean())
    return max(0.0, (beyond - (1.0 - _QUANTILE)) / _QUANTILE)


def _distance(rows: FloatArray, reference: FloatArray) -> FloatArray:
    """Squared distance to the fifth nearest reference, (N,)."""
    squared = np.square(rows).sum(1)[:, None] - 2.0 * rows @ reference.T + np.square(reference).sum(1)[None, :]
    nearest: FloatArray = np.partition(squared, _NEIGHBOUR - 1, axis=1)[:, _NEIGHBOUR - 1]
    return np.maximum(nearest, 0.0)


def collapse_signs(
    source_arms: IntArray, target_arms: IntArray, source_means: FloatArray, target_means: FloatArray
) -> list[str]:
    """Return a phrase for each sign that a policy collapsed in the target.

    Args:
        source_arms: choices on source contexts, (N,).
        target_arms: choices on target contexts, (L,).
        source_means: predicted rewards of source contexts, (N, K).
        target_means: predicted rewards of target contexts, (L, K).
    """
    signs = []
    n_arms = source_means.shape[1]
    source, target = (np.bincount(arms, minlength=n_arms) / len(arms) for arms in (source_arms, target_arms))
    top = int(target.argmax())
    if target[top] >= _TOP_FRACTION and source.max() < _TOP_FRACTION:
        signs.append(f"{target[top]:.0%} of target contexts go to arm {top}, in the source {source[top]:.0%}")
    used = source > 0.5 / n_arms
    lost = used & (target < 0.02 * source)
    if used.sum() > 2 and lost.sum() >= _UNUSED * used.sum():
        signs.append(f"{int(lost.sum())} of the {int(used.sum())} arms used in the source are not used in the target")
    before, after = (float(means.std(axis=0).mean()) for means in (source_means, target_means))
    if before > 0 and after < _LOST_DEVIATION * before:
        signs.append(f"predictions vary {after / before:.0%} as much between target contexts as in the source")
    return signs
