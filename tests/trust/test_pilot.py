"""A pilot: its plan, its file, its rounds, its decision and its report."""

import shutil

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import InvalidInput
from daband.logs._controlled_trial import TrialCounts
from daband.trust import Pilot, plan_pilot
from daband.trust._pilot import compute_largest_loss, draw_surprises
from daband.trust._pilot_simulation import WeekRewards, simulate_pilots
from daband.trust._report import write_choice_report

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
def planned(log, tmp_path_factory):
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
    plan_pilot(choice, per_week=1000, weeks=6).save(data / "market" / "pilot")
    return data / "market"


@pytest.fixture
def folder(planned, tmp_path):
    """A copy of that folder."""
    return shutil.copytree(planned, tmp_path / "market")


def run_week(folder, week, *, call, letter=0.3, missing=0.0, n=1000):
    """Decide for n customers by the pilot's file, draw rewards, and write the log."""
    pilot = Pilot(folder)
    file = folder.parent / "pilot.daband"
    policy = daband.load(folder / "policy.safetensors")
    daband.export(policy, file, incumbent=pilot.plan.incumbent, pilot=pilot.settings)
    deployed = daband.load_deployed(file)
    rng = np.random.default_rng(week)
    rows = pl.DataFrame({"age": rng.normal(42.0, 10.0, n).round(1)})
    decision = deployed.decide(rows, round_number=week * n)
    is_call = np.array(decision.arm_name) == "call"
    rewards = (rng.random(n) < np.where(is_call, call, letter)).astype(float)
    is_missing = rng.random(n) < missing
    frame = rows.with_columns(
        visit=pl.Series([f"{week}-{row}" for row in range(n)]),
        arm=pl.Series(decision.arm_name),
        propensity=pl.Series(decision.propensity),
        reward=pl.Series(rewards),
    )
    path = folder.parent / f"week{week}.csv"
    frame.with_columns(
        reward=pl.when(pl.Series(is_missing)).then(None).otherwise(pl.col("reward"))
    ).write_csv(path)
    return path, frame


def add(folder, path):
    columns = {"arm": "arm", "reward": "reward", "propensity": "propensity"}
    return Pilot(folder).add_log(path, **columns, id_column="visit")


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


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan = plan_pilot(per_week=2000, **SIMPLE)
    plan.save(tmp_path)
    assert daband.trust.PilotPlan.load(tmp_path) == plan
    with pytest.raises(InvalidInput, match=r"/other .*`daband pilot plan DIR`"):
        daband.trust.PilotPlan.load(tmp_path / "other")


def test_a_better_policy_is_deployed_and_a_decision_is_final(folder):
    plan = Pilot(folder).plan
    assert plan.rule.expected_effect > 0
    assert plan.incumbent == "letter"
    statuses = []
    for week in range(6):
        path, _ = run_week(folder, week, call=0.55)
        statuses.append(add(folder, path))
        if statuses[-1].decision != "go on":
            break
    assert statuses[-1].decision == "deploy"
    assert statuses[-1].low > 0
    assert statuses[-1].low < statuses[-1].advantage < statuses[-1].high
    assert statuses[-1].fraction == 1.0
    assert Pilot(folder).settings["control"] == 0.0
    assert len(Pilot(folder).course) == len(statuses)
    path, _ = run_week(folder, 10, call=0.0)  # everybody gets the policy now
    assert add(folder, path).decision == "deploy"
    report = write_choice_report(folder).read_text()
    assert "<h2>Pilot</h2>" in report
    assert report.count("<svg") == 4


def test_a_worse_policy_costs_no_more_than_the_limit(folder):
    plan = Pilot(folder).plan
    cost = 0.0
    for week in range(6):
        path, frame = run_week(folder, week, call=0.0)
        cost += 0.3 * frame.filter(pl.col("arm") == "call").height
        status = add(folder, path)
        if status.decision != "go on":
            break
    assert status.decision == "keep the incumbent"
    assert status.fraction == 0.0
    assert cost <= plan.largest_cost
    path, frame = run_week(folder, 9, call=0.0)
    assert set(frame["arm"]) == {"letter"}


def test_a_log_can_be_added_again_with_late_rewards(folder):
    path, frame = run_week(folder, 0, call=0.5, missing=0.3)
    first = add(folder, path)
    assert first.missing > 0
    assert add(folder, path) == first
    assert len(Pilot(folder).course) == 1
    frame.write_csv(path)
    later = add(folder, path)
    assert (later.missing, later.rounds) == (0, first.rounds)
    assert sum(later.rewards) == later.differing_rounds > sum(first.rewards)


def test_logs_that_are_not_of_the_pilot(folder):
    path, frame = run_week(folder, 0, call=0.5)
    with pytest.raises(InvalidInput, match="--id"):
        Pilot(folder).add_log(
            path, arm="arm", reward="reward", propensity="propensity", id_column=None
        )
    for wrong, message in [
        (frame.drop("propensity"), r"week0\.csv .*'propensity' \("),
        (frame.with_columns(visit=pl.lit("same")), r"week0\.csv: .*visit "),
        (frame.with_columns(arm=pl.lit("call"), propensity=pl.lit(0.9)), r"visit 0-0 .*0\.5;"),
    ]:
        wrong.write_csv(path)
        with pytest.raises(InvalidInput, match=message):
            add(folder, path)
    assert Pilot(folder).read_status().rounds == 0


