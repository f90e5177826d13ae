"""Many runs: methods x seeds, in processes, resumable, with one ``results.json``."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daband.errors import DabandError, InvalidInput
from daband.experiments.run import Record, execute, finished_record
from daband.experiments.settings import RunSpec
from daband.files import write_text

__all__ = ["BenchError", "Event", "bench", "read_results"]

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class BenchError(DabandError, RuntimeError):
    """Some runs failed; the others are finished and kept: ``records`` has them."""

    def __init__(self, message: str, records: Sequence[Record] = ()) -> None:
        super().__init__(message)
        self.records = list(records)


@dataclass(frozen=True)
class Event:
    """Something happened to a run: "found", "episode", "finished" or "failed"."""

    kind: str
    spec: RunSpec
    detail: dict[str, Any]


Listener = Callable[[Event], None]


def bench(
    specs: Sequence[RunSpec], out: str | Path, *, jobs: int = 1, on_event: Listener | None = None
) -> list[Record]:
    """Execute every run that is not finished, ``jobs`` at a time, and write ``results.json`` after each.

    All methods of a seed see the same contexts in the same order and are paid from the same table of rewards. Where
    ``out`` holds finished runs of other methods or seeds of the same experiment, ``results.json`` keeps them.
    """
    specs = list({spec.folder_name: spec for spec in specs}.values())
    if not specs:
        raise InvalidInput("there is nothing to run: no method or no seed was given")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    listener = on_event or (lambda _: None)
    records: dict[str, Record] = {}
    todo = []
    for spec in specs:
        known = finished_record(spec, out)
        if known is None:
            todo.append(spec)
        else:
            records[spec.folder_name] = known
            listener(Event("found", spec, known))
    companions = _companions(specs, out)
    failures: list[str] = []
    work = _in_turn(todo, out, listener) if jobs <= 1 or len(todo) <= 1 else _in_processes(todo, out, jobs, listener)
    for spec, outcome in work:
        if isinstance(outcome, Exception):
            failures.append(f"{spec.method}, seed {spec.seed}: {outcome}")
            listener(Event("failed", spec, {"error": str(outcome)}))
            continue
        records[spec.folder_name] = outcome
        listener(Event("finished", spec, outcome))
        _write(out, specs, records, companions)
    _write(out, specs, records, companions)
    if failures:
        raise BenchError(
            f"{len(failures)} of {len(specs)} runs failed; the rest are kept in {out}, and the same command goes on "
            f"from there. First: {failures[0]}",
            [records[spec.folder_name] for spec in specs if spec.folder_name in records],
        )
    return [records[spec.folder_name] for spec in specs]


def read_results(out: str | Path) -> list[Record]:
    """The records of a bench."""
    records: list[Record] = json.loads((Path(out) / "results.json").read_text())
    return records


def _write(out: Path, specs: Sequence[RunSpec], records: dict[str, Record], companions: Sequence[Record]) -> None:
    ready = [records[spec.folder_name] for spec in specs if spec.folder_name in records]
    write_text(out / "results.json", json.dumps([*companions, *ready], indent=2) + "\n")


def _companions(specs: Sequence[RunSpec], out: Path) -> list[Record]:
    """Finished runs in ``out`` of the same experiment, but of a method or seed that is not asked for now."""
    asked = {(spec.pair, spec.method, spec.variant) for spec in specs}
    budgets = {_budget(spec) for spec in specs}
    settings = {(spec.pair, spec.method, spec.variant): _without_seed(spec) for spec in specs}
    found = []
    for done in sorted(out.glob("*/done")):
        folder = done.parent
        if folder.name in {spec.folder_name for spec in specs}:
            continue
        try:
            other = RunSpec(**json.loads((folder / "config.json").read_text())["run"])
            record = json.loads((folder / "result.json").read_text())
        except (OSError, ValueError, KeyError):  # not a run of ours
            continue
        key = (other.pair, other.method, other.variant)
        if _budget(other) in budgets and (key not in asked or settings[key] == _without_seed(other)):
            found.append(record)
    return found


def _budget(spec: RunSpec) -> str:
    fields = {"pair", "pair_options", "components", "episodes", "episode_length", "rule", "selection"}
    return spec.model_dump_json(include=fields)


def _without_seed(spec: RunSpec) -> str:
    return spec.model_dump_json(exclude={"seed"})


def _in_turn(todo: Sequence[RunSpec], out: Path, listener: Listener) -> Iterator[tuple[RunSpec, Record | Exception]]:
    for spec in todo:
        try:
            yield spec, execute(spec, out, progress=lambda record, spec=spec: listener(Event("episode", spec, record)))  # type: ignore[misc]
        except Exception as error:
            yield spec, error


def _in_processes(
    todo: Sequence[RunSpec], out: Path, jobs: int, listener: Listener
) -> Iterator[tuple[RunSpec, Record | Exception]]:
    context = multiprocessing.get_context("spawn")
    with _threads_per_worker(jobs), context.Manager() as manager:
        mailbox: queue.Queue[tuple[RunSpec, dict[str, float]]] = manager.Queue()
        with ProcessPoolExecutor(min(jobs, len(todo)), mp_context=context) as pool:
            waiting: dict[Future[Record], RunSpec] = {
                pool.submit(_execute_in_worker, spec, out, mailbox): spec for spec in todo
            }
            try:
                while waiting:
                    done, _ = wait(waiting, timeout=0.2, return_when="FIRST_COMPLETED")
                    with contextlib.suppress(queue.Empty):
                        while True:
                            spec, record = mailbox.get_nowait()
                            listener(Event("episode", spec, record))
                    for future in done:
                        spec = waiting.pop(future)
                        yield spec, _outcome(future)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise


def _outcome(future: Future[Record]) -> Record | Exception:
    try:
        return future.result()
    except BrokenProcessPool:
        return BenchError("a worker process died (out of memory?); fewer --jobs need less")
    except Exception as error:
        return error


def _execute_in_worker(spec: RunSpec, out: Path, mailbox: queue.Queue[tuple[RunSpec, dict[str, float]]]) -> Record:
    return execute(spec, out, progress=lambda record: mailbox.put((spec, record)))


@contextlib.contextmanager
def _threads_per_worker(jobs: int) -> Iterator[None]:
    """Share the cores: libraries read these variables when a worker starts."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    share = max(1, (os.cpu_count() or 1) // jobs)
    os.environ.update({name: value or str(share) for name, value in before.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
