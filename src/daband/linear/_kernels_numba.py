"""Implement the inner loops of linear policies, compiled by numba.

``_kernels_numpy`` has most of these functions in numpy, which are easier to read, and documents
their arguments. Tests compare both. ``decide_one`` exists only here.

The compiler may reorder sums, so that dot products use vector instructions. The loops do not rely
on NaN or signed zeros, because ``Policy`` checks its input. Compiled code does not check indices.
So every index in an argument (a head, a number of pending rows) is checked here before anything is
written.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

from daband.linear._kernels_numpy import (
    HASH_MULTIPLIER_1,
    HASH_MULTIPLIER_2,
    ROUND_MULTIPLIER,
    SLOT_MULTIPLIER,
)

# Compilation of the loops with numba, with an on-disk cache if one can be written.
#
# numba writes compiled loops next to the package or below the user's home directory. In a container
# with a read-only file system and a user without a home directory, neither is possible. Every
# process then compiles the loops again, which takes some seconds.


Loop = TypeVar("Loop", bound=Callable[..., Any])


class UncachedKernelsWarning(UserWarning):
    """Warn that compiled loops cannot be stored on disk, so every process compiles them again."""


def compiled(**options: Any) -> Callable[[Loop], Loop]:
    """Return ``numba.njit`` with an on-disk cache, or without one if numba cannot write it."""

    def compile_loop(loop: Loop) -> Loop:
        try:
            compiled_loop: Loop = njit(cache=True, **options)(loop)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            _warn_uncached()
            compiled_loop = njit(**options)(loop)
        return compiled_loop

    return compile_loop


@functools.cache
def _warn_uncached() -> None:
    """Warn, once per process, that the compiled loops cannot be stored."""
    warnings.warn(
        "numba cannot write its cache next to the package or in a home directory, so this process"
        " compiles daband's loops again (some seconds). Set NUMBA_CACHE_DIR to a writable folder,"
        " or set DABAND_KERNELS=numpy",
        UncachedKernelsWarning,
        stacklevel=2,
    )


#: The integer 1 in the type of the hashes; numba would convert a sum with a Python integer to
#: float64.
_ONE = np.uint64(1)


@compiled()
def _hash_bits(x):
    """Return the hash of a 64-bit integer (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * HASH_MULTIPLIER_1
    x = (x ^ (x >> np.uint64(27))) * HASH_MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


@compiled()
def draw_uniform(key, round_number, slot):
    """Return the draw in [0, 1) of one round and slot, as in ``_kernels_numpy.draw_uniforms``."""
    bits = _hash_bits(key + (np.uint64(round_number) + _ONE) * ROUND_MULTIPLIER)
    bits = _hash_bits(bits + (np.uint64(slot) + _ONE) * SLOT_MULTIPLIER)
    return float(bits >> np.uint64(11)) * (1.0 / 2.0**53)  # the upper 53 bits


#: The floating-point optimisations that are allowed; see the module docstring.
_FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
#: Scores this close to the best, relative to 1 plus its absolute value, are tied, as in
#: ``_kernels_numpy``.
TIE_TOLERANCE = 1e-12


@compiled(fastmath=_FASTMATH)
def _dot(x, y):
    """Return the inner product of two vectors."""
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@compiled()
def choose(scores, available, epsilon, epsilon_draw, arm_draw):
    """Return an arm for scores (K,) of one round, and its probability.

    ``available`` (K,) is True for allowed arms.

    The arm with the largest score is chosen, or a random one of several tied arms. If
    ``epsilon_draw`` is below ``epsilon``, any available arm is chosen at random instead.
    ``arm_draw`` selects among tied or available arms.
    """
    n_available = 0
    best_score = -np.inf
    for arm in range(scores.shape[0]):
        if available[arm]:
            n_available += 1
            best_score = max(best_score, scores[arm])
    tie_threshold = best_score - TIE_TOLERANCE * (1.0 + abs(best_score))
    n_tied = 0
    for arm in range(scores.shape[0]):
        if available[arm] and scores[arm] >= tie_threshold:
            n_tied += 1
    is_random = epsilon_draw < epsilon
    chosen_rank = int(arm_draw * (n_available if is_random else n_tied))
    chosen_arm = -1
    n_passed = 0
    for arm in range(scores.shape[0]):
        if available[arm] and (is_random or scores[arm] >= tie_threshold):
            if n_passed == chosen_rank:
                chosen_arm = arm
                break
            n_passed += 1
    if chosen_arm < 0:
        raise ValueError("no arm is available, or a score is NaN")
    probability = epsilon / n_available
    if scores[chosen_arm] >= tie_threshold:
        probability += (1.0 - epsilon) / n_tied
    return chosen_arm, probability


@compiled(fastmath=_FASTMATH)
def _update_rank_one(inverse, theta, z, targets, u, variance):
    """Update A^-1 (``inverse``) and theta of one head in place, by the Sherman-Morrison formula.

    ``z`` (d,) is the context, ``targets`` (2,) are its reward and 1, u = A^-1 z, and variance =
    z'u. ``u`` is overwritten.
    """
    d = z.shape[0]
    scale = 1.0 / math.sqrt(1.0 + variance)
    residual = (targets[0] - _dot(theta[0], z)) * scale
    residual_of_ones = (targets[1] - _dot(theta[1], z)) * scale
    for i in range(d):
        u[i] *= scale
        theta[0, i] += residual * u[i]
        theta[1, i] += residual_of_ones * u[i]
    for i in range(d):
        inverse_row = inverse[i]
        u_i = u[i]
        for j in range(d):
            inverse_row[j] -= u_i * u[j]  # u_i u_j = u_j u_i, so the matrix stays symmetric


@compiled(fastmath=_FASTMATH)
def learn_rounds(ridge_arrays, contexts, heads, targets, max_squared_norm):
    """Learn rounds in place, one after the other, by the Sherman-Morrison formula.

    Return the largest variance z'A^-1 z among the rounds, and the largest number of updates of a
    head since its inverse was computed from A. If the squared norm of a context exceeds
    ``max_squared_norm``, nothing changes, and the returned variance is -1.
    ``_kernels_numpy.learn_rounds`` documents the arguments.
    """
    inverse, theta, gram, moment, pending, n_pending, counts, n_since_refresh = ridge_arrays
    n_rounds, d = contexts.shape
    if (
        theta.shape[2] != d
        or heads.shape[0] != n_rounds
        or targets.shape[0] != n_rounds
        or targets.shape[1] != 2
    ):
        raise ValueError("contexts, heads, targets and coefficients differ in length")
    for n in range(n_rounds):
        if heads[n] < 0 or heads[n] >= theta.shape[0]:
            raise IndexError("head out of range")
        if n_pending[heads[n]] < 0 or n_pending[heads[n]] > pending.shape[1]:
            raise IndexError("too many pending rows")
        if not _dot(contexts[n], contexts[n]) <= max_squared_norm:
            return -1.0, 0
    u = np.empty(d)
    max_variance = 0.0
    max_updates = 0
    for n in range(n_rounds):
        head = heads[n]
        z = contexts[n]
        z_targets = targets[n]
        if n_pending[head] == pending.shape[1]:
            _add_pending(gram[head], pending[head])
            n_pending[head] = 0
        head_inverse = inverse[head]
        for i in range(d):
            u[i] = _dot(head_inverse[i], z)
        variance = max(_dot(u, z), 0.0)
        max_variance = max(max_variance, variance)
        _update_rank_one(head_inverse, theta[head], z, z_targets, u, variance)
        head_moment = moment[head]
        pending_row = pending[head, n_pending[head]]
        for j in range(d):
            head_moment[0, j] += z_targets[0] * z[j]
            head_moment[1, j] += z_targets[1] * z[j]
            pending_row[j] = z[j]
        n_pending[head] += 1
        counts[head] += 1
        n_since_refresh[head] += 1
        max_updates = max(max_updates, n_since_refresh[head])
    return max_variance, max_updates


@compiled(fastmath=_FASTMATH)
def _add_pending(gram, rows):
    """Add Z'Z of the rows Z (n, d) to ``gram`` (d, d).

    Z'Z is summed first, which keeps rounding errors small.
    """
    d = gram.shape[0]
    gram_row = np.empty(d)  # one row of Z'Z
    for i in range(d):
        for j in range(d):
            gram_row[j] = 0.0
        for r in range(rows.shape[0]):
            factor = rows[r, i]
            for j in range(d):
                gram_row[j] += factor * rows[r, j]
        for j in range(d):
            gram[i, j] += gram_row[j]


@compiled(fastmath=_FASTMATH)
def _quadratic_form(matrix, z):
    """Return z'M z for a symmetric matrix M.

    Only its lower half is read, because memory is the bottleneck.

    Four rows are processed at a time, up to their 4 x 4 diagonal block. So each z_j is loaded once
    for four products.
    """
    d = z.shape[0]
    n_blocked = d - d % 4
    total = 0.0
    for i in range(0, n_blocked, 4):
        row0 = matrix[i]
        row1 = matrix[i + 1]
        row2 = matrix[i + 2]
        row3 = matrix[i + 3]
        z0 = z[i]
        z1 = z[i + 1]
        z2 = z[i + 2]
        z3 = z[i + 3]
        lower_half = 0.0
        for j in range(i):
            lower_half += z[j] * (z0 * row0[j] + z1 * row1[j] + z2 * row2[j] + z3 * row3[j])
        lower_half += z1 * z0 * row1[i] + z2 * (z0 * row2[i] + z1 * row2[i + 1])
        lower_half += z3 * (z0 * row3[i] + z1 * row3[i + 1] + z2 * row3[i + 2])
        diagonal = (
            z0 * z0 * row0[i]
            + z1 * z1 * row1[i + 1]
            + z2 * z2 * row2[i + 2]
            + z3 * z3 * row3[i + 3]
        )
        total += 2.0 * lower_half + diagonal
    for i in range(n_blocked, d):
        total += z[i] * (z[i] * matrix[i, i] + 2.0 * _dot(matrix[i, :i], z[:i]))
    return total


@compiled(fastmath=_FASTMATH)
def decide_one(inverse, theta, context, available, scaling, exploration, round_number, results):
    """Choose an arm for one context (1, d).

    Args:
        inverse: A^-1 of the K heads, (K, d, d).
        theta: their coefficients for rewards and for ones, (K, 2, d).
        context: the context, (1, d).
        available: True for the arms that may be chosen, (1, K).
        scaling: the centre and the scale of rewards.
        exploration: alpha (0 for greedy choices), epsilon, and the key of the random draws.
        round_number: the number of the round, which determines its draws.
        results: receives means and bonuses (2, 1, K), the arm (1,), and its propensity (1,).
    """
    (centre, scale), (alpha, epsilon, key) = scaling, exploration
    predictions, arms, propensities = results
    n_arms = theta.shape[0]
    z = context[0]
    if (
        predictions.shape[2] != n_arms
        or theta.shape[2] != z.shape[0]
        or available.shape[1] != n_arms
    ):
        raise ValueError("contexts, coefficients and results differ in shape")
    scores = np.empty(n_arms)
    for position in range(n_arms):
        # Even rounds read the heads forwards, odd rounds backwards. So the first heads are still in
        # the cache.
        arm = n_arms - 1 - position if round_number & 1 else position
        mean = _dot(theta[arm, 0], z)
        if centre != 0.0:
            mean -= centre * _dot(theta[arm, 1], z)
        deviation = math.sqrt(max(_quadratic_form(inverse[arm], z), 0.0))
        predictions[0, 0, arm], predictions[1, 0, arm] = centre + mean, scale * deviation
        scores[arm] = mean / scale + alpha * deviation
    epsilon_draw = draw_uniform(key, round_number, 0)
    arm_draw = draw_uniform(key, round_number, 1)
    arms[0], propensities[0] = choose(scores, available[0], epsilon, epsilon_draw, arm_draw)


@compiled(fastmath=_FASTMATH)
def play_episode(
    episode, is_shared, exploration, rewards, weights, reward_moments, standardise, results
):
    """Play all rounds of an episode, with the same results as playing them one by one.

    ``_kernels_numpy.play_episode`` documents the arguments, and is easier to read.
    """
    products, contexts, has_covariances, means, variances = episode
    bonus_factors, available, epsilon, draws = exploration
    arms, probabilities, scalings = results
    mean = means[0]
    ones = means[1]  # predictions of rewards, and as if all rewards were 1
    n, n_arms = variances.shape
    contexts_per_round = n_arms if is_shared else 1
    n_contexts = n * contexts_per_round
    flat_mean = mean.reshape(-1)
    flat_ones = ones.reshape(-1)
    flat_variances = variances.reshape(-1)
    covariances = np.empty((n, n_contexts))  # of each chosen context with all later ones
    gains = np.empty(n)
    scores = np.empty(n_arms)
    for i in range(n):
        total_weight = reward_moments[0]
        mean_reward = reward_moments[1]
        squared_differences = reward_moments[2]
        low = reward_moments[3]
        high = reward_moments[4]
        centre = 0.0
        scale = 1.0
        if standardise:
            centre = mean_reward
            if total_weight > 0.0 and low < high:
                deviation = math.sqrt(squared_differences / total_weight)
                scale = deviation if deviation > 0.0 else 1.0
        scalings[i, 0], scalings[i, 1] = centre, scale
        for candidate in range(n_arms):
            scores[candidate] = (mean[i, candidate] - centre * ones[i, candidate]) / scale
            scores[candidate] += bonus_factors[i, candidate] * math.sqrt(
                max(variances[i, candidate], 0.0)
            )
        arm, probability = choose(scores, available[i], epsilon, draws[i, 0], draws[i, 1])
        arms[i], probabilities[i] = arm, probability
        head = 0 if is_shared else arm
        row = i * contexts_per_round + arm if is_shared else i
        next_row = (i + 1) * contexts_per_round
        covariance = covariances[i]
        product = products[head, row]
        if has_covariances:
            for j in range(next_row, n_contexts):
                covariance[j] = product[j]
        else:
            for j in range(next_row, n_contexts):
                covariance[j] = _dot(product, contexts[j])
        for r in range(i):
            if is_shared or arms[r] == arm:
                earlier_covariance = covariances[r]
                factor = earlier_covariance[row] * gains[r]
                for j in range(next_row, n_contexts):
                    covariance[j] -= factor * earlier_covariance[j]
        gain = weights[i] / (1.0 + weights[i] * max(variances[i, arm], 0.0))
        gains[i] = gain
        reward = rewards[i, arm]
        residual = (reward - mean[i, arm]) * gain
        residual_of_ones = (1.0 - ones[i, arm]) * gain
        if is_shared:
            for j in range(next_row, n_contexts):
                flat_mean[j] += covariance[j] * residual
                flat_ones[j] += covariance[j] * residual_of_ones
                flat_variances[j] = max(
                    flat_variances[j] - covariance[j] * covariance[j] * gain, 0.0
                )
        else:
            for j in range(next_row, n):
                mean[j, arm] += covariance[j] * residual
                ones[j, arm] += covariance[j] * residual_of_ones
                variances[j, arm] = max(
                    variances[j, arm] - covariance[j] * covariance[j] * gain, 0.0
                )
        if weights[i] > 0.0:
            add_reward(reward_moments, reward, weights[i])


@compiled()
def add_reward(reward_moments, reward, weight):
    """Add a reward with a positive weight to the array of ``RewardMoments.state``, in place.

    The array has the sum of weights, the mean, the sum of squared differences from the mean, and
    the smallest and largest reward.
    """
    old_weight = reward_moments[0]
    old_mean = reward_moments[1]
    is_first = old_weight == 0.0
    new_weight = old_weight + weight
    difference = reward - old_mean
    reward_moments[0] = new_weight
    reward_moments[1] = reward if is_first else old_mean + difference * (weight / new_weight)
    reward_moments[2] += difference * difference * (old_weight * weight / new_weight)
    reward_moments[3] = reward if is_first else min(reward_moments[3], reward)
    reward_moments[4] = reward if is_first else max(reward_moments[4], reward)


@compiled(fastmath=_FASTMATH)
def sum_of_squares(x):
    """Return the sum of squares of a flat float64 array, without a warning on overflow."""
    return _dot(x, x)
