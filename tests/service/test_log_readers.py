"""The log as Parquet: what ``fit_log`` and ``evaluate_log`` read is what the service logged."""

import dataclasses
import math

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import DataError, InvalidInput
from daband.ledger._store import Event, LoggedReward, Store
from daband.linear._reward_moments import RewardMoments
from daband.logs._mean_estimates import estimate_mean
from daband.service import Settings, export_events
from daband.service._log_readers import Statistics, estimate_mean_reward
from daband.serving import load_deployed
from tests.service.api import Api
from tests.service.conftest import ARMS, DIM, served


def filled(exported, log, n=200, **settings):
    """Decisions and rewards; every fifth event has none."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, DIM))
    decided = []
    rewards = rng.random(n).round(3)
    service = served(exported, log, Settings(**settings))
    with service as client, Api(str(client.base_url)) as api:
        for number, row in enumerate(rows):
            decided.append(api.decide(row.tolist(), event_id=f"e{number}"))
            if number % 5:
                api.reward(f"e{number}", rewards[number])
    kept = np.arange(n) % 5 != 0
    arms = np.array([one.arm for one in decided])
    return (
        rows[kept],
        arms[kept],
        rewards[kept],
        np.array([one.propensity for one in decided])[kept],
    )


def test_the_log_as_parquet_is_what_fit_log_and_evaluate_log_read(exported, log, tmp_path):
    contexts, arms, rewards, propensities = filled(exported, log)
    assert export_events(log, tmp_path / "week.parquet") == len(arms)
    fresh = daband.LinUCB(context_shape=(DIM,), n_arms=3, seed=0)
    fresh.arm_names = ARMS
    by_log = daband.fit_log(fresh, tmp_path / "week.parquet")
    by_hand = daband.LinUCB(context_shape=(DIM,), n_arms=3, seed=0)
    by_hand.arm_names = ARMS
    by_hand.update(contexts, arms, rewards, propensities=propensities)
    assert by_log.rounds_learned == len(arms)
    np.testing.assert_allclose(
        by_log.select(contexts).mean, by_hand.select(contexts).mean, rtol=1e-9
    )
    in_memory = daband.evaluate_log(by_hand, (contexts, arms, rewards, propensities))
    from_file = daband.evaluate_log(by_hand, tmp_path / "week.parquet")
    assert from_file.value == pytest.approx(in_memory.value)


def test_the_log_lists_the_eligible_arms(exported, log, tmp_path):
    rows = np.random.default_rng(1).normal(size=(60, DIM))
    eligible = [["letter", "visit"] if number % 2 else None for number in range(60)]
    with served(exported, log, Settings()) as client, Api(str(client.base_url)) as api:
        for row, listed in zip(rows, eligible, strict=True):
            api.reward(api.decide(row.tolist(), eligible=listed).event_id, 1.0)
    export_events(log, tmp_path / "week.parquet")
    names = daband.load_deployed(exported).arm_names
    log_file = daband.domains.ParquetLog(tmp_path / "week.parquet", n_arms=3, arm_names=names)
    expected = [[listed is None or name in listed for name in names] for listed in eligible]
    assert log_file.read_rounds(np.arange(60)).offered.tolist() == expected
    uniform = daband.evaluate_log(lambda x: np.full((len(x), 3), 1 / 3), log_file)
    assert uniform.value == pytest.approx(1.0, abs=0.5)


def test_a_table_keeps_its_columns(tmp_path, sqlite_log):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"age": rng.integers(20, 60, 300), "city": rng.choice(["Oslo", "Bergen"], 300)}
    )
    frame = frame.with_columns(offer=pl.Series(rng.choice(["a", "b"], 300)))
    columns = daband.domains.Columns(context=["age", "city"], categorical=["city"], label="offer")
    pair = daband.domains.from_table(source=frame, target=frame, columns=columns)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=32)
    daband.export(policy, tmp_path / "t.daband", pair=pair, domain="target")
    with served(tmp_path / "t.daband", sqlite_log) as client, Api(str(client.base_url)) as api:
        for number in range(60):
            row = {"age": 20 + number, "city": ("Oslo", "Bergen")[number % 2]}
            api.reward(api.decide(row).event_id, number % 2)
    export_events(sqlite_log, tmp_path / "week.parquet")
    written = pl.read_parquet(tmp_path / "week.parquet")
    assert set(written.columns) == {"age", "city", "arm", "reward", "propensity"}
    before = policy.rounds_learned
    daband.fit_log(policy, tmp_path / "week.parquet", domain="target")
    assert policy.rounds_learned == before + 60


def test_one_odd_row_does_not_block_the_export(tmp_path, sqlite_log):
    """Extra columns with names of the log, nested values, and numbers as texts."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"age": rng.integers(20, 60, 300), "time": rng.normal(size=300)})
    frame = frame.with_columns(offer=pl.Series(rng.choice(["card", "loan"], 300)))
    columns = daband.domains.Columns(context=["age"], label="offer")
    pair = daband.domains.from_table(source=frame, target=frame, columns=columns)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=32)
    daband.export(policy, tmp_path / "t.daband", pair=pair, domain="target")
    odd = [
        {"age": 41, "reward": 3.0, "arm": "x", "propensity": None, "offered": "all"},
        {"age": 41, "more": {"a": [1, 2]}, "time": "noon"},
        {"age": "41", "more": "text"},
        {"age": 41.5, "more": 18446744073709551615},
        {"age": None, "more": True, "time": -5},
    ]
    rows = [*odd[:3], *({"age": 20 + number % 40} for number in range(30)), *odd[3:]]
    with served(tmp_path / "t.daband", sqlite_log) as client, Api(str(client.base_url)) as api:
        decisions = api.decide_many([{"context": row} for row in rows])
        for decision in decisions:
            api.reward(decision.event_id, 1.0)
    for ids in (True, False):
        assert export_events(sqlite_log, tmp_path / "week.parquet", ids=ids) == len(rows)
        written = pl.read_parquet(tmp_path / "week.parquet")
        assert written["arm"].to_list() == [decision.arm_name for decision in decisions]
        assert written["context_reward"].to_list()[:2] == [3.0, None]
        assert written["more"].to_list()[1] == '{"a":[1,2]}'
        assert ("context_time" in written.columns) is ids
    before = policy.rounds_learned
    daband.learn_log(policy, tmp_path / "week.parquet")
    assert policy.rounds_learned == before + len(rows)


