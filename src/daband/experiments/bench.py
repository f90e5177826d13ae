"""Many runs: methods x seeds, in processes, resumable, with one ``results.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from daband.errors import DabandError, DataError, InvalidInput
from daband.experiments.executors import Event, Executor, Listener, in_processes, in_turn
from daband.experiments.records import Record
from daband.experiments.run import finished_record, read_spec
from daband.experiments.settings import RunSpec
from daband.experiments.stacked import stacked
from daband.files import read_json, write_text

__all__ = ["BenchError", "bench", "read_results"]


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

    ``executor`` stands in for ``jobs``: any way to get runs done, a cluster for one (``cluster.on_ray``). On a GPU the
    seeds of a neural method are trained together, as one of the ``jobs``.

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
    records: list[Record] = read_json(Path(out) / "results.json")
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
            other, record = read_spec(folder), read_json(folder / "result.json")
        except DataError:  # not a run of ours
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
