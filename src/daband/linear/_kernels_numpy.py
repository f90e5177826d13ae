"""Implement the inner loops of linear policies in numpy, for serving, and for training without numba.

``_kernels_numba`` has compiled versions of the same functions, and documents their arguments.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband._arrays import BoolArray, FloatArray, IntArray

#: Scores this close to the best, relative to 1 plus its absolute value, are tied, so that rounding does not decide.
TIE_TOLERANCE = 1e-12


def inner_products(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the inner products (H, K) of left (K, H, d) and right (H, d). Negative products become 0."""
    products: FloatArray = np.matmul(left.transpose(1, 0, 2), right[:, :, None])[:, :, 0]
    return np.maximum(products, 0.0, out=products)


def choose(scores: FloatArray, available: BoolArray, epsilon: float, coin: float, pick: float) -> tuple[int, float]:
    """Return the arm of one round, and its probability; see ``_kernels_numba.choose``."""
    candidates = available.nonzero()[0].tolist()
    return draw_arm(candidates, find_tied_arms(scores.tolist(), candidates), epsilon, coin, pick)


def find_tied_arms(scores: list[float], candidates: Sequence[int], zero: float = 0.0, unit: float = 1.0) -> list[int]:
    """Return the candidates whose score is tied with the best one.

    ``zero`` and ``unit`` are the mean and standard deviation of rewards. The tolerance is relative to them.
    """
    best = max(scores) if len(candidates) == len(scores) else max([scores[arm] for arm in candidates])
    tie_threshold = best - TIE_TOLERANCE * (unit + abs(best - zero))
    return [arm for arm in candidates if scores[arm] >= tie_threshold]


def draw_arm(arms: Sequence[int], tied: Sequence[int], epsilon: float, coin: float, pick: float) -> tuple[int, float]:
    """Return a random arm and its probability: any of ``arms`` with probability epsilon, otherwise a tied arm.

    ``coin`` and ``pick`` are uniform random numbers: see ``_kernels_numba.choose``.
    """
    drawable = arms if coin < epsilon else tied
    arm = drawable[int(pick * len(drawable))]
    return arm, epsilon / len(arms) + ((1.0 - epsilon) / len(tied) if arm in tied else 0.0)


def _rank_one(
    matrix: FloatArray, theta: FloatArray, z: FloatArray, targets: FloatArray, u: FloatArray, variance: float
) -> None:
    """Update A^-1 (``matrix``) and theta of one head by Sherman-Morrison, with u = A^-1 z and variance = z'u."""
    root = math.sqrt(1.0 + variance)
    scaled = u / root
    theta += np.outer((targets - theta @ z) / root, scaled)
    matrix -= np.outer(scaled, scaled)


def learn_rounds(
    statistics: Any, contexts: FloatArray, heads: IntArray, targets: FloatArray, max_square: float
) -> tuple[float, int]:
    """Learn rounds one after the other by Sherman-Morrison; see ``_kernels_numba.learn_rounds``."""
    inverse, theta, gram, moment, pending, n_pending, counts, since_refresh = statistics
    if len(heads) and not (heads.min() >= 0 and heads.max() < len(theta)):
        raise IndexError("head out of range")
    if not ((n_pending[heads] >= 0) & (n_pending[heads] <= pending.shape[1])).all():
        raise IndexError("too many pending rows")
    if not (np.einsum("bd,bd->b", contexts, contexts) <= max_square).all():
        return -1.0, 0
    max_variance = 0.0
    for head, z, target in zip(heads.tolist(), contexts, targets, strict=True):
        if n_pending[head] == pending.shape[1]:
            gram[head] += pending[head].T @ pending[head]
            n_pending[head] = 0
        u = inverse[head] @ z
        variance = max(float(u @ z), 0.0)
        max_variance = max(max_variance, variance)
        _rank_one(inverse[head], theta[head], z, target, u, variance)
        moment[head] += np.outer(target, z)
        pending[head, n_pending[head]] = z
        n_pending[head] += 1
        counts[head] += 1
        since_refresh[head] += 1
    return max_variance, int(since_refresh[heads].max())


