"""The inner loops, compiled. ``kernels_numpy`` has the same functions without a compiler; tests hold the two together.

Reassociation is allowed so that dot products use vector instructions; nothing here relies on NaN or signed zeros, since
inputs are checked at the door.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}
TIE = 1e-12

_STEP_ROUND = np.uint64(0x9E3779B97F4A7C15)
_STEP_SLOT = np.uint64(0xD1B54A32D192ED03)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)


@njit(cache=True)
def _mixed(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def _uniform(key: Any, round_number: Any, slot: Any) -> Any:
    """A number in [0, 1) that depends on key, round and slot alone."""
    bits = _mixed(key + (np.uint64(round_number) + _ONE) * _STEP_ROUND)
    bits = _mixed(bits + (np.uint64(slot) + _ONE) * _STEP_SLOT)
    return float(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True)
def uniforms(key: Any, first_round: int, n_rounds: int, n_slots: int) -> Any:
    """Uniform numbers (n_rounds, n_slots) of rounds ``first_round`` and on."""
    out = np.empty((n_rounds, n_slots))
    for i in range(n_rounds):
        for j in range(n_slots):
            out[i, j] = _uniform(key, first_round + i, j)
    return out


@njit(cache=True, fastmath=FAST)
def _dot(x: Any, y: Any) -> Any:
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@njit(cache=True, fastmath=FAST)
def diagonal(left: Any, right: Any) -> Any:
    """Row-wise products: left (K, H, d) with right (H, d) gives (H, K)."""
    n_heads, n, _ = left.shape
    out = np.empty((n, n_heads))
    for a in range(n_heads):
        for i in range(n):
            out[i, a] = max(_dot(left[a, i], right[i]), 0.0)
    return out


@njit(cache=True, fastmath=FAST)
def update_rounds(inverse: Any, theta: Any, heads: Any, contexts: Any, rewards: Any) -> None:
    """Sherman-Morrison, one round after the other, in place."""
    d = contexts.shape[1]
    u = np.empty(d)
    for n in range(contexts.shape[0]):
        matrix = inverse[heads[n]]
        head = theta[heads[n]]
        z = contexts[n]
        for i in range(d):
            u[i] = _dot(matrix[i], z)
        scale = 1.0 / (1.0 + _dot(u, z))
        residual = (rewards[n] - _dot(head, z)) * scale
        for i in range(d):
            head[i] += residual * u[i]
            c = u[i] * scale
            for j in range(d):
                matrix[i, j] -= c * u[j]


@njit(cache=True)
def choose(scores: Any, available: Any, epsilon: Any, coin: Any, pick: Any) -> Any:
    """An arm of one round, and its probability under ties and epsilon.

    Scores within ``TIE`` of the best are tied: rounding alone must not decide. ``pick`` decides among equals.
    """
    n_available = 0
    best = -np.inf
    for a in range(scores.shape[0]):
        if available[a]:
            n_available += 1
            best = max(best, scores[a])
    floor = best - TIE * (1.0 + abs(best))
    n_ties = 0
    for a in range(scores.shape[0]):
        if available[a] and scores[a] >= floor:
            n_ties += 1
    explored = coin < epsilon
    wanted = int(pick * (n_available if explored else n_ties))
    arm = -1
    seen = 0
    for a in range(scores.shape[0]):
        if available[a] and (explored or scores[a] >= floor):
            if seen == wanted:
                arm = a
                break
            seen += 1
    probability = epsilon / n_available
    if scores[arm] >= floor:
        probability += (1.0 - epsilon) / n_ties
    return arm, probability


@njit(cache=True)
def choose_batch(
    mean: Any, variance: Any, multiplier: Any, available: Any, epsilon: Any, draws: Any, arms: Any, probability: Any
) -> None:
    """``choose`` for every row; the score is mean + multiplier * width."""
    scores = np.empty(mean.shape[1])
    for i in range(mean.shape[0]):
        for a in range(mean.shape[1]):
            scores[a] = mean[i, a] + multiplier[i, a] * math.sqrt(variance[i, a])
        arms[i], probability[i] = choose(scores, available[i], epsilon, draws[i, 0], draws[i, 1])


@njit(cache=True, fastmath=FAST)
def episode_disjoint(
    products: Any,
    contexts: Any,
    direct: bool,
    mean: Any,
    variance: Any,
    multiplier: Any,
    available: Any,
    epsilon: Any,
    draws: Any,
    rewards: Any,
    arms: Any,
    probability: Any,
) -> None:
    """Every round of an episode, exactly as if played one by one, without touching the K inverses.

    mean and variance (H, K) hold the values before the episode and are brought up to date for the rounds still to
    come; row i ends as the values at which round i was decided. The covariance of the pulled context with later ones
    under its arm starts from ``products``: with ``direct`` these are the covariances (K, H, H) themselves, else
    A^-1 z (K, H, d), multiplied with ``contexts`` (H, d) for the pulled arm only.
    """
    n = mean.shape[0]
    n_arms = mean.shape[1]
    rows = np.empty((n, n))
    scale = np.empty(n)
    scores = np.empty(n_arms)
    for i in range(n):
        for a in range(n_arms):
            scores[a] = mean[i, a] + multiplier[i, a] * math.sqrt(max(variance[i, a], 0.0))
        arm, chance = choose(scores, available[i], epsilon, draws[i, 0], draws[i, 1])
        arms[i] = arm
        probability[i] = chance
        row = rows[i]
        if direct:
            for j in range(i + 1, n):
                row[j] = products[arm, i, j]
        else:
            pulled = products[arm, i]
            for j in range(i + 1, n):
                row[j] = _dot(pulled, contexts[j])
        for r in range(i):
            if arms[r] == arm:
                earlier = rows[r]
                c = earlier[i] * scale[r]
                for j in range(i + 1, n):
                    row[j] -= c * earlier[j]
        scale[i] = 1.0 / (1.0 + max(variance[i, arm], 0.0))
        residual = (rewards[i, arm] - mean[i, arm]) * scale[i]
        for j in range(i + 1, n):
            mean[j, arm] += row[j] * residual
            variance[j, arm] = max(variance[j, arm] - row[j] * row[j] * scale[i], 0.0)


@njit(cache=True, fastmath=FAST)
def episode_shared(
    products: Any,
    contexts: Any,
    direct: bool,
    mean: Any,
    variance: Any,
    multiplier: Any,
    available: Any,
    epsilon: Any,
    draws: Any,
    rewards: Any,
    arms: Any,
    probability: Any,
) -> None:
    """The same for one head and K contexts a round: products (H K, d or H K), contexts (H K, d)."""
    n = mean.shape[0]
    n_arms = mean.shape[1]
    rows = np.empty((n, n * n_arms))
    scale = np.empty(n)
    scores = np.empty(n_arms)
    for i in range(n):
        for a in range(n_arms):
            scores[a] = mean[i, a] + multiplier[i, a] * math.sqrt(max(variance[i, a], 0.0))
        arm, chance = choose(scores, available[i], epsilon, draws[i, 0], draws[i, 1])
        arms[i] = arm
        probability[i] = chance
        row = rows[i]
        c_index = i * n_arms + arm
        first = (i + 1) * n_arms
        pulled = products[c_index]
        for j in range(first, n * n_arms):
            row[j] = pulled[j] if direct else _dot(pulled, contexts[j])
        for r in range(i):
            earlier = rows[r]
            c = earlier[c_index] * scale[r]
            for j in range(first, n * n_arms):
                row[j] -= c * earlier[j]
        scale[i] = 1.0 / (1.0 + max(variance[i, arm], 0.0))
        residual = (rewards[i, arm] - mean[i, arm]) * scale[i]
        for j in range(i + 1, n):
            for a in range(n_arms):
                g = row[j * n_arms + a]
                mean[j, a] += g * residual
                variance[j, a] = max(variance[j, a] - g * g * scale[i], 0.0)


@njit(cache=True)
def normal_cdf(x: Any) -> Any:
    """The standard normal distribution function of every entry of a matrix."""
    out = np.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = 0.5 * math.erfc(-x[i, j] / math.sqrt(2.0))
    return out
