"""``serve``: the application on uvicorn, and the worker's process beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import orjson
import uvicorn

from daband.errors import InvalidInput
from daband.service.app import create_app
from daband.service.settings import Settings

__all__ = ["serve"]


def serve(
    file: str | Path,
    log: str = "sqlite:///events.db",
    settings: Settings | None = None,
    *,
    learn: str | Path | None = None,
    learn_every: int = 100,
    host: str = "127.0.0.1",
    port: int = 8000,
    worker: bool = True,
    access_log: bool = False,
) -> None:
    """Serve an exported policy until the process is stopped.

    Args:
        file: what ``daband.export`` wrote.
        log: where events go: ``sqlite:///events.db``, or ``postgresql://...`` that several services may share.
        settings: modes, waits, tokens and limits.
        learn: the policy that ``file`` was exported from, to go on learning from the log.
        learn_every: how many rewards are learned at a time.
        host: the address to listen on.
        port: the port.
        worker: whether to start the process that learns, watches and sets default rewards.
        access_log: whether the server writes a line for every request.
    """
    settings = settings or Settings()
    _check_learning(learn, settings)
    app = create_app(file, log, settings)
    process = None
    if worker:
        process = _start_worker(log, settings, learn, learn_every)
    try:
        uvicorn.run(
            app, host=host, port=port, access_log=access_log, log_level="info" if access_log else "warning",
            timeout_keep_alive=75, server_header=False,
        )  # fmt: skip
    finally:
        if process is not None:
            process.terminate()
            process.wait()


def _check_learning(learn: str | Path | None, settings: Settings) -> None:
    if learn is None:
        return
    if not Path(learn).is_file():
        raise InvalidInput(f"learn: {learn} is not a file; give what policy.save wrote")
    if settings.contexts != "keep":
        raise InvalidInput(f"contexts={settings.contexts!r} leaves nothing to learn from; keep them, or do not learn")
    if settings.mode == "log-only":
        raise InvalidInput("mode='log-only' does not learn; take apprentice, or do not learn")


def _start_worker(log: str, settings: Settings, learn: str | Path | None, learn_every: int) -> subprocess.Popen[bytes]:
    """The process; its task goes through its standard input, as an address may hold a password."""
    task = {
        "log": log,
        "settings": {**asdict(settings), "tokens": {}},
        "learn": None if learn is None else str(learn),
        "learn_every": learn_every,
        "parent": os.getpid(),
    }
    arguments = [sys.executable, "-c", "from daband.service.worker import main; main()"]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE)  # noqa: S603 - our own module
    assert process.stdin is not None
    process.stdin.write(orjson.dumps(task))
    process.stdin.close()
    return process
