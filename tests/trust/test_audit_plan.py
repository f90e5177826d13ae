"""Which contexts are asked for, and the interval that may be read at any time."""

import itertools
import json

import numpy as np
import pytest

from daband.trust._audit import certainty
from daband.trust._audit_plan import Plan, plan_draws, plan_strata
from daband.trust._confidence_intervals import confidence_sequence

PREDICTED = np.concatenate([np.full(700, 0.99), np.random.default_rng(3).random(300)])


@pytest.mark.parametrize("budget", [1, 5, 10, 37, 100, 999, 1000])
def test_as_many_different_contexts_as_the_budget(budget):
    for plan in (plan_strata(PREDICTED, budget=budget, seed=1), plan_draws(PREDICTED, budget=budget, seed=1)):
        assert len(plan) == len(np.unique(plan.ids)) == budget
        assert plan.ids.min() >= 0
        assert plan.ids.max() < 1000


def test_shares_are_those_of_strata_and_every_stratum_is_asked():
    plan = plan_strata(PREDICTED, budget=100, seed=0)
    assert plan.shares.sum() == pytest.approx(1.0)
    assert set(plan.strata) == set(range(len(plan.shares)))
    assert np.bincount(plan.strata).tolist() == [10] * 10
    # Strata are consecutive in the predictions.
    edges = [
        (PREDICTED[plan.ids[plan.strata == row]].min(), PREDICTED[plan.ids[plan.strata == row]].max())
        for row in range(10)
    ]
    assert all(upper <= lower for (_, upper), (lower, _) in itertools.pairwise(edges))


def test_uncertain_contexts_are_asked_more_often_and_certain_ones_too():
    asked = np.zeros(1000)
    for seed in range(100):
        asked[plan_strata(PREDICTED, budget=100, seed=seed).ids] += 1
    assert asked[700:].mean() > 1.5 * asked[:700].mean() > 0
    assert asked[:700].mean() > 100 * 0.05


def test_each_context_of_a_stratum_is_as_likely():
    """Estimates by strata are unbiased: over many plans, the mean of the estimates is the mean of the rewards."""
    generator = np.random.default_rng(11)
    rewards = (generator.random(1000) < PREDICTED).astype(float)
    estimates = []
    for seed in range(300):
        plan = plan_strata(PREDICTED, budget=60, seed=seed)
        drawn = rewards[plan.ids]
        estimates.append(plan.shares @ [drawn[plan.strata == row].mean() for row in range(len(plan.shares))])
    assert np.mean(estimates) == pytest.approx(rewards.mean(), abs=4 * np.std(estimates) / np.sqrt(300))


def test_plans_are_seeded_and_survive_a_file():
    for plan_of in (plan_strata, plan_draws):
        plan = plan_of(PREDICTED, budget=40, seed=5)
        np.testing.assert_array_equal(plan.ids, plan_of(PREDICTED, budget=40, seed=5).ids)
        assert (plan.ids != plan_of(PREDICTED, budget=40, seed=6).ids).any()
        rewards = PREDICTED[plan.ids] > 0.5
        known = Plan.from_dict(json.loads(json.dumps(plan.as_dict())))
        assert known.interval(rewards * 1.0, confidence=0.9) == plan.interval(rewards * 1.0, confidence=0.9)


def test_the_sequence_holds_at_every_time_at_once():
    generator = np.random.default_rng(12)
    rewards = (generator.random(400) < 0.8).astype(float)
    predicted = np.clip(0.5 * rewards + 0.4 * generator.random(400), 0, 1)
    truth, missed = rewards.mean(), 0
    for seed in range(40):
        plan = plan_draws(predicted, budget=120, seed=seed)
        drawn = rewards[plan.ids]
        # The intersection of all earlier ones: if the last one holds, all did.
        found = confidence_sequence(plan.draws, drawn, confidence=0.9)
        missed += not found.low <= truth <= found.high
    assert missed <= 8  # 4 expected at most; more than 8 has a chance of 2 %


def test_the_sequence_shrinks_and_bad_predictions_do_no_harm():
    generator = np.random.default_rng(13)
    rewards = (generator.random(500) < 0.7).astype(float)
    for predicted in (np.full(500, 0.5), 1.0 - rewards, np.ones(500)):
        plan = plan_draws(predicted, budget=200, seed=0)
        widths = []
        for t in (0, 1, 20, 200):
            found = confidence_sequence(plan.draws, rewards[plan.ids[:t]], confidence=0.95)
            assert found.low <= rewards.mean() <= found.high
            assert found.low <= found.value <= found.high
            widths.append(found.high - found.low)
        assert widths == sorted(widths, reverse=True)
        assert widths[0] == 1.0
        assert widths[-1] < 0.5


def test_certainty_is_the_predicted_reward_in_the_order_of_reward_and_lead():
    mean = np.random.default_rng(1).normal(0.5, 0.3, size=(200, 4))
    arm = mean.argmax(axis=1)
    found = certainty(mean, arm)
    np.testing.assert_allclose(np.sort(found), np.sort(np.clip(mean.max(axis=1), 0, 1)))
    two = np.sort(mean, axis=1)[:, -2:]
    order = np.argsort(np.clip(two[:, 1], 0, 1) + np.clip(two[:, 1] - two[:, 0], -1, 1))
    assert (np.diff(found[order]) >= 0).all()
    assert certainty(np.array([[0.3], [7.0]]), np.zeros(2, np.int64)).tolist() == [0.3, 1.0]
