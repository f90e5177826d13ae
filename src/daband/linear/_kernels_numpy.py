"""Implement the inner loops of linear policies in numpy, for serving, and for training without
numba.

These versions are written to be read. ``_kernels_numba`` has compiled versions of ``choose``,
``learn_rounds``, ``play_episode``, ``add_reward`` and ``sum_of_squares`` with the same arguments,
and tests compare the results.

A *head* is a ridge regression on contexts Z and rewards r, with A = ridge I + Z'Z and theta = A^-1
Z'[r, 1]. The second target, 1, gives predictions as if all rewards were 1. With them, rewards can
be centred after the fit.

Random decisions use *draws*, uniform random numbers in [0, 1). ``draw_uniforms``, at the end,
computes them.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.base._arrays import BoolArray, FloatArray, IntArray

#: Scores within ``TIE_TOLERANCE * (1 + |best|)`` of the best score are tied, so that rounding does
#: not decide.
TIE_TOLERANCE = 1e-12


def compute_variances(products: FloatArray, z: FloatArray) -> FloatArray:
    """Return the variances z'A^-1 z (B, heads) of contexts z (B, d), given the products A^-1 z
    (heads, B, d).

    Variances that are negative by rounding become 0.
    """
    variances: FloatArray = np.matmul(products.transpose(1, 0, 2), z[:, :, None])[:, :, 0]
    return np.maximum(variances, 0.0, out=variances)


def choose(
    scores: FloatArray, available: BoolArray, epsilon: float, epsilon_draw: float, arm_draw: float
) -> tuple[int, float]:
    """Return an arm for scores (K,) of one round, and its probability.

    ``available`` (K,) is True for allowed arms.

    The arm with the largest score is chosen, or a random one of several tied arms. If
    ``epsilon_draw`` is below ``epsilon``, any available arm is chosen at random instead.
    ``arm_draw`` selects among tied or available arms.
    """
    candidates = available.nonzero()[0].tolist()
    return draw_arm(
        candidates, find_tied_arms(scores.tolist(), candidates), epsilon, epsilon_draw, arm_draw
    )


def find_tied_arms(
    scores: list[float], candidates: Sequence[int], centre: float = 0.0, scale: float = 1.0
) -> list[int]:
    """Return the candidates whose score is tied with the best score of a candidate.

    ``scores`` are the scores of all arms, ``candidates`` the indices of arms that may be chosen.
    Scores are tied if they differ by less than ``TIE_TOLERANCE`` times ``scale + |best - centre|``.
    ``centre`` and ``scale`` are the mean and the standard deviation of rewards.
    """
    best_score = (
        max(scores) if len(candidates) == len(scores) else max([scores[arm] for arm in candidates])
    )
    tie_threshold = best_score - TIE_TOLERANCE * (scale + abs(best_score - centre))
    return [arm for arm in candidates if scores[arm] >= tie_threshold]


def draw_arm(
    arms: Sequence[int],
    tied_arms: Sequence[int],
    epsilon: float,
    epsilon_draw: float,
    arm_draw: float,
) -> tuple[int, float]:
    """Return a random arm and its probability: any of ``arms`` with probability epsilon, otherwise
    a tied arm.

    The two draws are used as in ``choose``.
    """
    options = arms if epsilon_draw < epsilon else tied_arms
    arm = options[int(arm_draw * len(options))]
    return arm, epsilon / len(arms) + (
        (1.0 - epsilon) / len(tied_arms) if arm in tied_arms else 0.0
    )


def _update_rank_one(
    inverse: FloatArray,
    theta: FloatArray,
    z: FloatArray,
    targets: FloatArray,
    u: FloatArray,
    variance: float,
) -> None:
    """Update A^-1 (``inverse``) and theta of one head in place, by the Sherman-Morrison formula.

    ``z`` (d,) is the context, ``targets`` (2,) are its reward and 1, u = A^-1 z, and variance =
    z'u.
    """
    scale = 1.0 / math.sqrt(1.0 + variance)
    scaled_u = scale * u
    theta += np.outer(scale * (targets - theta @ z), scaled_u)
    inverse -= np.outer(scaled_u, scaled_u)


def learn_rounds(
    ridge_arrays: Any,
    contexts: FloatArray,
    heads: IntArray,
    targets: FloatArray,
    max_squared_norm: float,
) -> tuple[float, int]:
    """Learn rounds in place, one after the other, by the Sherman-Morrison formula.

    Return the largest variance z'A^-1 z among the rounds, and the largest number of updates of a
    head since its inverse was computed from A. If the squared norm of a context exceeds
    ``max_squared_norm``, nothing changes, and the returned variance is -1.

    Args:
        ridge_arrays: the arrays of ``PrimalRidge``, in the order of ``PrimalRidge._get_arrays``.
        contexts: the contexts of the rounds, (B, d).
        heads: the index of the regression that learns each round, (B,).
        targets: the reward of each round and 1, (B, 2).
        max_squared_norm: the largest allowed squared norm of a context.

    Contexts are collected in ``pending``. When it is full, they are added to ``gram`` in one matrix
    product.
    """
    inverse, theta, gram, moment, pending, n_pending, counts, n_since_refresh = ridge_arrays
    if len(heads) and not (heads.min() >= 0 and heads.max() < len(theta)):
        raise IndexError("head out of range")
    if not ((n_pending[heads] >= 0) & (n_pending[heads] <= pending.shape[1])).all():
        raise IndexError("too many pending rows")
    if not (np.einsum("bd,bd->b", contexts, contexts) <= max_squared_norm).all():
        return -1.0, 0
    max_variance = 0.0
    for head, z, z_targets in zip(heads.tolist(), contexts, targets, strict=True):
        if n_pending[head] == pending.shape[1]:
            gram[head] += pending[head].T @ pending[head]
            n_pending[head] = 0
        u = inverse[head] @ z
        variance = max(float(u @ z), 0.0)
        max_variance = max(max_variance, variance)
        _update_rank_one(inverse[head], theta[head], z, z_targets, u, variance)
        moment[head] += np.outer(z_targets, z)
        pending[head, n_pending[head]] = z
        n_pending[head] += 1
        counts[head] += 1
        n_since_refresh[head] += 1
    return max_variance, int(n_since_refresh[heads].max(initial=0))


def play_episode(
    episode, is_shared, exploration, rewards, weights, reward_moments, standardise, results
):
    """Play all rounds of an episode, with the same results as playing them one by one.

    The inverses of the regressions do not change. A round only corrects the predictions for later
    rounds. There are H rounds and K arms. Three arguments are plain tuples, because numba compiles
    named tuples more slowly.

    Args:
        episode: the fields of an ``Episode``, with means of shape (2, H, K) and variances of shape
            (H, K). The first means are predicted rewards, the second are predictions as if all
            rewards were 1. Both arrays are updated in place. At the end, row i has the predictions
            with which round i was decided.
        is_shared: False if there are K regressions and one context per round. True if all arms
            share one regression, and a round has a context for each arm.
        exploration: the factors of bonuses (H, K), the available arms (H, K), epsilon, and draws
            (H, 2) as in ``choose``.
        rewards: the rewards of all arms, (H, K).
        weights: the weights of rounds, (H,).
        reward_moments: the array of ``RewardMoments.state``, which is updated in place.
        standardise: True if rewards are standardised.
        results: receives the chosen arms (H,), their probabilities (H,), and the centre and scale
            of rewards (H, 2) that each decision used.
    """
    products, contexts, has_covariances, means, variances = episode
    (bonus_factors, available, epsilon, draws), (arms, probabilities, scalings) = (
        exploration,
        results,
    )
    n, n_arms = variances.shape
    contexts_per_round = n_arms if is_shared else 1
    # of each chosen context with all later ones
    covariances = np.zeros((n, n * contexts_per_round))
    gains = np.empty(n)
    for i in range(n):
        total_weight, mean_reward, squared_differences, low, high = reward_moments.tolist()
        centre, scale = (mean_reward, 1.0) if standardise else (0.0, 1.0)
        if standardise and total_weight > 0.0 and low < high:
            scale = math.sqrt(squared_differences / total_weight) or 1.0
        scalings[i] = centre, scale
        scores = (means[0, i] - centre * means[1, i]) / scale
        scores += bonus_factors[i] * np.sqrt(np.maximum(variances[i], 0.0))
        arm, probabilities[i] = choose(scores, available[i], epsilon, draws[i, 0], draws[i, 1])
        arms[i] = arm
        head, row = (0, i * n_arms + arm) if is_shared else (arm, i)
        later = slice((i + 1) * contexts_per_round, n * contexts_per_round)
        covariance = (
            products[head, row, later] if has_covariances else contexts[later] @ products[head, row]
        )
        # rounds learned by this head
        earlier = np.arange(i) if is_shared else np.flatnonzero(arms[:i] == arm)
        covariance = (
            covariance - (covariances[earlier, row] * gains[earlier]) @ covariances[earlier, later]
        )
        covariances[i, later] = covariance
        gain = gains[i] = weights[i] / (1.0 + weights[i] * max(variances[i, arm], 0.0))
        # The predictions that this head makes: a vector for rewards, one for ones, and one with
        # variances.
        head_arrays = [
            array.reshape(-1) if is_shared else array[:, arm] for array in (*means, variances)
        ]
        *head_means, head_variances = head_arrays
        for mean, target in zip(head_means, (rewards[i, arm], 1.0), strict=True):
            mean[later] += covariance * ((target - mean[row]) * gain)
        head_variances[later] = np.maximum(head_variances[later] - covariance**2 * gain, 0.0)
        if weights[i] > 0.0:
            add_reward(reward_moments, rewards[i, arm], weights[i])


def add_reward(reward_moments: FloatArray, reward: float, weight: float) -> None:
    """Add a reward with a positive weight to the array of ``RewardMoments.state``, in place."""
    old_weight, mean, squared_differences, low, high = reward_moments.tolist()
    new_weight = old_weight + weight
    difference = reward - mean
    squared_differences += difference * difference * (old_weight * weight / new_weight)
    if old_weight == 0.0:
        mean = low = high = reward
    else:
        mean += difference * (weight / new_weight)
    reward_moments[:] = new_weight, mean, squared_differences, min(low, reward), max(high, reward)


def sum_of_squares(x: FloatArray) -> float:
    """Return the sum of squares of a flat float64 array, without a warning on overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(x, x))


