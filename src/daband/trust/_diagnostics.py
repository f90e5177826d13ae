"""What contexts, choices and predictions show of the target by themselves: distance, support, signs of a collapse.

None of it is proof. Domains that look alike may pay differently, and a difference may concern what no arm depends on;
but where one of these signs is there, an estimate rests on less than it seems to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daband._arrays import AnyArray, FloatArray
from daband.evaluation._policy_scores import Scores

_NEIGHBOUR = 5
_QUANTILE = 0.99
_TOP_SHARE = 0.95
_LOST_DEVIATION = 0.1
_UNUSED = 0.5
_BEYOND, _MOST_BEYOND = 0.5, 0.1
"""Half of the range beyond it; and the share of contexts for which that is no accident."""
_FAR_OUTSIDE, _TOLD_APART = 0.5, 0.99
_DIMENSION = 48
_MOST = 500
"""Contexts of each domain."""


@dataclass(frozen=True)
class DomainShift:
    """How far the domains can be told apart, by contexts as they come and by latents."""

    before: float
    """Accuracy of a fresh classifier on contexts, .5 being guessing."""
    before_p_value: float
    after: float | None
    """The same on the first policy's latents; None for a policy that has none."""
    after_p_value: float | None


def classifier_two_sample(source: FloatArray, target: FloatArray) -> tuple[float, float]:
    """The accuracy of a fresh classifier of domains and its p-value, features being (N, d) and (L, d).

    A two-sample test (Lopez-Paz, Oquab, ICLR 2017): a regularised linear discriminant on the features and their
    squares, fitted on one half and judged on the other, both ways round.
    """
    n = min(len(source), len(target), _MOST)
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
    """At most 500 contexts as vectors of at most 48 numbers: a random projection where they are longer."""
    flat = np.asarray(contexts[:_MOST]).reshape(min(_MOST, len(contexts)), -1).astype(np.float64)
    if flat.shape[1] <= _DIMENSION:
        return flat
    draw = np.random.default_rng(0).standard_normal((flat.shape[1], _DIMENSION)) / math.sqrt(flat.shape[1])
    return flat @ draw


def outside_support(source: FloatArray, target: FloatArray) -> float:
    """The share of target features (L, d) farther from the source's (N, d) than 99% of the source's are from another.

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


def doubts_of(signs: Sequence[str], outside: float, shift: DomainShift) -> list[str]:
    """A phrase for everything that forbids a hand-over without rewards, whatever the estimate is.

    Args:
        signs: of a collapse.
        outside: the share of target contexts outside the source's support.
        shift: how far the domains can be told apart; by latents, where there are any.
    """
    doubts = list(signs)
    if outside > _FAR_OUTSIDE:
        doubts.append(f"{outside:.0%} of target contexts lie outside the source's support")
    if (told := shift.before if shift.after is None else shift.after) >= _TOLD_APART:
        doubts.append(f"a classifier tells the domains apart on {told:.0%} of contexts: nothing was aligned")
    return doubts


def collapse_signs(scores: Scores) -> list[str]:
    """A sentence for each sign that a policy collapsed in the target; none where nothing looks like it."""
    signs = []
    n_arms = scores.n_arms
    source_share = np.bincount(scores.source_arm[0], minlength=n_arms) / scores.source_arm.shape[1]
    target_share = np.bincount(scores.target_arm[0], minlength=n_arms) / scores.target_arm.shape[1]
    top = int(target_share.argmax())
    if target_share[top] >= _TOP_SHARE and source_share.max() < _TOP_SHARE:
        signs.append(
            f"{target_share[top]:.0%} of target contexts go to arm {top}, which gets {source_share[top]:.0%} of the "
            "source's"
        )
    used = source_share > 0.5 / n_arms
    lost = used & (target_share < 0.02 * source_share)
    if used.sum() > 2 and lost.sum() >= _UNUSED * used.sum():
        signs.append(f"{int(lost.sum())} of the {int(used.sum())} arms used in the source are not used in the target")
    before, after = (float(mean[0].std(axis=0).mean()) for mean in (scores.source_mean, scores.target_mean))
    if before > 0 and after < _LOST_DEVIATION * before:
        signs.append(
            f"predictions hardly differ between target contexts: their deviation is {after / before:.0%} of that in "
            "the source"
        )
    rows = np.arange(scores.target_arm.shape[1])
    chosen = scores.target_mean[0][rows, scores.target_arm[0]]
    beyond = float(((chosen < -_BEYOND) | (chosen > 1.0 + _BEYOND)).mean())
    if beyond > _MOST_BEYOND:
        signs.append(f"{beyond:.0%} of the predicted rewards in the target lie far outside the range of rewards")
    return signs
