"""Execute many runs, one after the other or in several processes (``execute_all``).

The unit of work is a group of runs (``group_runs``). If a run's policy would be on a GPU, the seeds
of a method are one group. One process then trains them together (``train_together``), and each run
has its own folder, as if it were trained separately. Every other run is a group by itself.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import queue
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any, TypeAlias

from daband.base._arrays import count_processors
from daband.base._files import THREAD_VARIABLES, set_environment_variables
from daband.bench._methods import get_policy_class
from daband.bench._records import Record, group_by
from daband.bench._run import PreparedRun, Progress, execute_run, finish_run, prepare_run
from daband.bench._settings import RunSpec
from daband.bench._together import can_train_together, train_together
from daband.domains._registry import load
from daband.errors import DabandError, DeviceOutOfMemory, FolderInUse, WorkerDied
from daband.training._trainer import Run

#: Maximum number of runs that are trained together. More runs take more memory and gain no speed.
_MAX_RUNS_TOGETHER = 10


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
#: Runs that one process executes together.
Group = list[RunSpec]
#: A function that executes a group, like ``execute_group``. It is called with the group, the folder
#: and the keyword ``progress``, and returns an outcome for each run. For several processes it must
#: be picklable.
Executor = Callable[..., list[Outcome]]
#: A group, and the outcome of each of its runs.
_GroupOutcomes = tuple[Group, list[Outcome]]
#: Prepared runs, each with its result or the exception that ended its training, by folder name.
_TrainedRuns = dict[str, tuple[PreparedRun, Run | Exception]]
#: The reports of a worker about its group's first run: the record of an episode, or a warning.
_Reports: TypeAlias = "queue.Queue[tuple[RunSpec, dict[str, float] | str]]"


def compute_outcome(function: Callable[..., Record], *arguments: Any, **keywords: Any) -> Outcome:
    """Return the record that ``function`` returns, or its exception in a form that can be sent
    between processes.
    """
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        return as_daband_error(error)


def as_daband_error(error: Exception) -> DabandError:
    """Return an exception that can be sent between processes.

    If the error is not from daband, the message has its type and the line that raised it.
    """
    if isinstance(error, DabandError):
        return DabandError(str(error))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return DabandError(f"{type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})")


def execute_group(group: Group, folder: Path, *, progress: Progress | None = None) -> list[Outcome]:
    """Execute the runs of a group, together if that is possible.

    Return an outcome for each.
    """
    remaining_specs = [spec for spec in group if not (folder / spec.folder_name / "done").exists()]
    trained_runs = (
        _train_together(remaining_specs, folder, progress) if len(remaining_specs) > 1 else {}
    )
    if len(remaining_specs) > 1 and not trained_runs:
        # policies and their common steps have reference cycles, which keep device memory
        gc.collect()

    def get_record(spec: RunSpec) -> Record:
        """Return the record of a run. Execute the run unless it was trained with others."""
        prepared_run, run = trained_runs.get(spec.folder_name, (None, None))
        if prepared_run is None or run is None or isinstance(run, FolderInUse):
            # If another process executes the run, this waits for its record.
            return execute_run(spec, folder, progress=progress)
        if isinstance(run, Exception):
            raise run
        return finish_run(prepared_run, run)

    return [compute_outcome(get_record, spec) for spec in group]


def _train_together(
    specs: Sequence[RunSpec], folder: Path, progress: Progress | None
) -> _TrainedRuns:
    """Train runs together, and return them by folder name; empty if that is not possible."""
    pair = load(specs[0].pair, **specs[0].pair_options)
    prepared_runs = [prepare_run(spec, folder, pair=pair) for spec in specs]
    if not can_train_together([prepared.policy for prepared in prepared_runs]):
        return {}
    last_reported_episode = 0

    def report_episode(record: dict[str, float]) -> None:
        """Call ``progress`` with the record of an episode."""
        nonlocal last_reported_episode
        # Each episode is reported once, for the first run to reach it.
        if progress is not None and record["episode"] > last_reported_episode:
            last_reported_episode = int(record["episode"])
            progress(record)

    try:
        runs = train_together([prepared.build_phase(report_episode) for prepared in prepared_runs])
    except DeviceOutOfMemory as error:
        # The folders have the progress so far. Runs that are trained one after the other need less
        # memory.
        message = (
            f"{len(prepared_runs)} runs do not fit together and are trained one after another:"
            f" {error}"
        )
        warnings.warn(message, stacklevel=2)
        return {}
    return {
        prepared.spec.folder_name: (prepared, run)
        for prepared, run in zip(prepared_runs, runs, strict=True)
    }


def execute_all(
    specs: Sequence[RunSpec],
    folder: Path,
    listener: Listener,
    *,
    jobs: int = 1,
    execute: Executor = execute_group,
) -> Iterator[tuple[RunSpec, Outcome]]:
    """Yield each run with its record, or with the exception that ended it, as soon as it is over.

    ``jobs`` groups are executed at a time. A single job runs in this process, several jobs in other
    processes.
    """
    groups = group_runs(specs)
    execute_groups = (
        _execute_in_turn
        if jobs == 1 or len(groups) <= 1
        else partial(_execute_in_processes, jobs=jobs)
    )
    for group, outcomes in execute_groups(groups, partial(execute, folder=folder), listener):
        yield from zip(group, outcomes, strict=True)


def group_runs(specs: Sequence[RunSpec]) -> list[Group]:
    """Return groups of runs that can be trained together; every other run is a group by itself."""
    groups = group_by(
        specs, lambda spec: spec.key_without_seed if _is_on_gpu(spec) else spec.folder_name
    )
    return [
        group[start : start + _MAX_RUNS_TOGETHER]
        for group in groups.values()
        for start in range(0, len(group), _MAX_RUNS_TOGETHER)
    ]


def _is_on_gpu(spec: RunSpec) -> bool:
    """Return True if the run's policy learns by gradients and would be on a GPU."""
    if not get_policy_class(spec.method).learns_by_gradients:
        return False
    # Imported here, because a comparison of linear methods needs no torch.
    from daband.neural._torch_settings import find_gpu_name

    device = str(spec.policy.get("device", "auto"))
    return device.startswith("cuda") or (device == "auto" and find_gpu_name(device) is not None)


