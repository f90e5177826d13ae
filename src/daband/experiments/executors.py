"""Ways to execute many runs on this machine: one after the other, in several processes at a time, or stacked.

An executor takes the runs to execute, the folder they go to and a listener, and yields each run with its record, or
with the exception that ended it, as soon as it is over. ``bench`` takes any of them; a cluster
(``daband.experiments.ray_executor``) is one more.

``stacked`` is put around any executor. Where a run's policy would be on a GPU, the seeds of a method become one piece
of work: one process trains them with common gradient steps (``daband.training.train_stacked``), and each is kept in
its own folder, as if it had been alone. Everything else is left to the executor as it is.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import queue
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from daband.arrays import processors
from daband.domains import load
from daband.errors import DabandError, DeviceOutOfMemory, FolderInUse
from daband.experiments.methods import policy_class
from daband.experiments.records import Record
from daband.experiments.run import Prepared, Progress, conclude, execute, finished_record, prepare
from daband.experiments.settings import RunSpec
from daband.files import environment_variables
from daband.ray_cluster import THREAD_VARIABLES
from daband.training import Run, train_stacked

_LARGEST_STACK = 10
"""Runs in one stack; beyond it nothing is gained, and every run's memory counts."""


class WorkerDied(DabandError, RuntimeError):
    """The process of a run has died; the run's folder stays as it was."""


@dataclass(frozen=True)
class RunEvent:
    """Something happened to a run: "found", "episode", "again", "finished" or "failed"."""

    kind: str
    spec: RunSpec
    detail: dict[str, Any]


Listener = Callable[[RunEvent], None]
Outcome = Record | Exception
Work = Callable[..., Record]
"""What is done for a run, like ``execute``: called with the run, the folder, and ``progress`` by name. For processes it
must be something that can be pickled."""
_Reports: TypeAlias = "queue.Queue[tuple[RunSpec, dict[str, float] | str]]"
"""What a worker reports of its run: the record of an episode, or a warning."""
Executor = Callable[[Sequence[RunSpec], Path, Listener], Iterator[tuple[RunSpec, Outcome]]]


def in_turn(
    todo: Sequence[RunSpec], out: Path, listener: Listener, *, work: Work = execute
) -> Iterator[tuple[RunSpec, Outcome]]:
    """One run after the other, in this process."""
    for spec in todo:
        try:
            with _warnings_of(spec, warnings.showwarning):
                record = work(spec, out, progress=lambda record, spec=spec: listener(RunEvent("episode", spec, record)))
        except Exception as error:
            yield spec, error
        else:
            yield spec, record


def in_processes(jobs: int, *, work: Work = execute) -> Executor:
    """An executor with this many runs at the same time, each in a process and with its share of the processors."""

    def executor(todo: Sequence[RunSpec], out: Path, listener: Listener) -> Iterator[tuple[RunSpec, Outcome]]:
        return _in_processes(todo, out, listener, jobs, work)

    return executor


