"""The inner loops without a compiler: the same functions as ``kernels_numba``, for machines that lack numba."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daband.arrays import BoolArray, FloatArray, IntArray

TIE = 1e-12

_STEP_ROUND = np.uint64(0x9E3779B97F4A7C15)
_STEP_SLOT = np.uint64(0xD1B54A32D192ED03)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mixed(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def uniforms(key: np.uint64, first_round: int, n_rounds: int, n_slots: int) -> FloatArray:
    """Uniform numbers (n_rounds, n_slots) of rounds ``first_round`` and on."""
    rounds = np.arange(first_round + 1, first_round + n_rounds + 1, dtype=np.uint64)[:, None]
    slots = np.arange(1, n_slots + 1, dtype=np.uint64)[None, :]
    bits = _mixed(_mixed(np.asarray(key, np.uint64) + rounds * _STEP_ROUND) + slots * _STEP_SLOT)
    numbers: FloatArray = (bits >> np.uint64(11)).astype(np.float64) * (1.0 / 9007199254740992.0)
    return numbers


def diagonal(left: FloatArray, right: FloatArray) -> FloatArray:
    """Row-wise products: left (K, H, d) with right (H, d) gives (H, K)."""
    return np.ascontiguousarray(np.maximum(np.einsum("khd,hd->hk", left, right), 0.0))


def update_rounds(
    inverse: FloatArray, theta: FloatArray, heads: IntArray, contexts: FloatArray, rewards: FloatArray
) -> None:
    """Sherman-Morrison, one round after the other, in place."""
    for head, z, reward in zip(heads, contexts, rewards, strict=True):
        u = inverse[head] @ z
        scale = 1.0 / (1.0 + u @ z)
        theta[head] += (reward - theta[head] @ z) * scale * u
        inverse[head] -= np.outer(u * scale, u)


def choose(scores: FloatArray, available: BoolArray, epsilon: float, coin: float, pick: float) -> tuple[int, float]:
    """An arm of one round, and its probability under ties and epsilon. Scores within ``TIE`` of the best are tied."""
    open_arms = np.flatnonzero(available)
    best = scores[open_arms].max()
    tied = open_arms[scores[open_arms] >= best - TIE * (1.0 + abs(best))]
    among = open_arms if coin < epsilon else tied
    arm = int(among[int(pick * len(among))])
    probability = epsilon / len(open_arms)
    if arm in tied:
        probability += (1.0 - epsilon) / len(tied)
    return arm, probability


def choose_batch(
    mean: FloatArray,
    variance: FloatArray,
    multiplier: FloatArray,
    available: BoolArray,
    epsilon: float,
    draws: FloatArray,
    arms: IntArray,
    probability: FloatArray,
) -> None:
    """``choose`` for every row at once; the score is mean + multiplier * width."""
    scores = np.where(available, mean + multiplier * np.sqrt(variance), -np.inf)
    best = scores.max(axis=1, keepdims=True)
    tied = available & (scores >= best - TIE * (1.0 + np.abs(best)))
    n_available, n_ties = available.sum(axis=1), tied.sum(axis=1)
    explored = draws[:, 0] < epsilon
    among = np.where(explored[:, None], available, tied)
    wanted = (draws[:, 1] * np.where(explored, n_available, n_ties)).astype(np.int64)
    arms[:] = (np.cumsum(among, axis=1) > wanted[:, None]).argmax(axis=1)
    greedy_share = tied[np.arange(len(arms)), arms] / n_ties
    probability[:] = epsilon / n_available + (1.0 - epsilon) * greedy_share


def episode_disjoint(
    products: FloatArray,
    contexts: FloatArray,
    direct: bool,
    mean: FloatArray,
    variance: FloatArray,
    multiplier: FloatArray,
    available: BoolArray,
    epsilon: float,
    draws: FloatArray,
    rewards: FloatArray,
    arms: IntArray,
    probability: FloatArray,
) -> None:
    """Every round of an episode, exactly as if played one by one; see ``kernels_numba.episode_disjoint``."""
    n = len(mean)
    rows = np.zeros((n, n))
    scale = np.empty(n)
    for i in range(n):
        scores = mean[i] + multiplier[i] * np.sqrt(np.maximum(variance[i], 0.0))
        arm, probability[i] = choose(scores, available[i], epsilon, draws[i, 0], draws[i, 1])
        arms[i] = arm
        later = slice(i + 1, n)
        rows[i, later] = products[arm, i, later] if direct else contexts[later] @ products[arm, i]
        earlier = np.flatnonzero(arms[:i] == arm)
        rows[i, later] -= (rows[earlier, i] * scale[earlier]) @ rows[earlier, later]
        scale[i] = 1.0 / (1.0 + max(variance[i, arm], 0.0))
        mean[later, arm] += rows[i, later] * (rewards[i, arm] - mean[i, arm]) * scale[i]
        variance[later, arm] = np.maximum(variance[later, arm] - rows[i, later] ** 2 * scale[i], 0.0)


def episode_shared(
    products: FloatArray,
    contexts: FloatArray,
    direct: bool,
    mean: FloatArray,
    variance: FloatArray,
    multiplier: FloatArray,
    available: BoolArray,
    epsilon: float,
    draws: FloatArray,
    rewards: FloatArray,
    arms: IntArray,
    probability: FloatArray,
) -> None:
    """The same for one head and K contexts a round: products (H K, d or H K), contexts (H K, d)."""
    n, n_arms = mean.shape
    flat_mean, flat_variance = mean.reshape(-1), variance.reshape(-1)
    rows = np.zeros((n, n * n_arms))
    scale = np.empty(n)
    for i in range(n):
        scores = mean[i] + multiplier[i] * np.sqrt(np.maximum(variance[i], 0.0))
        arm, probability[i] = choose(scores, available[i], epsilon, draws[i, 0], draws[i, 1])
        arms[i] = arm
        pulled, later = i * n_arms + arm, slice((i + 1) * n_arms, n * n_arms)
        rows[i, later] = products[pulled, later] if direct else contexts[later] @ products[pulled]
        rows[i, later] -= (rows[:i, pulled] * scale[:i]) @ rows[:i, later]
        scale[i] = 1.0 / (1.0 + max(variance[i, arm], 0.0))
        flat_mean[later] += rows[i, later] * (rewards[i, arm] - mean[i, arm]) * scale[i]
        flat_variance[later] = np.maximum(flat_variance[later] - rows[i, later] ** 2 * scale[i], 0.0)


_erfc = np.frompyfunc(math.erfc, 1, 1)


def normal_cdf(x: FloatArray) -> FloatArray:
    """The standard normal distribution function of every entry of a matrix."""
    values: FloatArray = 0.5 * np.asarray(_erfc(-x / math.sqrt(2.0)), np.float64)
    return values
