"""A small exported policy, logs in SQLite and in Postgres, and services on them."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn

import daband
from daband.service import Settings, create_app

DIM = 6
ARMS = ("letter", "call", "visit")


def rewards_of(contexts, arms, seed=1):
    """Rewards of 0 and 1 that depend on the context."""
    coefficients = np.random.default_rng(5).normal(size=(len(ARMS), DIM)) / 4
    chances = np.clip(0.5 + (contexts * coefficients[arms]).sum(axis=1), 0.0, 1.0)
    return (np.random.default_rng(seed).random(len(contexts)) < chances).astype(float)


def write_policy(folder, **settings):
    """A LinUCB that has learned a little: its file, and what it is exported to."""
    settings = {"explore": "ucb", "epsilon": 0.2, "alpha": 0.1, **settings}
    policy = daband.LinUCB(context_shape=(DIM,), n_arms=len(ARMS), seed=0, **settings)
    contexts = np.random.default_rng(0).normal(size=(400, DIM))
    arms = policy.select(contexts).arm
    policy.update(contexts, arms, rewards_of(contexts, arms))
    policy.save(folder / "policy.safetensors")
    assessment = {"value": 0.62, "low": 0.5}
    file = folder / "market.daband"
    daband.export(policy, file, arm_names=ARMS, reference=contexts, assessment=assessment)
    return folder / "policy.safetensors", file


@pytest.fixture(scope="session")
def policy_files(tmp_path_factory):
    return write_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def exported(policy_files):
    return policy_files[1]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def postgres_programs():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    program = shutil.which("initdb") or (str(found[-1]) if found else None)
    return None if program is None else Path(program).parent


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory):
    """The address of a Postgres server of the tests' own; skipped where Postgres is not
    installed.
    """
    given = os.environ.get("DABAND_TEST_POSTGRES")
    if given:
        yield given
        return
    programs = postgres_programs()
    if programs is None:
        pytest.skip(
            "no Postgres: install one (apt-get install postgresql), or name it in"
            " DABAND_TEST_POSTGRES"
        )
    user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    if os.getuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("Postgres does not run as root, and there is no user postgres")
    # often not on the PATH
    runuser = shutil.which("runuser", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if os.getuid() == 0 and runuser is None:
        pytest.skip(
            "Postgres does not run as root, and there is no runuser to start it as another user"
        )
    folder = Path("/tmp") / f"daband-postgres-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o777)
    as_user = [str(runuser), "-u", "postgres", "--"] if os.getuid() == 0 else []
    if as_user:
        shutil.chown(folder, "postgres")

    def run(*command):
        subprocess.run([*as_user, *map(str, command)], check=True, capture_output=True, cwd=folder)

    port = free_port()
    run(programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", user, "--no-sync")
    options = f"-p {port} -k {folder} -h 127.0.0.1"
    run(
        programs / "pg_ctl",
        "-D",
        folder / "data",
        "-o",
        options,
        "-l",
        folder / "server.log",
        "-w",
        "start",
    )
    try:
        yield f"postgresql://{user}@127.0.0.1:{port}/postgres"
    finally:
        run(programs / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def log(request, tmp_path):
    """The address of an empty log."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/events.db"
        return
    import psycopg

    server = request.getfixturevalue("postgres_server")
    name = f"log{time.monotonic_ns()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_log(tmp_path):
    return f"sqlite:///{tmp_path}/events.db"


@contextlib.contextmanager
def served(file, log, settings=None):
    """A client of a service that runs in a thread of this process, on a port of its own."""
    settings = settings or Settings()
    app = create_app(file, log, settings)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