def _execute_in_turn(
    groups: list[Group], execute: Executor, listener: Listener
) -> Iterator[_GroupOutcomes]:
    """Execute one group after the other, in this process."""
    for group in groups:
        with _prefix_warnings(group[0], warnings.showwarning):
            make_event = partial(RunEvent, "episode", group[0])
            try:
                outcomes = execute(
                    group,
                    progress=lambda record, make_event=make_event: listener(make_event(record)),
                )
            except Exception as error:  # the group failed as a whole; other groups continue
                outcomes = [as_daband_error(error)] * len(group)
        yield group, outcomes


def _execute_in_processes(
    groups: list[Group], execute: Executor, listener: Listener, *, jobs: int
) -> Iterator[_GroupOutcomes]:
    """Execute ``jobs`` groups at a time, in processes that share the processors equally."""
    spawn_context = multiprocessing.get_context("spawn")
    n_workers = min(jobs, len(groups))
    # Libraries read these variables when a worker starts; values set by the user are kept.
    threads_per_worker = str(max(1, count_processors() // n_workers))
    variables = {name: os.environ.get(name) or threads_per_worker for name in THREAD_VARIABLES}
    # Every process is a separate pool: if one dies, the others continue.
    make_pool = partial(
        ProcessPoolExecutor, 1, mp_context=spawn_context, initializer=_exit_with_parent
    )
    pools: queue.SimpleQueue[ProcessPoolExecutor] = queue.SimpleQueue()

    def execute_next(group: Group) -> list[Outcome]:
        """Execute a group in the next free process."""
        pool = pools.get()
        try:
            return pool.submit(_execute_in_worker, execute, group, reports).result()
        except BrokenProcessPool:
            pool = make_pool()
            return [
                WorkerDied("a worker process died (out of memory?); fewer --jobs need less")
            ] * len(group)
        except Exception as error:
            return [error] * len(group)
        finally:
            pools.put(pool)

    manager = SyncManager(ctx=spawn_context)
    with set_environment_variables(variables):
        manager.start(initializer=_exit_with_parent)
    with (
        manager,
        set_environment_variables(variables),
        ThreadPoolExecutor(n_workers) as thread_pool,
    ):
        reports: _Reports = manager.Queue()
        other_processes = set(multiprocessing.active_children())
        for _ in range(n_workers):
            pools.put(make_pool())
        # Expensive runs first, so that no process waits for a long run that another started last.
        groups = sorted(
            groups, key=lambda group: not get_policy_class(group[0].method).learns_by_gradients
        )
        group_by_future = {thread_pool.submit(execute_next, group): group for group in groups}
        try:
            while group_by_future:
                done_futures, _ = wait(group_by_future, timeout=0.2, return_when="FIRST_COMPLETED")
                with contextlib.suppress(queue.Empty):
                    while True:
                        spec, report = reports.get_nowait()
                        if isinstance(report, str):
                            warnings.warn(report, stacklevel=2)
                        else:
                            listener(RunEvent("episode", spec, report))
                for future in done_futures:
                    yield group_by_future.pop(future), future.result()
        except BaseException:
            thread_pool.shutdown(wait=False, cancel_futures=True)
            # a process may only just be starting
            while not all(future.done() for future in group_by_future):
                for process in set(multiprocessing.active_children()) - other_processes:
                    process.terminate()  # it first saves its episode and reports it
                    other_processes.add(process)
                wait(group_by_future, timeout=0.05)
            raise
        finally:
            for _ in range(n_workers):  # each returns when its last group is over
                pools.get().shutdown()


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


def _execute_in_worker(execute: Executor, group: Group, reports: _Reports) -> list[Outcome]:
    """Execute a group in a worker process."""
    with _prefix_warnings(group[0], lambda warning, *_, **__: reports.put((group[0], warning))):
        try:
            return execute(group, progress=lambda record: reports.put((group[0], record)))
        except Exception as error:  # here the traceback is still available
            return [as_daband_error(error)] * len(group)


@contextlib.contextmanager
def _prefix_warnings(spec: RunSpec, show_warning: Callable[..., None]) -> Iterator[None]:
    """Show warnings with the name of their run, because several runs may be executed at a time."""

    def show_prefixed_warning(message: Warning | str, *location: Any, **keywords: Any) -> None:
        show_warning(f"{spec.pair}, {spec.label}: {message}", *location, **keywords)

    previous_function = warnings.showwarning
    warnings.showwarning = show_prefixed_warning
    try:
        yield
    finally:
        warnings.showwarning = previous_function
