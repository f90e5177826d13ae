"""The worker: models as a function of the log, default rewards, and a wrong time of day."""

import os
import threading
import time

import numpy as np
import orjson
import pytest

import daband
from daband.errors import InvalidInput
from daband.ledger._store import Event, LogFailed, LoggedReward, Reward, Store
from daband.service import Settings
from daband.service import _app as app
from daband.service._app import publish_file
from daband.service._decider import Decider, load_model
from daband.service._worker import (
    Worker,
    _load_policy,
    _was_exported_from,
    export_to_bytes,
    learn_rewards,
    run_worker,
)
from tests.service.api import Api
from tests.service.conftest import ARMS, DIM, rewards_of, served, write_policy


def replay(store, file, row):
    """Return a learned model, made again from the policy file and the log."""
    every = int(row.base.partition("/")[2])
    files = [
        model.number
        for model, _ in store.list_models()
        if model.origin == "file" and model.number < row.number
    ]
    deployed = load_model(store.read_content(files[0]), files[0]).deployed
    policy = _load_policy(file.read_bytes(), deployed)
    set_aside = orjson.loads(store.read_note(f"aside:{row.base}") or "{}")
    seq = row.start_seq
    while seq < row.learned_seq:
        rows = store.read_rewards(seq, every)
        learn_rewards(policy, [one for one in rows if str(one.seq) not in set_aside], deployed)
        seq = rows[-1].seq
    return export_to_bytes(policy, deployed)


def fill(store, n, *, start=0, role="policy", model=0, unit=lambda reward: reward):
    """Events with rewards, some of them late."""
    rng = np.random.default_rng(start)
    contexts = rng.normal(size=(n, DIM))
    arms = rng.integers(3, size=n)
    rewards = rewards_of(contexts, arms, seed=start)
    for place in range(n):
        event_id = f"e{start + place}"
        event = Event(
            event_id=event_id,
            time=1000.0 + place,
            role=role,
            domain="source",
            model=model,
            arm=int(arms[place]),
            propensity=1 / 3,
            context=str(contexts[place].tolist()),
            eligible=None,
            digest=None,
        )
        store.append([event])
    for place in rng.permutation(n):
        store.append([Reward(f"e{start + place}", float(unit(rewards[place])), 2000.0)])


def worked(store, policy_files, **options):
    worker = Worker(
        store,
        Settings(),
        policy_file=policy_files[0],
        learn_every=20,
        publish_seconds=0.0,
        **options,
    )
    while worker.run_once():
        pass
    worker.write_snapshot()
    return worker


def test_rounds_of_the_incumbent_are_weighted_by_the_number_of_eligible_arms(policy_files):
    deployed = daband.load_deployed(policy_files[1])
    content = policy_files[0].read_bytes()
    learned, expected = (_load_policy(content, deployed) for _ in range(2))
    contexts = np.random.default_rng(0).normal(size=(20, DIM))
    rows = [
        LoggedReward(
            seq=number,
            event_seq=number,
            reward=1.0,
            kind="given",
            time=1001.0,
            event=Event(
                event_id=f"e{number}",
                time=1000.0,
                role="control",
                domain="source",
                model=0,
                arm=1,
                propensity=0.5,
                context=str(row.tolist()),
                eligible="[0, 1]",
                digest=None,
            ),
        )
        for number, row in enumerate(contexts)
    ]
    learn_rewards(learned, rows, deployed)
    expected.update(contexts, [1] * 20, [1.0] * 20, deployed.domain)
    np.testing.assert_allclose(learned.decide(contexts).mean, expected.decide(contexts).mean)


def test_a_model_is_a_function_of_the_log_bit_for_bit(policy_files, log):
    store = Store(log)
    publish_file(store, policy_files[1].read_bytes(), 0.0)
    fill(store, 50)
    worked(store, policy_files)  # learns 40 of 50
    fill(store, 45, start=50, role="control")
    worked(store, policy_files)  # another process, which resumes
    learned = [row for row, _ in store.list_models() if row.origin == "learned"]
    assert learned[0].rounds == 400 + 80
    assert len(learned) >= 2
    for row in learned:
        assert replay(store, policy_files[0], row) == store.read_content(row.number)
    assert store.read_content(learned[0].number) != store.read_content(learned[1].number)
    store.close()


