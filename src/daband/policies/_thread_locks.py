"""The locks of a policy that threads share; copies, pickles and forked processes get locks of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from weakref import WeakSet

import numpy.ma  # noqa: F401 - numba imports it at a first call, and a fork must not find that import under way

#: How long a fork waits for a thread that is changing statistics; that takes far less, unless the thread hangs.
_FORK_WAITS_SECONDS = 10.0
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF")
    if hasattr(signal, name)
)


class Locks:
    """``write`` is held by whoever changes a policy, ``state`` for the moments in which statistics are read or changed.

    Where a thread holds both, it took ``write`` first.

    A process that forks (gunicorn with ``preload_app``, ``multiprocessing`` on Linux) copies memory, but no thread
    other than the one that forks: a lock that another thread holds would stay locked in the child for ever. So the fork
    waits until no thread changes statistics, and the child makes its locks new. The child has whole statistics; a round
    that a thread of the parent was learning meanwhile may be among them or not. An ``adapt`` that was under way goes on
    in the parent alone.
    """

    def __init__(self) -> None:
        self.write = threading.RLock()
        self.state = threading.RLock()
        _every.add(self)

    def __reduce__(self) -> tuple[type[Locks], tuple[()]]:
        return Locks, ()


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Run signal handlers behind the block, not in its middle: an exception of theirs would leave half of it done.

    Python runs handlers in the main thread alone; elsewhere there is nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    received: list[int] = []
    inside = True

    def note(number: int, frame: FrameType | None) -> None:
        handler = handlers[number]
        if inside:
            received.append(number)
        elif callable(handler):
            handler(number, frame)

    try:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, note)
        yield
    finally:
        inside = False  # from here on ``note`` only passes on, should one stay in place
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)


_every: WeakSet[Locks] = WeakSet()
#: What the thread that forks holds meanwhile.
_held = threading.local()


def _before_fork() -> None:
    _held.locks = []
    with contextlib.suppress(RuntimeError):  # another thread makes a policy this moment: nobody waits for that one
        for locks in list(_every):
            lock = locks.state
            if lock.acquire(timeout=_FORK_WAITS_SECONDS):
                _held.locks.append(lock)
    # A thread may be compiling a kernel, and holds a policy's lock where it does: this one comes last.
    compiler = sys.modules.get("numba.core.compiler_lock")
    if compiler is not None:
        compiler.global_compiler_lock.acquire()
        _held.locks.append(compiler.global_compiler_lock)


def _after_fork_in_parent() -> None:
    for lock in _held.locks:
        lock.release()


def _after_fork_in_child() -> None:
    _after_fork_in_parent()  # the thread that forked goes on here, and holds the same locks
    for locks in list(_every):
        locks.write, locks.state = threading.RLock(), threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
