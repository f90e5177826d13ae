"""An interval for the mean over a finite set of contexts that holds at every time at once: one may look and stop.

Contexts are drawn one after the other without replacement, i among the remaining ones R with probability pi_i / pi(R).
With g_i the predicted reward and r_i the reward,

    X_t = (sum of rewards so far + sum of g over R + (r_i - g_i) pi(R) / pi_i) / N

has the mean over all N contexts as its conditional expectation, whatever the predictions are. For every candidate m a
gambler bets on X_t - m; the wealth is a non-negative martingale if m is the mean, so by Ville's inequality it reaches
2 / alpha with probability at most alpha / 2 at any time (Waudby-Smith and Ramdas, 2024; Shekhar, Xu, Lipton, Liang and
Ramdas, 2023, for weighted sampling without replacement). One gambler bets on more, one on less; candidates on which
neither has reached that wealth are the confidence sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray
from daband.trust.score_interval import Interval

__all__ = ["WeightedDraws", "confidence_sequence"]

_GRID = 1001
_CAUTION = 0.5
"""The largest share of the wealth that one draw may lose."""


@dataclass(frozen=True)
class WeightedDraws:
    """What the order of questions rests on; rewards and predictions are scaled to [0, 1].

    ``predicted`` (n,) and ``probability`` (n,) are g and pi of the questions in their order; ``predicted_total`` is the
    sum of g over all ``n_contexts``; ``deepest`` and ``highest`` are the largest g / pi and (1 - g) / pi of a context.
    """

    predicted: FloatArray
    probability: FloatArray
    predicted_total: float
    n_contexts: int
    deepest: float
    highest: float


def confidence_sequence(draws: WeightedDraws, rewards: FloatArray, *, confidence: float = 0.95) -> Interval:
    """The mean over all contexts and its limits after the first ``len(rewards)`` questions.

    The limits are those of the running intersection. All of these hold at once with probability ``confidence``.

    Args:
        draws: the questions in the order in which they were drawn.
        rewards: the answers to the first of them, (t,) within [0, 1], t >= 0.
        confidence: two-sided.
    """
    n, t = draws.n_contexts, len(rewards)
    g, pi = draws.predicted[:t], draws.probability[:t]
    left = 1.0 - (np.cumsum(pi) - pi)  # pi(R) before each draw
    known = (np.cumsum(rewards) - rewards + draws.predicted_total - (np.cumsum(g) - g)) / n
    drawn = known + (rewards - g) * left / pi / n
    least, most = known - draws.deepest * left / n, known + draws.highest * left / n
    candidates = np.linspace(0.0, 1.0, _GRID)
    stakes = _stakes(drawn, np.maximum(most - least, 1e-12), confidence)
    wealth = np.zeros((2, _GRID))
    refuted = np.zeros(_GRID, dtype=np.bool_)
    threshold = math.log(2.0 / (1.0 - confidence))
    for x, low, high, stake in zip(drawn, least, most, stakes, strict=True):
        more = np.minimum(stake, _CAUTION / np.maximum(candidates - low, 1e-12))
        less = np.minimum(stake, _CAUTION / np.maximum(high - candidates, 1e-12))
        # A candidate outside the range of the draw is refuted by the bounds alone; the factor stays positive there too.
        wealth[0] += np.log(np.maximum(1.0 + more * (x - candidates), 1e-12))
        wealth[1] += np.log(np.maximum(1.0 - less * (x - candidates), 1e-12))
        refuted |= wealth.max(axis=0) >= threshold
    kept = candidates[~refuted]
    step = 1.0 / (_GRID - 1)
    value = float(drawn.mean()) if t else draws.predicted_total / n
    if not len(kept):  # only if the guarantee failed, or a reward left its range
        return Interval(min(max(value, 0.0), 1.0), 0.0, 1.0)
    low, high = max(float(kept[0]) - step, 0.0), min(float(kept[-1]) + step, 1.0)
    return Interval(min(max(value, low), high), low, high)


def _stakes(drawn: FloatArray, reach: FloatArray, confidence: float) -> FloatArray:
    """How much each draw is bet on, (t,), by the draws before it alone: the predictable plug-in for their variance."""
    t = np.arange(1, len(drawn) + 1)
    scaled = drawn / reach
    mean = (0.5 + np.cumsum(scaled)) / (t + 1)
    variance = (0.25 + np.cumsum(np.square(scaled - mean))) / (t + 1)
    before = np.concatenate([[0.25], variance[:-1]])[: len(drawn)]
    stakes: FloatArray = np.sqrt(2.0 * math.log(2.0 / (1.0 - confidence)) / (before * t * np.log(t + 1.0))) / reach
    return stakes
