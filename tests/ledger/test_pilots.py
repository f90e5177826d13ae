"""The pilot of a market: its rounds, its decision, its cost and its end."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.ledger._decisions import decide_rows
from daband.trust import PilotPlan, plan_pilot
from tests.ledger.conftest import run_week


@pytest.fixture
def planned(folder):
    with daband.open_market(folder) as market:
        market.plan_pilot(per_week=1000, weeks=6)
    return folder


def learn(folder, path):
    """Learn a log, and return the status of the pilot."""
    with daband.open_market(folder) as market:
        market.learn(path)
        return market.pilot.read_status()


def test_a_better_policy_is_deployed_and_a_decision_is_final(planned):
    statuses = []
    for week in range(6):
        path, _ = run_week(planned, week, call=0.55, n=1000, pilot=True)
        statuses.append(learn(planned, path))
        if statuses[-1].decision != "go on":
            break
    assert statuses[-1].decision == "deploy"
    assert 0 < statuses[-1].low < statuses[-1].advantage < statuses[-1].high
    assert statuses[-1].fraction == 1.0
    path, _ = run_week(planned, 10, call=0.0, n=1000, pilot=True)  # everybody gets the policy
    assert learn(planned, path).decision == "deploy"
    with daband.open_market(planned) as market:
        assert len(market.pilot.course) == len(statuses)
        plan = market.pilot.plan
        assert PilotPlan.from_dict({**vars(plan), "rule": vars(plan.rule)}) == plan
    report = daband.open_market(planned).report().read_text()
    assert "<h2>Pilot</h2>" in report


def test_a_worse_policy_costs_no_more_than_the_limit(planned):
    with daband.open_market(planned) as market:
        largest_cost = market.pilot.plan.largest_cost
    cost = 0.0
    for week in range(6):
        path, frame = run_week(planned, week, call=0.0, n=1000, pilot=True)
        cost += 0.3 * frame.filter(pl.col("arm") == "call").height
        status = learn(planned, path)
        if status.decision != "go on":
            break
    assert status.decision == "keep the incumbent"
    assert status.fraction == 0.0
    assert cost <= largest_cost
    _, frame = run_week(planned, 9, call=0.0, pilot=True)
    assert set(frame["arm"]) == {"letter"}


def test_late_rewards_and_logs_that_are_not_of_the_pilot(planned):
    path, frame = run_week(planned, 0, missing=0.3, n=1000, pilot=True)
    percent = frame.with_columns(pl.col("propensity") * 100)
    others = frame.with_columns(arm=pl.lit("call"), propensity=1.0)
    even = frame.with_columns(propensity=0.5, control=0.5)
    with daband.open_market(planned) as market:
        for wrong in (percent, others, even):
            with pytest.raises(daband.DabandError, match="propensity"):
                market.learn(wrong)
        assert market.pilot.read_status().rounds == 0
    first = learn(planned, path)
    assert first.missing > 0
    assert first.decision == "go on"
    assert learn(planned, path) == first
    frame.write_csv(path)
    later = learn(planned, path)
    assert (later.missing, later.rounds) == (0, first.rounds)
    assert sum(later.rewards) == later.differing_rounds > sum(first.rewards)
    # a log of another export is learned, but it is not of the pilot
    path, _ = run_week(planned, 1)
    assert learn(planned, path).rounds == first.rounds


def test_a_plan_does_not_block_and_a_pilot_is_given_up_by_a_command(planned):
    path, _ = run_week(planned, 0)
    assert learn(planned, path).rounds == 0  # before: "is not a round of this pilot"
    with daband.open_market(planned) as market:
        market.plan_pilot(per_week=500, weeks=4)  # without rounds, another plan replaces it
    path, _ = run_week(planned, 1, pilot=True)
    assert learn(planned, path).rounds == 400
    with daband.open_market(planned) as market:
        with pytest.raises(daband.InvalidInput, match="cancel"):
            market.plan_pilot(per_week=500)
        market.cancel_pilot()
        assert market.pilot is None
        with pytest.raises(daband.InvalidInput, match="pilot"):
            market.cancel_pilot()
        with pytest.raises(daband.InvalidInput, match="pilot plan"):
            market.export(planned.parent / "p.daband", pilot=True)
        market.plan_pilot(per_week=500)
        assert market.pilot.read_status().rounds == 0
        assert market.store.find_last_seq("events") == 800


def test_the_incumbent_may_be_a_column_of_today_s_arms(log, tmp_path):
    today = pl.when(pl.col("age") < 45).then(pl.lit("letter")).otherwise(pl.lit("call"))
    columns = daband.domains.Columns(["age"], arm="offer", reward="sale", propensity="propensity")
    target = log.select("age", today=today)
    pair = daband.domains.from_table(source=log, target=target, columns=columns)
    choice = daband.choose(pair, incumbent="today")
    choice.save(tmp_path / "market")
    market = daband.open_market(tmp_path / "market")
    market.plan_pilot(per_week=1000, weeks=6, min_reward=0.0)
    deployed = market.export(tmp_path / "pilot.daband", pilot=True).deployed
    settings = market.pilot.settings
    assert deployed.columns == ("age", "today")
    rows = target.head(1000)
    decision = deployed.decide(rows, round_number=0)
    assert not any(decision.warnings)
    best = choice.policy.decide(pair.table.contexts(rows), "target", rule="greedy").arm
    is_best = np.array(decision.arm_name) == np.array(pair.class_names)[best]
    is_today = np.array(decision.arm_name) == rows["today"].to_numpy()
    fraction = 1.0 - settings["control"]
    expected = np.where(is_best, fraction, 0.0) + np.where(is_today, 1.0 - fraction, 0.0)
    assert np.allclose(decision.propensity, expected)
    assert len(set(expected.tolist())) == 3  # the two agree, or one of them is drawn
    for single in (rows.row(0, named=True), rows.to_pandas().iloc[0]):
        assert deployed.decide(single, round_number=0).propensity == decision.propensity[0]
    mappings = deployed.decide(rows.to_dicts(), round_number=0)
    assert np.array_equal(mappings.arm, decision.arm)
    for wrong in ({"age": 40.0}, {"age": 40.0, "today": "fax"}, [{"age": 40.0, "today": None}]):
        with pytest.raises(daband.InvalidInput, match="today"):
            deployed.decide(wrong)
    frame = decide_rows(deployed, rows).frame.with_columns(reward=1.0)
    with pytest.raises(daband.DabandError, match="today"):
        market.learn(frame.drop("today"))
    market.learn(frame)
    status = market.pilot.read_status()
    differs = (expected < 1.0) & (frame["propensity"] < 1.0).to_numpy()
    assert status.differing_rounds == differs.sum()
    assert sum(status.rewards) == differs.sum()
    market.close()
    with pytest.raises(daband.InvalidInput, match="incumbent=COLUMN"):
        plan_pilot(daband.choose(pair, incumbent=choice.policy), per_week=1000)


def test_a_pilot_file_draws_policy_or_incumbent(planned):
    with daband.open_market(planned) as market:
        settings = market.pilot.settings
    path, frame = run_week(planned, 0, call=0.5, n=3000, pilot=True)
    deployed = daband.load_deployed(path.parent / "market.daband")
    assert deployed.control == settings["control"]
    differing = frame.filter(pl.col("propensity") < 1.0)
    fraction = 1.0 - settings["control"]
    is_call = (differing["arm"] == "call").to_numpy()
    assert np.allclose(differing["propensity"], np.where(is_call, fraction, 1.0 - fraction))
    assert is_call.mean() == pytest.approx(fraction, abs=4 * np.sqrt(fraction / len(differing)))
    only = deployed.decide({"age": 60.0}, arms=["call"])  # the incumbent cannot be chosen
    assert (only.arm_name, only.propensity) == ("call", 1.0)
    policy = daband.load(planned / "policy.safetensors")
    with pytest.raises(daband.InvalidInput, match="epsilon"):
        daband.export(policy, path, incumbent="letter", pilot=settings, epsilon=0.1)
    with pytest.raises(daband.InvalidInput, match="incumbent"):
        daband.export(policy, path, pilot=settings)
