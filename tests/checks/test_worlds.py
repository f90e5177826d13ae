"""Policies do not get stuck, and the worlds find one that does."""

import numpy as np
import pytest

import daband
from daband.checks import _worlds as worlds
from daband.checks._worlds import (
    WORLDS,
    check_keeps_exploring,
    draw_corner,
    draw_rare_gains,
    measure_late_regret,
)


@pytest.mark.parametrize(
    "world", [*WORLDS, draw_rare_gains, draw_corner], ids=lambda world: world.__name__
)
def test_no_seed_of_linucb_gets_stuck(world):
    regrets = [measure_late_regret(daband.LinUCB, world, seed) for seed in range(20)]
    assert max(regrets) < 0.5


def test_a_policy_that_stops_exploring_is_found():
    def make(**sizes):
        policy = daband.LinUCB(**sizes, explore="ucb", alpha=0.0)
        contexts = np.random.default_rng(0).uniform(-1, 1, (50, 3))
        policy.update(contexts, np.ones(50, int), np.full(50, -100.0))
        policy.update(contexts, np.zeros(50, int), np.zeros(50))
        return policy

    with pytest.raises(AssertionError, match="given up by evidence"):
        check_keeps_exploring(make)


@pytest.mark.parametrize(
    "world", [*WORLDS, draw_rare_gains, draw_corner], ids=lambda world: world.__name__
)
def test_a_policy_that_stays_with_the_safe_arm_has_more_regret_than_random(world):
    contexts = np.random.default_rng(0).uniform(-1, 1, (50_000, 3))
    rewards, expected = world(np.random.default_rng(1), contexts)
    np.testing.assert_allclose(rewards.mean(axis=0), expected.mean(axis=0), atol=0.05)
    best = expected.max(axis=1)
    assert (best - expected[:, 0]).mean() > 1.1 * (best - expected.mean(axis=1)).mean()
    assert worlds._MAX_REGRET < 1.0
