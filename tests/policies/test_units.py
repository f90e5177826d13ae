"""The unit of rewards, and their zero, change no decision."""

import numpy as np
import pytest

import daband

LINEAR = [daband.LinUCB, daband.Constant, daband.Trees]


def learned(kind, factor, offset, *, order=None, **settings):
    rng = np.random.default_rng(0)
    policy = kind(context_shape=(3,), n_arms=3, seed=0, **settings)
    contexts = rng.normal(size=(400, 3))
    arms = rng.integers(0, 3, 400)
    rewards = factor * (contexts[np.arange(400), arms] + 0.3 * rng.normal(size=400)) + offset
    order = np.arange(400) if order is None else order
    policy.update(contexts[order], arms[order], rewards[order])
    policy.adapt()
    return policy


@pytest.mark.parametrize("kind", LINEAR)
def test_the_order_of_rounds_does_not_matter(kind):
    contexts = np.random.default_rng(1).normal(size=(50, 3))
    order = np.random.default_rng(2).permutation(400)
    first, second = (
        learned(kind, 100.0, 7.0, order=some).decide(contexts) for some in (None, order)
    )
    np.testing.assert_allclose(first.mean, second.mean, atol=1e-6)
    np.testing.assert_allclose(first.bonus, second.bonus, rtol=1e-9)


def test_an_arm_without_rounds_has_the_mean_reward_and_the_largest_bonus():
    policy = learned(daband.LinUCB, 10.0, 500.0)
    policy.add_arm()
    decision = policy.decide(np.random.default_rng(1).normal(size=(20, 3)))
    np.testing.assert_allclose(decision.mean[:, 3], policy.reward_moments.mean)
    assert (decision.bonus[:, 3:] > decision.bonus[:, :3]).all()


def test_without_standardising_predictions_shrink_to_0_and_bonuses_have_the_unit_1():
    policy = daband.LinUCB(context_shape=(1,), n_arms=2, standardise_rewards=False, intercept=False)
    policy.update([[1.0], [1.0]], [0, 0], [300.0, 330.0])
    decision = policy.decide([[1.0]])
    np.testing.assert_allclose(decision.mean, [[210.0, 0.0]])
    np.testing.assert_allclose(decision.bonus, [[1 / np.sqrt(3), 1.0]])
