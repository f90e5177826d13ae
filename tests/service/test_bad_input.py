"""What must be refused is refused with a reason, and nothing that was acknowledged is lost."""

import os
import re
import shutil
import sqlite3
import subprocess

import httpx
import numpy as np
import pytest

import daband
from daband.errors import InvalidInput
from daband.ledger._store import Store
from daband.service import Settings, Tokens
from tests.service.api import Api
from tests.service.conftest import ARMS, DIM, served

ROW = [0.5] * DIM
GOOD = {"event_id": "v", "context": ROW}


@pytest.fixture(scope="module")
def service(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    with served(
        exported,
        f"sqlite:///{folder}/events.db",
        Settings(body_bytes=20_000),
    ) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body must be an object"),
        ({}, "context must be an object"),
        ({"context": 3}, "context must be an object"),
        ({"context": "/etc/passwd"}, "context must be an object"),
        ({"context": ["/etc/passwd"] * DIM}, "must be an array of numbers"),
        ({"context": [[1.0], [1.0, 2.0]]}, "numbers with rows of equal length"),
        ({"context": ROW[:-1]}, r"must have shape \(6,\)"),
        ({"context": {"age": 41}}, "without a table"),
        ({"context": [None, *ROW[1:]]}, "must be an array of numbers"),
        ({"context": [1e300] * DIM}, "norm"),
        ({"context": ROW, "event_id": "a/b"}, "event_id must be 1 to 128"),
        ({"context": ROW, "event_id": "x" * 129}, "event_id must be 1 to 128"),
        ({"context": ROW, "event_id": 7}, "event_id must be"),
        ({"context": ROW, "eligible": ["cal"]}, "'cal' is not an arm.*call"),
        ({"context": ROW, "eligible": []}, "1 to 3 arms"),
        ({"context": ROW, "eligible": [3]}, "3 is not an arm"),
        ({"context": ROW, "eligible": [True]}, "True is not an arm"),
        ({"context": ROW, "contxt": 1}, "'contxt' is not a field of an event.*context"),
        ({"events": []}, "at least one"),
        ({"events": [GOOD, GOOD]}, "different values of event_id"),
        ({"events": [{}] * 1001}, "at most 1000 objects"),
        ({"events": [GOOD], "eligible": ["call"]}, "must be the only field"),
        (
            {"events": [GOOD, {"context": ROW[:2]}]},
            r"event 1: context must have shape \(6,\), got \(2,\)",
        ),
        ({"context": [ROW, ROW]}, r"context must have shape \(6,\), got \(2, 6\)"),
        ({"context": [ROW]}, r"context must have shape \(6,\), got \(1, 6\)"),
        ({"events": [GOOD, {"context": 1}]}, "event 1: context"),
        (
            {"events": [GOOD, {"context": {"age": 41}}]},
            "event 1: context must be an array.*without a table",
        ),
    ],
)
def test_a_request_that_is_not_valid_is_refused_with_a_reason(service, body, message):
    response = service.post("/decide", json=body)
    assert response.status_code == 422
    assert re.search(message, response.json()["error"]), response.json()


def test_nothing_of_a_refused_batch_is_logged(exported, sqlite_log):
    with served(exported, sqlite_log) as client:
        client.post("/decide", json={"events": [GOOD, {"event_id": "w", "context": [0.0]}]})
        assert client.post("/events/v/reward", json={"reward": 1}).status_code == 404
        client.post("/decide", json=GOOD)
        taken = {
            "events": [{"event_id": "w", "context": ROW}, {"event_id": "v", "context": [0.1] * DIM}]
        }
        assert client.post("/decide", json=taken).status_code == 409
        assert client.post("/events/w/reward", json={"reward": 1}).status_code == 404
        assert client.post("/events/v/reward", json={"reward": 1}).status_code == 200


def test_json_that_is_none_and_bodies_that_are_too_large(service):
    assert service.post("/decide", content=b"{").status_code == 400
    assert service.post("/decide", content=b'{"context": [NaN]}').status_code == 400
    assert service.post("/decide", content=b" " * 20_001).status_code == 413

    def chunks():  # of no stated length
        for _ in range(30):
            yield b" " * 1000

    assert service.post("/decide", content=chunks()).status_code == 413
    assert service.post("/decide", json=GOOD).status_code == 200


