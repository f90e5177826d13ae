"""The page: rendered for every state, and in a real browser, where a drift that comes half way is
shown.
"""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

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


def test_the_calls_are_a_document(exported, sqlite_log):
    with served(exported, sqlite_log) as client:
        document = client.get("/openapi.json").json()
        assert document["openapi"].startswith("3.1")
        example = document["paths"]["/decide"]["post"]["requestBody"]["content"][
            "application/json"
        ]["example"]
        assert client.post("/decide", json=example).status_code == 200
        for path, operations in document["paths"].items():
            for method in operations:
                asked = path.replace("{event_id}", "none").replace("{number}", "0")
                assert client.request(method, asked).status_code != 405
