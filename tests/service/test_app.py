"""Decisions, rewards and activations over HTTP, on SQLite and on Postgres."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from daband.ledger._store import Store
from daband.service import Settings
from tests.service.conftest import ARMS, DIM, served, write_policy

ROW = [0.5] * DIM


def test_a_decision_is_logged_as_it_was_answered(exported, log):
    with served(exported, log) as client:
        answer = client.post(
            "/decide", json={"event_id": "v-1", "context": ROW, "eligible": ["call", 2]}
        ).json()
    assert answer["arm_name"] in ("call", "visit")
    assert answer["arm_name"] == ARMS[answer["arm"]]
    assert 0 < answer["propensity"] <= 1
    assert (answer["model"], answer["repeated"], answer["warnings"]) == (0, False, [])
    store = Store(log)
    ((_, event),) = store.read_events(0, 10)
    store.close()
    assert (event.event_id, event.arm, event.propensity) == (
        "v-1",
        answer["arm"],
        answer["propensity"],
    )
    assert (event.context, event.eligible, event.domain) == (
        str(ROW).replace(" ", ""),
        "[1, 2]",
        "source",
    )


@pytest.mark.slow
@pytest.mark.parametrize("log", ["postgres"], indirect=True)
@pytest.mark.parametrize("call", ["find_newest_file", "find_current_model"])
def test_a_service_that_postgres_drops_while_it_opens_the_log_opens_it_again(
    exported, log, call, monkeypatch
):
    original = getattr(Store, call)
    n_calls = 0

    def call_dropped(store):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            store.read("SELECT pg_terminate_backend(pg_backend_pid())")
        return original(store)

    monkeypatch.setattr(Store, call, call_dropped)
    with served(exported, log) as client:
        assert client.post("/decide", json={"context": ROW}).status_code == 200
    assert n_calls > 1


def test_the_same_id_gives_the_same_answer_and_another_context_is_refused(exported, log):
    with served(exported, log) as client:
        first = client.post("/decide", json={"event_id": "v", "context": ROW}).json()
        for _ in range(20):  # the policy explores, so a new decision would differ now and then
            again = client.post("/decide", json={"event_id": "v", "context": ROW}).json()
            assert again == {**first, "repeated": True}
        other = client.post("/decide", json={"event_id": "v", "context": [0.4] * DIM})
        assert other.status_code == 409
        assert "'v'" in other.json()["error"]
    assert count(log) == (1, 0)


def test_a_batch_is_decided_like_its_rows(tmp_path, sqlite_log):
    _, file = write_policy(tmp_path, epsilon=0.0)
    rows = np.random.default_rng(3).normal(size=(40, DIM))
    events = [{"event_id": f"b-{i}", "context": row.tolist()} for i, row in enumerate(rows)]
    events[3]["eligible"] = ["visit"]
    with served(file, sqlite_log) as client:
        batch = client.post("/decide", json={"events": events}).json()["events"]
        for event, found in zip(events, batch, strict=True):
            single = client.post(
                "/decide", json={**event, "event_id": event["event_id"] + "-single"}
            ).json()
            assert (found["arm"], found["propensity"]) == (single["arm"], single["propensity"])
        assert batch[3]["arm_name"] == "visit"
        assert client.post("/decide", json={"events": events}).json()["events"][0]["repeated"]
    assert count(sqlite_log) == (80, 0)


def test_a_reward_counts_once_however_often_it_comes(exported, log):
    with served(exported, log) as client:
        client.post("/decide", json={"event_id": "v", "context": ROW})
        first = client.post("/events/v/reward", json={"reward": 1}).json()
        assert first == {"event_id": "v", "status": "recorded", "reward": 1.0}
        assert client.post("/events/v/reward", json={"reward": 1.0}).json() == {
            **first,
            "status": "repeated",
        }
        refused = client.post("/events/v/reward", json={"reward": 0})
        assert refused.status_code == 409
        assert "already has another reward, 1" in refused.json()["error"]
    assert count(log) == (1, 1)


def test_contexts_can_be_left_out_of_the_log(exported, sqlite_log, tmp_path):
    with served(exported, sqlite_log, Settings(contexts="drop")) as client:
        client.post("/decide", json={"event_id": "v", "context": [0.123456] * DIM})
        again = client.post("/decide", json={"event_id": "v", "context": [0.3] * DIM})
        assert again.json()["repeated"]  # without a context nobody can tell
    for file in tmp_path.glob("events.db*"):
        assert b"0.123456" not in file.read_bytes()


def test_two_services_on_one_log_decide_an_event_once(exported, log):
    """Both are asked for the same events at the same time; whoever comes second gives the first
    one's answer.
    """
    with served(exported, log) as first, served(exported, log) as second:

        def ask(number):
            body = {"event_id": f"e{number}", "context": [0.1 * number] * DIM}
            with ThreadPoolExecutor(2) as both:
                asked = [
                    both.submit(client.post, "/decide", json=body) for client in (first, second)
                ]
                answers = [one.result().json() for one in asked]
                paid = [
                    both.submit(one.post, f"/events/e{number}/reward", json={"reward": 1})
                    for one in (first, second)
                ]
                assert {one.result().json()["status"] for one in paid} == {"recorded", "repeated"}
            assert sorted(one.pop("repeated") for one in answers) == [False, True]
            assert answers[0] == answers[1]

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(40)))
    assert count(log) == (40, 40)


def count(log):
    store = Store(log)
    found = len(store.read_events(0, 10_000)), len(store.read_rewards(0, 10_000))
    store.close()
    return found


def events(log):
    store = Store(log)
    found = store.read_events(0, 10_000)
    store.close()
    return found
