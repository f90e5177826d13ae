"""Arms with features over HTTP: the arms of a request, new ones, a catalogue that changes, and
learning about them.
"""

import contextlib

import numpy as np
import polars as pl
import pytest

import daband
from daband.ledger._store import Store
from daband.service import Settings, Tokens
from daband.service._decider import load_model, with_added_arms
from daband.service._worker import Worker
from tests.service.conftest import served

NEW = {"id": "new", "price": 9.0, "kind": "loan"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arms")
    draw = np.random.default_rng(0)
    offers = pl.DataFrame(
        {"id": list("abcdef"), "price": [1.0, 2, 3, 4, 5, 6], "kind": ["card", "loan"] * 3}
    )
    age = draw.normal(40, 9, 400)
    arm = draw.integers(0, 6, 400)
    frame = pl.DataFrame(
        {"age": age, "arm": [list("abcdef")[at] for at in arm], "reward": age / 9 * (arm % 2) + arm}
    )
    columns = daband.domains.Columns(context=["age"], arm="arm", reward="reward", propensity="p")
    pair = daband.domains.from_table(
        source=frame.with_columns(p=pl.lit(1 / 6)), target=frame, columns=columns, arms=offers
    )
    policy = daband.LinUCB.for_pair(pair, seed=0, epsilon=0.2)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    policy.deploy("target")
    policy.save(folder / "policy.safetensors")
    daband.export(policy, folder / "market.daband", pair=pair)
    return folder / "policy.safetensors", folder / "market.daband"


def test_a_request_lists_its_arms(files, sqlite_log):
    with served(files[1], sqlite_log) as client:
        decided = client.post("/decide", json={"context": {"age": 50}, "arms": ["b", "e"]}).json()
        assert decided["arm_name"] in ("b", "e")
        assert decided["arm"] == "abcdef".index(decided["arm_name"])
        batch = {"events": [{"context": {"age": 50}, "arms": ["c"]}, {"context": {"age": 20}}]}
        assert client.post("/decide", json=batch).json()["events"][0]["arm_name"] == "c"
        for body, message in (
            ({"arms": ["b", "zzz"]}, "needs its features"),
            ({"arms": ["b", NEW]}, "POST /arms"),
            ({"arms": [{"id": "zzz", "price": 1}]}, "no 'kind'"),
            ({"arms": ["b"], "eligible": ["b"]}, "cannot both be given"),
        ):
            answer = client.post("/decide", json={"context": {"age": 50}, **body})
            assert answer.status_code == 422, answer.text
            assert message in answer.json()["error"]


def test_a_new_arm_is_decided_rewarded_learned_and_kept_after_a_restart(files, sqlite_log):
    with served(files[1], sqlite_log) as client:
        assert client.post("/arms", json={"arms": [*"abcdef", NEW]}).json()["offered"] == 7
        for at in range(30):
            body = {"context": {"age": 30 + at}, "arms": ["new"], "event_id": f"e{at}"}
            decided = client.post("/decide", json=body).json()
            assert (decided["arm"], decided["arm_name"]) == (6, "new")
            assert client.post(f"/events/e{at}/reward", json={"reward": 50.0}).status_code == 200
    store = Store(sqlite_log)
    worker = Worker(store, Settings(), policy_file=files[0], learn_every=10, publish_seconds=0.0)
    while worker.run_once():
        pass
    worker.write_snapshot()
    learned = with_added_arms(
        load_model(store.read_content(number := store.find_current_model()), number),
        store.read_note("arms"),
    )
    store.close()
    assert learned.deployed.arm_names == (*"abcdef", "new")
    assert learned.deployed.decide({"age": 40}).mean.argmax() == 6
    with served(files[1], sqlite_log) as client:
        assert (
            client.post("/decide", json={"context": {"age": 40}, "arms": ["new"]}).json()[
                "arm_name"
            ]
            == "new"
        )


def test_a_model_with_new_arms_is_a_function_of_the_log_bit_for_bit(tmp_path):
    """A worker that starts late finds all arms in the log before it learns the first reward."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(2_000, 8))
    vectors = rng.normal(size=(17, 6))
    log = contexts, rng.integers(0, 12, 2_000), rng.random(2_000), np.full(2_000, 1 / 12)
    pair = daband.domains.from_log(source=log, target=contexts, arms=vectors[:12])
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=10)
    policy.save(tmp_path / "policy.safetensors")
    daband.export(policy, tmp_path / "market.daband", pair=pair)
    added = [{"id": f"n{at}", "features": vectors[at].tolist()} for at in range(12, 17)]

    def play(log, *, learns_often):
        def learn():
            with contextlib.closing(Store(log)) as store:
                worker = Worker(
                    store,
                    Settings(),
                    policy_file=tmp_path / "policy.safetensors",
                    learn_every=50,
                    publish_seconds=0.0,
                )
                while worker.run_once():
                    pass
                return store.read_content(store.find_current_model())

        with served(tmp_path / "market.daband", log) as client:
            for at, arm in enumerate(["0", *added, "5"]):
                rows = contexts[50 * at : 50 * at + 50]
                if arm in added:
                    client.post("/arms", json={"arms": [arm]})
                name = arm if isinstance(arm, str) else arm["id"]
                body = {"events": [{"context": row.tolist(), "arms": [name]} for row in rows]}
                for event, row in zip(
                    client.post("/decide", json=body).json()["events"], rows, strict=True
                ):
                    reward = {"reward": float(row[0] * at)}
                    answer = client.post(f"/events/{event['event_id']}/reward", json=reward)
                    assert answer.status_code == 200
                if learns_often:
                    learn()
        return learn()

    often = play(f"sqlite:///{tmp_path / 'often.db'}", learns_often=True)
    assert play(f"sqlite:///{tmp_path / 'once.db'}", learns_often=False) == often


def test_the_catalogue_is_replaced_without_a_restart(files, sqlite_log):
    with served(files[1], sqlite_log) as client:
        answer = client.post("/arms", json={"arms": ["a", NEW]})
        assert answer.json() == {"arms": 7, "offered": 2}
        names = {
            client.post("/decide", json={"context": {"age": age}}).json()["arm_name"]
            for age in range(20, 60)
        }
        assert "new" in names  # its features promise more; "a" is chosen by exploration only
        assert names <= {"a", "new"}
        assert client.post("/arms", json={"arms": list("abcdef")}).json() == {
            "arms": 7,
            "offered": 6,
        }
        assert client.post("/arms", json={"arms": [{"id": "x"}]}).status_code == 422
        assert client.post("/arms", json={"offers": []}).status_code == 422
        # An older index keeps its meaning, and the file can be published again.
        assert client.post("/models", content=files[1].read_bytes()).status_code == 201
        assert client.get("/").status_code == 200


def test_a_decide_token_adds_no_arms(files, sqlite_log):
    tokens = Tokens(decide="d", reward="r", admin="a")
    decide = {"headers": {"Authorization": "Bearer d"}}
    with served(files[1], sqlite_log, Settings(tokens=tokens)) as client:
        for body in ({"context": {"age": 50}}, {"context": {}}):
            answer = client.post("/decide", json={**body, "arms": [NEW]}, **decide)
            assert answer.status_code == 422
            assert client.post("/arms", json={"arms": ["a", NEW]}, **decide).status_code == 403
        names = {
            client.post("/decide", json={"context": {"age": age}}, **decide).json()["arm_name"]
            for age in range(20, 60)
        }
        assert names <= set("abcdef")
        admin = {"Authorization": "Bearer a"}
        assert client.post("/arms", json={"arms": ["a", NEW]}, headers=admin).json()["arms"] == 7


def test_a_new_arm_with_a_number_as_id_may_be_chosen(files, sqlite_log):
    with served(files[1], sqlite_log) as client:
        client.post("/arms", json={"arms": [*"abcdef", {**NEW, "id": 7}]})
        for names in ({"arms": ["7"]}, {"eligible": ["7"]}):
            answer = client.post("/decide", json={"context": {"age": 50}, **names})
            assert answer.json()["arm_name"] == "7"
    store = Store(sqlite_log)
    deployed = load_model(files[1].read_bytes(), 1)
    assert with_added_arms(deployed, store.read_note("arms")).deployed.frozen.offered is None
    store.close()


def test_the_page_lists_new_arms_after_a_reset(files, sqlite_log):
    with served(files[1], sqlite_log) as client:
        client.post("/arms", json={"arms": [*"abcdef", NEW]})
        store = Store(sqlite_log)
        worker = Worker(store, Settings())
        for _ in range(2):
            worker.run_once()
            assert [name for name, *_ in worker._statistics.build_snapshot(0.0)["arms"]] == [
                *"abcdef",
                "new",
            ]
            assert client.post("/watch/reset").status_code == 200
        store.close()


def test_an_arm_with_a_huge_feature_does_not_stop_learning(tmp_path, sqlite_log):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 2))
    arms = draw.integers(0, 6, 300)
    pair = daband.domains.from_log(
        source=(x, arms, x[:, 0] + arms, np.full(300, 1 / 6)),
        target=x,
        arms=0.01 * np.arange(12.0).reshape(6, 2),
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    policy.save(tmp_path / "policy.safetensors")
    daband.export(policy, tmp_path / "market.daband", pair=pair, domain="target")
    names = daband.load_deployed(tmp_path / "market.daband").arm_names
    with served(tmp_path / "market.daband", sqlite_log) as client:
        huge = {"id": "huge", "features": [1e308, -1e308]}
        assert client.post("/arms", json={"arms": [*names, huge]}).status_code == 200
        for at in range(20):
            body = {"context": [0.1, 0.2], "arms": ["huge"], "event_id": f"e{at}"}
            assert client.post("/decide", json=body).status_code == 200
            client.post(f"/events/e{at}/reward", json={"reward": 1.0})
    store = Store(sqlite_log)
    policy_file = tmp_path / "policy.safetensors"
    worker = Worker(store, Settings(), policy_file=policy_file, learn_every=10, publish_seconds=0.0)
    while worker.run_once():
        pass
    assert store.list_models()[0][0].rounds == policy.rounds_learned + 20
    store.close()