@pytest.mark.parametrize("depth", [101, 252, 253, 500, 900])
def test_json_that_is_nested_too_deeply_is_refused_with_a_reason(service, depth):
    nested = "[" * depth + "1" + "]" * depth
    service.post("/decide", json=GOOD)
    for path, content in (
        ("/decide", f'{{"context": {nested}}}'),
        ("/decide", f'{{"context": {{"age": {nested}}}}}'),
        ("/events/v/reward", f'{{"reward": {nested}}}'),
        ("/arms", f'{{"arms": {nested}}}'),
    ):
        response = service.post(path, content=content.encode())
        assert response.status_code == 422
        assert "nested at most" in response.json()["error"]


@pytest.mark.parametrize("reward", ["1", None, True, [1], "x" * 10_000])
def test_a_reward_that_is_no_number(service, reward):
    service.post("/decide", json=GOOD)
    response = service.post("/events/v/reward", json={"reward": reward})
    assert response.status_code == 422
    assert "reward must be a number" in response.json()["error"]
    assert len(response.content) < 200


@pytest.mark.parametrize("reward", [1e101, -1e101, 1e308])
def test_a_reward_that_no_policy_can_learn_is_rejected(service, reward):
    service.post("/decide", json=GOOD)
    response = service.post("/events/v/reward", json={"reward": reward})
    assert response.status_code == 422
    assert "at most 1e+100" in response.json()["error"]


