"""Inner loops in numpy: those of ``kernels_numba``, for serving or without numba, and some that need no compiling."""

# mypy: allow-untyped-defs

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband._arrays import BoolArray, FloatArray, IntArray

#: Scores this close to the best, relative to 1 plus its absolute value, are tied, so that rounding does not decide.
TIE = 1e-12


def diagonal(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return row-wise products: left (K, H, d) with right (H, d) gives (H, K)."""
    products: FloatArray = np.matmul(left.transpose(1, 0, 2), right[:, :, None])[:, :, 0]
    return np.maximum(products, 0.0, out=products)


def choose(scores: FloatArray, available: BoolArray, epsilon: float, coin: float, pick: float) -> tuple[int, float]:
    """Return the arm of one round, and its probability under ties and epsilon."""
    among = available.nonzero()[0].tolist()
    return drawn_arm(among, tied_arms(scores.tolist(), among), epsilon, coin, pick)


def tied_arms(scores: list[float], among: Sequence[int], zero: float = 0.0, unit: float = 1.0) -> list[int]:
    """Return the arms within ``TIE`` of the best, in this unit."""
    best = max(scores) if len(among) == len(scores) else max([scores[arm] for arm in among])
    floor = best - TIE * (unit + abs(best - zero))
    return [arm for arm in among if scores[arm] >= floor]


def drawn_arm(among: Sequence[int], tied: Sequence[int], epsilon: float, coin: float, pick: float) -> tuple[int, float]:
    """Return a tied arm, or with probability epsilon (``coin``) any arm, and its probability; ``pick`` chooses."""
    drawn_from = among if coin < epsilon else tied
    arm = drawn_from[int(pick * len(drawn_from))]
    return arm, epsilon / len(among) + ((1.0 - epsilon) / len(tied) if arm in tied else 0.0)


def _rank_one(
    matrix: FloatArray, theta: FloatArray, z: FloatArray, targets: FloatArray, u: FloatArray, variance: float
) -> None:
    """Update one head by Sherman-Morrison, with u = A^-1 z and variance = z'u."""
    root = math.sqrt(1.0 + variance)
    scaled = u / root
    theta += np.outer((targets - theta @ z) / root, scaled)
    matrix -= np.outer(scaled, scaled)


def learn_rounds(
    statistics: Any, contexts: FloatArray, heads: IntArray, targets: FloatArray, largest: float
) -> tuple[float, int]:
    """Learn rounds one after the other by Sherman-Morrison; see ``kernels_numba.learn_rounds``."""
    inverse, theta, gram, moment, pending, n_pending, counts, since_refresh = statistics
    if len(heads) and not (heads.min() >= 0 and heads.max() < len(theta)):
        raise IndexError("head out of range")
    if not ((n_pending[heads] >= 0) & (n_pending[heads] <= pending.shape[1])).all():
        raise IndexError("too many pending rows")
    if not (np.einsum("bd,bd->b", contexts, contexts) <= largest).all():
        return -1.0, 0
    highest = 0.0
    for head, z, target in zip(heads.tolist(), contexts, targets, strict=True):
        if n_pending[head] == pending.shape[1]:
            gram[head] += pending[head].T @ pending[head]
            n_pending[head] = 0
        u = inverse[head] @ z
        variance = max(float(u @ z), 0.0)
        highest = max(highest, variance)
        _rank_one(inverse[head], theta[head], z, target, u, variance)
        moment[head] += np.outer(target, z)
        pending[head, n_pending[head]] = z
        n_pending[head] += 1
        counts[head] += 1
        since_refresh[head] += 1
    return highest, int(since_refresh[heads].max())


def play_episode(covariances: Any, predicted: Any, rule: Any, rewards: Any, moments: Any, chosen: Any) -> None:
    """Play every round of an episode, exactly as if played one by one; see ``kernels_numba.play_episode``."""
    (products, contexts, direct, shared), (means, variance) = covariances, predicted
    (multiplier, available, epsilon, draws), (table, weights) = rule, rewards
    (running, standardise), (arms, probability, units) = moments, chosen
    _, n, n_arms = means.shape
    per_round = n_arms if shared else 1
    rows = np.zeros((n, n * per_round))
    gains = np.empty(n)
    for i in range(n):
        centre, scale = (running[1], 1.0) if standardise else (0.0, 1.0)
        if standardise and running[0] > 0.0 and running[3] < running[4]:
            scale = math.sqrt(running[2] / running[0]) or 1.0
        units[i] = centre, scale
        scores = (means[0, i] - centre * means[1, i]) / scale
        scores += multiplier[i] * np.sqrt(np.maximum(variance[i], 0.0))
        arm, probability[i] = choose(scores, available[i], epsilon, draws[i, 0], draws[i, 1])
        arms[i] = arm
        head, context = (0, i * n_arms + arm) if shared else (arm, i)
        later = slice((i + 1) * per_round, n * per_round)
        row = products[head, context, later] if direct else contexts[later] @ products[head, context]
        earlier = np.arange(i) if shared else np.flatnonzero(arms[:i] == arm)
        row = rows[i, later] = row - (rows[earlier, context] * gains[earlier]) @ rows[earlier, later]
        gain = gains[i] = weights[i] / (1.0 + weights[i] * max(variance[i, arm], 0.0))
        every = [part.reshape(-1) if shared else part[:, arm] for part in (means[0], means[1], variance)]
        for part, target in zip(every, (table[i, arm], 1.0), strict=False):
            part[later] += row * ((target - part[context]) * gain)
        every[2][later] = np.maximum(every[2][later] - row**2 * gain, 0.0)
        if weights[i] > 0.0:
            add_reward(running, table[i, arm], weights[i])


def add_reward(running: FloatArray, reward: float, weight: float) -> None:
    """Add a reward to the state of ``RewardMoments``."""
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


# The seeded uniform numbers of ``kernels``.


STEP_ROUND = np.uint64(0x9E3779B97F4A7C15)
STEP_SLOT = np.uint64(0xD1B54A32D192ED03)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


def uniforms(key: np.uint64, first_round: int, n_rounds: int, n_slots: int) -> FloatArray:
    """Return uniform numbers in [0, 1), shape (n_rounds, n_slots), for the rounds from ``first_round`` on."""
    rounds = np.arange(first_round + 1, first_round + n_rounds + 1, dtype=np.uint64)[:, None]
    slots = np.arange(1, n_slots + 1, dtype=np.uint64)[None, :]
    bits = _mix(_mix(np.asarray(key, np.uint64) + rounds * STEP_ROUND) + slots * STEP_SLOT)
    numbers: FloatArray = (bits >> np.uint64(11)).astype(np.float64) * (1.0 / 9007199254740992.0)
    return numbers
