"""Execute many runs, one after the other or in several processes (``execute_all``)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from daband.base._arguments import Progress
from daband.base._arrays import count_processors
from daband.base._files import THREAD_VARIABLES, set_environment_variables
from daband.bench._records import Record
from daband.bench._run import execute_run
from daband.bench._settings import RunSpec
from daband.errors import DabandError, WorkerDied


@dataclass(frozen=True)
class RunEvent:
    """The progress of a run, with which a listener is called."""

    #: "found" (it was finished before), "episode" (an episode is over), "finished" or "failed".
    kind: str
    #: The settings of the run.
    spec: RunSpec
    #: The record of the run or the episode; for "failed", the key ``error`` with the message.
    detail: dict[str, Any]


#: A function that is called with every event.
Listener = Callable[[RunEvent], None]
#: The record of a run, or the exception that ended it.
Outcome = Record | Exception
#: A function that executes a run, like ``execute_run``. For several processes it must be picklable.
Execute = Callable[..., Record]


def execute_all(
    specs: Sequence[RunSpec],
    folder: Path,
    listener: Listener,
    *,
    jobs: int = 1,
    execute: Execute = execute_run,
) -> Iterator[tuple[RunSpec, Outcome]]:
    """Yield each run with its record, or with the exception that ended it, as soon as it is over.

    A single job runs in this process, and its episodes are events. Several jobs run in processes
    that share the processors equally. If a process dies, the runs that are not finished fail.
    """
    if jobs == 1 or len(specs) <= 1:
        for spec in specs:
            yield (
                spec,
                _execute_one(execute, spec, folder, partial(_report_episode, listener, spec)),
            )
        return
    spawn_context = multiprocessing.get_context("spawn")
    n_workers = min(jobs, len(specs))
    # Libraries read these variables when a worker starts; values set by the user are kept.
    threads_per_worker = str(max(1, count_processors() // n_workers))
    variables = {name: os.environ.get(name) or threads_per_worker for name in THREAD_VARIABLES}
    with (
        set_environment_variables(variables),
        ProcessPoolExecutor(n_workers, spawn_context, _exit_with_parent) as pool,
    ):
        other_processes = set(multiprocessing.active_children())
        futures = {pool.submit(_execute_one, execute, spec, folder): spec for spec in specs}
        try:
            for future in as_completed(futures):
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    message = "a worker process died (out of memory?); fewer --jobs need less"
                    outcome = WorkerDied(message)
                yield futures[future], outcome
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - other_processes:
                process.terminate()  # it first saves its episode
            raise


def _report_episode(listener: Listener, spec: RunSpec, record: Record) -> None:
    """Call the listener with the record of an episode."""
    listener(RunEvent("episode", spec, record))


def _exit_with_parent() -> None:
    """Let a worker exit when its parent is killed, and ignore Ctrl-C, on which the parent acts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_after_parent() -> None:
        """Exit after the parent has ended."""
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()


def _execute_one(
    execute: Execute,
    spec: RunSpec,
    folder: Path,
    progress: Progress | None = None,
) -> Outcome:
    """Execute a run, and return its record, or the exception that ended it in a form that can be
    sent between processes.

    If an exception is not from daband, the message has its type and the line that raised it.
    """
    try:
        return execute(spec, folder, progress=progress)
    except DabandError as error:
        return DabandError(str(error))
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}, line {frame.lineno}"
        return DabandError(f"{type(error).__name__}: {error} ({place})")