def test_larger_rewards_than_max_reward_are_rejected(exported, sqlite_log):
    with served(exported, sqlite_log, Settings(max_reward=10.0)) as client:
        client.post("/decide", json=GOOD)
        statuses = [
            client.post("/events/v/reward", json={"reward": reward}).status_code
            for reward in (10.5, -11, 10)
        ]
        assert statuses == [422, 422, 200]
    for wrong in ({"max_reward": 0.0}, {"max_reward": 1e101}, {"default_reward": 1e101}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            Settings(**wrong)


def test_an_unknown_event_and_an_unknown_path(service):
    response = service.post("/events/nobody/reward", json={"reward": 1})
    assert response.status_code == 404
    assert "'nobody' is not in the log" in response.json()["error"]
    assert service.post("/events/nobody/rewrd", json={"reward": 1}).status_code == 404
    assert service.get("/decide").status_code == 405


def test_a_row_of_another_schema_names_the_column(tmp_path, sqlite_log):
    import polars as pl

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
    with served(tmp_path / "t.daband", sqlite_log) as client:
        good = client.post("/decide", json={"context": {"age": 41, "city": "Oslo"}})
        assert good.json()["arm_name"] in ("a", "b")
        for row, told in (
            ({"age": 41}, "city"),
            ({"age": "old", "city": "Oslo"}, "age"),
            ({"age": 41, "town": "Oslo"}, "city"),
            ([0.1] * pair.context_shape[0], "an object with the columns age, city"),
        ):
            response = client.post("/decide", json={"context": row})
            assert response.status_code == 422
            assert told in response.json()["error"]
        extra = client.post("/decide", json={"context": {"age": 41, "city": "Oslo", "at": 1}})
        assert [one["kind"] for one in extra.json()["warnings"]] == ["extra_column"]
        missing = client.post("/decide", json={"context": {"age": None, "city": "Oslo"}}).json()
        assert missing["warnings"] != []
        odd = client.post("/decide", json={"context": {"age": 41, "city": "Paris"}}).json()
        assert [one["kind"] for one in odd["warnings"]] == ["unseen_category"]
        assert (
            'daband_row_warnings_total{kind="unseen_category"} 1.0' in client.get("/metrics").text
        )


def test_every_role_has_its_own_token(exported, sqlite_log):
    tokens = Tokens(decide="d-1, d-2", reward="r-1", admin="a-1")
    calls = {
        "decide": ("POST", "/decide", GOOD),
        "reward": ("POST", "/events/v/reward", {"reward": 1}),
        "admin": ("POST", "/models/0/activate", None),
        "watch": ("GET", "/models", None),
    }
    allowed = {
        "d-1": {"decide"},
        "d-2": {"decide"},
        "r-1": {"reward"},
        "a-1": {"admin", "watch"},
        "x": set(),
        "": set(),
    }
    with served(exported, sqlite_log, Settings(tokens=tokens)) as client:
        client.post("/decide", json=GOOD, headers={"Authorization": "Bearer d-1"})
        for token, roles in allowed.items():
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            for role, (method, path, body) in calls.items():
                status = client.request(method, path, json=body, headers=headers).status_code
                assert status == (
                    200 if role in roles else 403 if token in ("d-1", "d-2", "r-1", "a-1") else 401
                )
        assert client.get("/health").status_code == 200
        assert client.get("/", auth=("anybody", "a-1")).status_code == 200
        assert client.get("/", auth=("anybody", "d-1")).status_code == 403
        assert "Basic" in client.get("/").headers["WWW-Authenticate"]
        forged = client.post(
            "/models/0/activate", auth=("x", "a-1"), headers={"Origin": "https://elsewhere.example"}
        )
        assert forged.status_code == 403
        assert repr(tokens).count("-1") == 0
    with served(exported, sqlite_log, Settings(tokens=tokens)) as client:
        with Api(str(client.base_url), token="d-1", reward_token="r-1") as api:
            api.reward(api.decide(ROW).event_id, 1.0)
        with (
            Api(str(client.base_url), token="wrong") as api,
            pytest.raises(httpx.HTTPStatusError, match="401"),
        ):
            api.decide(ROW)


@pytest.mark.parametrize("tokens", [",", " ", "a,", "a,,b"])
@pytest.mark.parametrize("role", ["decide", "reward", "watch", "admin"])
def test_an_empty_token_opens_no_role(role, tokens):
    with pytest.raises(InvalidInput, match=f"DABAND_{role.upper()}_TOKEN"):
        Tokens(**{role: tokens})


def test_without_tokens_a_page_of_another_site_cannot_post(exported, sqlite_log):
    """A browser on this machine reaches the port, and sends the forms of any page that it shows."""
    with served(exported, sqlite_log) as client:
        own = str(client.base_url).rstrip("/")
        statuses = {
            origin: client.post("/watch/reset", headers={"Origin": origin})
            for origin in (own, "http://evil")
        }
        assert {origin: answer.status_code for origin, answer in statuses.items()} == {
            own: 200,
            "http://evil": 403,
        }
        assert client.post("/decide", json=GOOD, headers={"Origin": "null"}).status_code == 403
        assert client.post("/decide", json=GOOD).status_code == 200  # a program sends none


def test_nothing_of_a_context_goes_to_the_servers_log(exported, sqlite_log, caplog, capfd):
    with served(exported, sqlite_log) as client:
        client.post("/decide", json={"context": [0.98765] * DIM})
        client.post("/decide", json={"context": [0.98765] * (DIM + 1)})
        client.post("/decide", json={"context": {"0.98765": "0.98765"}})
    told = caplog.text + "".join(capfd.readouterr())
    assert "0.98765" not in told


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = os.getuid() == 0 and shutil.which("mount")
    if (
        not mounted
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=False
        ).returncode
    ):
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("kind", ["disk", "pages"])
def test_a_full_disk_loses_nothing_that_was_acknowledged(
    exported, tmp_path, monkeypatch, request, kind
):
    if kind == "disk":
        folder = request.getfixturevalue("small_disk")
    else:
        folder = tmp_path
        monkeypatch.setenv("DABAND_SQLITE_MAX_PAGES", "60")
    log = f"sqlite:///{folder}/events.db"
    acknowledged = []
    refused = 0
    with served(exported, log) as client:
        for number in range(3000):
            response = client.post("/decide", json={"event_id": f"e{number}", "context": ROW})
            if response.status_code == 200:
                acknowledged.append(f"e{number}")
            else:
                assert response.status_code == 503
                assert "full" in response.json()["error"]
                refused += 1
            if refused == 20:
                break
        assert client.get("/health").status_code == 503
        assert "full" in client.get("/health").json()["log"]
        reward = client.post(f"/events/{acknowledged[0]}/reward", json={"reward": 1})
        assert reward.status_code in (200, 503)  # the last page may have room
    assert acknowledged
    assert refused == 20
    monkeypatch.delenv("DABAND_SQLITE_MAX_PAGES", raising=False)
    store = Store(log) if kind == "pages" else None
    with sqlite3.connect(f"file:{folder}/events.db?mode=ro", uri=True) as connection:
        logged = [row[0] for row in connection.execute("SELECT event_id FROM events ORDER BY seq")]
    connection.close()
    assert logged == acknowledged
    if store is not None:
        store.close()


def test_an_incumbent_that_cannot_be(exported, sqlite_log):
    with (
        pytest.raises(InvalidInput, match=f"incumbent: 'fax' .*{ARMS[0]}"),
        served(exported, sqlite_log, Settings(incumbent="fax")),
    ):
        pass
