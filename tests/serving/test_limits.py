"""Limits on arms hold while deciding row by row, and propensities are known."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import daband
from daband.errors import InvalidInput
from daband.serving._limits import Limit, Limiter, fit_limits

ARMS = ("mail", "call", "visit")


def draw_contexts(seed, n):
    """Return contexts (n, 2): a constant and a normal number."""
    return np.stack([np.ones(n), np.random.default_rng(seed).normal(size=n)], axis=1)


CONTEXTS = draw_contexts(5, 2000)


def make_policy(slope=1.0):
    """Return a policy for which call gains 0.5 + slope x over mail, and visit 0.2."""
    rng = np.random.default_rng(0)
    contexts = draw_contexts(0, 3000)
    arms = rng.integers(0, 3, 3000)
    gains = np.stack([np.zeros(3000), 0.5 + slope * contexts[:, 1], np.full(3000, 0.2)], axis=1)
    policy = daband.LinUCB(
        context_shape=(2,), n_arms=3, alpha=0.0, seed=0, ridge=1e-3, explore="greedy"
    )
    if slope == 0.0:
        policy = daband.Constant(context_shape=(2,), n_arms=3, alpha=0.0, seed=0)
    policy.update(contexts, arms, gains[np.arange(3000), arms])
    return policy


def export(tmp_path, policy, **options):
    daband.export(policy, tmp_path / "p.daband", arm_names=ARMS, reference=CONTEXTS, **options)
    return daband.load_deployed(tmp_path / "p.daband")


def test_the_largest_gains_get_the_limited_arm(tmp_path):
    deployed = export(tmp_path, make_policy(), at_most={"call": 0.05})
    rows = draw_contexts(1, 4000)
    decisions = deployed.decide(rows, round_number=0)
    is_call = decisions.arm == 1
    assert 0.045 < is_call.mean() <= 0.05 + 1 / 4000
    best = np.argsort(-rows[:, 1])[:200]
    assert is_call[best].mean() > 0.85
    assert set(decisions.arm) == {1, 2}


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.5])
def test_a_constant_policy_draws_the_limited_arm_at_random(tmp_path, fraction):
    deployed = export(tmp_path, make_policy(slope=0.0), at_most={"call": fraction})
    counts, weights = np.zeros(3), np.zeros(3)
    for number in range(1500):
        decision = deployed.decide([1.0, 0.0], round_number=number)
        counts[decision.arm] += 1
        weights[decision.arm] += 1 / decision.propensity
        assert counts[1] <= fraction * (number + 1) + 1
    assert counts[1] == pytest.approx(1500 * fraction, abs=12)
    assert counts[0] == 0  # visits are the second best
    assert weights[2] == pytest.approx(1500, rel=0.15)
    if fraction:
        assert weights[1] == pytest.approx(1500, rel=0.35)


def test_a_budget_and_several_limits(tmp_path):
    deployed = export(
        tmp_path,
        make_policy(),
        at_most={"visit": 0.1},
        max_cost=0.5,
        costs={"call": 2.0, "visit": 1.0},
    )
    arms = np.array([deployed.decide(row, round_number=n).arm for n, row in enumerate(CONTEXTS)])
    assert (arms == 2).mean() <= 0.1 + 1 / 2000
    cost = np.array([0.0, 2.0, 1.0])[arms].mean()
    assert 0.48 < cost <= 0.5 + 2 / 2000


def test_prices_are_those_of_the_best_policy_under_the_limit():
    """The value is that of the linear program, for three arms of different costs."""
    from scipy.optimize import linprog

    rng = np.random.default_rng(0)
    scores = rng.normal([0.0, 0.3, 0.6], size=(60, 3))
    use = np.array([0.0, 1.0, 3.0])
    for rate in (0.1, 0.5, 1.2):
        rows = np.kron(np.eye(60), np.ones(3))
        best = linprog(-scores.ravel() / 60, np.tile(use, 60)[None] / 60, [rate], rows, np.ones(60))
        (limit,) = fit_limits(scores, [Limit(tuple(use), rate)])
        value = spent = 0.0
        for price, weight in limit.mix_prices(rate):
            arms = (scores - price * use).argmax(axis=1)
            value += weight * scores[np.arange(60), arms].mean()
            spent += weight * use[arms].mean()
        assert spent == pytest.approx(rate)
        assert value == pytest.approx(-best.fun, abs=0.004)


def test_exploration_and_the_control_group_keep_propensities(tmp_path):
    deployed = export(tmp_path, make_policy(), at_most={"call": 0.3}, epsilon=0.3, incumbent="mail")
    rows = CONTEXTS[:1500]
    decisions = deployed.decide(rows, round_number=0, control=0.2)
    for arm in range(3):
        weights = (decisions.arm == arm) / decisions.propensity
        expected = 1.0 if arm != 1 else None
        if expected:
            assert weights.mean() == pytest.approx(expected, abs=0.2)
    assert (decisions.arm == 1).mean() <= 0.3 + 1 / 1500
    assert decisions.in_control.mean() == pytest.approx(0.2, abs=0.04)
    among = deployed.decide(rows[0], arms=["visit", "call"])
    assert among.arm_name in ("visit", "call")


def test_actual_costs_replace_expected_ones():
    limiter = Limiter([Limit((0.0, 1.0), 0.5)])
    limiter.usage.used += 1.0
    limiter.record_use(1, 1.5)
    assert limiter.usage.used.tolist() == [1.5]
    assert limiter.continue_from(None) is limiter
    assert Limiter(limiter.limits).continue_from(limiter).usage is limiter.usage


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"at_most": {"cal": 0.1}}, "'cal'"),
        ({"at_most": {"call": 1.1}}, "'call'.*1.1"),
        ({"at_most": {"visit": "0.1"}}, "'visit'.*'0.1'"),
        ({"at_most": dict.fromkeys(ARMS, 0.3)}, "add up to 0.9"),
        ({"max_cost": 1.0}, "costs"),
        ({"max_cost": "1", "costs": {"call": 2.0}}, "max_cost.*'1'"),
        ({"max_cost": 0.5, "costs": dict.fromkeys(ARMS, 1.0)}, "costs 1 per"),
        # at least 0.8 of the decisions are calls for 2 or visits for 1
        ({"max_cost": 0.5, "costs": {"call": 2, "visit": 1}, "at_most": {"mail": 0.2}}, "0.8 per"),
    ],
)
def test_invalid_limits_and_limits_that_cannot_hold(tmp_path, options, text):
    with pytest.raises(InvalidInput, match=text):
        export(tmp_path, make_policy(), **options)


def test_limits_need_contexts(tmp_path):
    with pytest.raises(InvalidInput, match="reference"):
        daband.export(make_policy(), tmp_path / "p.daband", at_most={"1": 0.1})


@pytest.mark.slow
def test_limits_hold_under_16_threads(tmp_path):
    deployed = export(tmp_path, make_policy(slope=0.0), at_most={"call": 0.05})
    largest = []

    def decide(seed):
        calls = []
        for row in draw_contexts(seed, 250):
            calls.append(deployed.decide(row).arm == 1)
            usage = deployed.limiter.usage
            with usage.lock:
                largest.append(usage.used[0] - 0.05 * usage.decisions)
        return sum(calls)

    with ThreadPoolExecutor(16) as pool:
        calls = sum(pool.map(decide, range(16)))
    assert max(largest) <= 1.0 + 1e-9
    assert calls == deployed.limiter.usage.used[0]
    assert deployed.limiter.usage.decisions == 4000
    assert 0.04 * 4000 < calls <= 0.05 * 4000 + 1