def test_a_learned_model_explores_as_the_file_does(tmp_path, sqlite_log):
    policy, _ = write_policy(tmp_path, epsilon=0.0)
    daband.export(daband.load(policy), tmp_path / "exploring.daband", arm_names=ARMS, epsilon=0.3)
    store = Store(sqlite_log)
    publish_file(store, (tmp_path / "exploring.daband").read_bytes(), 0.0)
    fill(store, 20)
    worked(store, (policy, None))
    learned = load_model(store.read_content(1), 1).deployed
    propensities = {round(learned.decide([0.1] * DIM).propensity, 3) for _ in range(100)}
    assert propensities == {0.8, 0.1}
    store.close()


def test_another_policy_file_does_not_learn_old_rewards_again(policy_files, tmp_path, sqlite_log):
    store = Store(sqlite_log)
    publish_file(store, policy_files[1].read_bytes(), 0.0)
    fill(store, 40)
    worked(store, policy_files)
    other = write_policy(tmp_path, alpha=0.3)
    publish_file(store, other[1].read_bytes(), 0.0)
    assert worked(store, other)._learner.learned_seq == 40
    fill(store, 20, start=40)
    worked(store, other)
    assert [row.rounds for row, _ in store.list_models()][:2] == [420, 400]
    store.close()


def test_the_service_takes_new_models_without_a_pause_and_goes_back(policy_files, sqlite_log):
    with served(policy_files[1], sqlite_log) as client:
        api = Api(str(client.base_url))
        rng = np.random.default_rng(0)
        for _ in range(30):
            api.reward(api.decide(rng.normal(size=DIM).tolist()).event_id, 1.0)
        store = Store(sqlite_log)
        worked(store, policy_files)
        store.close()
        assert client.post("/models/newest/activate").json() == {"deciding": 1, "pinned": False}
        assert api.decide([0.1] * DIM).model == 1
        assert client.post("/models/0/activate").json() == {"deciding": 0, "pinned": True}
        assert api.decide([0.2] * DIM).model == 0
        assert client.post("/models/7/activate").status_code == 404
        listed = client.get("/models").json()
        assert [(row["number"], row["origin"]) for row in listed["models"]] == [
            (1, "learned"),
            (0, "file"),
        ]
        assert (listed["deciding"], listed["pinned"]) == (0, 0)
        uploaded = client.post("/models", content=policy_files[1].read_bytes())
        assert uploaded.json() == {"number": 0, "deciding": 0}  # it is there already
        assert client.post("/models", content=b"rubbish").status_code == 422
        api.close()


class Seconds:
    """A clock that only the test moves."""

    def __init__(self, start=50.0):
        self.now = start

    def __call__(self):
        return self.now


def run_for(worker, clock, seconds, *, step=1.0):
    """Run a worker for some seconds, which pass in steps."""
    for _ in range(int(seconds / step)):
        clock.now += step
        worker.run_once()
        worker.write_snapshot()


def list_rewards(store):
    return [(row.event.event_id, row.reward, row.kind) for row in store.read_rewards(0, 99)]


def test_events_without_a_reward_get_the_default_after_the_wait(exported, log):
    clock = Seconds()
    settings = Settings(wait=100.0, default_reward=0.25)
    with served(exported, log, settings) as client:
        for name in ("rewarded", "silent"):
            client.post("/decide", json={"event_id": name, "context": [0.1] * DIM})
        client.post("/events/rewarded/reward", json={"reward": 1})
        store = Store(log)
        worker = Worker(store, settings, get_seconds=clock)
        worker.run_once()
        run_for(worker, clock, 99.0)
        assert list_rewards(store) == [("rewarded", 1.0, "given")]
        client.post("/decide", json={"event_id": "later", "context": [0.1] * DIM})
        run_for(worker, clock, 3.0)
        assert list_rewards(store)[1:] == [("silent", 0.25, "default")]
        late = client.post("/events/silent/reward", json={"reward": 1})
        assert late.status_code == 409
        assert "the default, because none arrived in time" in late.json()["error"]
        assert (
            client.post("/events/silent/reward", json={"reward": 0.25}).json()["status"]
            == "repeated"
        )
        run_for(worker, clock, 102.0)
        assert list_rewards(store)[2:] == [("later", 0.25, "default")]
        store.close()


