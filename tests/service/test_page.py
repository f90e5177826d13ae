"""The page: rendered for every state, and in a real browser, where a drift that comes half way is
shown.
"""

import os
import re
import shutil
import subprocess
import time
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

import daband
from daband.ledger._store import Reward, Store
from daband.logs._controlled_trial import TrialRule
from daband.service import Settings
from daband.service._worker import Worker
from tests.service.api import Api
from tests.service.conftest import ARMS, DIM, served

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
    with Api(str(client.base_url)) as api:
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


@pytest.fixture
def pilot_file(tmp_path):
    """A policy that always prefers to visit, in a pilot against calls."""
    policy = daband.Constant(context_shape=(DIM,), n_arms=len(ARMS), seed=0, alpha=0.0)
    policy.update(np.zeros((30, DIM)), [2] * 30, [1.0] * 30)
    policy.update(np.zeros((60, DIM)), [0, 1] * 30, [0.0] * 60)
    rule = TrialRule(max_cost=100.0, worst_loss=0.5, drift=0.25, reference_rounds=5000.0)
    pilot = {"control": 0.5, "rounds": 2800.0, "rule": asdict(rule)}
    path = tmp_path / "pilot.daband"
    assessment = {"advantage": 0.05, "low": 0.01, "incumbent": "always call", "verdict": "deploy"}
    options = {"assessment": {**assessment, "unit": "euros"}, "incumbent": "call"}
    daband.export(policy, path, arm_names=ARMS, pilot=pilot, **options)
    return path


def run_pilot(client, store, worker, worth, *, stop):
    """Decide and reward until the text is on the page; return the page and the modes of the last
    events.
    """
    rng = np.random.default_rng(0)
    page = ""
    modes = []
    with Api(str(client.base_url)) as api:
        for _ in range(60):
            decisions = api.decide_many([{"context": [0.1] * DIM} for _ in range(100)])
            modes = [decision.role for decision in decisions]
            store.append(
                [
                    Reward(one.event_id, float(rng.random() < worth[one.arm_name]), 1.0)
                    for one in decisions
                ]
            )
            while worker.run_once():
                pass
            worker.write_snapshot()
            page = client.get("/").text
            if stop in page:
                break
            time.sleep(1.1)  # the service reads the notes of its worker every second
    return page, modes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("visit", "text", "mode"),
    [
        (0.75, "The pilot is over, and the policy decides on all events.", "pilot"),
        (0.2, "All events keep the incumbent", "fallback"),
    ],
)
def test_a_pilot_stops_by_itself_and_shows_its_course(
    pilot_file, chromium, sqlite_log, tmp_path, visit, text, mode
):
    settings = Settings()
    worth = {"call": 0.5, "visit": visit}
    with served(pilot_file, sqlite_log, settings) as client:
        store = Store(sqlite_log)
        worker = Worker(store, settings)
        page, _ = run_pilot(client, store, worker, worth, stop=text)
        assert text in page
        for shown in ("mean reward of the policy", "mean reward of call", "<svg", "euros"):
            assert shown in page
        assert "advantage over always call, assessed before deployment" in page
        assert "0.050 euros, at least 0.010 (deploy)" in page
        assert re.search(r"mean reward of all events</td><td class=\"n\">[^<]* euros<", page)
        metrics = client.get("/metrics").text
        assert "daband_pilot_max_cost 100.0" in metrics
        cost = float(re.search(r"(?m)^daband_pilot_cost (\S+)", metrics)[1])
        assert cost < 100.0
        time.sleep(1.5)
        _, modes = run_pilot(client, store, worker, worth, stop="<html")
        assert set(modes) == {mode}
        picture = tmp_path / "page.png"
        _, complaints = browse(chromium, str(client.base_url), tmp_path, f"--screenshot={picture}")
        assert complaints == []
        pixels = np.asarray(Image.open(picture).convert("L"))
        assert pixels.std() > 5
        store.close()


def test_a_reset_grants_a_pilot_no_further_cost(pilot_file, sqlite_log):
    """Before: each reset of the counts ended a decision, and granted the whole limit again."""
    settings = Settings()
    with served(pilot_file, sqlite_log, settings) as client, Api(str(client.base_url)) as api:
        store = Store(sqlite_log)
        worker = Worker(store, settings)
        lifts = []
        for batch in range(4):
            decisions = api.decide_many([{"context": [0.1] * DIM} for _ in range(200)])
            store.append([Reward(one.event_id, one.arm == 1, 1.0) for one in decisions])
            while worker.run_once():
                pass
            worker.write_snapshot()
            lifts.append(client.get("/lift").json())
            if batch in (0, 3):
                client.post("/watch/reset")
                while worker.run_once():
                    pass
                worker.write_snapshot()
                lifts.append(client.get("/lift").json())
                assert 'decisions</td><td class="n">0<' in client.get("/").text
        assert 0 < lifts[0]["cost"] == lifts[1]["cost"] <= lifts[2]["cost"]
        assert lifts[-1]["cost"] == lifts[-2]["cost"]
        assert lifts[-1]["verdict"] == lifts[-2]["verdict"] == "worse"
        store.close()


@pytest.mark.parametrize("contexts", ["keep", "drop"])
def test_the_page_is_there_before_and_after_the_first_events(exported, sqlite_log, contexts):
    settings = Settings(contexts=contexts, incumbent="call", wait=1000.0)
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
        source_test=0.1,
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
    assert f"{assessment.advantage:.3f}, at least {assessment.low:.3f}" in row
    assert f"({assessment.verdict})" in row
    evidence = re.findall(r'<td class="n">([0-9.]+)%', page.partition("evidence of a change")[2])
    assert evidence
    assert all(0.0 <= float(percent) < 100.0 for percent in evidence)
    assert "raises an alarm at 100%" in page


def send_rows(client, rows):
    client.post(
        "/decide", json={"events": [{"context": row.tolist()} for row in rows]}
    ).raise_for_status()


def test_the_document_describes_the_calls_of_the_service(exported, sqlite_log):
    with served(exported, sqlite_log) as client:
        document = client.get("/openapi.json").json()
        assert document["openapi"].startswith("3.1")
        for path, operations in document["paths"].items():
            for method in operations:
                address = path.replace("{event_id}", "visit-1").replace("{number}", "0")
                assert client.request(method, address).status_code != 405
        event = {"event_id": "visit-1", "context": [0.0] * DIM}
        assert set(event) <= set(document["components"]["schemas"]["Event"]["properties"])
        answer = client.post("/decide", json=event).json()
        assert set(answer) == set(document["components"]["schemas"]["Decision"]["properties"])
