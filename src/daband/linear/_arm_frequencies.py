"""How often each arm is the best one in the target, from predicted rewards and the chosen arms' rewards of the source.

The usual estimators of label shift need a confusion matrix, hence labels. A bandit has the reward of the chosen arm
alone: enough to calibrate predicted probabilities by one temperature. With calibrated probabilities the frequencies of
highest likelihood come from the EM iteration of Saerens, Latinne and Decaestecker (2002); Alexandari, Kundaje and
Shrikumar (ICML 2020) show that it then does as well as black-box shift estimation or better. Like every such estimate
it supposes that arms differ in frequency alone: that p(context | best arm) is the same in both domains.
"""

from __future__ import annotations

import math

import numpy as np

from daband._arrays import FloatArray, IntArray, Weights

_SCALES = np.exp(np.linspace(np.log(0.5), np.log(60.0), 25))
_STEP = 4
_ITERATIONS = 100
_STRENGTH = 2.0
"""How much the source's frequencies count where predictions tell nothing, in times the target's contexts. Where
predictions are certain they count as nothing, in between by the square of the predictions' entropy."""


def arm_probabilities(mean: FloatArray, scale: float) -> FloatArray:
    """The softmax over arms, the last axis, of ``scale`` times predicted rewards (..., K)."""
    raised = np.exp(scale * (mean - mean.max(axis=-1, keepdims=True)))
    return raised / raised.sum(axis=-1, keepdims=True)


def calibrated_scale(mean: FloatArray, arm: IntArray, reward: FloatArray, weight: Weights = None) -> float:
    """The factor before the softmax under which the chosen arms' rewards are likeliest.

    Predicted rewards are (N, K), chosen arms, their rewards in [0, 1] and weights (N,); all weights are 1 by default.
    With an axis more in front, (M, N, K) and (M, N), there are several policies: the mean of their probabilities says
    how likely the reward of each one's choice is.
    """
    members, n, n_arms = (1, *mean.shape) if mean.ndim == 2 else mean.shape
    arm, reward = arm.reshape(members, n), reward.reshape(members, n)
    weight = np.ones((members, n)) if weight is None else weight.reshape(members, n)
    # Arms before rounds: sums over a few arms are then sums of long rows, which numpy adds up quickly.
    below = np.swapaxes(mean.reshape(members, n, n_arms), 1, 2)
    below = np.ascontiguousarray(below - below.max(axis=1, keepdims=True))
    rows = np.arange(n)

    def likelihood(index: int) -> float:
        raised = np.exp(_SCALES[index] * below)
        probability = (raised / raised.sum(axis=1, keepdims=True)).mean(axis=0)
        chosen = np.clip(probability[arm, rows], 1e-6, 1.0 - 1e-6)
        return float((weight * (reward * np.log(chosen) + (1.0 - reward) * np.log(1.0 - chosen))).sum())

    # Every fourth scale, then those between the neighbours of the best one.
    coarse = max(range(0, len(_SCALES), _STEP), key=likelihood)
    nearby = range(max(0, coarse - _STEP + 1), min(len(_SCALES), coarse + _STEP))
    return float(_SCALES[max(nearby, key=likelihood)])


def label_shift(source: FloatArray, target: FloatArray) -> FloatArray:
    """Frequencies of arms in the target, (K,), from probabilities (N, K) and (L, K) calibrated on the source.

    EM alone goes to an extreme where predictions are weak: by the largest likelihood all of them may be one arm's. So
    the estimate is the one of highest posterior probability under a Dirichlet prior around the source's frequencies,
    whose strength follows from how uncertain predictions are in the source.
    """
    before = source.mean(axis=0)
    before = before / before.sum()
    entropy = float(-(source * np.log(np.maximum(source, 1e-12))).sum(axis=1).mean()) / math.log(max(2, len(before)))
    beforehand = max(_STRENGTH * entropy**2 * len(target), 1.0)
    counts = len(target) + beforehand
    after: FloatArray = before
    columns = np.ascontiguousarray(target.T)
    for _ in range(_ITERATIONS):
        ratio = after / np.maximum(before, 1e-12)
        total = np.maximum(ratio @ columns, 1e-12)
        new = (ratio * (columns @ (1.0 / total)) + beforehand * before) / counts
        new = new / new.sum()
        if np.abs(new - after).max() < 1e-6:
            return np.asarray(new)
        after = new
    return after
