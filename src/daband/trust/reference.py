"""Agreement with a reference that shares no training with the policy: a ridge classifier of held-out source rounds.

Linear policies that differ in their seed make the same errors, so that their agreement says little. The reference is
fitted on the held-out source contexts of which the policy's rewards tell the best arm, each domain standardised by its
own mean and deviation, and compared with the policy's choices: on the source with two-fold cross-fitting, and on the
target. How much less it agrees there says how much the policy depends on what has changed.
"""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.evaluation.scores import Scores

__all__ = ["reference_agreement"]

_MOST = 600
_LONGEST = 256
_FEWEST = 10
_PENALTY = 0.3


def reference_agreement(scores: Scores, source: AnyArray, target: AnyArray) -> FloatArray:
    """How often each member agrees with its reference, in the source and in the target, (M, 2).

    ``source`` and ``target`` are the contexts of the scores. NaN where too few rewards tell a best arm.
    """
    here, there = (_standardised(_shortened(rows[:_MOST])) for rows in (source, target))
    found = np.full((scores.members, 2), np.nan)
    fold = np.arange(len(here)) % 2 == 0
    for member in range(scores.members):
        arm, choice = scores.source_arm[member, :_MOST], scores.target_arm[member, :_MOST]
        known = scores.weight[member, :_MOST] > 0
        if scores.binary:
            known = known & (scores.reward[member, :_MOST] > 0.5)
        if min(int((known & fold).sum()), int((known & ~fold).sum())) < _FEWEST:
            continue
        guessed = np.zeros(len(here), np.int64)
        for part in (fold, ~fold):
            guessed[~part] = _fitted(here[part & known], arm[part & known], here[~part], scores.n_arms)
        beyond = _fitted(here[known], arm[known], there, scores.n_arms)
        found[member] = float((guessed == arm).mean()), float((beyond == choice).mean())
    return found


def _fitted(rows: FloatArray, arms: IntArray, asked: FloatArray, n_arms: int) -> IntArray:
    """Arms for ``asked`` by a ridge regression of one-hot arms on ``rows``, in its dual form."""
    products = rows @ rows.T + 1.0
    penalty = _PENALTY * float(np.trace(products)) / len(rows)
    dual = np.linalg.solve(products + penalty * np.eye(len(rows)), np.eye(n_arms)[arms])
    best: IntArray = ((asked @ rows.T + 1.0) @ dual).argmax(axis=1)
    return best


def _shortened(contexts: AnyArray) -> FloatArray:
    flat = np.asarray(contexts).reshape(len(contexts), -1).astype(np.float64)
    if flat.shape[1] <= 4 * _LONGEST:
        return flat
    draw = np.random.default_rng(1).standard_normal((flat.shape[1], _LONGEST)) / np.sqrt(flat.shape[1])
    short: FloatArray = flat @ draw
    return short


def _standardised(rows: FloatArray) -> FloatArray:
    spread = rows.std(axis=0)
    scaled: FloatArray = (rows - rows.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)
    return scaled