def _in_processes(
    todo: Sequence[RunSpec], out: Path, listener: Listener, jobs: int, work: Work
) -> Iterator[tuple[RunSpec, Outcome]]:
    if len(todo) == 1:
        yield from in_turn(todo, out, listener, work=work)
        return
    context = multiprocessing.get_context("spawn")
    workers = min(jobs, len(todo))
    # Libraries read these variables when a worker starts; what the user has set stays.
    share = str(max(1, processors() // workers))
    threads = {name: os.environ.get(name) or share for name in THREAD_VARIABLES}
    with environment_variables(threads), context.Manager() as manager:
        reports: _Reports = manager.Queue()
        others = multiprocessing.active_children()
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupts) as pool:
            waiting: dict[Future[Record], RunSpec] = {
                pool.submit(_in_worker, work, spec, out, reports): spec for spec in sorted(todo, key=_cheapness)
            }
            try:
                while waiting:
                    done, _ = wait(waiting, timeout=0.2, return_when="FIRST_COMPLETED")
                    with contextlib.suppress(queue.Empty):
                        while True:
                            spec, news = reports.get_nowait()
                            if isinstance(news, str):
                                warnings.warn(news, stacklevel=2)
                            else:
                                listener(RunEvent("episode", spec, news))
                    for future in done:
                        spec = waiting.pop(future)
                        yield spec, _outcome(future)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    if process not in others:  # they save their episode first, and tell the reports's process of it
                        process.terminate()
                raise


def _cheapness(spec: RunSpec) -> tuple[bool, bool, bool]:
    """Sorts costly runs first, so that no process waits for a long run that another began last.

    A ridge regression on contexts as they are takes longer than one behind a transform.
    """
    policy = policy_class(spec.method)
    return not policy.learns_by_gradients, getattr(policy, "source_terms_only", True), spec.method != "linucb"


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


def _in_worker(work: Work, spec: RunSpec, out: Path, reports: _Reports) -> Record:
    with _warnings_of(spec, lambda text, *_, **__: reports.put((spec, text))):
        return work(spec, out, progress=lambda record: reports.put((spec, record)))


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


def stacked(executor_with: Callable[[Work], Executor]) -> Executor:
    """An executor that hands seeds of one method on as one piece of work where that is faster.

    ``executor_with`` makes the executor that does the work, from what is to be done for a run.
    """

    def executor(todo: Sequence[RunSpec], out: Path, listener: Listener) -> Iterator[tuple[RunSpec, Outcome]]:
        groups = groups_of(todo)
        by_leader = {group[0].folder_name: group for group in groups}
        leaders = [group[0] for group in groups]
        for leader, outcome in executor_with(GroupWork(by_leader))(leaders, out, listener):
            for spec in by_leader[leader.folder_name]:
                if isinstance(outcome, Exception):
                    yield spec, finished_record(spec, out) or outcome
                elif "records" in outcome:
                    record = outcome["records"].get(spec.folder_name)
                    yield spec, record or DabandError(outcome["errors"][spec.folder_name])
                else:
                    yield spec, outcome

    return executor


def groups_of(specs: Sequence[RunSpec], *, on_gpu: Callable[[RunSpec], bool] | None = None) -> list[list[RunSpec]]:
    """Runs that can be trained in a stack, in lists, and every other run in a list of its own."""
    on_gpu = on_gpu or _on_gpu
    stacks: dict[str, list[RunSpec]] = {}
    groups: list[list[RunSpec]] = []
    for spec in specs:
        key = spec.model_dump_json(exclude={"seed"} if on_gpu(spec) else None)
        if len(stacks.get(key, ())) in (0, _LARGEST_STACK):
            stacks[key] = []
            groups.append(stacks[key])
        stacks[key].append(spec)
    return groups


@dataclass(frozen=True)
class GroupWork:
    """Does what is to be done for a run or, where it leads a group, for the whole group; processes can receive it."""

    groups: dict[str, list[RunSpec]] = field(default_factory=dict)

    def __call__(self, spec: RunSpec, out: Path, *, progress: Progress | None = None) -> Record:
        group = self.groups.get(spec.folder_name, [spec])
        if len(group) == 1:
            return execute(spec, out, progress=progress)
        return _execute_group(group, out, progress)


def _execute_group(group: Sequence[RunSpec], out: Path, progress: Progress | None) -> dict[str, Any]:
    """The records of a group by folder, and what ended those that have none."""
    records = {spec.folder_name: record for spec in group if (record := finished_record(spec, out))}
    errors: dict[str, str] = {}
    todo = [spec for spec in group if spec.folder_name not in records]

    def attempt(spec: RunSpec, work: Callable[[], Record]) -> None:
        try:
            records[spec.folder_name] = work()
        except Exception as error:
            errors[spec.folder_name] = str(error)

    trained = _train_together(todo, out, progress)
    if trained is None:
        gc.collect()  # policies and their common steps hold one another, and memory of the device with them
    for spec in todo:
        if trained is None:
            attempt(spec, partial(execute, spec, out, progress=progress))
            continue
        prepared, run = trained[spec.folder_name]
        if isinstance(run, FolderInUse):  # another process has it: waited for, alone
            attempt(spec, partial(execute, spec, out, progress=progress))
        elif isinstance(run, Exception):
            errors[spec.folder_name] = str(run)
        else:
            attempt(spec, partial(conclude, prepared, run))
    return {"records": records, "errors": errors}


def _train_together(
    specs: Sequence[RunSpec], out: Path, progress: Progress | None
) -> dict[str, tuple[Prepared, Run | Exception]] | None:
    """Runs trained with common steps, by folder; None where that cannot be, and each has to be executed by itself."""
    from daband.policies import can_stack

    if not specs:
        return {}
    pair = load(specs[0].pair, **specs[0].pair_options)
    todo = [prepare(spec, out, pair=pair) for spec in specs]
    if not can_stack([prepared.policy for prepared in todo]):
        return None
    told = 0

    def tell(record: dict[str, float]) -> None:
        nonlocal told
        if progress is not None and record["episode"] > told:  # report each episode once, for the first run to reach it
            told = int(record["episode"])
            progress(record)

    try:
        runs = train_stacked([prepared.phase(tell) for prepared in todo])
    except DeviceOutOfMemory as error:
        # Their folders keep how far they came; one after the other they need less.
        warnings.warn(f"{len(todo)} runs could not be stacked and are trained one after another: {error}", stacklevel=2)
        return None
    return {one.spec.folder_name: (one, run) for one, run in zip(todo, runs, strict=True)}


def _on_gpu(spec: RunSpec) -> bool:
    """Whether the run's policy learns by gradients and would be on a GPU; what does not fit together is seen later."""
    if not policy_class(spec.method).learns_by_gradients:
        return False
    import torch  # here, as a comparison of linear methods has no need of it

    device = str(spec.policy.get("device", "auto"))
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