def test_spans_and_ids(exported, sqlite_log, tmp_path):
    filled(exported, sqlite_log, 50)
    store = Store(sqlite_log)
    times = [event.time for _, event in store.read_events(0, 99)]
    store.close()
    from datetime import UTC, datetime

    middle = datetime.fromtimestamp(times[25], UTC)
    first = export_events(sqlite_log, tmp_path / "a.parquet", until=middle)
    second = export_events(sqlite_log, tmp_path / "b.parquet", since=middle.isoformat(), ids=True)
    assert (first, second) == (20, 20)
    assert {"event_id", "time", "model", "role"} < set(
        pl.read_parquet(tmp_path / "b.parquet").columns
    )
    with pytest.raises(DataError, match=r"event .*reward .*period"):
        export_events(sqlite_log, tmp_path / "c.parquet", until="2001-01-01")
    with pytest.raises(InvalidInput, match=r"since .*until .*'yesterday'"):
        export_events(sqlite_log, tmp_path / "c.parquet", until="yesterday")


def test_a_log_without_contexts_says_what_cannot_be_done(exported, sqlite_log, tmp_path):
    filled(exported, sqlite_log, 20, contexts="drop")
    with pytest.raises(DataError, match=r"^16 .*\(--contexts drop\)"):
        export_events(sqlite_log, tmp_path / "week.parquet")
    with served(exported, sqlite_log) as client:
        client.post("/decide", json={"event_id": "kept", "context": [0.1] * DIM})
        client.post("/events/kept/reward", json={"reward": 1.0})
    with pytest.warns(UserWarning, match=r"^16 .*\(--contexts drop\)"):
        assert export_events(sqlite_log, tmp_path / "week.parquet") == 1


