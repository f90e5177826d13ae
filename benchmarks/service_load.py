"""Measure the requests per second of the service, compared with a bare endpoint that writes the
same rows.

    python benchmarks/service_load.py --json benchmarks/records/service-load.json --commit $(git rev-parse --short HEAD)
    python benchmarks/service_load.py --soak 20 ...       # and 20 minutes at a steady rate, for the memory

In a separate process, 16 clients with open connections send decisions and rewards in turns (LinUCB,
32 numbers, 10 arms). The bare endpoint uses the same server and framework. It reads the JSON,
writes a row of the same size by the same group commit, and answers. It does not decide or check
anything, and has no worker. The service and the bare endpoint take turns, so that other load on the
machine affects both. All requests are local.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from service_kill import DIMENSIONS, Server, free_port, write_policy
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from daband.ledger._store import Event, Reward, Store
from daband.service._writer import Writer

CLIENTS = 16


def bare_app(log: str) -> Starlette:
    """Return the application with the bare endpoint, which reads JSON, writes a row to disk and
    returns JSON.
    """
    store = Store(log)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        app.state.writer = Writer(store, max_waiting_entries=100_000)
        yield
        await app.state.writer.close()
        store.close()

    async def decide(request: Request) -> Response:
        body = await request.body()
        given = orjson.loads(body)
        context = orjson.dumps(given["context"]).decode()
        now = time.time()
        event = Event(
            given["event_id"], now, "policy", "source", 0, 3, 0.91, context, None, "0" * 32
        )
        await request.app.state.writer.write([event])
        answer = {
            "event_id": event.event_id,
            "arm": 3,
            "arm_name": "3",
            "propensity": 0.91,
            "model": 0,
            "role": "policy",
            "repeated": False,
            "warnings": [],
        }
        return Response(orjson.dumps(answer), media_type="application/json")

    async def reward(request: Request) -> Response:
        given = orjson.loads(await request.body())
        event_id = request.path_params["event_id"]
        await request.app.state.writer.write([Reward(event_id, given["reward"], time.time())])
        answer = {"event_id": event_id, "status": "recorded", "reward": given["reward"]}
        return Response(orjson.dumps(answer), media_type="application/json")

    async def health(request: Request) -> Response:  # noqa: ARG001
        return Response(b"{}")

    routes = [
        Route("/decide", decide, methods=["POST"]),
        Route("/events/{event_id}/reward", reward, methods=["POST"]),
        Route("/health", health),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def _client(
    port: int, until: float, seed: int, pause: float
) -> tuple[list[float], list[float], int]:
    """Run one client.

    Return the seconds of each decision and each reward, and the number of rounds with an error.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    rng = random.Random(seed)
    decide_seconds: list[float] = []
    reward_seconds: list[float] = []
    n_errors = 0
    number = 0

    async def post(path: str, body: bytes) -> bool:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        return answer.startswith(b"HTTP/1.1 200")

    bodies = [orjson.dumps([rng.gauss(0, 1) for _ in range(DIMENSIONS)]) for _ in range(64)]
    while time.perf_counter() < until:
        event_id = f"{seed}-{time.monotonic_ns()}-{number}"
        number += 1
        start = time.perf_counter()
        good = await post(
            "/decide", b'{"event_id":"%b","context":%b}' % (event_id.encode(), bodies[number % 64])
        )
        decide_seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        good &= await post(f"/events/{event_id}/reward", b'{"reward":%d}' % rng.getrandbits(1))
        reward_seconds.append(time.perf_counter() - start)
        n_errors += not good
        if pause:
            await asyncio.sleep(pause)
    writer.close()
    return decide_seconds, reward_seconds, n_errors


async def _clients(port: int, seconds: float, pause: float) -> dict[str, Any]:
    start = time.perf_counter()
    outcomes = await asyncio.gather(
        *(_client(port, start + seconds, seed, pause) for seed in range(CLIENTS))
    )
    elapsed = time.perf_counter() - start
    decide_seconds = [one for outcome in outcomes for one in outcome[0]]
    reward_seconds = [one for outcome in outcomes for one in outcome[1]]
    every = np.array(decide_seconds + reward_seconds)
    return {
        "requests": len(every),
        "rate": len(every) / elapsed,
        "wrong": sum(outcome[2] for outcome in outcomes),
        "decide_ms": [float(np.percentile(decide_seconds, q)) * 1e3 for q in (50, 99)],
        "reward_ms": [float(np.percentile(reward_seconds, q)) * 1e3 for q in (50, 99)],
        "median_ms": float(np.median(every)) * 1e3,
        "p99_ms": float(np.percentile(every, 99)) * 1e3,
    }


