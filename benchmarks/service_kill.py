"""Kill the service under load many times, and check that every acknowledged event is in the log
exactly once.

    python benchmarks/service_kill.py --kills 50 --json benchmarks/records/service-kill.json

Clients send decisions and rewards all the time, and repeat requests without an answer. At random
times the service and its worker are killed by SIGKILL and started again, and the time until the
service answers is measured. In the end, every answer that a client got must be in the log once and
unchanged. The log is a file of SQLite, and then a Postgres server that the benchmark starts, or the
server at --postgres. All requests are local.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import daband
from daband.ledger._store import Store

DIMENSIONS = 32
ARMS = 10
_START_LIMIT_SECONDS = 60.0


def write_policy(
    folder: Path, *, dimensions: int = DIMENSIONS, arms: int = ARMS
) -> tuple[Path, Path]:
    """Train a LinUCB on a few rounds, and return its policy file and its exported file."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(1000, dimensions))
    policy = daband.LinUCB(context_shape=(dimensions,), n_arms=arms, epsilon=0.1, seed=0)
    policy.update(contexts, rng.integers(arms, size=1000), (rng.random(1000) < 0.5).astype(float))
    policy.save(folder / "policy.safetensors")
    daband.export(
        policy, folder / "market.daband", reference=contexts, assessment={"value": 0.5, "low": 0.4}
    )
    return folder / "policy.safetensors", folder / "market.daband"


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """``daband serve`` in a separate process group."""

    def __init__(self, file: Path, log: str, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._command = [
            sys.executable,
            "-m",
            "daband",
            "serve",
            str(file),
            "--log",
            log,
            "--port",
            str(self.port),
            *options,
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self.start_cpu: list[float] = []
        """CPU seconds of the service until its first answer, for each start."""

    def start(self) -> float:
        """Start the service, and return the seconds until its first answer."""
        start = time.perf_counter()
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        while time.perf_counter() - start < _START_LIMIT_SECONDS:
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                contextlib.closing(
                    http.client.HTTPConnection("127.0.0.1", self.port, timeout=1.0)
                ) as connection,
            ):
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    ticks = (
                        Path(f"/proc/{self.process.pid}/stat")
                        .read_text()
                        .rpartition(")")[2]
                        .split()[11:13]
                    )
                    self.start_cpu.append(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"))
                    return time.perf_counter() - start
            if self.process.poll() is not None:
                assert self.process.stderr is not None
                raise RuntimeError(self.process.stderr.read().decode())
            time.sleep(0.02)
        raise RuntimeError("the service does not start")

    def kill(self) -> None:
        """Kill the service and its worker at once, as a power failure does."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


class Caller(threading.Thread):
    """A client that sends decisions and rewards all the time, and stores the acknowledged ones."""

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._random = random.Random(seed)
        self._address = address
        self.events: dict[str, dict[str, Any]] = {}
        self.rewards: dict[str, float] = {}
        self.repeated = 0
        self.stop = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self._address, timeout=5.0) as client:
            while not self.stop.is_set():
                event_id = uuid.uuid4().hex
                context = [self._random.gauss(0, 1) for _ in range(DIMENSIONS)]
                answer = self._post(client, "/decide", {"event_id": event_id, "context": context})
                if answer is None:
                    continue
                self.events[event_id] = answer
                reward = float(self._random.random() < 0.5)
                if self._random.random() < 0.7 and self._post(
                    client, f"/events/{event_id}/reward", {"reward": reward}
                ):
                    self.rewards[event_id] = reward

    def _post(self, client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a request.

        A request without an answer is repeated with probability 0.75, else None.
        """
        while not self.stop.is_set():
            try:
                response = client.post(path, json=body)
                response.raise_for_status()
                return dict(response.json())
            except httpx.TransportError:
                if self._random.random() < 0.25:
                    return None
                self.repeated += 1
                time.sleep(0.1)
        return None


def run(
    log: str,
    *,
    kills: int,
    callers: int = 4,
    seed: int = 0,
    between: tuple[float, float] = (0.1, 1.5),
) -> dict[str, Any]:
    """Kill the service this many times under load, and compare the log with the answers that
    clients got.
    """
    with tempfile.TemporaryDirectory() as folder:
        policy, file = write_policy(Path(folder))
        server = Server(file, log, "--learn", str(policy), "--learn-every", "50")
        moments = random.Random(seed)
        starts = [server.start()]
        threads = [Caller(server.address, seed * 1000 + number) for number in range(callers)]
        for thread in threads:
            thread.start()
        for _ in range(kills):
            _wait_for_answers(threads, 10)
            time.sleep(moments.uniform(*between))
            server.kill()
            starts.append(server.start())
        _wait_for_model(log)
        for thread in threads:
            thread.stop.set()
        for thread in threads:
            thread.join(10.0)
        server.kill()
    answers = {name: answer for thread in threads for name, answer in thread.events.items()}
    rewarded = {name: reward for thread in threads for name, reward in thread.rewards.items()}
    return {
        "kills": kills,
        "acknowledged_events": len(answers),
        "acknowledged_rewards": len(rewarded),
        "repeated_calls": sum(thread.repeated for thread in threads),
        "slowest_start_seconds": max(starts[1:], default=starts[0]),
        "median_start_seconds": float(np.median(starts[1:] or starts)),
        "start_cpu_seconds": float(np.median(server.start_cpu)),
        **_compare(log, answers, rewarded),
    }


def _wait_for_answers(threads: list[Caller], n: int) -> None:
    """Wait until ``n`` further decisions are acknowledged, so that every kill happens under
    load.
    """
    until = sum(len(thread.events) for thread in threads) + n
    deadline = time.monotonic() + _START_LIMIT_SECONDS
    while sum(len(thread.events) for thread in threads) < until and time.monotonic() < deadline:
        time.sleep(0.01)


def _wait_for_model(log: str) -> None:
    """Wait until the worker, which was killed as often, has published a learned model."""
    store = Store(log)
    deadline = time.monotonic() + _START_LIMIT_SECONDS
    while len(store.list_models()) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    store.close()


def _compare(
    log: str, answers: dict[str, dict[str, Any]], rewarded: dict[str, float]
) -> dict[str, int]:
    store = Store(log)
    events = []
    rewards = []
    seq = 0
    while rows := store.read_events(seq, 5000):
        events += [event for _, event in rows]
        seq = rows[-1][0]
    seq = 0
    while found := store.read_rewards(seq, 5000):
        rewards += found
        seq = found[-1].seq
    models = store.list_models()
    damaged = 0
    if store.backend == "sqlite":
        damaged = int(store.read("PRAGMA integrity_check")[0][0] != "ok")
    store.close()
    logged = {event.event_id: event for event in events}
    reward_of = {row.event.event_id: row.reward for row in rewards}
    return {
        "logged_events": len(events),
        "logged_rewards": len(rewards),
        "models_learned": len(models) - 1,
        "lost_events": sum(name not in logged for name in answers),
        "altered_events": sum(
            name in logged
            and (logged[name].arm, logged[name].propensity) != (answer["arm"], answer["propensity"])
            for name, answer in answers.items()
        ),
        "double_events": len(events) - len(logged),
        "lost_rewards": sum(name not in reward_of for name in rewarded),
        "altered_rewards": sum(
            name in reward_of and reward_of[name] != reward for name, reward in rewarded.items()
        ),
        "double_rewards": len(rewards) - len(reward_of),
        "damaged_files": damaged,
    }


FAULTS = (
    "lost_events",
    "altered_events",
    "double_events",
    "lost_rewards",
    "altered_rewards",
    "double_rewards",
    "damaged_files",
)


@contextlib.contextmanager
def postgres(given: str | None) -> Iterator[str | None]:
    """Yield the address of a Postgres server: the given one, else a new one if Postgres is
    installed, else None.
    """
    programs = [
        Path(found).parent for found in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    ]
    if given is not None or not programs:
        yield given
        return
    root = os.getuid() == 0
    user = "postgres" if root else pwd.getpwuid(os.getuid()).pw_name
    folder = Path(tempfile.mkdtemp(prefix="daband-postgres-"))
    if root:
        shutil.chown(folder, user)

    def call(*command: object) -> None:
        before = ["runuser", "-u", user, "--"] if root else []
        subprocess.run([*before, *map(str, command)], check=True, capture_output=True, cwd=folder)

    port = free_port()
    call(programs[-1] / "initdb", "-D", folder / "data", "-A", "trust", "-U", user)
    options = f"-p {port} -k {folder} -h 127.0.0.1"
    call(
        programs[-1] / "pg_ctl",
        "-D",
        folder / "data",
        "-o",
        options,
        "-l",
        folder / "log",
        "-w",
        "start",
    )
    try:
        yield f"postgresql://{user}@127.0.0.1:{port}/postgres"
    finally:
        call(programs[-1] / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument(
        "--postgres", help="an empty database, e.g. postgresql://me@127.0.0.1/empty"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        found["sqlite"] = run(f"sqlite:///{folder}/events.db", kills=arguments.kills)
    print(json.dumps(found["sqlite"], indent=2))
    with postgres(arguments.postgres) as address:
        if address is None:
            print("no Postgres: apt-get install postgresql, or --postgres")
        else:
            found["postgres"] = run(address, kills=arguments.kills, seed=1)
            print(json.dumps(found["postgres"], indent=2))
    if arguments.json is not None:
        machine = {
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
        }
        document = {"logs": found, "machine": machine, "commit": arguments.commit}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    if any(one[fault] for one in found.values() for fault in FAULTS):
        sys.exit("an acknowledged event was lost, altered or doubled")


if __name__ == "__main__":
    main()
