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
#: A policy also collapsed if its predictions vary less than this fraction of their variation in the source.
_LOST_DEVIATION = 0.1
#: A policy also collapsed if it no longer uses this fraction of its arms.
_UNUSED = 0.5
#: Longer contexts are projected to this many numbers.
_DIMENSION = 48
#: Contexts of each domain, at most.
MAX_CONTEXTS = 500


def classifier_accuracy(source: FloatArray, target: FloatArray) -> float:
    """Return the accuracy of a classifier of domains, for features (N, d) and (L, d); 0.5 is guessing.

    A ridge classifier on the features and their squares is fitted on one half of the rows and tested on the other, in
    both directions (Lopez-Paz, Oquab: "Revisiting classifier two-sample tests", ICLR 2017).
    """
    from sklearn.linear_model import RidgeClassifier  # takes half a second, too long for `daband --help`
    from sklearn.model_selection import cross_val_score
    from sklearn.preprocessing import StandardScaler

    n = min(len(source), len(target), MAX_CONTEXTS)
    if n < 4:
        return 0.5
    scaled = StandardScaler().fit_transform(np.concatenate([source[:n], target[:n]]))
    features, labels = np.concatenate([scaled, np.square(scaled)], axis=1), np.repeat([0, 1], n)
    folds = [np.flatnonzero(np.tile(np.arange(n), 2) % 2 == half) for half in (0, 1)]
    return float(cross_val_score(RidgeClassifier(0.1 * n), features, labels, cv=[folds, folds[::-1]]).mean())


def projected(contexts: AnyArray) -> FloatArray:
    """Return at most 500 contexts as vectors of at most 48 numbers, by a random projection if they are longer."""
    flat = np.asarray(contexts[:MAX_CONTEXTS]).reshape(min(MAX_CONTEXTS, len(contexts)), -1).astype(np.float64)
    if flat.shape[1] <= _DIMENSION:
        return flat
    draw = np.random.default_rng(0).standard_normal((flat.shape[1], _DIMENSION)) / math.sqrt(flat.shape[1])
    return flat @ draw


def outside_support(source: FloatArray, target: FloatArray) -> float:
    """Return the fraction of target features (L, d) farther from the source (N, d) than 99% of source features are.

    The distance is to the fifth nearest of one half of the source; the other half shows which distances are usual.
    The 1% that is outside by construction is subtracted.
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
    """Return the distance to the fifth nearest reference, (N,)."""
    from sklearn.neighbors import NearestNeighbors

    distances: FloatArray = NearestNeighbors(n_neighbors=_NEIGHBOUR).fit(reference).kneighbors(rows)[0]
    return distances[:, -1]


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
