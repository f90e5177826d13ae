"""Provide the locks of a policy that several threads use, and make policies safe in forks and if a
signal handler raises an exception.

Copies, pickles and forked processes of a policy get locks of their own.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import itertools
import os
import threading
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

import numpy.ma  # noqa: F401

T = TypeVar("T")
#: Seconds that a fork waits for a thread that is changing statistics. A change takes far less,
#: unless the thread hangs.
_FORK_TIMEOUT_SECONDS = 10.0


class Locks:
    """The two locks of a policy: ``write`` and ``state``.

    ``write`` is held while a policy is changed, and ``state`` only while its statistics are read or
    changed. A thread that needs both acquires ``write`` first.

    A process that forks (gunicorn with ``preload_app``, ``multiprocessing`` on Linux) copies its
    memory, but only the thread that forks. A lock held by another thread would stay locked in the
    child for ever. So the fork waits until no thread changes statistics, and the child creates new
    locks. The child has complete statistics; a round that a thread of the parent was learning
    meanwhile may or may not be included. A running ``adapt`` continues only in the parent.

    Attributes:
        fork_path: the number of each fork by which this process came from the process that created
            the policy. Every path has its random draws, so forked processes draw different arms.
    """

    def __init__(self, fork_path: tuple[int, ...] = ()) -> None:
        self.write = threading.RLock()
        self.state = threading.RLock()
        self.fork_path = fork_path
        _all_locks.add(self)

    def __reduce__(self) -> tuple[type[Locks], tuple[tuple[int, ...]]]:
        return Locks, (self.fork_path,)


def run_to_end(locks: Locks, function: Callable[[], T]) -> T:
    """Call a function that changes a policy, and return its result.

    An exception of a signal handler, such as ``KeyboardInterrupt``, cannot end it halfway. Python
    raises such exceptions only in the main thread, so the function runs in another thread, for
    which the main thread waits. Then the exception is raised.
    """
    # a thread that holds the lock would wait for itself
    holds_lock: bool = locks.write._is_owned()  # type: ignore[attr-defined]
    if threading.get_ident() != threading.main_thread().ident or holds_lock:
        return function()
    context = contextvars.copy_context()
    calls = itertools.count()
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Lock()
    done.acquire()

    def call_once() -> None:
        if next(calls):
            return
        try:
            results.append(context.run(function))
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    # Every statement of the loop may be interrupted. Unlike those of ``threading.Thread``, these
    # calls then leave no lock behind.
    interruption: BaseException | None = None
    is_started = False
    while not results and not errors:
        try:
            if not is_started:
                _start_thread(call_once)
                is_started = True
            done.acquire()
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption
    if errors:
        raise errors[0]
    return results[0]


def _start_thread(function: Callable[[], None]) -> None:
    """Call a function in a new thread, or here if there can be none, as at the end of Python."""
    try:
        _thread.start_new_thread(function, ())
    except RuntimeError:
        function()


#: The locks of all policies in this process.
_all_locks: WeakSet[Locks] = WeakSet()
#: ``_forking_thread.locks`` are the locks that the forking thread holds, ``_forking_thread.number``
#: is the number of its fork.
_forking_thread = threading.local()
#: The numbers of forks. A child continues with those of its parent.
_fork_numbers = itertools.count(1)


def _acquire_state_locks() -> None:
    """Acquire the state lock of every policy before a fork."""
    _forking_thread.number = next(_fork_numbers)
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
    """Give every policy of a forked process new locks and other random draws."""
    _release_locks()  # the thread that forked continues here with the same locks
    for locks in list(_all_locks):
        locks.write = threading.RLock()
        locks.state = threading.RLock()
        locks.fork_path += (_forking_thread.number,)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(
        before=_acquire_state_locks, after_in_parent=_release_locks, after_in_child=_replace_locks
    )