@pytest.mark.parametrize("error", [86_400.0, -86_400.0])
def test_a_wrong_time_of_day_sets_no_default_early_and_none_late(
    exported, sqlite_log, monkeypatch, error
):
    """The time of day is wrong while the first service runs, and right when the second one does."""
    clock = Seconds()
    settings = Settings(wait=100.0)
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + error)
    with served(exported, sqlite_log, settings) as client:
        client.post("/decide", json={"event_id": "first", "context": [0.1] * DIM})
        store = Store(sqlite_log)
        run_for(Worker(store, settings, get_seconds=clock), clock, 60.0)
    monkeypatch.setattr(time, "time", true_time)
    clock.now = 7000.0
    with served(exported, sqlite_log, settings) as client:
        client.post("/decide", json={"event_id": "second", "context": [0.1] * DIM})
        assert store.read_events(1, 9)[0][1].time == pytest.approx(true_time(), abs=60)
        client.post("/watch/reset")
        client.post("/decide", json={"event_id": "third", "context": [0.1] * DIM})
        worker = Worker(store, settings, get_seconds=clock)
        run_for(worker, clock, 39.0)
        assert list_rewards(store) == []
        run_for(worker, clock, 25.0)  # "first" has waited for 100 s, and the first minute is over
        assert [name for name, *_ in list_rewards(store)] == ["first"]
        assert worker._statistics.build_snapshot(0.0)["events"] == 1
        run_for(worker, clock, 40.0)
        assert [name for name, *_ in list_rewards(store)] == ["first", "second", "third"]
        store.close()


def test_a_connection_in_use_is_closed_when_it_comes_back_to_a_closed_log(log):
    store = Store(log)
    with store._connect() as connection:
        connection.execute("SELECT 1")
        store.close()
    with pytest.raises(Exception, match="closed"):  # the driver's own error
        connection.execute("SELECT 1")


def test_one_worker_at_a_time_works_on_a_log(log):
    first = Store(log)
    second = Store(log)
    with first.try_worker_lock() as mine:
        assert mine
        with second.try_worker_lock() as also:
            assert not also
    with second.try_worker_lock() as now:
        assert now
    first.close()
    second.close()


def test_the_worker_goes_on_after_a_failure(policy_files, sqlite_log, monkeypatch, caplog):
    store = Store(sqlite_log)
    publish_file(store, policy_files[1].read_bytes(), 0.0)
    made = []
    ticks = []
    parent = os.getppid()

    class Failing(Worker):
        def run_once(self):
            ticks.append(1)
            if len(ticks) == 1:
                raise ValueError("0.98765")
            if len(ticks) == 2:
                raise LogFailed("disk is full")
            monkeypatch.setattr(os, "getppid", lambda: parent + 1)  # the service has ended
            return False

    def make():
        made.append(Failing(store, Settings()))
        return made[-1]

    run_worker(store, make, parent)
    assert len(made) == 3
    assert "the worker failed: ValueError" in caplog.text
    assert "disk is full" in caplog.text
    assert "0.98765" not in caplog.text
    assert store.read_note("snapshot") is not None
    store.close()