#: The multiplier of round numbers in ``draw_uniforms``. It is odd, so different round numbers give
#: different products.
ROUND_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
#: The multiplier of slot numbers in ``draw_uniforms``; also odd.
SLOT_MULTIPLIER = np.uint64(0xD1B54A32D192ED03)
#: The first multiplier of the hash function splitmix64.
HASH_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
#: The second multiplier of the hash function splitmix64.
HASH_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def _hash_bits(x: Any) -> Any:
    """Return the hash of 64-bit integers (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * HASH_MULTIPLIER_1
    x = (x ^ (x >> np.uint64(27))) * HASH_MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


def draw_uniforms(key: np.uint64, first_round: int, n_rounds: int, n_slots: int) -> FloatArray:
    """Return draws in [0, 1), (n_rounds, n_slots), for the rounds from ``first_round`` on.

    A draw is a hash of the key, the round and the slot, so it does not depend on other draws.
    """
    rounds = np.arange(first_round + 1, first_round + n_rounds + 1, dtype=np.uint64)[:, None]
    slots = np.arange(1, n_slots + 1, dtype=np.uint64)[None, :]
    bits = _hash_bits(
        _hash_bits(np.asarray(key, np.uint64) + rounds * ROUND_MULTIPLIER) + slots * SLOT_MULTIPLIER
    )
    return (bits >> np.uint64(11)).astype(np.float64) * (1.0 / 2.0**53)  # the upper 53 bits
