"""Start the service.

``serve`` runs the application in uvicorn, and starts the worker process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import uvicorn

from daband.errors import InvalidInput
from daband.policies._checkpoints import read_checkpoint
from daband.service._app import create_app
from daband.service._settings import Settings

_logger = logging.getLogger("daband.service")
#: Seconds between two checks that the worker still runs.
_POLL_SECONDS = 1.0
#: Seconds after which a worker that has ended is started again.
_RESTART_SECONDS = 3.0


def serve(
    file: str | Path,
    log: str = "sqlite:///events.db",
    settings: Settings | None = None,
    *,
    learn: str | Path | None = None,
    learn_every: int = 100,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> None:
    """Serve an exported policy until the process is stopped.

    Args:
        file: the file that ``daband.export`` wrote.
        log: the log's address: ``sqlite:///events.db``, or ``postgresql://...``, which several
            services may share.
        settings: the behaviour of the service; by default ``Settings()``.
        learn: the file of the saved policy that ``file`` was exported from, to continue learning
            from the log.
        learn_every: the policy is updated after this many new rewards.
        host: the address to listen on.
        port: the port to listen on.
    """
    settings = settings or Settings()
    _check_learning(learn, settings)
    app = create_app(file, log, settings)
    stop_event = threading.Event()
    policy_file = None if learn is None else str(learn)
    supervisor = threading.Thread(
        target=_supervise_worker, args=(stop_event, log, settings, policy_file, learn_every)
    )
    supervisor.start()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        server_header=False,
        ws="none",
        access_log=False,
        log_level="warning",
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run()
    finally:
        stop_event.set()
        supervisor.join()


def _check_learning(policy_file: str | Path | None, settings: Settings) -> None:
    """Raise an error if the policy to learn with cannot be read, or if the log does not store
    contexts.
    """
    if policy_file is None:
        return
    if not Path(policy_file).is_file():
        raise InvalidInput(
            f"learn must be a file that policy.save wrote, and {policy_file} is not a file"
        )
    read_checkpoint(policy_file)  # raises an error for a damaged file before the log is created
    if settings.contexts != "keep":
        raise InvalidInput(f"learning needs contexts='keep', got {settings.contexts!r}")


def _supervise_worker(stop_event: threading.Event, *worker_arguments: Any) -> None:
    """Run the worker process until ``stop_event`` is set, and start it again if it ends.

    ``worker_arguments`` are those of ``_start_worker``.
    """
    while not stop_event.is_set():
        try:
            process = _start_worker(*worker_arguments)
        except OSError as error:  # for example for lack of memory
            reason = f"cannot start: {error}"
        else:
            while process.poll() is None and not stop_event.wait(_POLL_SECONDS):
                pass
            process.terminate()
            reason = f"ended with status {process.wait()}"
        if not stop_event.wait(_RESTART_SECONDS):
            _logger.error("the worker %s; it is started again", reason)


def _start_worker(
    log: str, settings: Settings, policy_file: str | None, learn_every: int
) -> subprocess.Popen[bytes]:
    """Start the worker process, and return it.

    The worker reads its task from the standard input, because the address of the log may contain a
    password.
    """
    task = {
        "log": log,
        "settings": {**asdict(settings), "tokens": {}},
        "policy_file": policy_file,
        "learn_every": learn_every,
        "parent_pid": os.getpid(),
    }
    command = [sys.executable, "-c", "from daband.service._worker import main; main()"]
    # In its own session, the worker does not receive Ctrl-C, which would print a traceback. The
    # supervisor stops it.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603
    assert process.stdin is not None
    process.stdin.write(orjson.dumps(task))
    process.stdin.close()
    return process
