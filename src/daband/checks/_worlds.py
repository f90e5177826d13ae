"""Check that a policy keeps exploring: small worlds in which a policy that stops can get stuck.

In each world one arm is safe, and another is better for most contexts but looks bad at first, or
is better in one corner of the contexts only. A policy that stays with the safe arm has more regret
than random choices. One that finds the other arm has little, even without contexts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from daband.base._arrays import FloatArray
from daband.checks._policies import CONTEXT_SHAPE, POLICY_CHECKS, MakePolicy, draw_contexts

#: Draws rewards (n, K) for contexts (n, 3), and returns them with the expected rewards.
World: TypeAlias = Callable[[np.random.Generator, FloatArray], tuple[FloatArray, FloatArray]]

#: The number of rounds of a world.
_N_ROUNDS = 1024
#: The number of rounds that are played before the next call of ``adapt``.
_BLOCK = 32
#: The largest regret of the second half, as a fraction of that of random choices.
_MAX_REGRET = 0.75


def draw_noisy_arm(rng: np.random.Generator, contexts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A safe arm pays 0, and another 1 on average, with noise of deviation 1."""
    expected = np.column_stack([np.zeros(len(contexts)), 1.0 + 2.0 * contexts[:, 0]])
    noise = rng.normal(size=len(contexts))
    return expected + np.column_stack([np.zeros(len(contexts)), noise]), expected


def draw_rare_losses(
    rng: np.random.Generator, contexts: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """A safe arm pays 0, and another 1, or -20 in 15 of 200 rounds with a large first column."""
    return draw_rare(rng, np.where(contexts[:, 0] > 0.5, 0.075, 0.0), usual=1.0, rare=-19.0)


def draw_rare(
    rng: np.random.Generator, probability: FloatArray, usual: float, rare: float
) -> tuple[FloatArray, FloatArray]:
    """Return the rewards of a safe arm, and of one with a usual and a rare reward."""
    rewards, expected = np.zeros((2, len(probability), 2))
    rewards[:, 1] = np.where(rng.random(len(probability)) < probability, rare, usual)
    expected[:, 1] = usual + (rare - usual) * probability
    return rewards, expected


#: The worlds of ``check_keeps_exploring``.
WORLDS: tuple[World, ...] = (draw_noisy_arm, draw_rare_losses)


def measure_late_regret(make: MakePolicy, world: World, seed: int) -> float:
    """Return the regret of the second half of a world's rounds, as a fraction of that of random
    choices.
    """
    rng = np.random.default_rng(seed)
    contexts = draw_contexts(rng, _N_ROUNDS, "disjoint")
    rewards, expected = world(rng, contexts)
    policy = make(context_shape=CONTEXT_SHAPE, n_arms=rewards.shape[1], seed=seed)
    arms = []
    for start in range(0, _N_ROUNDS, _BLOCK):
        rows = slice(start, start + _BLOCK)
        arms.append(policy.play(contexts[rows], rewards[rows]).arm)
        policy.adapt()
    late = slice(_N_ROUNDS // 2, None)
    chosen = expected[np.arange(_N_ROUNDS), np.concatenate(arms)]
    best = expected.max(axis=1)
    return float((best - chosen)[late].sum() / (best - expected.mean(axis=1))[late].sum())


@POLICY_CHECKS.add
def check_keeps_exploring(make: MakePolicy) -> None:
    """Check that a policy finds an arm that looks bad at first, unless its rule is "greedy"."""
    policy = make(context_shape=CONTEXT_SHAPE, n_arms=2, seed=0)
    if policy.exploration.rule == "greedy":
        return
    for world in WORLDS:
        regret = measure_late_regret(make, world, seed=0)
        assert regret <= _MAX_REGRET, (
            f"{world.__name__}: after {_N_ROUNDS // 2} rounds, the regret is {regret:.2f} of that of"
            " random choices; an arm may only be given up by evidence"
        )
