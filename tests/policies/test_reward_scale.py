"""Rewards in any unit: what is learned does not depend on it."""

import numpy as np
import pytest

import daband
from daband.errors import InvalidInput
from daband.policies._reward_scale import RewardScale


def problem(n=2000, seed=0):
    """Two arms that pay .9 and .1, by the sign of the first feature; the last is a constant."""
    rng = np.random.default_rng(seed)
    contexts = np.c_[rng.normal(size=(n, 3)), np.ones(n)]
    right = (contexts[:, 0] > 0).astype(int)
    rewards = np.full((n, 2), 0.1)
    rewards[np.arange(n), right] = 0.9
    return contexts, rewards


@pytest.mark.parametrize("factor", [1.0, 10.0, 1000.0])
def test_units_do_not_change_the_regret(factor):
    contexts, rewards = problem()
    policy = daband.LinUCB(context_shape=(4,), n_arms=2, alpha=0.1, reward_range=(0.0, factor))
    played = policy.play(contexts, factor * rewards)
    assert (0.9 - played.reward / factor).mean() < 0.02


def test_predictions_and_widths_are_in_the_users_units():
    contexts, rewards = problem(400)
    in_euros = -5.0 + 17.0 * rewards
    policy = daband.LinUCB(context_shape=(4,), n_arms=2, reward_range=(-5.0, 12.0), ridge=1e-3)
    policy.update(np.tile(contexts, (2, 1)), np.repeat([0, 1], 400), in_euros.T.ravel())
    unit = daband.LinUCB(context_shape=(4,), n_arms=2, ridge=1e-3)
    unit.update(np.tile(contexts, (2, 1)), np.repeat([0, 1], 400), rewards.T.ravel())
    here, there = policy.select(contexts), unit.select(contexts)
    np.testing.assert_allclose(here.mean, -5.0 + 17.0 * there.mean, atol=1e-9)
    np.testing.assert_allclose(here.width, 17.0 * there.width, atol=1e-9)


def test_one_outlier_does_not_set_the_range():
    rewards = np.random.default_rng(1).uniform(20, 30, 40)
    rewards[3] = 1e9
    scale = RewardScale("auto")
    assert scale.estimate(rewards)
    assert (scale.low, scale.high) == (rewards.min(), np.sort(rewards)[-2])


def test_rare_rewards_are_no_outliers():
    clicks = np.zeros(50)
    clicks[4] = 100.0
    scale = RewardScale("auto")
    assert scale.estimate(clicks)
    assert (scale.low, scale.high) == (0.0, 100.0)


def test_equal_rewards_wait_for_another_value_but_not_for_ever():
    scale = RewardScale("auto")
    assert not scale.estimate(np.full(1000, 3.0))
    assert scale.estimate(np.full(1024, 3.0))
    assert (scale.low, scale.high) == (3.0, 4.0)


def test_far_rewards_are_clipped_and_it_is_told_once():
    scale = RewardScale("auto")
    scale.estimate(np.linspace(0, 10, 64))
    with pytest.warns(UserWarning, match=r"reward 500 lies far outside.*reward_range=\(low, high\)"):
        unit = scale.to_unit(np.array([5.0, 500.0, 15.0]))
    np.testing.assert_allclose(unit, [0.5, 2.0, 1.5])
    np.testing.assert_allclose(scale.to_unit(np.array([-1e9])), [-1.0])  # an error if it warned again
    assert scale.clipped == 2
    restored = RewardScale("auto")
    restored.restore(scale.state())
    with pytest.warns(UserWarning, match=r"reward 1e\+09 lies far outside.*--set pair_options\.reward_range"):
        restored.to_unit(np.array([1e9]))  # in another process, which said nothing yet


