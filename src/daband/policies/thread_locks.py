"""The locks of an object that threads share; copies, pickles and forked processes get locks of their own."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
from typing import Any
from weakref import WeakSet

import numpy.ma  # noqa: F401 - numba imports it at a first call, and a fork must not find that import under way

__all__ = ["ThreadSafe"]

_LOCKS = ("_write_lock", "_state_lock")
_FORK_WAITS_SECONDS = 10.0
"""How long a fork waits for a thread that is changing statistics; that takes far less, unless the thread hangs."""


class ThreadSafe:
    """Has ``_write_lock``, held by whoever changes the object, and ``_state_lock``, held for moments only.

    Where both are held, the write lock was taken first.

    A process that forks (gunicorn with ``preload_app``, ``multiprocessing`` on Linux) copies memory, but no thread
    other than the one that forks: a lock that another thread holds would stay locked in the child for ever. So the fork
    waits until no thread changes statistics, and the child makes its locks new. The child has whole statistics; a round
    that a thread of the parent was learning meanwhile may be among them or not. An ``adapt`` that was under way goes on
    in the parent alone.
    """

    def __init__(self) -> None:
        self._write_lock = threading.RLock()
        self._state_lock = threading.RLock()
        _shared.add(self)

    def __getstate__(self) -> dict[str, Any]:
        # Copied while the lock is held: what a thread changes afterwards must not be half in a copy or a pickle.
        with self._write_lock:
            return copy.deepcopy({name: value for name, value in self.__dict__.items() if name not in _LOCKS})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        ThreadSafe.__init__(self)


_shared: WeakSet[ThreadSafe] = WeakSet()
_held = threading.local()
"""What the thread that forks holds meanwhile."""


def _before_fork() -> None:
    _held.locks = []
    with contextlib.suppress(RuntimeError):  # another thread makes a policy this moment: nobody waits for that one
        for member in list(_shared):
            lock = member._state_lock
            if lock.acquire(timeout=_FORK_WAITS_SECONDS):
                _held.locks.append(lock)
    # A thread may be compiling a kernel, and holds a policy's lock where it does: this one comes last.
    compiler = sys.modules.get("numba.core.compiler_lock")
    if compiler is not None:
        compiler.global_compiler_lock.acquire()


def _after_fork_in_parent() -> None:
    for lock in _held.locks:
        lock.release()
    _release_compiler()


def _after_fork_in_child() -> None:
    _release_compiler()
    for member in list(_shared):
        member._write_lock, member._state_lock = threading.RLock(), threading.RLock()


def _release_compiler() -> None:
    compiler = sys.modules.get("numba.core.compiler_lock")
    if compiler is not None:
        compiler.global_compiler_lock.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