def test_a_policy_that_the_file_was_not_exported_from_is_not_learned(
    policy_files, tmp_path, sqlite_log, caplog
):
    store = Store(sqlite_log)
    publish_file(store, policy_files[1].read_bytes(), 0.0)
    fill(store, 20)
    daband.LinUCB(context_shape=(2,), n_arms=3, seed=0).save(tmp_path / "other.safetensors")
    daband.LinUCB(context_shape=(DIM,), n_arms=3, seed=0).save(tmp_path / "blank.safetensors")
    for name, reason in (
        ("other", "use the policy that it was exported from"),
        ("blank", "has learned 0"),
    ):
        caplog.clear()
        worker = worked(store, [tmp_path / f"{name}.safetensors"])
        assert reason in caplog.text
        assert worker._statistics.build_snapshot(0.0)["events"] == 20  # all else goes on
    assert len(store.list_models()) == 1
    store.close()


@pytest.mark.parametrize("kind", [daband.LinUCB, daband.Trees, daband.DABand])
def test_a_policy_is_known_by_what_it_predicts(kind, tmp_path):
    contexts = np.random.default_rng(0).normal(size=(300, DIM))
    policies = []
    for swapped in (0, 1):  # what paid for one paid nothing for the other
        arms = np.arange(300) % 2
        rewards = ((contexts[:, 0] > 0) == (arms == swapped)).astype(float)
        options = {"recipe": "small"} if kind is daband.DABand else {}
        policies.append(kind(context_shape=(DIM,), n_arms=2, seed=0, **options))
        policies[-1].update(contexts, arms, rewards)
    daband.export(policies[0], tmp_path / "p.daband", epsilon=0.1)
    file = daband.load_deployed(tmp_path / "p.daband")
    assert [_was_exported_from(file, policy) for policy in policies] == [True, False]


def test_a_published_file_of_as_many_rounds_is_not_taken_for_the_one_before(
    policy_files, tmp_path, sqlite_log, caplog
):
    store = Store(sqlite_log)
    publish_file(store, policy_files[1].read_bytes(), 0.0)
    fill(store, 20)
    worked(store, policy_files)
    daband.export(
        daband.load(policy_files[0]), tmp_path / "explores.daband", arm_names=ARMS, epsilon=0.5
    )
    publish_file(store, (tmp_path / "explores.daband").read_bytes(), 0.0)
    fill(store, 20, start=20)
    worked(store, policy_files)  # the same policy, exported anew, goes on
    assert store.list_models()[0][0].rounds == 440
    retrained = daband.LinUCB(context_shape=(DIM,), n_arms=3, seed=1)
    retrained.update(
        np.random.default_rng(1).normal(size=(400, DIM)), np.arange(400) % 3, np.arange(400) % 2
    )
    daband.export(retrained, tmp_path / "retrained.daband", arm_names=ARMS)
    number = publish_file(store, (tmp_path / "retrained.daband").read_bytes(), 0.0)
    fill(store, 20, start=40)
    assert worked(store, policy_files)._learner is None
    assert f"model {number} was exported from another policy" in caplog.text
    assert store.find_current_model() == number
    store.close()


@pytest.mark.parametrize("damage", ["truncated", "gone"])
def test_a_policy_that_cannot_be_loaded_stops_learning_alone(
    policy_files, tmp_path, sqlite_log, caplog, damage
):
    store = Store(sqlite_log)
    clock = Seconds()
    publish_file(store, policy_files[1].read_bytes(), 0.0)
    fill(store, 20)
    store.append([Event("silent", 1.0, "policy", "source", 0, 0, 1.0, None, None, None)])
    bad = tmp_path / "bad.safetensors"
    if damage == "truncated":
        bad.write_bytes(policy_files[0].read_bytes()[:-100])
    worker = Worker(store, Settings(wait=10.0), policy_file=bad, get_seconds=clock)
    assert f"{bad} cannot learn from the log" in caplog.text
    run_for(worker, clock, 20.0)
    assert worker._statistics.build_snapshot(0.0)["events"] == 21
    assert store.read_rewards(0, 99)[-1].event.event_id == "silent"  # the default
    store.close()