def test_a_log_that_is_not_there_is_not_made(tmp_path):
    """Before: an empty log at a misspelt name, and "no event with a reward in that span"."""
    with pytest.raises(daband.DataError, match=rf"{tmp_path}/evnts\.db"):
        export_events(f"sqlite:///{tmp_path}/evnts.db", tmp_path / "c.parquet")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_told_before_the_log_is_read(sqlite_log, tmp_path):
    Store(sqlite_log).close()
    with pytest.raises(DataError, match=f"{tmp_path}/nowhere "):
        export_events(sqlite_log, tmp_path / "nowhere" / "week.parquet")


def test_a_running_mean_is_that_of_all_rewards():
    rewards = np.random.default_rng(0).normal(2.0, 1.0, 500)
    moments = RewardMoments(standardise=False)
    for reward in rewards:
        moments.add(np.array([reward]))
    assert estimate_mean_reward(moments)[:2] == pytest.approx(estimate_mean(rewards)[:2])


def test_values_of_few_rounds_have_no_interval():
    moments = RewardMoments(standardise=False)
    assert math.isnan(estimate_mean_reward(moments).value)
    moments.add(np.array([1.0]))
    assert estimate_mean_reward(moments)[:2] == (1.0, math.inf)


def events(n, *, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, DIM)) + shift
    arms = rng.integers(3, size=n)
    return [
        Event(
            f"e{i}",
            60.0 * i,
            "policy",
            "source",
            0,
            int(arms[i]),
            1 / 3,
            str(contexts[i].tolist()),
            None,
            None,
        )
        for i in range(n)
    ]


def logged(rows, rewards, *, kind="given"):
    return [
        LoggedReward(i + 1, i + 1, float(r), kind, e.time + 1, e)
        for i, (e, r) in enumerate(zip(rows, rewards, strict=True))
    ]


def watch(exported, **settings):
    return Statistics(load_deployed(exported), Settings(**settings))


def test_the_mean_reward_of_the_played_arms_has_an_interval(exported):
    seen = watch(exported)
    rows = events(3000)
    seen.add_events(rows)
    seen.add_rewards(logged(rows, [float(event.arm == 1) * 0.8 for event in rows]))
    found = seen.build_snapshot(0.0)
    assert found["played"]["low"] < 0.8 / 3 < found["played"]["high"]
    assert found["models"][0]["n"] == 3000
    assert found["min_propensity"] == pytest.approx(1 / 3)
    assert sum(played for _, played in found["arms"]) == 3000


def test_drift_is_told_within_two_thousand_events(exported):
    seen = watch(exported)
    seen.add_events(events(2000))
    assert seen.build_snapshot(0.0)["shift"]["contexts_changed"] is False
    seen.add_events(events(2000, shift=0.8, seed=1))
    found = seen.build_snapshot(0.0)["shift"]
    assert found["contexts_changed"]
    assert 2000 < found["at_event"] <= 4000


def test_the_curve_of_the_lift_ends_with_the_lift(exported):
    seen = watch(exported)
    rows = [
        dataclasses.replace(event, control=0.5, role=role)
        for event, role in zip(events(400), ["control", "policy"] * 200, strict=True)
    ]
    rewards = logged(rows, np.random.default_rng(0).random(400))
    seen.add_events(rows)
    for start in range(0, 400, 200):  # the rewards of these events arrive in two batches
        seen.add_rewards(rewards[start : start + 200])
    lift = seen.build_snapshot(0.0)["lift"]
    assert lift["policy"] + lift["control"] == 400
    assert lift["curve"] == [(400, lift["value"], lift["low"], lift["high"])]


def test_default_rewards_are_counted_apart(exported):
    rows = events(400)
    rewards = np.tile([1.0, 0.0, 1.0, 1.0], 100)
    seen = watch(exported, wait=100.0)
    seen.add_events(rows)
    seen.add_rewards([row for row in logged(rows, rewards) if row.reward])
    seen.add_rewards([row for row in logged(rows, rewards, kind="default") if not row.reward])
    found = seen.build_snapshot(0.0)
    assert (found["given"], found["defaulted"], found["defaulted_fraction"]) == (300, 100, 0.25)