@pytest.mark.parametrize("value", [None, np.nan], ids=str)
def test_a_round_without_a_propensity_is_an_error_and_nothing_is_lost(folder, value):
    """Before: it was stored, and every later status failed."""
    before = add(folder, run_week(folder, 0, call=0.5)[0])
    path, frame = run_week(folder, 1, call=0.5)
    path = path.with_suffix(".parquet")
    is_bad = pl.int_range(len(frame)) == 7
    frame.with_columns(
        propensity=pl.when(is_bad).then(value).otherwise(pl.col("propensity")),
    ).write_parquet(path)
    with pytest.raises(InvalidInput, match=r"week1\.parquet: .*visit 1-7 .*propensity"):
        add(folder, path)
    assert Pilot(folder).read_status() == before
    frame.write_parquet(path)
    assert add(folder, path).rounds == 2 * before.rounds


def test_the_incumbent_may_be_a_column_of_today_s_arms(log, tmp_path):
    today = pl.when(pl.col("age") < 45).then(pl.lit("letter")).otherwise(pl.lit("call"))
    columns = daband.domains.Columns(["age"], arm="offer", reward="sale", propensity="propensity")
    target = log.select("age", today=today)
    pair = daband.domains.from_table(source=log, target=target, columns=columns)
    choice = daband.choose(pair, incumbent="today")
    choice.save(tmp_path / "market")
    plan = plan_pilot(choice, per_week=1000, weeks=6, min_reward=0.0)
    plan.save(tmp_path / "market" / "pilot")
    pilot = Pilot(tmp_path / "market")
    file = tmp_path / "pilot.daband"
    daband.export(choice.policy, file, pilot=pilot.settings)
    deployed = daband.load_deployed(file)
    assert deployed.columns == ("age", "today")
    rows = target.head(1000)
    decision = deployed.decide(rows, round_number=0)
    assert not any(decision.warnings)
    best = choice.policy.decide(pair.table.contexts(rows), "target", rule="greedy").arm
    is_best = np.array(decision.arm_name) == np.array(pair.class_names)[best]
    is_today = np.array(decision.arm_name) == rows["today"].to_numpy()
    fraction = 1.0 - pilot.settings["control"]
    expected = np.where(is_best, fraction, 0.0) + np.where(is_today, 1.0 - fraction, 0.0)
    assert np.allclose(decision.propensity, expected)
    assert len(set(expected.tolist())) == 3  # the two agree, or one of them is drawn
    for single in (rows.row(0, named=True), rows.to_pandas().iloc[0]):
        assert deployed.decide(single, round_number=0).propensity == decision.propensity[0]
    mappings = deployed.decide(rows.to_dicts(), round_number=0)
    assert np.array_equal(mappings.arm, decision.arm)
    for wrong in ({"age": 40.0}, {"age": 40.0, "today": "fax"}, [{"age": 40.0, "today": None}]):
        with pytest.raises(InvalidInput, match="today"):
            deployed.decide(wrong)
    frame = rows.with_columns(
        visit=pl.int_range(1000),
        arm=pl.Series(decision.arm_name),
        propensity=pl.Series(decision.propensity),
        reward=pl.lit(1.0),
    )
    frame.write_csv(tmp_path / "week.csv")
    status = add(tmp_path / "market", tmp_path / "week.csv")
    differs = expected < 1.0
    assert status.differing_rounds == differs.sum()
    assert status.rewards == ((is_best & differs).sum(), (is_today & differs).sum())
    frame.drop("today").write_csv(tmp_path / "week.csv")
    with pytest.raises(InvalidInput, match="today"):
        add(tmp_path / "market", tmp_path / "week.csv")
    with pytest.raises(InvalidInput, match="incumbent=COLUMN"):
        plan_pilot(daband.choose(pair, incumbent=choice.policy), per_week=1000)


def test_a_pilot_file_draws_policy_or_incumbent(folder):
    path, frame = run_week(folder, 0, call=0.5, n=3000)
    settings = Pilot(folder).settings
    deployed = daband.load_deployed(path.parent / "pilot.daband")
    assert deployed.control == settings["control"]
    differing = frame.filter(pl.col("propensity") < 1.0)
    fraction = 1.0 - settings["control"]
    is_call = (differing["arm"] == "call").to_numpy()
    assert np.allclose(differing["propensity"], np.where(is_call, fraction, 1.0 - fraction))
    assert is_call.mean() == pytest.approx(fraction, abs=4 * np.sqrt(fraction / len(differing)))
    only = deployed.decide({"age": 60.0}, arms=["call"])  # the incumbent cannot be chosen
    assert (only.arm_name, only.propensity) == ("call", 1.0)
    policy = daband.load(folder / "policy.safetensors")
    with pytest.raises(InvalidInput, match="epsilon"):
        daband.export(policy, path, incumbent="letter", pilot=settings, epsilon=0.1)
    with pytest.raises(InvalidInput, match="incumbent"):
        daband.export(policy, path, pilot=settings)