def test_a_published_file_is_not_compared_with_contexts_from_before(
    policy_files, tmp_path, sqlite_log
):
    store = Store(sqlite_log)
    publish_file(store, policy_files[1].read_bytes(), 0.0)
    fill(store, 40)
    policy = daband.load(policy_files[0])
    reference = np.random.default_rng(0).normal(size=(400, DIM))
    daband.export(policy, tmp_path / "new.daband", arm_names=ARMS, reference=reference)
    number = publish_file(store, (tmp_path / "new.daband").read_bytes(), 0.0)
    worker = Worker(store, Settings())
    worker.run_once()
    counted = worker._statistics.build_snapshot(0.0)
    assert (counted["events"], counted["given"]) == (40, 40)
    assert counted["shift"]["rounds"] == 0
    fill(store, 30, start=40, model=number)
    worker.run_once()
    counted = worker._statistics.build_snapshot(0.0)
    assert counted["shift"]["rounds"] == 30
    store.close()


def test_a_published_file_is_not_replaced_by_what_an_older_policy_learns(
    policy_files, tmp_path, sqlite_log
):
    store = Store(sqlite_log)
    publish_file(store, policy_files[1].read_bytes(), 0.0)
    fill(store, 20)
    first = worked(store, policy_files)
    old = store.list_models()[0][0]
    policy = daband.load(policy_files[0])
    policy.update(np.zeros((5, DIM)), [0] * 5, [1.0] * 5)
    daband.export(policy, tmp_path / "better.daband", arm_names=ARMS)
    assert not first.is_outdated
    fill(store, 20, start=20)
    first._learner.learn_group()
    number = publish_file(store, (tmp_path / "better.daband").read_bytes(), 0.0)
    assert first.is_outdated
    with pytest.raises(InvalidInput, match="published"):  # at the very moment
        first._learner.publish(0.0)
    fill(store, 40, start=40)
    worked(store, policy_files)
    assert store.find_current_model() == number
    assert replay(store, policy_files[0], old) == store.read_content(old.number)
    policy.save(tmp_path / "better.safetensors")
    # from now on
    assert worked(store, [tmp_path / "better.safetensors"])._learner.learned_seq == 80
    fill(store, 20, start=80)
    worked(store, [tmp_path / "better.safetensors"])
    assert [row.rounds for row, _ in store.list_models()][:2] == [425, 405]
    store.close()


def test_a_published_file_is_watched_from_then_on(policy_files, tmp_path, sqlite_log, monkeypatch):
    daband.export(
        daband.load(policy_files[0]),
        tmp_path / "newer.daband",
        arm_names=ARMS,
        assessment={"value": 0.25},
    )
    store = Store(sqlite_log)
    made = []
    parent = os.getppid()
    publish_file(store, policy_files[1].read_bytes(), 0.0)

    class Publishing(Worker):
        def write_snapshot(self):
            super().write_snapshot()
            if len(made) == 1:
                publish_file(store, (tmp_path / "newer.daband").read_bytes(), 0.0)
            else:
                monkeypatch.setattr(os, "getppid", lambda: parent + 1)  # the service has ended

    def make():
        made.append(Publishing(store, Settings()))
        return made[-1]

    run_worker(store, make, parent)
    assert [worker._statistics.deployed.assessment["value"] for worker in made] == [0.62, 0.25]
    store.close()


def test_a_worker_that_starts_on_a_long_log_counts_every_reward(exported, sqlite_log):
    """Rewards out of the order of decisions: those of events that are not counted yet come later,
    and none is lost.
    """
    store = Store(sqlite_log)
    publish_file(store, exported.read_bytes(), 0.0)
    fill(store, 1200)
    worker = Worker(store, Settings(wait=100.0))
    while worker.run_once():
        pass
    counted = worker._statistics.build_snapshot(0.0)
    assert (counted["events"], counted["given"]) == (1200, 1200)
    store.close()


