"""The value of a policy under a limit."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import InvalidInput
from daband.serving._limits import Limit


def make_pair(n=3000):
    """Return a log in which arm 1 gains x, so that it is best for half of the contexts."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(n, 1))
    arms = rng.integers(0, 2, n)
    rewards = rng.normal(arms * contexts[:, 0], 0.3)
    log = (contexts, arms, rewards, np.full(n, 0.5))
    target = rng.normal(size=(2000, 1))
    return daband.domains.from_log(source=log, target=target, n_arms=2, shift="covariate")


def test_the_curve_of_a_log_is_that_of_the_largest_gains():
    pair = make_pair()
    choice = daband.choose(pair, candidates=[daband.trust.Candidate("log", "log")])
    curve = daband.budget_curve(choice, pair, use={"1": 1.0}, budgets=[0.0, 0.1, 0.5])
    x = np.sort(np.random.default_rng(1).normal(size=100_000))
    for point, expected in zip(curve, (0.0, x[-10_000:].sum(), x[-50_000:].sum()), strict=True):
        assert point.value == pytest.approx(expected / 100_000, abs=0.04)
        assert point.low < point.value < point.high
        assert point.use == pytest.approx(point.budget, abs=0.03)
    default = daband.budget_curve(choice, pair, use={"1": 1.0})
    assert (len(default), default[0].budget) == (11, 0.0)
    assert default[-1].value == pytest.approx(curve[-1].value, abs=0.02)


def test_the_curve_of_known_rewards_is_exact():
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(2000, 1))
    rewards = np.concatenate([np.zeros_like(contexts), contexts], axis=1)
    pair = daband.domains.from_arrays(source=(contexts, rewards), target=contexts)
    policy = daband.LinUCB.for_pair(pair, alpha=0.0)
    daband.train(policy, source=pair.source, target=pair.target)
    (point,) = daband.budget_curve(policy, pair, use={"1": 2.0}, budgets=[0.4])
    held_out, expected = pair.source_test.read(0, 200), pair.source_test.read_expected(0, 200)
    largest = held_out[:, 0] > np.quantile(contexts, 0.8)
    assert point.value == pytest.approx((largest * expected[:, 1]).mean(), abs=0.03)
    for invalid in (None, {}, {"1": -1.0}):
        with pytest.raises(InvalidInput):
            daband.budget_curve(policy, pair, use=invalid)
    with pytest.raises(InvalidInput):
        daband.budget_curve(policy, pair, use={"1": 1.0}, budgets=[-0.1])


def test_the_assessment_under_limits_is_that_of_the_curve(tmp_path):
    pair = make_pair()
    choice = daband.choose(pair, candidates=[daband.trust.Candidate("log", "log")], incumbent=0)
    free = daband.trust.assess_limits(choice, pair, [Limit((0.0, 1.0), 1.0)])
    for name in ("advantage", "low", "source_advantage", "target_arms", "verdict"):
        assert getattr(free, name) == pytest.approx(getattr(choice.assessment, name)), name
    file = tmp_path / "p.daband"
    daband.export(choice.policy, file, pair=pair, at_most={"1": 0.1})
    limits = daband.load_deployed(file).limiter.limits
    limited = daband.trust.assess_limits(choice, pair, limits)
    points = daband.budget_curve(choice, pair, use={"1": 1.0}, budgets=[0.1, 1.0])
    expected = choice.assessment.advantage - (points[1].value - points[0].value)
    assert limited.advantage == pytest.approx(expected, abs=0.005)
    assert limited.target_arms[1] == pytest.approx(0.1, abs=0.01)
    assert 0.0 < limited.low < limited.advantage < choice.assessment.advantage
    assert limited.incumbent == choice.assessment.incumbent
    none = daband.trust.assess_limits(choice, pair, [Limit((0.0, 1.0), 0.0, (9.9,), (0.0,))])
    assert none.verdict == "keep the incumbent"


def test_an_incumbent_that_the_choice_does_not_store_is_an_error():
    """Before: the best arm was the incumbent, without a word."""
    pair = make_pair(400)
    log = [daband.trust.Candidate("log", "log")]
    limit = Limit((0.0, 1.0), 1.0)
    policy = daband.Constant.for_pair(pair, arm=1)
    for incumbent in (np.arange(2000) % 2, policy):
        choice = daband.choose(pair, candidates=log, incumbent=incumbent)
        with pytest.raises(InvalidInput, match=r"incumbent=COLUMN"):
            daband.trust.assess_limits(choice, pair, [limit])


def test_two_prices_are_mixed_in_the_assessment_of_a_constant_policy():
    rng = np.random.default_rng(0)
    contexts, arms = rng.normal(size=(3000, 1)), rng.integers(0, 2, 3000)
    log = (contexts, arms, rng.normal(arms, 0.3), np.full(3000, 0.5))
    pair = daband.domains.from_log(source=log, target=contexts, n_arms=2, shift="covariate")
    choice = daband.choose(pair, candidates=[daband.trust.Candidate("log", "log")], incumbent=0)
    limit = Limit((0.0, 1.0), 0.2, (0.0, 9.9), (1.0, 0.0))
    limited = daband.trust.assess_limits(choice, pair, [limit])
    assert limited.advantage == pytest.approx(0.2 * choice.assessment.advantage, rel=0.01)
    assert limited.target_arms[1] == pytest.approx(0.2, abs=0.03)


def test_arms_that_are_not_offered_are_not_chosen_under_a_limit(tmp_path):
    rng = np.random.default_rng(0)
    contexts, arms = rng.normal(size=(3000, 1)), rng.integers(0, 4, 3000)
    rewards = rng.normal(np.array([0.0, 1.0, 5.0, 6.0])[arms] + 0.1 * contexts[:, 0] * arms)
    names = ["mail", "call", "visit", "gift"]
    table = pl.DataFrame({"id": names, "price": [1.0, 2.0, 3.0, 4.0]})
    pair = daband.domains.from_log(
        source=(contexts, arms, rewards, np.full(3000, 0.25)),
        target=contexts,
        n_arms=4,
        class_names=names,
        arms={"source": table, "target": table[:2]},
    )
    candidates = [daband.trust.Candidate("linucb", "linucb")]
    choice = daband.choose(pair, candidates=candidates, incumbent="mail")
    file = tmp_path / "p.daband"
    daband.export(choice.policy, file, pair=pair, at_most={"call": 0.2, "gift": 0.1})
    limits = daband.load_deployed(file).limiter.limits
    assessment = daband.trust.assess_limits(choice, pair, limits)
    assert assessment.target_arms[2:] == [0.0, 0.0]
    assert assessment.target_arms[1] == pytest.approx(0.2, abs=0.05)
