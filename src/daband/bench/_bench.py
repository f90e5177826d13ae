"""Many runs, methods x seeds, or the sequels of finished ones: one loop, in processes, resumable, with one summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from daband._files import make_folder, read_json, write_json
from daband.bench._executors import Executor, Group, Listener, Outcome, RunEvent, attempt, local
from daband.bench._records import Record, results_locked
from daband.bench._run import (
    CONTINUED_FOLDER,
    continue_run,
    continued_record,
    finished_record,
    finished_runs,
    read_spec,
)
from daband.bench._settings import RunSpec
from daband.errors import DabandError, DataError, InvalidInput


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
    ``daband.bench._ray_executor``). On a GPU the seeds of a neural method are trained in a stack, as one of the
    ``jobs``.

    All methods of a seed see the same contexts in the same order and are paid from the same table of rewards. Where
    ``out`` holds finished runs of other methods or seeds of the same experiment, ``results.json`` keeps them. Several
    processes may work in one folder: each run is done once, and ``results.json`` has the records of all of them.
    """
    specs = list({spec.folder_name: spec for spec in specs}.values())
    if not specs:
        raise InvalidInput("there is nothing to run: no method or no seed was given")
    out = make_folder(out, "out")
    read = partial(finished_record, out=out)
    records, failures = _run_all(specs, out, read, executor or local(jobs), _results_writer(out, specs), on_event)
    if failures:
        raise BenchError(
            f"{len(failures)} of {len(specs)} runs failed; the rest are kept in {out}, and the same command resumes "
            f"from there. First: {failures[0]}",
            records,
        )
    return records


def continue_bench(
    folder: str | Path,
    *,
    rounds: int = 1920,
    jobs: int = 1,
    on_event: Listener | None = None,
) -> list[Record]:
    """Continue every finished run of a bench on target rewards, ``jobs`` at a time; what is done is not repeated.

    Writes ``continued.json`` after each: a record per run as ``continue_run`` gives it. ``rounds_file`` names the file,
    relative to the bench, whose column ``regret`` holds the regret of every round played in the target.
    """
    folder = Path(folder)
    runs = [(read_spec(path), path) for path in finished_runs(folder)]
    specs, places = [spec for spec, _ in runs], {spec.folder_name: path for spec, path in runs}
    alone = list(places.values()) == [folder]

    def read(spec: RunSpec) -> Record | None:
        return continued_record(places[spec.folder_name], rounds)

    def write(records: Mapping[str, Record]) -> None:
        if alone:
            return
        with results_locked(folder):
            listed = []
            for spec in specs:  # also what another process has continued in the meantime
                record = records.get(spec.folder_name) or read(spec)
                if record is not None:
                    rounds_file = f"{places[spec.folder_name].name}/{CONTINUED_FOLDER}/rounds.npz"
                    listed.append({**record, "rounds_file": rounds_file})
            content = {"rounds": rounds, "records": listed}
            write_json(folder / "continued.json", content)

    work = partial(_continue_group, places=places, rounds=rounds)
    records, failures = _run_all(specs, folder, read, local(jobs, work=work, stacks=False), write, on_event)
    if failures:
        raise BenchError(
            f"{len(failures)} of {len(specs)} runs could not be continued; the others are. First: {failures[0]}",
            records,
        )
    return records


def _continue_group(group: Group, out: Path, *, places: dict[str, Path], **settings: Any) -> list[Outcome]:  # noqa: ARG001
    return [attempt(continue_run, places[spec.folder_name], **settings) for spec in group]


def _run_all(
    specs: Sequence[RunSpec],
    out: Path,
    read: Callable[[RunSpec], Record | None],
    executor: Executor,
    write: Callable[[Mapping[str, Record]], None],
    on_event: Listener | None,
) -> tuple[list[Record], list[str]]:
    """Do what is not known yet, tell the listener, and write the summary after each; records, and what failed."""
    listener = on_event or (lambda _: None)
    records: dict[str, Record] = {}
    failures: dict[str, str] = {}
    todo = []
    for spec in specs:
        record = read(spec)
        if record is None:
            todo.append(spec)
        else:
            records[spec.folder_name] = record
            listener(RunEvent("found", spec, record))
    for spec, told in executor(todo, out, listener) if todo else ():
        outcome = told
        if isinstance(told, Exception):  # a worker may have died over another run of its group
            with suppress(DataError):  # a folder that is damaged: the exception tells more
                outcome = read(spec) or told
        if isinstance(outcome, Exception):
            failures[spec.folder_name] = f"{spec.label}: {outcome}"
            listener(RunEvent("failed", spec, {"error": str(outcome)}))
            continue
        records[spec.folder_name] = outcome
        listener(RunEvent("finished", spec, outcome))
        write(records)
    write(records)
    names = [spec.folder_name for spec in specs]
    return [records[name] for name in names if name in records], [failures[name] for name in names if name in failures]


def _results_writer(out: Path, specs: Sequence[RunSpec]) -> Callable[[Mapping[str, Record]], None]:
    """Writes ``results.json`` of a folder, where several processes may be at work.

    It holds, written under a lock, the given records and those of finished runs of the same experiment that were not
    asked for: of an earlier call, or of another process at this moment. So whoever writes last writes them all.
    """
    asked = {_method(spec): spec.without_seed for spec in specs}
    budgets = {_budget(spec) for spec in specs}
    own = [spec.folder_name for spec in specs]

    @cache
    def companion(folder: Path) -> Record | None:
        """The record of a finished run, if it belongs to this experiment: same budget, and same settings if asked."""
        try:
            other, record = read_spec(folder), read_json(folder / "result.json")
        except DataError:  # not a run of an experiment
            return None
        belongs = _budget(other) in budgets and asked.get(_method(other)) in (None, other.without_seed)
        return record if belongs else None

    def write(records: Mapping[str, Record]) -> None:
        with results_locked(out):
            others = sorted(done.parent for done in out.glob("*/done") if done.parent.name not in own)
            companions = [record for folder in others if (record := companion(folder)) is not None]
            write_json(out / "results.json", [*companions, *(records[name] for name in own if name in records)])

    return write


def _method(spec: RunSpec) -> tuple[str, str, str]:
    return spec.pair, spec.method, spec.variant


def _budget(spec: RunSpec) -> str:
    fields = {"pair", "pair_options", "components", "episodes", "episode_length", "rule", "selection"}
    return spec.model_dump_json(include=fields)