def test_a_batch_larger_than_a_portion_gets_its_defaults(exported, sqlite_log):
    clock = Seconds()
    settings = Settings(wait=100.0)
    with served(exported, sqlite_log, settings) as client:
        client.post(
            "/decide", json={"events": [{"context": [0.1] * DIM}] * 1000}
        ).raise_for_status()
    store = Store(sqlite_log)
    worker = Worker(store, settings, get_seconds=clock)
    run_for(worker, clock, 105.0)
    assert len(store.read_rewards(0, 2000)) == 1000
    store.close()


def append_round(store, name, *, context=None, arm=0, reward=1.0):
    """An event and its reward, past the checks of requests."""
    context = str([0.1] * DIM) if context is None else context
    store.append([Event(name, 1.0, "policy", "source", 0, arm, 1.0, context, None, None)])
    store.append([Reward(name, reward, 2.0)])


def test_rounds_that_cannot_be_learned_are_set_aside(policy_files, sqlite_log, caplog):
    store = Store(sqlite_log)
    publish_file(store, policy_files[1].read_bytes(), 0.0)
    odd = ['{"age": 41}', "[1.0]", f"[{[0.1] * DIM}, {[0.1] * DIM}]", "[1e300, 0, 0, 0, 0, 0]"]
    for place, context in enumerate(odd):
        append_round(store, f"o{place}", context=context)
    append_round(store, "arm", arm=7)
    append_round(store, "reward", reward=1e101)
    fill(store, 34)
    worker = worked(store, policy_files)
    names = ["o0", "o1", "o2", "o3", "arm", "reward"]
    assert [event_id for _, event_id in worker._learner.set_aside.values()] == names
    assert "cannot learn 6 rewards" in caplog.text
    assert worker._statistics.build_snapshot(0.0)["shift"]["rounds"] == 36
    learned = [row for row, _ in store.list_models() if row.origin == "learned"]
    assert (learned[0].rounds, learned[0].learned_seq) == (400 + 34, 40)
    for row in learned:
        assert replay(store, policy_files[0], row) == store.read_content(row.number)
    with served(policy_files[1], sqlite_log) as client:
        assert "cannot learn 6 rewards" in client.get("/").text
        assert "daband_rewards_set_aside 6.0" in client.get("/metrics").text
        client.post("/watch/reset")
        worker.run_once()
        worker.write_snapshot()
        assert "No alarm." in client.get("/").text
    fill(store, 40, start=34)  # a restart continues
    assert len(worked(store, policy_files)._learner.set_aside) == 6
    assert store.list_models()[0][0].rounds == 400 + 74
    store.close()


