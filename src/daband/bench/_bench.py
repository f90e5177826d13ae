"""Execute the runs of an experiment in one folder (``bench``).

If a bench is interrupted, the same call continues it, and reads the finished runs. ``results.json``
has the records of all finished runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from daband.base._files import lock_folder, make_folder, read_json, write_json
from daband.bench._executors import Listener, RunEvent, execute_all
from daband.bench._records import Record
from daband.bench._run import (
    read_finished_record,
    read_spec,
)
from daband.bench._settings import RunSpec
from daband.errors import DabandError, DataError, InvalidInput


class BenchError(DabandError, RuntimeError):
    """Raised if some runs failed; ``records`` has the records of the finished ones."""

    def __init__(self, message: str, records: Sequence[Record] = ()) -> None:
        super().__init__(message)
        self.records = list(records)


def bench(
    specs: Sequence[RunSpec], out: str | Path, *, jobs: int = 1, on_event: Listener | None = None
) -> list[Record]:
    """Execute every run that is not finished, ``jobs`` at a time.

    Write ``results.json`` after each run.

    All methods of a seed see the same contexts in the same order and get rewards from the same
    draws. Finished runs of other methods or seeds of the same experiment stay in ``results.json``.
    If several processes work in one folder, each run is executed once.

    Args:
        specs: the runs, for example ``load_experiment("digit").runs()``.
        out: the folder of the runs.
        jobs: number of processes.
        on_event: called with a ``RunEvent`` when a run starts, finishes an episode, finishes or
            fails.
    """
    specs = list({spec.folder_name: spec for spec in specs}.values())
    if not specs:
        raise InvalidInput("there is nothing to run: no method or no seed was given")
    folder = make_folder(out, "out")
    listener = on_event or (lambda _: None)
    write_results = _make_results_writer(folder, specs)
    records: dict[str, Record] = {}
    failures: list[str] = []
    for spec in specs:
        if (record := read_finished_record(spec, folder)) is not None:
            records[spec.folder_name] = record
            listener(RunEvent("found", spec, record))
    remaining_specs = [spec for spec in specs if spec.folder_name not in records]
    for spec, outcome in execute_all(remaining_specs, folder, listener, jobs=jobs):
        if isinstance(outcome, Exception):
            failures.append(f"{spec.label}: {outcome}")
            listener(RunEvent("failed", spec, {"error": str(outcome)}))
        else:
            records[spec.folder_name] = outcome
            listener(RunEvent("finished", spec, outcome))
            write_results(records)
    write_results(records)
    ordered_records = [records[spec.folder_name] for spec in specs if spec.folder_name in records]
    if failures:
        raise BenchError(
            f"{len(failures)} of {len(specs)} runs failed; finished runs are in {folder}, and the"
            f" same command continues. First: {failures[0]}",
            ordered_records,
        )
    return ordered_records


def _make_results_writer(
    folder: Path, specs: Sequence[RunSpec]
) -> Callable[[Mapping[str, Record]], None]:
    """Return a function that writes the ``results.json`` of a bench.

    Several processes may work in its folder.

    The file gets the given records, and the records of other finished runs of the same experiment.
    """
    run_key_by_method = {_get_method_key(spec): spec.key_without_seed for spec in specs}
    experiment_keys = {_get_experiment_key(spec) for spec in specs}
    folder_names = [spec.folder_name for spec in specs]

    @cache
    def read_comparable_record(run_folder: Path) -> Record | None:
        """Return the record of a finished run if it belongs to the same experiment, else None.

        The run must have an experiment key of ``specs``, and the same settings if its method is one
        of ``specs``.
        """
        try:
            spec = read_spec(run_folder)
            record = read_json(run_folder / "result.json")
        except DataError:  # not a run of an experiment
            return None
        run_key = run_key_by_method.get(_get_method_key(spec), spec.key_without_seed)
        is_comparable = (
            _get_experiment_key(spec) in experiment_keys and run_key == spec.key_without_seed
        )
        return record if is_comparable else None

    def write_results(records: Mapping[str, Record]) -> None:
        """Write ``results.json`` with the records of finished runs, by folder name."""
        with lock_folder(folder, wait=True, lock_file=".results.lock"):
            run_folders = sorted(path.parent for path in folder.glob("*/done"))
            other_records = [
                read_comparable_record(path)
                for path in run_folders
                if path.name not in folder_names
            ]
            own_records = [records[name] for name in folder_names if name in records]
            write_json(folder / "results.json", [*filter(None, other_records), *own_records])

    return write_results


def _get_method_key(spec: RunSpec) -> tuple[str, str, str]:
    """Return the pair, the method and the variant of a run."""
    return spec.pair, spec.method, spec.variant


def _get_experiment_key(spec: RunSpec) -> str:
    """Return the settings that comparable runs have in common, as JSON."""
    return spec.model_dump_json(exclude={"method", "variant", "policy", "seed"})
