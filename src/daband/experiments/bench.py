"""Many runs: methods x seeds, in processes, resumable, with one ``results.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from daband.errors import DabandError, DataError, InvalidInput
from daband.experiments.executors import Event, Executor, Listener, in_processes, in_turn
from daband.experiments.records import Record
from daband.experiments.run import finished_record, read_spec
from daband.experiments.settings import RunSpec
from daband.experiments.stacked import stacked
from daband.files import locked, make_folder, read_json, write_text

__all__ = ["BenchError", "bench", "read_results", "results_locked"]


class BenchError(DabandError, RuntimeError):
    """Some runs failed; the others are finished and kept: ``records`` has them."""

    def __init__(self, message: str, records: Sequence[Record] = ()) -> None:
        super().__init__(message)
        self.records = list(records)


def bench(
    specs: Sequence[RunSpec],
    out: str | Path,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    on_event: Listener | None = None,
) -> list[Record]:
    """Execute every run that is not finished, ``jobs`` at a time, and write ``results.json`` after each.

    ``executor`` replaces ``jobs``: any way to get runs done, a cluster for one (``on_ray`` of
    ``daband.experiments.ray_executor``). On a GPU the seeds of a neural method are trained in a stack, as one of the
    ``jobs``.

    All methods of a seed see the same contexts in the same order and are paid from the same table of rewards. Where
    ``out`` holds finished runs of other methods or seeds of the same experiment, ``results.json`` keeps them. Several
    processes may work in one folder: each run is done once, and ``results.json`` has the records of all of them.
    """
    specs = list({spec.folder_name: spec for spec in specs}.values())
    if not specs:
        raise InvalidInput("there is nothing to run: no method or no seed was given")
    out = make_folder(out, "out")
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
    results = _Results(out, specs)
    failures: list[str] = []
    if executor is None:
        parallel = jobs > 1 and len(todo) > 1
        executor = stacked(lambda work: in_processes(jobs, work=work) if parallel else partial(in_turn, work=work))
    for spec, outcome in executor(todo, out, listener) if todo else ():
        if isinstance(outcome, Exception):
            failures.append(f"{spec.label}: {outcome}")
            listener(Event("failed", spec, {"error": str(outcome)}))
            continue
        records[spec.folder_name] = outcome
        listener(Event("finished", spec, outcome))
        results.write(records)
    results.write(records)
    if failures:
        raise BenchError(
            f"{len(failures)} of {len(specs)} runs failed; the rest are kept in {out}, and the same command resumes "
            f"from there. First: {failures[0]}",
            [records[spec.folder_name] for spec in specs if spec.folder_name in records],
        )
    return [records[spec.folder_name] for spec in specs]


def read_results(out: str | Path) -> list[Record]:
    """The records of a bench."""
    path = Path(out) / "results.json"
    records = read_json(path)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise DataError(f"{path} is not a list of records; run the bench again, which writes it anew")
    return records


def results_locked(out: Path) -> AbstractContextManager[None]:
    """Held by whoever rewrites a file that sums up the runs of a folder; others wait."""
    return locked(out, wait=True, file=".results.lock")


class _Results:
    """``results.json`` of a folder, where several processes may be at work.

    A process writes, under a lock, its own records and those of finished runs of the same experiment that it was not
    asked for: of an earlier call, or of another process at this moment. So whoever writes last writes them all.
    """

    def __init__(self, out: Path, specs: Sequence[RunSpec]) -> None:
        self.out, self.specs = out, specs
        self._own = {spec.folder_name for spec in specs}
        self._settings = {_method(spec): _without_seed(spec) for spec in specs}
        self._budgets = {_budget(spec) for spec in specs}
        self._others: dict[str, Record | None] = {}
        """By folder, what is finished and not asked for here; None for what is of another experiment."""

    def write(self, records: Mapping[str, Record]) -> None:
        with results_locked(self.out):
            for done in sorted(self.out.glob("*/done")):
                name = done.parent.name
                if name not in self._own and name not in self._others:
                    self._others[name] = self._companion(done.parent)
            companions = [record for _, record in sorted(self._others.items()) if record is not None]
            ready = [records[spec.folder_name] for spec in self.specs if spec.folder_name in records]
            write_text(self.out / "results.json", json.dumps([*companions, *ready], indent=2) + "\n")

    def _companion(self, folder: Path) -> Record | None:
        """The record of a finished run, if it belongs to this experiment: same budget, and same settings if asked."""
        try:
            other, record = read_spec(folder), read_json(folder / "result.json")
        except DataError:  # not a run of an experiment
            return None
        asked = self._settings.get(_method(other))
        belongs = _budget(other) in self._budgets and asked in (None, _without_seed(other))
        return record if belongs else None


def _method(spec: RunSpec) -> tuple[str, str, str]:
    return spec.pair, spec.method, spec.variant


def _budget(spec: RunSpec) -> str:
    fields = {"pair", "pair_options", "components", "episodes", "episode_length", "rule", "selection"}
    return spec.model_dump_json(include=fields)


def _without_seed(spec: RunSpec) -> str:
    return spec.model_dump_json(exclude={"seed"})
