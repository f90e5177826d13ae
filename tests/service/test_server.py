"""``daband serve`` as a process: what it imports, what it refuses, how it stops, and that it learns
on its own.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from daband.service import _server as server
from tests.service.api import Api
from tests.service.conftest import DIM, free_port


def run(*arguments, env=None):
    return subprocess.run(
        [sys.executable, "-m", "daband", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )


def children(pid):
    return [
        int(one)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for one in path.read_text().split()
    ]


@pytest.mark.slow
def test_the_deciding_process_does_not_import_torch(exported, tmp_path):
    code = f"""
import sys
from daband.service import create_app
app = create_app({str(exported)!r}, "sqlite:///{tmp_path}/events.db")
heavy = [name for name in ("torch", "polars", "typer", "matplotlib", "pydantic", "sklearn") if name in sys.modules]
print(heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_without_the_extra_the_command_says_what_to_install(exported, tmp_path):
    code = """
import sys
sys.modules["starlette"] = None
from daband.cli._main import main
sys.argv = ["daband", "serve", sys.argv[1]]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(exported)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'daband[serve]'" in done.stderr.replace("\n", " ")


@pytest.mark.slow
def test_a_missing_file_is_said_before_addresses_and_makes_no_log(tmp_path):
    done = run("serve", str(tmp_path / "market.daband"), "--log", f"sqlite:///{tmp_path}/events.db")
    assert done.returncode == 2
    assert "market.daband" in done.stderr
    assert "Page:" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "not every role has a token"),
        (["--learn", "nothing.safetensors"], "must be a file that policy.save wrote"),
        (["--learn", str(Path(__file__).parent)], "not the folder of a choice"),
        (["--log", "events.db"], "log must be"),
        (["--incumbent", "fax"], "'fax' is not an arm"),
    ],
)
def test_what_cannot_be_served_is_refused(exported, tmp_path, options, message):
    log = [] if "--log" in options else ["--log", f"sqlite:///{tmp_path}/events.db"]
    done = run("serve", str(exported), *log, *options)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ")


@pytest.mark.slow
def test_a_policy_to_learn_with_that_cannot_be_read_is_refused_before_there_is_a_log(
    policy_files, tmp_path
):
    bad = tmp_path / "policy.safetensors"
    bad.write_bytes(policy_files[0].read_bytes()[:-100])
    done = run(
        "serve",
        str(policy_files[1]),
        "--log",
        f"sqlite:///{tmp_path}/events.db",
        "--learn",
        str(bad),
    )
    assert done.returncode == 2
    assert "policy.safetensors" in done.stderr
    assert list(tmp_path.iterdir()) == [bad]


@pytest.mark.slow
def test_a_served_policy_learns_and_stops_cleanly(policy_files, tmp_path):
    port = free_port()
    log = f"sqlite:///{tmp_path}/events.db"
    policy, file = policy_files
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
    ]
    process = subprocess.Popen(
        [*command, "--learn", str(policy), "--learn-every", "20"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        with Api(f"http://127.0.0.1:{port}") as api:
            rng = np.random.default_rng(0)
            deadline = time.monotonic() + 120
            learned = 0
            while learned < 2 and time.monotonic() < deadline:
                decision = api.decide(rng.normal(size=DIM).tolist())
                api.reward(decision.event_id, float(rng.random() < 0.5))
                if decision.model > learned:
                    learned = decision.model
                    for worker in children(process.pid):  # another one takes over
                        os.kill(worker, signal.SIGKILL)
        assert learned >= 2
        models = httpx.get(f"http://127.0.0.1:{port}/models").json()["models"]
        assert models[0]["origin"] == "learned"
        assert models[0]["rounds"] >= 420
    finally:
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0].decode()
    assert "Traceback" not in output
    assert process.returncode == 0
    done = run("export-events", log, str(tmp_path / "week.parquet"))
    assert done.returncode == 0, done.stderr
    assert "Written" in done.stdout
    assert (tmp_path / "week.parquet").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.2, 0.5])
def test_ctrl_c_while_the_worker_starts_prints_no_traceback(exported, tmp_path, delay):
    command = [
        sys.executable,
        "-m",
        "daband",
        "serve",
        str(exported),
        "--log",
        f"sqlite:///{tmp_path}/events.db",
    ]
    process = subprocess.Popen(
        [*command, "--port", str(free_port())],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (workers := children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(delay)  # the worker imports its modules
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 0
    assert "Traceback" not in output
    assert workers
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.slow
def test_a_worker_that_cannot_start_now_is_started_later(monkeypatch, caplog):
    tries = []
    stopping = threading.Event()

    def start():
        tries.append(1)
        if len(tries) < 3:
            raise OSError(12, "Cannot allocate memory")
        stopping.set()
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    monkeypatch.setattr(server, "_start_worker", start)
    monkeypatch.setattr(server, "_RESTART_SECONDS", 0.01)
    server._supervise_worker(stopping)
    assert len(tries) == 3
    assert caplog.text.count("Cannot allocate memory; it is started again") == 2


@pytest.mark.slow
def test_a_service_in_a_process_that_ends_does_not_complain(exported, tmp_path):
    code = f"""
import threading, time, uvicorn
from daband.service import create_app
app = create_app({str(exported)!r}, "sqlite:///{tmp_path}/events.db")
server = uvicorn.Server(uvicorn.Config(app, port={free_port()}, log_level="warning"))
threading.Thread(target=server.run).start()
while not server.started:
    time.sleep(0.05)

def stop():
    time.sleep(2.5)
    server.should_exit = True

threading.Thread(target=stop).start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
