"""A pilot: its plan, its file, its rounds, its decision and its report."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import InvalidInput
from daband.logs._controlled_trial import TrialCounts
from daband.trust import plan_pilot
from daband.trust._pilot import compute_largest_loss, draw_surprises
from daband.trust._pilot_simulation import WeekRewards, simulate_pilots

SIMPLE = {"incumbent_mean": 0.2, "reward_deviation": 0.4, "min_reward": 0.0}
NO_REWARDS = TrialCounts().moments


@pytest.fixture(scope="module")
def log():
    """Old customers, the offers that they got at random, and sales."""
    rng = np.random.default_rng(0)
    ages = rng.normal(40.0, 10.0, 3000).round(1)
    arms = rng.integers(0, 2, 3000)
    means = np.where(arms == 1, 0.5 - 0.3 * (ages < 35), 0.3)
    return pl.DataFrame(
        {
            "age": ages,
            "offer": np.array(["letter", "call"])[arms],
            "sale": (rng.random(3000) < means).astype(float),
            "propensity": 0.5,
        }
    )


@pytest.fixture(scope="module")
def folder(log, tmp_path_factory):
    """The folder of a choice with a plan, which no test changes."""
    data = tmp_path_factory.mktemp("data")
    log.write_csv(data / "old.csv")
    log.select("age").write_csv(data / "new.csv")
    options = daband.domains.DataOptions(
        source=str(data / "old.csv"),
        target=str(data / "new.csv"),
        arm="offer",
        reward="sale",
        propensity="propensity",
    )
    choice = daband.choose(options.read(), incumbent="letter", unit="sales")
    choice.save(data / "market")
    return data / "market"


def test_a_plan_without_a_source_is_a_test_of_two_arms():
    plan = plan_pilot(per_week=2000, **SIMPLE)
    assert plan.largest_cost == pytest.approx(0.01 * 0.2 * 24_000)
    assert 0 < plan.rounds <= plan.rounds_90 <= plan.planned_rounds == 24_000
    assert plan.weeks == plan.rounds / 2000
    assert 0.0 <= plan.expected_cost <= plan.largest_cost
    assert plan.error <= plan.rule.error
    assert plan.rule.expected_effect is None
    course = np.array(plan.course)
    assert course[:, 0].tolist() == [2000.0 * (week + 1) for week in range(12)]
    assert (np.diff(course[:, :3], axis=0) >= 0.0).all()
    assert course[-1, 1:4].tolist() == pytest.approx([plan.deploy, 1.0, plan.expected_cost])
    assert course[int(plan.weeks_90) - 1, 2] >= 0.9
    assert (course[:, 4] <= plan.largest_cost).all()  # it may be reached by 5% at any time
    larger = plan_pilot(per_week=2000, max_loss=0.05, **SIMPLE)
    assert "--max-loss" not in str(plan)  # nothing is expected
    assert larger.rounds_90 >= larger.rounds
    assert larger.deploy > plan.deploy  # a larger limit shows more
    assert plan_pilot(per_week=2000, **SIMPLE) == plan


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_loss": 0.0}, "max_loss"),
        ({"per_week": 0.5}, "per_week"),
        ({"weeks": 0}, "weeks"),
        ({"incumbent_mean": -1.0}, "incumbent_mean"),
        ({"incumbent_mean": None}, "incumbent_mean"),
        ({"reward_deviation": 0.0}, "reward_deviation"),
        ({"drift": -0.1}, "drift"),
    ],
)
def test_a_plan_that_cannot_be(options, name):
    with pytest.raises(InvalidInput, match=name):
        plan_pilot(**{"per_week": 2000, **SIMPLE, **options})


def test_a_larger_drift_leaves_a_smaller_chance_of_a_proof():
    careful, usual, alike = (
        plan_pilot(per_week=2000, drift=drift, **SIMPLE) for drift in (1.0, 0.5, 0.0)
    )
    assert usual == plan_pilot(per_week=2000, **SIMPLE)
    # the incumbent's mean is 0.2
    assert [plan.rule.drift for plan in (careful, usual, alike)] == [0.2, 0.1, 0.0]
    assert [plan.rule.worst_loss for plan in (careful, alike)] == [0.4, 0.2]
    assert careful.deploy + careful.keep < alike.deploy + alike.keep


@pytest.mark.parametrize("rate", [0.0005, 0.002])
def test_the_cost_stays_below_its_limit_if_large_rewards_are_rare(rate):
    """A fraction of customers buys for an exponential amount; the policy sells nothing."""
    plan = plan_pilot(
        per_week=2000,
        max_loss=0.05,
        incumbent_mean=rate,
        reward_deviation=(2.0 * rate) ** 0.5,
        min_reward=0.0,
    )
    rng = np.random.default_rng(0)

    def draw(_, fractions):
        n_policy = rng.binomial(2000, fractions).astype(float)
        counts = np.stack([n_policy, 2000.0 - n_policy], axis=1)
        n_sales = rng.binomial(counts.astype(int), [0.0, rate])
        sums, squares = np.zeros((2, *n_sales.shape))
        for at in np.argwhere(n_sales):
            amounts = rng.exponential(1.0, n_sales[tuple(at)])
            sums[tuple(at)], squares[tuple(at)] = amounts.sum(), np.square(amounts).sum()
        return WeekRewards(n_policy, counts, sums, squares, np.full(len(fractions), rate))

    pilots = simulate_pilots(plan.rule, draw, n_pilots=300, rounds_per_week=2000.0, n_weeks=12)
    assert (pilots.costs.max(axis=1) > plan.largest_cost).mean() <= 0.05
    assert (pilots.costs.max(axis=1) > 0.5 * plan.largest_cost).mean() > 0.5  # it is used


def test_the_source_limits_the_size_of_a_loss(folder):
    choice = daband.trust.Choice.load(folder)
    usual, stated = (plan_pilot(choice, per_week=1000, drift=drift) for drift in (None, 0.5))
    assessment = choice.assessment
    effect = assessment.advantage / assessment.disagreement
    largest = compute_largest_loss(
        effect, (assessment.advantage - assessment.low) / 1.2816 / assessment.disagreement
    )
    assert effect < usual.rule.worst_loss < stated.rule.worst_loss
    assert usual.rule.worst_loss == pytest.approx(largest)
    assert usual.rule.drift <= usual.rule.worst_loss
    small = plan_pilot(choice, per_week=1000, max_loss=0.001)
    assert small.deploy < 0.5 < usual.deploy
    assert "--max-loss" in str(small)
    assert "--max-loss" not in str(usual)
    assert stated.rule.drift == pytest.approx(stated.rule.worst_loss / 3.0)
    # more rounds of the policy may then be risked in the first week
    fractions = [plan.rule.choose_fraction(NO_REWARDS, 1000.0) for plan in (usual, stated)]
    assert 0.5 >= fractions[0] > fractions[1] > 0.0
    # the sign of the source's advantage is not used
    assert compute_largest_loss(-effect, 0.0) == compute_largest_loss(effect, 0.0) == effect
    draws = draw_surprises(np.random.default_rng(0), 100_000)
    assert (draws > compute_largest_loss(0.0, 1.0)).mean() == pytest.approx(0.05, abs=0.004)


def test_the_smallest_reward_of_a_table_may_be_negative(tmp_path):
    """Before: 0 was the smallest reward, which makes the largest loss too small."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=600).round(3)
    rows = {"x": x, "letter": rng.normal(2.0, 1.0, 600), "call": 2.0 + x}
    pl.DataFrame(rows).write_csv(tmp_path / "old.csv")
    pl.DataFrame({"x": x}).write_csv(tmp_path / "new.csv")
    options = daband.domains.DataOptions(
        source=str(tmp_path / "old.csv"),
        target=str(tmp_path / "new.csv"),
        rewards=("letter", "call"),
    )
    pair = options.read()
    candidates = [daband.trust.Candidate("linucb", "linucb")]
    choice = daband.choose(pair, candidates=candidates, incumbent="letter")
    lowest = pair.source.read_rewards(np.arange(len(pair.source)))[0].min()
    assert lowest < -0.5
    plan, stated, from_zero = (
        plan_pilot(choice, per_week=1000, drift=0.5, **options)
        for options in ({}, {"min_reward": lowest}, {"min_reward": 0.0})
    )
    assert plan == stated
    assert plan.rule.worst_loss > 1.2 * from_zero.rule.worst_loss


def test_simulated_advantages_have_the_quantile_of_the_assessment():
    draws = draw_surprises(np.random.default_rng(0), 100_000)
    assert np.quantile(draws, [0.1, 0.5]) == pytest.approx([-1.2816, 0.0], abs=0.03)
    assert (draws < -4.0).mean() > 0.02  # a normal distribution has 0.00003
