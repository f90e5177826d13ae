"""Start the service.

``serve`` runs the application in uvicorn, with limits on connections, and starts the worker
process.
"""

from __future__ import annotations

import asyncio
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
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from daband.errors import InvalidInput
from daband.policies._checkpoints import read_checkpoint
from daband.service._app import create_app
from daband.service._settings import Limits, Settings

_logger = logging.getLogger("daband.service")
#: Seconds between two checks that the worker still runs.
_POLL_SECONDS = 1.0
#: Seconds after which a worker that has ended is started again.
_RESTART_SECONDS = 3.0
#: Seconds that a connection may be idle between two requests.
_KEEP_ALIVE_SECONDS = 75
#: Maximum number of connections that the kernel queues. The event loop accepts all queued
#: connections at once.
_BACKLOG_CONNECTIONS = 64
#: The number of file descriptors that are reserved for the log, its lock and new connections.
_N_RESERVED_FILES = 64 + _BACKLOG_CONNECTIONS
#: The smallest limit on the number of connections.
_MIN_CONNECTIONS = 8
#: Maximum size of a header in bytes, unless ``Limits.body_bytes`` is larger.
_MAX_HEADER_BYTES = 1 << 16
#: If at least this many bytes of a request arrive within ``Limits.request_seconds``, the time limit
#: starts again.
_MIN_BYTES_PER_PERIOD = 1 << 20


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
    config = build_uvicorn_config(
        app, settings.limits, host=host, port=port, access_log=False, log_level="warning"
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run()
    finally:
        stop_event.set()
        supervisor.join()


def build_uvicorn_config(app: Any, limits: Limits, **options: Any) -> uvicorn.Config:
    """Return the configuration of a server that drops incomplete requests and limits its
    connections.

    ``options`` are further arguments of ``uvicorn.Config``.
    """
    return uvicorn.Config(
        app,
        http=_make_limited_protocol(limits),
        backlog=_BACKLOG_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        server_header=False,
        ws="none",
        **options,
    )


def _make_limited_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with a time limit for incoming requests and a limit on
    connections.

    uvicorn has neither limit. It checks ``limit_concurrency`` when the header of a request is
    complete, and it stops its keep-alive timer at the first byte of a request. So a client that
    sends an incomplete request would keep a file descriptor for ever. Here a request must arrive
    within ``limits.request_seconds``. A connection above the limit replaces the connection that has
    waited longest for a request. If all others are busy, the new one is closed.
    """
    max_open_files = sys.maxsize
    with contextlib.suppress(ImportError):  # Windows has no such limit
        import resource

        max_open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    max_connections = min(
        limits.connections, max(max_open_files - _N_RESERVED_FILES, _MIN_CONNECTIONS)
    )

    class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """The HTTP protocol of one connection, with a timer while it waits for the client."""

        _timer: asyncio.TimerHandle | None = None
        #: The time at which the timer was started.
        _timer_started_at = 0.0
        #: The number of bytes that were received since then.
        _n_received_bytes = 0

        @property
        def _waits_for_client(self) -> bool:
            """True if the client must act next, i.e. send the rest of a request or read its
            answer.
            """
            cycle = self.cycle
            must_send = (
                cycle is None
                or cycle.response_complete
                or (cycle.more_body and not self.flow.read_paused)
            )
            return bool(must_send or self.flow.write_paused)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_timer()
            open_connections = [
                connection
                for connection in self.connections
                if not connection.transport.is_closing()
            ]
            if len(open_connections) > max_connections:
                idle_connections = [
                    connection for connection in open_connections if connection._waits_for_client
                ]
                min(
                    idle_connections, key=lambda connection: connection._timer_started_at
                ).transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._waits_for_client:
                self._stop_timer()
                return
            if self._timer is None:
                self._start_timer()
            self._n_received_bytes += len(data)
            in_header = self.cycle is None or self.cycle.response_complete
            if in_header and self._n_received_bytes > max(_MAX_HEADER_BYTES, limits.body_bytes):
                self.transport.abort()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._start_timer()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_timer()

        def _start_timer(self) -> None:
            """Start the timer, or start it again if it runs."""
            self._stop_timer()
            self._timer_started_at = self.loop.time()
            self._n_received_bytes = 0
            self._timer = self.loop.call_later(limits.request_seconds, self._on_timeout)

        def _stop_timer(self) -> None:
            """Stop the timer."""
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _on_timeout(self) -> None:
            """Close the connection, unless enough of a large body has arrived."""
            self._timer = None
            if self._n_received_bytes >= _MIN_BYTES_PER_PERIOD:
                self._start_timer()
            elif self._waits_for_client and not self.transport.is_closing():
                self.transport.abort()

    return LimitedProtocol


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
