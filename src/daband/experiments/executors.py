"""Ways to execute many runs on this machine: one after the other, or in several processes at a time.

An executor takes the runs to execute, the folder they go to and a listener, and yields each run with its record, or
with the exception that ended it, as soon as it is over. ``bench`` takes any of them; a cluster
(``daband.experiments.ray_executor``) is one more.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from daband.errors import DabandError
from daband.experiments.records import Record
from daband.experiments.run import execute
from daband.experiments.settings import RunSpec
from daband.ray_cluster import THREAD_VARIABLES

__all__ = [
    "Event",
    "Executor",
    "Listener",
    "Outcome",
    "Work",
    "WorkerDied",
    "in_processes",
    "in_turn",
]


class WorkerDied(DabandError, RuntimeError):
    """The process of a run has died; the run's folder stays as it was."""


@dataclass(frozen=True)
class Event:
    """Something happened to a run: "found", "episode", "again", "finished" or "failed"."""

    kind: str
    spec: RunSpec
    detail: dict[str, Any]


Listener = Callable[[Event], None]
Outcome = Record | Exception
Work = Callable[..., Record]
"""What is done for a run, like ``execute``: called with the run, the folder, and ``progress`` by name. For processes it
must be something that can be pickled."""
_Mailbox: TypeAlias = "queue.Queue[tuple[RunSpec, dict[str, float] | str]]"
"""What a worker reports of its run: the record of an episode, or a warning."""
Executor = Callable[[Sequence[RunSpec], Path, Listener], Iterator[tuple[RunSpec, Outcome]]]


def in_turn(
    todo: Sequence[RunSpec], out: Path, listener: Listener, *, work: Work = execute
) -> Iterator[tuple[RunSpec, Outcome]]:
    """One run after the other, in this process."""
    for spec in todo:
        try:
            with _warnings_of(spec, warnings.showwarning):
                record = work(spec, out, progress=lambda record, spec=spec: listener(Event("episode", spec, record)))
        except Exception as error:
            yield spec, error
        else:
            yield spec, record


def in_processes(jobs: int, *, work: Work = execute) -> Executor:
    """An executor with this many runs at the same time, each in a process and with one thread of its own."""

    def executor(todo: Sequence[RunSpec], out: Path, listener: Listener) -> Iterator[tuple[RunSpec, Outcome]]:
        return _in_processes(todo, out, listener, jobs, work)

    return executor


def _in_processes(
    todo: Sequence[RunSpec], out: Path, listener: Listener, jobs: int, work: Work
) -> Iterator[tuple[RunSpec, Outcome]]:
    context = multiprocessing.get_context("spawn")
    with _one_thread_each(), context.Manager() as manager:
        mailbox: _Mailbox = manager.Queue()
        workers = min(jobs, len(todo))
        others = multiprocessing.active_children()
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupts) as pool:
            waiting: dict[Future[Record], RunSpec] = {
                pool.submit(_in_worker, work, spec, out, mailbox): spec for spec in todo
            }
            try:
                while waiting:
                    done, _ = wait(waiting, timeout=0.2, return_when="FIRST_COMPLETED")
                    with contextlib.suppress(queue.Empty):
                        while True:
                            spec, news = mailbox.get_nowait()
                            if isinstance(news, str):
                                warnings.warn(news, stacklevel=2)
                            else:
                                listener(Event("episode", spec, news))
                    for future in done:
                        spec = waiting.pop(future)
                        yield spec, _outcome(future)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    if process not in others:  # they save their episode first, and tell the mailbox's process of it
                        process.terminate()
                raise


def _outcome(future: Future[Record]) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        return WorkerDied("a worker process died (out of memory?); fewer --jobs need less")
    except Exception as error:
        return error


def _ignore_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal. The parent acts on it; workers would print tracebacks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _in_worker(work: Work, spec: RunSpec, out: Path, mailbox: _Mailbox) -> Record:
    with _warnings_of(spec, lambda text, *_, **__: mailbox.put((spec, text))):
        return work(spec, out, progress=lambda record: mailbox.put((spec, record)))


@contextlib.contextmanager
def _warnings_of(spec: RunSpec, show: Callable[..., None]) -> Iterator[None]:
    """Warnings of a run are shown with its name, as several runs may be under way."""

    def named(message: Warning | str, *where: Any, **more: Any) -> None:
        show(f"{spec.pair}, {spec.label}: {message}", *where, **more)

    before = warnings.showwarning
    warnings.showwarning = named
    try:
        yield
    finally:
        warnings.showwarning = before


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Libraries read these variables when a worker starts; what the user has set stays."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update({name: value or "1" for name, value in before.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