def test_auto_keeps_the_first_rounds_back_and_learns_all_of_them():
    contexts, rewards = problem(40)
    pulled = np.arange(40) % 2
    paid = 50.0 * rewards[np.arange(40), pulled]
    policy = daband.LinUCB(context_shape=(4,), n_arms=2, reward_range="auto")
    policy.update(contexts[:31], pulled[:31], paid[:31])
    assert policy.counts.sum() == 0
    assert "31 kept back" in repr(policy)
    policy.update(contexts[31:], pulled[31:], paid[31:])
    assert policy.counts.sum() == 40
    given = daband.LinUCB(context_shape=(4,), n_arms=2, reward_range=policy.reward_range)
    given.update(contexts, pulled, paid)
    np.testing.assert_allclose(policy.decide(contexts).mean, given.decide(contexts).mean, atol=1e-9)


@pytest.mark.parametrize(
    "wrong", ["automatic", (1.0, 0.0), (0.0, float("inf")), (0.0,), None, 3.0, (-1.7e308, 1.7e308)]
)
def test_a_range_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidInput, match="reward_range"):
        daband.LinUCB(context_shape=(4,), n_arms=2, reward_range=wrong)


def test_auto_refuses_what_is_not_finite():
    policy = daband.LinUCB(context_shape=(4,), n_arms=2, reward_range="auto")
    with pytest.raises(InvalidInput, match="reward has a NaN"):
        policy.update(np.ones((1, 4)), [0], [np.nan])
    assert "kept back" not in repr(policy)


def test_a_refusal_while_rounds_are_kept_back_loses_none():
    contexts, rewards = problem(60)
    policy = daband.LinUCB(context_shape=(4,), n_arms=2, reward_range="auto", transform=daband.Standardise())
    with pytest.raises(daband.NotFitted):
        policy.update(contexts[:40], np.zeros(40, int), rewards[:40, 0])
    policy.prepare(contexts)
    policy.update(contexts[:20], np.zeros(20, int), rewards[:20, 0])
    policy.update(contexts[20:], np.zeros(40, int), rewards[20:, 0])
    assert policy.counts.sum() == policy.rounds_learned == 60


def test_one_hot_feedback_with_an_unknown_range_refuses_without_a_trace(tmp_path):
    contexts, _ = problem(40)
    policy = daband.DABand(context_shape=(4,), n_arms=2, reward_range="auto", feedback="one_hot", recipe="small")
    policy.update(contexts[:20], np.zeros(20, int), np.arange(20) % 2)
    policy.save(tmp_path / "before")
    with pytest.raises(InvalidInput, match="one_hot"):
        policy.update(contexts[20:], np.zeros(20, int), np.r_[np.arange(19) % 2, 0.5])
    policy.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    policy.update(contexts[20:], np.zeros(20, int), np.arange(20) % 2)
    assert policy.counts.sum() == 40


def test_rewards_beyond_an_estimated_range_do_not_break_training():
    rng = np.random.default_rng(0)
    policy = daband.DABand(context_shape=(4,), n_arms=2, reward_range="auto", recipe="small")
    policy.observe_target(rng.normal(size=(64, 4)))
    policy.update(rng.normal(size=(32, 4)), rng.integers(0, 2, 32), np.linspace(0, 1, 32))
    policy.update(rng.normal(size=(1920, 4)), rng.integers(0, 2, 1920), rng.uniform(1.4, 1.6, 1920))
    measured = policy.adapt(steps=30)
    assert measured["recent_reward"] > 1
    assert 0 <= policy.learner.gate <= 1
    assert measured["source_cross_entropy"] >= 0
    assert measured["skipped_steps"] == 0


@pytest.mark.parametrize("reward_range", [(0.0, 1.0), "auto"])
def test_a_reward_that_is_missing_is_told_with_its_row(reward_range):
    policy = daband.LinUCB(context_shape=(4,), n_arms=2, reward_range=reward_range)
    with pytest.raises(InvalidInput, match="reward has a NaN or infinite value, first in row 1; leave out"):
        policy.update(np.ones((3, 4)), [0, 1, 1], [0.5, np.nan, 0.5])
    assert policy.rounds_learned == 0


def test_where_most_rewards_are_equal_the_others_fix_the_range_and_an_outlier_does_not():
    rewards = np.concatenate([np.zeros(900), np.linspace(90.0, 110.0, 50), [1e6]])
    scale = RewardScale("auto")
    assert scale.estimate(rewards)
    assert (scale.low, scale.high) == (0.0, 110.0)