def play_episode(covariances: Any, predicted: Any, rule: Any, rewards: Any, moments: Any, chosen: Any) -> None:
    """Play every round of an episode, exactly as if played one by one; see ``_kernels_numba.play_episode``."""
    (products, contexts, direct, shared), (means, variance) = covariances, predicted
    (multiplier, available, epsilon, draws), (reward_table, weights) = rule, rewards
    (running, standardise), (arms, probability, units) = moments, chosen
    _, n, n_arms = means.shape
    contexts_per_round = n_arms if shared else 1
    rows = np.zeros((n, n * contexts_per_round))
    gains = np.empty(n)
    for i in range(n):
        total_weight, mean_reward, squares, low, high = running.tolist()
        centre, scale = (mean_reward, 1.0) if standardise else (0.0, 1.0)
        if standardise and total_weight > 0.0 and low < high:
            scale = math.sqrt(squares / total_weight) or 1.0
        units[i] = centre, scale
        scores = (means[0, i] - centre * means[1, i]) / scale
        scores += multiplier[i] * np.sqrt(np.maximum(variance[i], 0.0))
        arm, probability[i] = choose(scores, available[i], epsilon, draws[i, 0], draws[i, 1])
        arms[i] = arm
        head, context = (0, i * n_arms + arm) if shared else (arm, i)
        later = slice((i + 1) * contexts_per_round, n * contexts_per_round)
        row = products[head, context, later] if direct else contexts[later] @ products[head, context]
        earlier = np.arange(i) if shared else np.flatnonzero(arms[:i] == arm)
        row = rows[i, later] = row - (rows[earlier, context] * gains[earlier]) @ rows[earlier, later]
        gain = gains[i] = weights[i] / (1.0 + weights[i] * max(variance[i, arm], 0.0))
        predictions = [table.reshape(-1) if shared else table[:, arm] for table in (means[0], means[1], variance)]
        for prediction, target in zip(predictions[:2], (reward_table[i, arm], 1.0), strict=True):
            prediction[later] += row * ((target - prediction[context]) * gain)
        predictions[2][later] = np.maximum(predictions[2][later] - row**2 * gain, 0.0)
        if weights[i] > 0.0:
            add_reward(running, reward_table[i, arm], weights[i])


def add_reward(running: FloatArray, reward: float, weight: float) -> None:
    """Add a reward with a weight to ``running``, the state of a ``RewardMoments``."""
    before, mean, squares, low, high = running.tolist()
    total, difference = before + weight, reward - mean
    squares += difference * difference * (before * weight / total)
    if before == 0.0:
        mean = low = high = reward
    else:
        mean += difference * (weight / total)
    running[:] = total, mean, squares, min(low, reward), max(high, reward)


def sum_of_squares(x: FloatArray) -> float:
    """Return the sum of squares of a flat float64 array, without a warning on overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(x, x))


#: The odd multiplier of round numbers in ``uniforms``.
STEP_ROUND = np.uint64(0x9E3779B97F4A7C15)
#: The odd multiplier of slots in ``uniforms``.
STEP_SLOT = np.uint64(0xD1B54A32D192ED03)
#: The two multipliers of splitmix64.
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix_bits(x: Any) -> Any:
    """Return the hash of 64-bit integers (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


def uniforms(key: np.uint64, first_round: int, n_rounds: int, n_slots: int) -> FloatArray:
    """Return uniform numbers in [0, 1), (n_rounds, n_slots), for the rounds from ``first_round`` on.

    A number depends only on the key, the round and the slot.
    """
    rounds = np.arange(first_round + 1, first_round + n_rounds + 1, dtype=np.uint64)[:, None]
    slots = np.arange(1, n_slots + 1, dtype=np.uint64)[None, :]
    bits = _mix_bits(_mix_bits(np.asarray(key, np.uint64) + rounds * STEP_ROUND) + slots * STEP_SLOT)
    numbers: FloatArray = (bits >> np.uint64(11)).astype(np.float64) * (1.0 / 9007199254740992.0)
    return numbers
