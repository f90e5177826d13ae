"""Provide the locks of a policy that several threads use, and make them safe in forks and signal
handlers.

Copies, pickles and forked processes of a policy get locks of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from weakref import WeakSet

import numpy.ma  # noqa: F401

#: Seconds that a fork waits for a thread that is changing statistics. A change takes far less,
#: unless the thread hangs.
_FORK_TIMEOUT_SECONDS = 10.0
#: Signals whose handlers ``defer_signals`` delays.
_DEFERRED_SIGNALS = tuple(
    getattr(signal, name)
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGALRM",
        "SIGHUP",
        "SIGUSR1",
        "SIGUSR2",
        "SIGVTALRM",
        "SIGPROF",
    )
    if hasattr(signal, name)
)


class Locks:
    """The two locks of a policy: ``write`` and ``state``.

    ``write`` is held while a policy is changed, and ``state`` only while its statistics are read or
    changed. A thread that needs both acquires ``write`` first.

    A process that forks (gunicorn with ``preload_app``, ``multiprocessing`` on Linux) copies its
    memory, but only the thread that forks. A lock held by another thread would stay locked in the
    child for ever. So the fork waits until no thread changes statistics, and the child creates new
    locks. The child has complete statistics; a round that a thread of the parent was learning
    meanwhile may or may not be included. A running ``adapt`` continues only in the parent.
    """

    def __init__(self) -> None:
        self.write = threading.RLock()
        self.state = threading.RLock()
        _all_locks.add(self)

    def __reduce__(self) -> tuple[type[Locks], tuple[()]]:
        return Locks, ()


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Delay signal handlers until the block has ended, because an exception in a handler would
    interrupt the block.

    Python runs handlers only in the main thread; in other threads there is nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {
        signal_number: handler
        for signal_number in _DEFERRED_SIGNALS
        if callable(handler := signal.getsignal(signal_number))
    }
    received_signals: list[int] = []
    in_block = True

    def collect_or_forward(signal_number: int, frame: FrameType | None) -> None:
        if in_block:
            received_signals.append(signal_number)
        else:
            handlers[signal_number](signal_number, frame)

    try:
        for signal_number in handlers:
            signal.signal(signal_number, collect_or_forward)
        yield
    finally:
        in_block = False  # from here on the handler only forwards signals
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)
        for signal_number in received_signals:
            signal.raise_signal(signal_number)


#: The locks of all policies in this process.
_all_locks: WeakSet[Locks] = WeakSet()
#: ``_forking_thread.locks`` are the locks that the forking thread holds.
_forking_thread = threading.local()


def _acquire_state_locks() -> None:
    """Acquire the state lock of every policy before a fork."""
    _forking_thread.locks = []
    # another thread is creating a policy: no need to wait for it
    with contextlib.suppress(RuntimeError):
        for locks in list(_all_locks):
            lock = locks.state
            if lock.acquire(timeout=_FORK_TIMEOUT_SECONDS):
                _forking_thread.locks.append(lock)


def _release_locks() -> None:
    """Release the locks that were acquired before the fork."""
    for lock in _forking_thread.locks:
        lock.release()


def _replace_locks() -> None:
    """Give every policy of a forked process new locks."""
    _release_locks()  # the thread that forked continues here with the same locks
    for locks in list(_all_locks):
        locks.write = threading.RLock()
        locks.state = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(
        before=_acquire_state_locks, after_in_parent=_release_locks, after_in_child=_replace_locks
    )
