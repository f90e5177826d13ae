"""Weights of rounds, and what policies make of them."""

import numpy as np
import pytest

import daband


def test_weights_by_age_give_the_least_squares_of_faded_rounds():
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(60, 2))
    rewards = rng.random(60)
    time = np.arange(60.0)
    weights = 0.5 ** ((59.0 - time) / 7.0)
    policy = daband.LinUCB(context_shape=(2,), n_arms=1, standardise_rewards=False, intercept=False)
    for part in (slice(30, 60), slice(0, 30)):
        policy.update(
            contexts[part],
            np.zeros(30, int),
            rewards[part],
            weights=weights[part],
        )
    gram = np.eye(2) + (contexts * weights[:, None]).T @ contexts
    expected = contexts @ np.linalg.solve(gram, contexts.T @ (weights * rewards))
    np.testing.assert_allclose(policy.decide(contexts).mean[:, 0], expected, atol=1e-10)


@pytest.mark.parametrize(("policy_class", "power"), [(daband.LinUCB, 0.25), (daband.Constant, 1.0)])
def test_a_regression_multiplies_weights_by_importance_weights(policy_class, power):
    """The importance weight is at most 10, and depends on the number of available arms."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(40, 2))
    arms = rng.integers(0, 2, 40)
    rewards = rng.random(40)
    weights = rng.uniform(0.5, 2.0, 40)
    propensities = rng.choice([0.001, 0.2, 0.5, 1.0], 40)
    available = np.column_stack([np.ones((40, 2), bool), rng.random(40) < 0.5])
    policy, expected = (policy_class(context_shape=(2,), n_arms=3) for _ in range(2))
    policy.update(
        contexts, arms, rewards, weights=weights, propensities=propensities, available=available
    )
    importance = np.minimum((1 / (available.sum(axis=1) * propensities)) ** power, 10.0)
    expected.update(contexts, arms, rewards, weights=weights * importance)
    np.testing.assert_allclose(policy.decide(contexts).mean, expected.decide(contexts).mean)
    assert policy.reward_moments.mean == pytest.approx(expected.reward_moments.mean)


def test_members_of_a_mixture_get_weights_and_propensities():
    rng = np.random.default_rng(0)
    contexts, arms, rewards = rng.normal(size=(300, 2)), rng.integers(0, 2, 300), rng.random(300)
    options = {"weights": rng.uniform(0.5, 2.0, 300), "propensities": rng.uniform(0.1, 1.0, 300)}
    shape = {"context_shape": (2,), "n_arms": 2}
    members = {"log": daband.LogPolicy(**shape), "mean": daband.Constant(**shape)}
    mixture = daband.Mixture(**shape, members=members)
    for policy in (mixture, *members.values()):
        policy.update(contexts, arms, rewards, **options)
    assert mixture.members["log"].evidence == members["log"].evidence
    np.testing.assert_allclose(
        mixture.members["mean"].decide(contexts).mean, members["mean"].decide(contexts).mean
    )


def test_a_preference_of_the_log_no_longer_biases_a_mean():
    """Where the log chose arm 1 mostly on good days, its plain mean is too high, and the weighted
    one is right.
    """
    rng = np.random.default_rng(0)
    good = rng.random(20_000) < 0.5
    chosen = np.where(good, 0.9, 0.1)
    arm = (rng.random(20_000) < chosen).astype(int)
    propensity = np.where(arm == 1, chosen, 1 - chosen)
    plain, weighted = (daband.Constant(context_shape=(1,), n_arms=2) for _ in range(2))
    plain.update(np.zeros((20_000, 1)), arm, good.astype(float))
    weighted.update(np.zeros((20_000, 1)), arm, good.astype(float), propensities=propensity)
    assert plain.decide([[0.0]]).mean[0, 1] > 0.85
    np.testing.assert_allclose(weighted.decide([[0.0]]).mean[0], [0.5, 0.5], atol=0.02)
