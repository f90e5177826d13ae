"""Costs: arms are chosen by net value, and the mean cost keeps to a budget."""

import numpy as np
import pytest

import daband
from daband.errors import InvalidInput
from daband.policies._budget_pacing import Paced


def trained(n=4000, seed=0, reward_range=(0.0, 1.0)):
    """A policy that knows: the second arm pays more where the first number is large, the third always pays .9."""
    rng = np.random.default_rng(seed)
    contexts = np.concatenate([rng.uniform(0, 1, (n, 1)), np.ones((n, 1))], axis=1)
    low, high = reward_range
    table = np.stack([np.full(n, 0.2), 0.2 + 0.6 * contexts[:, 0], np.full(n, 0.9)], axis=1) * (high - low) + low
    policy = daband.LinUCB(context_shape=(2,), n_arms=3, alpha=0.0, ridge=1e-3, reward_range=reward_range)
    arms = rng.integers(0, 3, n)
    policy.update(contexts, arms, table[np.arange(n), arms])
    return policy, contexts, table


def test_arms_are_chosen_by_net_value():
    policy, contexts, table = trained()
    cost = np.array([0.0, 0.3, 0.8])
    decision = Paced(policy, cost=cost).select(contexts)
    np.testing.assert_array_equal(decision.arm, (table - cost).argmax(axis=1))
    assert (decision.propensity == 1).all()


@pytest.mark.parametrize("reward_range", [(0.0, 1.0), (-50.0, 150.0)])
@pytest.mark.parametrize("budget", [0.0, 0.05, 0.2])
def test_a_budget_is_kept_and_well_spent(budget, reward_range):
    policy, contexts, table = trained(reward_range=reward_range)
    span = reward_range[1] - reward_range[0]
    cost = np.array([0.0, 0.4, 0.5]) * span
    paced = Paced(policy, cost=cost, budget=budget * span)
    arms = paced.select(contexts).arm
    assert paced.spent / paced.rounds <= (budget + 0.01) * span
    net = (table - cost)[np.arange(len(arms)), arms].mean()
    free = (table - cost)[:, 0].mean()
    # The third arm gains .2 net for .5: the best that a budget allows is a share of it, up to rounds enough.
    wanted = min(1.0, budget / 0.5) * 0.2 * span
    assert net - free >= 0.85 * wanted - 0.01 * span


def test_a_budget_that_does_not_bind_changes_nothing():
    policy, contexts, _ = trained()
    cost = [0.0, 0.1, 0.2]
    free, bound = Paced(policy, cost=cost), Paced(policy, cost=cost, budget=0.5)
    np.testing.assert_array_equal(free.select(contexts).arm, bound.select(contexts).arm)
    assert bound.price == 0.0


def test_costs_by_row_and_arms_that_are_not_available():
    policy, contexts, _ = trained()
    cost = np.zeros((100, 3))
    cost[::2, 2] = 5.0
    arms = Paced(policy).select(contexts[:100], cost=cost).arm
    assert (arms[1::2] == 2).all()
    assert not (arms[::2] == 2).any()
    assert not (Paced(policy, cost=[0, 0, 0]).select(contexts, available=[True, True, False]).arm == 2).any()


def test_an_evaluation_has_net_values():
    policy, contexts, table = trained()
    test = daband.domains.ArrayEvaluation(contexts, table)
    before = daband.evaluate(policy, test)
    assert before.cost is None
    assert before.net_value == before.value
    assert "cost" not in before.as_dict()
    by_arm = daband.evaluate(policy, test, cost=[0.0, 0.3, 0.8])
    assert by_arm.net_value == pytest.approx((table - [0.0, 0.3, 0.8]).max(axis=1).mean(), abs=1e-3)
    assert by_arm.as_dict()["net_value"] == by_arm.net_value
    by_row = daband.evaluate(policy, test, cost=np.tile([0.0, 0.3, 0.8], (len(contexts), 1)))
    assert by_row.net_value == by_arm.net_value
    assert daband.evaluate(policy, test, cost=[0.0, 0.4, 0.5], budget=0.1).cost <= 0.11
    assert policy.rounds_decided == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cost": [1.0, 2.0]}, "shape"),
        ({"cost": [0.0, -1.0, 1.0]}, "numbers >= 0"),
        ({"cost": [0.0, 1.0, 1.0], "budget": -1.0}, "must not be negative"),
    ],
)
def test_what_is_no_cost_is_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        Paced(trained(50)[0], **given)


def test_a_policy_without_widths_is_refused():
    with pytest.raises(InvalidInput, match="must predict rewards"):
        Paced(daband.Random(context_shape=(2,), n_arms=3), cost=[0, 0, 0])
    with pytest.raises(InvalidInput, match="cost is missing"):
        Paced(trained(50)[0]).select([[0.5, 1.0]])
