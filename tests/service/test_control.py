"""A control group that keeps the incumbent: its lift, the way back to the incumbent, and
restarts.
"""

import os
import re
import signal
import subprocess
import sys
import time

import httpx
import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import InvalidInput
from daband.ledger._store import Reward, Store
from daband.service import Settings
from daband.service._worker import Worker
from tests.service.api import Api
from tests.service.conftest import ARMS, DIM, free_port, served


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A policy that always prefers to visit, where calls were made until now."""
    policy = daband.Constant(
        context_shape=(DIM,), n_arms=len(ARMS), seed=0, alpha=0.0, explore="greedy"
    )
    policy.update(np.zeros((30, DIM)), [2] * 30, [1.0] * 30)
    policy.update(np.zeros((60, DIM)), [0, 1] * 30, [0.0] * 60)
    path = tmp_path_factory.mktemp("policy") / "market.daband"
    daband.export(policy, path, arm_names=ARMS, incumbent="call", explore="greedy")
    return path


def play(api, log, worth, n=100, seed=0):
    """Decide on n events in one call, and reward each by the worth of its arm; return their
    modes.
    """
    rng = np.random.default_rng(seed)
    decisions = api.decide_many([{"context": [0.1] * DIM} for _ in range(n)])
    rewards = [(one.event_id, float(rng.random() < worth[one.arm_name])) for one in decisions]
    store = Store(log)
    # faster than as many calls
    store.append([Reward(event_id, reward, 1.0) for event_id, reward in rewards])
    store.close()
    return [decision.role for decision in decisions]


def counted(store, settings):
    worker = Worker(store, settings)
    while worker.run_once():
        pass
    worker.write_snapshot()


def test_propensities_and_groups_are_logged(file, sqlite_log):
    with (
        served(file, sqlite_log, Settings(control=0.3)) as client,
        Api(str(client.base_url)) as api,
    ):
        modes = play(api, sqlite_log, {"call": 0.5, "visit": 0.5}, 200)
        single = api.decide([0.1] * DIM)
        # the incumbent's arm is not among them
        apart = api.decide([0.1] * DIM, eligible=["letter", "visit"])
        own = api.decide([0.1] * DIM, incumbent="letter")
    assert set(modes) == {"policy", "control"}
    assert 30 < modes.count("control") < 90
    store = Store(sqlite_log)
    events = {event.event_id: event for _, event in store.read_events(0, 1000)}
    store.close()
    for event in events.values():
        expected = 0.3 if event.role == "control" else 0.7
        if event.event_id != apart.event_id:
            assert (event.propensity, event.control) == (pytest.approx(expected), 0.3)
    assert events[single.event_id].arm == (1 if single.role == "control" else 2)
    assert (events[apart.event_id].control, events[apart.event_id].propensity, apart.role) == (
        None,
        1.0,
        "policy",
    )
    assert own.arm_name == ("letter" if own.role == "control" else "visit")


@pytest.mark.parametrize(("worth", "verdict"), [(0.9, "better"), (0.1, "worse"), (0.5, "")])
def test_the_service_follows_the_verdict(file, sqlite_log, caplog, worth, verdict):
    settings = Settings(control=0.5)
    fraction = 1.0 if verdict == "worse" else 0.5
    with served(file, sqlite_log, settings) as client, Api(str(client.base_url)) as api:
        batches = 4 if verdict else 2
        for seed in range(batches):
            play(api, sqlite_log, {"call": 0.5, "visit": worth}, seed=seed)
        store = Store(sqlite_log)
        counted(store, settings)
        store.close()
        deadline = time.monotonic() + 30
        while (found := client.get("/lift").json())[
            "incumbent_fraction"
        ] != fraction and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (found["incumbent_fraction"], found["verdict"]) == (fraction, verdict)
        assert not verdict or found["low"] < worth - 0.5 < found["high"]
        assert found["policy"] + found["control"] == 100 * batches
        page = client.get("/").text
        assert ("The policy is worse than the incumbent" in page) is (verdict == "worse")
        assert ("The policy is better than the incumbent" in page) is (verdict == "better")
        logged = re.search(
            rf"the policy is {verdict} than the incumbent: lift -?0\.\d+ \[-?0\.\d+, -?0\.\d+\]",
            caplog.text,
        )
        assert bool(logged) is bool(verdict)
        assert f"daband_lift_value {found['value']}" in client.get("/metrics").text
        modes = play(api, sqlite_log, {"call": 0.5, "visit": worth})
        assert (set(modes) == {"fallback"}) is (verdict == "worse")
    with served(file, sqlite_log, settings) as client:  # no worker runs: the log has the verdict
        assert client.get("/lift").json()["incumbent_fraction"] == fraction
        client.post("/watch/reset")
        deadline = time.monotonic() + 30
        while (
            client.get("/lift").json()["incumbent_fraction"] != 0.5 and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        assert client.get("/lift").json()["incumbent_fraction"] == 0.5


def test_rewards_are_counted_in_the_order_of_events_if_there_is_a_wait(file, sqlite_log):
    """Purchases come at once, and defaults later: counted as they come, every visitor would seem to
    buy.
    """
    settings = Settings(control=0.5, wait=1000.0)
    with served(file, sqlite_log, settings) as client, Api(str(client.base_url)) as api:
        decisions = api.decide_many([{"context": [0.1] * DIM} for _ in range(100)])
        for decision in decisions[40:]:
            api.reward(decision.event_id, 1.0)
        store = Store(sqlite_log)
        counted(store, settings)
        assert client.get("/lift").json()["policy"] + client.get("/lift").json()["control"] == 0
        for decision in decisions[:40]:
            api.reward(decision.event_id, 0.0)
        counted(store, settings)
        assert client.get("/lift").json()["policy"] + client.get("/lift").json()["control"] == 100
        store.close()


def test_in_a_pilot_the_incumbent_may_be_a_column_of_the_context(file, sqlite_log, tmp_path):
    rng = np.random.default_rng(0)
    log = pl.DataFrame({"age": rng.normal(size=600), "offer": rng.choice(ARMS, 600)})
    log = log.with_columns(sale=(pl.col("offer") == "visit").cast(float), p=1 / 3)
    columns = daband.domains.Columns(["age"], arm="offer", reward="sale", propensity="p")
    today = log.select("age", today=pl.lit("call"))
    pair = daband.domains.from_table(source=log, target=today, columns=columns)
    choice = daband.choose(pair, incumbent="today")
    choice.save(tmp_path / "market")
    with daband.open_market(tmp_path / "market") as market:
        market.plan_pilot(per_week=1000, min_reward=0.0)
        settings = market.pilot.settings
    path = tmp_path / "pilot.daband"
    daband.export(choice.policy, path, pair=pair, pilot={**settings, "control": 0.5})
    with served(path, sqlite_log) as client, Api(str(client.base_url)) as api:
        arms = {
            today: [api.decide({"age": 0.0, "today": today}) for _ in range(20)]
            for today in ("call", "letter", "visit")
        }
        own = api.decide({"age": 0.0}, incumbent="letter")  # without the column
        missing = client.post("/decide", json={"context": {"age": 0.0}})
    for today, decisions in arms.items():
        assert {one.arm_name for one in decisions} == {today, "visit"}
        assert {one.propensity for one in decisions} == {1.0 if today == "visit" else 0.5}
    assert own.arm_name in ("letter", "visit")
    assert missing.status_code == 422
    assert "today" in missing.text


def test_a_control_group_that_cannot_be(exported, sqlite_log):
    with (
        pytest.raises(InvalidInput, match=r"control .*--incumbent"),
        served(exported, sqlite_log, Settings(control=0.1)),
    ):
        pass
    for wrong in ({"control": 1.0}, {"control": -0.1}, {"control": float("nan")}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            Settings(**wrong)


@pytest.mark.slow
def test_a_worse_policy_is_taken_back_and_stays_so_after_a_kill(file, tmp_path):
    port = free_port()
    log = f"sqlite:///{tmp_path}/events.db"
    command = [
        sys.executable,
        "-m",
        "daband",
        "serve",
        str(file),
        "--log",
        log,
        "--port",
        str(port),
        "--control",
        "0.3",
    ]
    address = f"http://127.0.0.1:{port}"
    worth = {"call": 0.8, "visit": 0.2}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with Api(address) as api:
            deadline = time.monotonic() + 120
            modes = []
            seed = 0
            while "fallback" not in modes and time.monotonic() < deadline:
                modes = play(api, log, worth, 50, seed)
                seed = seed + 1
            assert "fallback" in modes
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with Api(address) as api:
            assert set(play(api, log, worth, 100)) == {"fallback"}
        found = httpx.get(f"{address}/lift").json()
        assert (found["incumbent_fraction"], found["verdict"]) == (1.0, "worse")
        assert found["high"] < 0
    finally:
        process.terminate()
        process.wait()