def load(port: int, seconds: float, pause: float = 0.0) -> dict[str, Any]:
    """Run the clients in a separate process, and return their statistics."""
    command = [
        sys.executable,
        __file__,
        "--clients",
        str(port),
        "--seconds",
        str(seconds),
        "--pause",
        str(pause),
    ]
    done = subprocess.run(
        command, capture_output=True, check=True, text=True, timeout=seconds + 120
    )
    return dict(json.loads(done.stdout))


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def measure_load(port: int, seconds: float, processes: dict[str, int]) -> dict[str, Any]:
    """Return the statistics of ``load``, with the CPU microseconds of each process per request."""
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    found = load(port, seconds)
    used = {name: cpu_seconds(pid) - before[name] for name, pid in processes.items()}
    return {
        **found,
        "cpu_us": {name: 1e6 * seconds / found["requests"] for name, seconds in used.items()},
    }


def children(pid: int) -> list[int]:
    """Return the ids of the child processes of a process."""
    return [
        int(one)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for one in file.read_text().split()
    ]


def soak(minutes: float, rate: float) -> dict[str, Any]:
    """Send requests at a steady rate for some minutes, and return the memory of the service and of
    the worker.
    """
    with tempfile.TemporaryDirectory() as name:
        policy, file = write_policy(Path(name))
        server = Server(file, f"sqlite:///{name}/events.db", "--learn", str(policy))
        server.start()
        try:
            return _run_soak(server, minutes, rate)
        finally:
            server.kill()


def _run_soak(server: Server, minutes: float, rate: float) -> dict[str, Any]:
    assert server.process is not None
    pause = CLIENTS * 2.0 / rate
    command = [
        sys.executable,
        __file__,
        "--clients",
        str(server.port),
        "--seconds",
        str(60 * minutes),
        "--pause",
        str(pause),
    ]
    clients = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pids = {"service": server.process.pid, "worker": children(server.process.pid)[0]}
    samples: dict[str, list[float]] = {name: [] for name in pids}
    while clients.poll() is None:
        for name, pid in pids.items():
            samples[name].append(resident_mb(pid))
        time.sleep(max(0.5, minutes / 4))
    assert clients.stdout is not None
    found = dict(json.loads(clients.stdout.read()))
    memory = {}
    for name, megabytes in samples.items():
        third = len(megabytes) // 3
        memory[name] = {
            "start": megabytes[0],
            "second_third": float(np.median(megabytes[third : 2 * third])),
            "last_third": float(np.median(megabytes[2 * third :])),
            "most": max(megabytes),
        }
    return {"minutes": minutes, "memory_mb": memory, **found}


def compare(seconds: float, turns: int) -> dict[str, Any]:
    """Measure the service and the bare endpoint in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy, file = write_policy(folder)
        server = Server(file, f"sqlite:///{folder}/events.db", "--learn", str(policy))
        port = free_port()
        code = (
            "import sys, uvicorn; sys.path.insert(0, sys.argv[1]); from service_load import"
            " bare_app; uvicorn.run(bare_app(sys.argv[2]), host='127.0.0.1', port=int(sys.argv[3]),"
            " log_level='warning')"
        )
        here = str(Path(__file__).parent)
        log = f"sqlite:///{folder}/bare.db"
        bare = subprocess.Popen([sys.executable, "-c", code, here, log, str(port)])
        try:
            server.start()
            found: dict[str, list[dict[str, Any]]] = {"service": [], "bare": []}
            load(port, 2.0)
            load(server.port, 2.0)
            assert server.process is not None
            processes = {"service": server.process.pid, "worker": children(server.process.pid)[0]}
            for _ in range(turns):
                found["bare"].append(measure_load(port, seconds, {"bare": bare.pid}))
                found["service"].append(measure_load(server.port, seconds, processes))
                print({name: round(runs[-1]["rate"]) for name, runs in found.items()}, flush=True)
        finally:
            bare.kill()
            server.kill()
    rates = {name: float(np.median([one["rate"] for one in runs])) for name, runs in found.items()}
    return {
        "clients": CLIENTS,
        "turns": found,
        "rate": rates,
        "ratio": rates["service"] / rates["bare"],
        "cpu_us": {
            name: float(np.median([one["cpu_us"][name] for one in found[side]]))
            for side, name in (("service", "service"), ("service", "worker"), ("bare", "bare"))
        },
        "median_ms": float(np.median([one["median_ms"] for one in found["service"]])),
        "p99_ms": float(np.median([one["p99_ms"] for one in found["service"]])),
        "soak": None,
        "machine": {
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of one turn")
    parser.add_argument("--turns", type=int, default=5, help="0: only the soak")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes")
    parser.add_argument("--soak-rate", type=float, default=300.0, help="requests a second")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--clients", type=int, help="only the clients, on this port")
    parser.add_argument("--pause", type=float, default=0.0)
    arguments = parser.parse_args()
    if arguments.clients is not None:
        print(
            json.dumps(asyncio.run(_clients(arguments.clients, arguments.seconds, arguments.pause)))
        )
        return
    if arguments.turns:
        found = {**compare(arguments.seconds, arguments.turns), "commit": arguments.commit}
    else:  # the soak alone, beside the rates that are there
        found = json.loads(arguments.json.read_text())
    if arguments.soak:
        found["soak"] = {**soak(arguments.soak, arguments.soak_rate), "commit": arguments.commit}
    print(json.dumps({name: value for name, value in found.items() if name != "turns"}, indent=2))
    arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
