"""One client must not stall the service: long rows, and other sites' pages."""

import difflib
import socket

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import InvalidInput
from daband.service import Settings
from tests.service.conftest import served


@pytest.fixture(scope="module")
def table_file(tmp_path_factory):
    """An exported policy on a table with the columns age and city."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"age": rng.integers(20, 60, 300), "city": rng.choice(["Oslo", "Bergen"], 300)}
    )
    frame = frame.with_columns(offer=pl.Series(rng.choice(["a", "b"], 300)))
    columns = daband.domains.Columns(context=["age", "city"], categorical=["city"], label="offer")
    pair = daband.domains.from_table(source=frame, target=frame, columns=columns)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=32)
    file = tmp_path_factory.mktemp("table") / "t.daband"
    daband.export(policy, file, pair=pair, domain="target")
    return file


def test_thousands_of_unknown_columns_get_a_short_answer(table_file, sqlite_log):
    row = {"age": 41, "city": "Oslo"}
    with served(table_file, sqlite_log, Settings(body_bytes=1 << 22)) as client:
        client.post("/decide", json={"context": row})
        refused = client.post(
            "/decide", json={"context": {**row, **{f"unknown {one}": 0 for one in range(75_000)}}}
        )
        assert refused.json() == {"error": "context must have at most 1,002 columns, got 75,002"}
        unknown = {f"unknown {one}": 0 for one in range(1000)}
        warnings = [
            one["message"]
            for one in client.post("/decide", json={"context": row | unknown}).json()["warnings"]
        ]
        assert len(warnings) == 9
        assert warnings[-1] == "992 more columns are not columns of training and were ignored"


def test_a_missing_column_is_compared_with_few_of_many_unknown_ones(table_file, monkeypatch):
    """Comparing it with all 75,000 took 16 s."""
    compared, get_close_matches = [], difflib.get_close_matches

    def record(word, names, *args, **kwargs):
        names = list(names)
        compared.append(len(names))
        return get_close_matches(word, names, *args, **kwargs)

    monkeypatch.setattr(difflib, "get_close_matches", record)
    with pytest.raises(InvalidInput, match="no 'city'"):
        daband.load_deployed(table_file).decide(
            {"age": 41, **{f"unknown {one}": 0 for one in range(75_000)}}
        )
    assert compared == [100]


def test_an_answer_does_not_repeat_long_names(table_file, sqlite_log):
    long = "x" * 100_000
    with served(table_file, sqlite_log) as client:
        for body in (
            {"context": {"age": 41, "city": long}},
            {"context": {"age": 41, "city": "Oslo", long: 1}},
            {"context": {"age": 41, "city": "Oslo"}, long: 1},
            {"context": {"age": 41, "city": "Oslo"}, "eligible": [long]},
            {"context": {"age": long, "city": "Oslo"}},
        ):
            assert len(client.post("/decide", json=body).content) < 12_000
        too_many = client.post(
            "/decide", json={"context": {"age": 41, "city": "Oslo"}, "eligible": [0] * 100_000}
        )
        assert too_many.json()["error"] == "eligible must be a list of 1 to 2 arms"


def connect(address, text=b""):
    one = socket.create_connection((address.host, address.port), timeout=30)
    one.sendall(text)
    return one


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("localhost:80", True),
        ("LOCALHOST", True),
        ("[::1]:80", True),
        ("127.0.0.2:1", True),
        ("market.example:443", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("10.0.0.7", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[::1", False),
        ("a@localhost.evil", False),
    ],
)
def test_a_request_under_a_name_of_another_site_is_refused(exported, sqlite_log, host, allowed):
    """DNS rebinding: the name of a hostile page may point to this machine, and its Origin is then
    the same name.
    """
    with served(exported, sqlite_log, Settings(hosts=("Market.example",))) as client:
        with connect(client.base_url) as one:
            one.sendall(
                f"POST /watch/reset HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n".encode()
            )
            status = int(one.recv(1 << 16).split(b" ")[1])
        assert (status == 200) is allowed
        assert status in (200, 400, 421)
        refused = client.get("/openapi.json", headers={"Host": "evil.example"})
        assert refused.status_code == 421
        assert "--allow-host" in refused.json()["error"]


def test_a_request_with_two_hosts_is_refused(exported, sqlite_log):
    """A proxy might check the other one."""
    with served(exported, sqlite_log) as client, connect(client.base_url) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert one.recv(1 << 16).split(b" ")[1] == b"400"


def test_any_name_may_be_allowed(exported, sqlite_log):
    with served(exported, sqlite_log, Settings(hosts=("*",))) as client:
        assert client.get("/health", headers={"Host": "market.example"}).status_code == 200


def test_pages_cannot_be_framed_and_run_no_script(exported, sqlite_log):
    with served(exported, sqlite_log) as client:
        headers = client.get("/").headers
        assert headers["X-Frame-Options"] == "DENY"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "script-src" not in policy


@pytest.mark.parametrize("number", ["²", "٣", "12345678901234567890123", "-1", "7", "x"])
def test_a_model_that_is_not_there_is_not_found(exported, sqlite_log, number):
    with served(exported, sqlite_log) as client:
        response = client.post(f"/models/{number}/activate")
        assert response.status_code == 404
        assert "GET /models" in response.json()["error"]


def test_41_and_41_with_a_point_are_one_context(table_file, sqlite_log):
    with served(table_file, sqlite_log) as client:
        first = client.post(
            "/decide", json={"event_id": "a", "context": {"age": 41, "city": "Oslo"}}
        ).json()
        again = client.post(
            "/decide", json={"event_id": "a", "context": {"city": "Oslo", "age": 41.0}}
        )
        assert again.status_code == 200
        assert again.json() == {**first, "repeated": True}
        for age in (41.5, 42, 41.0 + 1e-9, "41", True):
            assert client.post(
                "/decide", json={"event_id": "a", "context": {"age": age, "city": "Oslo"}}
            ).status_code in (
                409,
                422,
            )