@pytest.mark.parametrize("kind", [daband.LogPolicy, daband.Mixture, daband.NeuralLinUCB])
def test_one_huge_reward_does_not_stop_learning(kind, tmp_path, sqlite_log):
    """A reward of 1e60 passes the checks, but mixtures and networks cannot learn it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, DIM))
    arms = rng.integers(3, size=200)
    log = (x, arms, rewards_of(x, arms), np.full(200, 1 / 3))
    pair = daband.domains.from_log(source=log, target=x, n_arms=3)
    options = {"recipe": "small"} if kind is daband.NeuralLinUCB else {}
    policy = kind.for_pair(pair, seed=0, **options)
    daband.train(policy, source=pair.source, episodes=2, episode_length=32)
    files = tmp_path / "policy.safetensors", tmp_path / "market.daband"
    policy.save(files[0])
    daband.export(policy, files[1], pair=pair, domain="source")
    store = Store(sqlite_log)
    publish_file(store, files[1].read_bytes(), 0.0)
    fill(store, 30)
    append_round(store, "huge", reward=1e60)
    fill(store, 49, start=30)
    worker = worked(store, files)
    learned = store.list_models()[0][0]
    assert learned.learned_seq == 80
    assert learned.rounds == policy.rounds_learned + 80 - len(worker._learner.set_aside)
    bad = [] if kind is daband.LogPolicy else ["huge"]
    assert [event_id for _, event_id in worker._learner.set_aside.values()] == bad
    assert replay(store, files[0], learned) == store.read_content(learned.number)
    store.close()


def test_a_file_of_other_arms_or_contexts_needs_a_log_of_its_own(
    policy_files, tmp_path, sqlite_log
):
    policy = daband.load(policy_files[0])
    daband.export(policy, tmp_path / "renamed.daband", arm_names=("letter", "visit", "call"))
    with served(policy_files[1], sqlite_log) as client:
        uploaded = client.post("/models", content=(tmp_path / "renamed.daband").read_bytes())
        assert uploaded.status_code == 422
        assert "arm_names" in uploaded.json()["error"]
    with (
        pytest.raises(InvalidInput, match=r"arm_names .*log"),
        served(tmp_path / "renamed.daband", sqlite_log),
    ):
        pass


def test_a_service_that_starts_with_an_older_file_says_which_model_decides(
    policy_files, tmp_path, sqlite_log, caplog
):
    daband.export(
        daband.load(policy_files[0]), tmp_path / "newer.daband", arm_names=ARMS, epsilon=0.5
    )
    for file in (policy_files[1], tmp_path / "newer.daband"):
        with served(file, sqlite_log):
            assert not caplog.text
    with served(policy_files[1], sqlite_log) as client:
        assert "market.daband is model 0 of the log, but model 1 decides" in caplog.text
        assert client.post("/decide", json={"context": [0.1] * DIM}).json()["model"] == 1


def test_a_neural_policy_learns_from_the_log_and_its_models_are_replayed(tmp_path, sqlite_log):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, DIM))
    pair = daband.domains.from_arrays(
        source=(x, rng.integers(3, size=300)), target=rng.normal(size=(200, DIM))
    )
    policy = daband.DABand.for_pair(pair, recipe="small", seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=32)
    policy.deploy("target")
    policy.save(tmp_path / "policy.safetensors")
    daband.export(policy, tmp_path / "market.daband", pair=pair, domain="target")
    files = tmp_path / "policy.safetensors", tmp_path / "market.daband"
    store = Store(sqlite_log)
    publish_file(store, files[1].read_bytes(), 0.0)
    fill(store, 30)
    worked(store, files)
    fill(store, 30, start=30)
    worked(store, files)
    learned = [row for row, _ in store.list_models() if row.origin == "learned"]
    assert [row.learned_seq for row in learned] == [60, 40, 20]
    for row in learned[:2]:
        assert replay(store, files[0], row) == store.read_content(row.number)
    store.close()


def test_who_looks_for_the_model_before_it_is_pinned_does_not_have_the_last_word(
    exported, sqlite_log, monkeypatch
):
    store = Store(sqlite_log)
    service = app.Service(exported, store, Settings())
    store.add_model(exported.read_bytes(), time=1.0, origin="file", base="another")
    loads = threading.Event()
    pinned = threading.Event()

    def slow(content, number):
        loads.set()
        assert pinned.wait(60)
        return load_model(content, number)

    monkeypatch.setattr(app, "load_model", slow)
    first = threading.Thread(target=service._load_current_model)  # model 1, the newest
    first.start()
    assert loads.wait(60)
    store.pin(0)
    second = threading.Thread(target=service._load_current_model)
    second.start()
    second.join(0.2)
    pinned.set()
    first.join()
    second.join()
    assert service._decider.model.number == 0
    store.close()


def test_a_request_has_one_model_throughout(exported, policy_files, tmp_path):
    at_hand = load_model(exported.read_bytes(), 0)
    place = {"source": "target", "target": "source"}[at_hand.deployed.domain]
    daband.export(
        daband.load(policy_files[0]), tmp_path / "other.daband", arm_names=ARMS, domain=place
    )
    other = load_model((tmp_path / "other.daband").read_bytes(), 1)
    decider = Decider(at_hand, Settings())

    class Body(dict):
        def get(self, name, default=None):
            decider.model = other  # published while the request is read
            return super().get(name, default)

    body = Body(context=[0.5] * DIM)
    ((event, _),) = decider.decide(body, 1.0)
    assert (event.model, event.domain) == (0, at_hand.deployed.domain)
