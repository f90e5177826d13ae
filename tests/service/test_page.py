"""The page: rendered for every state, and in a real browser, where a drift that comes half way is
shown.
"""

import os
import re
import shutil
import subprocess

import numpy as np
import polars as pl
import pytest
from PIL import Image

import daband
from daband.service._client import Client
from daband.service._event_log import Store
from daband.service._settings import Settings
from daband.service._worker import Worker
from tests.service.conftest import DIM, served

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def chromium():
    named = os.environ.get("DABAND_CHROMIUM")
    program = named or next((path for path in map(shutil.which, _NAMES) if path), None)
    if program is None:
        pytest.skip(
            "no Chromium: install one (apt-get install chromium), or name it in DABAND_CHROMIUM"
        )
    return program


def browse(program, address, folder, *options, width=1200, height=1500):
    done = subprocess.run(
        [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={folder}/profile",
            f"--window-size={width},{height}",
            "--enable-logging=stderr",
            "--v=0",
            *options,
            address,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, complaints


def send(client, n, *, shift=0.0, seed=0, paid=0.65):
    """Events with rewards, 100 a call."""
    rng = np.random.default_rng(seed)
    with Client(str(client.base_url)) as api:
        for _ in range(n // 100):
            rows = rng.normal(size=(100, DIM)) + shift
            for decision in api.decide_many([{"context": row.tolist()} for row in rows])[::10]:
                api.reward(decision.event_id, float(rng.random() < paid))


@pytest.mark.slow
def test_a_drift_half_way_shows_on_the_page_within_two_thousand_events(
    exported, chromium, sqlite_log, tmp_path
):
    with served(exported, sqlite_log, Settings(incumbent="call")) as client:
        store = Store(sqlite_log)
        worker = Worker(store, Settings(incumbent="call"))
        address = str(client.base_url)

        def page():
            while worker.run_once():
                pass
            worker.write_snapshot()
            return browse(chromium, address, tmp_path, "--dump-dom")

        send(client, 2000)
        shown, complaints = page()
        assert complaints == []
        assert "No alarm." in shown
        assert "As in training." in shown
        send(client, 2000, shift=0.8, seed=1, paid=0.2)
        shown, complaints = page()
        assert complaints == []
        told = re.search(r"found at event ([0-9,]+)", shown)
        assert told is not None
        assert 2000 < int(told[1].replace(",", "")) <= 4000
        assert "They differ from those of training." in shown
        metrics = client.get("/metrics").text
        assert "daband_alarm_contexts 1.0" in metrics
        for width in (390, 1200):
            picture = tmp_path / f"page-{width}.png"
            browse(chromium, address, tmp_path, f"--screenshot={picture}", width=width)
            pixels = np.asarray(Image.open(picture).convert("L"))
            assert pixels.shape[1] >= width
            assert pixels.std() > 5
        client.post("/watch/reset")
        assert "No alarm." in page()[0]
        store.close()


@pytest.mark.parametrize("mode", ["online", "apprentice"])
@pytest.mark.parametrize("contexts", ["keep", "drop"])
def test_the_page_is_there_before_and_after_the_first_events(exported, sqlite_log, mode, contexts):
    settings = Settings(mode=mode, contexts=contexts, incumbent="call", wait=1000.0)
    with served(exported, sqlite_log, settings) as client:
        assert "Nothing has been counted yet" in client.get("/").text
        store = Store(sqlite_log)
        worker = Worker(store, settings)
        worker.write_snapshot()
        assert "No alarm." in client.get("/").text
        for number in range(50):
            client.post("/decide", json={"event_id": f"e{number}", "context": [0.1 * number] * DIM})
            client.post(f"/events/e{number}/reward", json={"reward": number % 2})
        worker.run_once()
        worker.write_snapshot()
        page = client.get("/").text
        assert page.count("<section") == 5
        assert ("Not watched" in page) is (contexts == "drop")
        assert "daband_events 50.0" in client.get("/metrics").text
        store.close()


def test_the_page_explains_the_policy_the_assessment_and_the_evidence(tmp_path, sqlite_log):
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(400, 3))
    arms = rng.integers(2, size=400)
    pair = daband.domains.from_log(
        source=(contexts, arms, arms + rng.normal(size=400), np.full(400, 0.5)),
        target=contexts + 0.1,
        n_arms=2,
        class_names=["letter", "coupon"],
    )
    policy = daband.LogPolicy.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source)
    assessment = daband.assess(
        policy, source=pair.source_test, target=pair.target, incumbent="letter"
    )
    daband.export(policy, tmp_path / "m.daband", pair=pair, domain="target", assessment=assessment)
    with served(tmp_path / "m.daband", sqlite_log) as client:
        send_rows(client, rng.normal(size=(100, 3)))
        store = Store(sqlite_log)
        worker = Worker(store, Settings())
        worker.run_once()
        worker.write_snapshot()
        store.close()
        page = client.get("/").text
    assert "<h1>daband chooses among letter, coupon</h1>" in page
    row = re.search(r"advantage over always letter, assessed[^\n]*", page)[0]
    assert f"{assessment.advantage:.3f}, lower limit {assessment.low:.3f}" in row
    assert f"({assessment.verdict})" in row
    evidence = re.findall(r'<td class="n">([0-9.]+)%', page.partition("evidence of a change")[2])
    assert evidence
    assert all(0.0 <= float(percent) < 100.0 for percent in evidence)
    assert "raises an alarm at 100%" in page


def send_rows(client, rows):
    client.post(
        "/decide", json={"events": [{"context": row.tolist()} for row in rows]}
    ).raise_for_status()


def write_table_policy(folder):
    """A policy for rows with every kind of column."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "age": rng.integers(20, 60, 200),
            "city": rng.choice(["Oslo", "Bergen", None], 200),
            "seen": [f"2026-0{number % 9 + 1}-11 10:30" for number in range(200)],
            "hour": [f"{number % 24:02}:15" for number in range(200)],
            "offer": rng.choice(["card", "loan"], 200),
        }
    )
    columns = daband.domains.Columns(
        context=["age", "city", "seen", "hour"],
        categorical=["city"],
        dates=["seen", "hour"],
        label="offer",
    )
    pair = daband.domains.from_table(source=frame, target=frame, columns=columns)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=32)
    daband.export(policy, folder / "t.daband", pair=pair, domain="target")
    return folder / "t.daband"


@pytest.mark.parametrize("mode", ["online", "apprentice"])
@pytest.mark.parametrize("kind", ["vectors", "table"])
def test_every_example_of_the_document_can_be_sent(exported, tmp_path, sqlite_log, kind, mode):
    file = exported if kind == "vectors" else write_table_policy(tmp_path)
    with served(file, sqlite_log, Settings(mode=mode)) as client:
        assert send_examples(client) == ["/decide", "/events/{event_id}/reward"]


def send_examples(client):
    """Send all examples of the document, and return their paths."""
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    sent = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            address = path.replace("{event_id}", "visit-1").replace("{number}", "0")
            assert client.request(method, address).status_code != 405
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]
                response = client.request(method, address, json=content["example"])
                assert response.status_code == 200, response.text
                assert response.json().get("warnings", []) == []
                sent.append(path)
    return sent
