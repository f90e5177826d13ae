"""Execute the runs of an experiment in one folder (``bench``).

If a bench is interrupted, the same call continues it, and reads the finished runs. ``results.json``
has the records of all finished runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from daband.base._files import lock_folder, make_folder, write_json
from daband.bench._executors import Listener, RunEvent, execute_all
from daband.bench._records import Record, read_results
from daband.bench._run import read_finished_record
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
    draws. Records of other methods and seeds stay in ``results.json``, but not those of a method
    that now has other settings. If several processes work in one folder, each run is executed once.

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
    records: dict[str, Record] = {}
    failures: list[str] = []

    def list_records() -> list[Record]:
        """Return the records of the finished runs in the order of ``specs``."""
        return [records[spec.folder_name] for spec in specs if spec.folder_name in records]

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
            _write_results(folder, list_records())
    _write_results(folder, list_records())
    if failures:
        raise BenchError(
            f"{len(failures)} of {len(specs)} runs failed; finished runs are in {folder}, and the"
            f" same command continues. First: {failures[0]}",
            list_records(),
        )
    return list_records()


def _write_results(folder: Path, records: Sequence[Record]) -> None:
    """Add records to ``results.json``, to which other processes may write.

    They replace records of the same pair, method and variant with other settings.
    """
    settings = {_get_method_key(record): record["settings_hash"] for record in records}
    folders = {record["folder"] for record in records}
    with lock_folder(folder, wait=True, lock_file=".results.lock"):
        try:
            old_records = read_results(folder)
        except DataError:  # there is none yet, or it is damaged
            old_records = []
        kept = [
            record
            for record in old_records
            if record["folder"] not in folders
            and settings.get(_get_method_key(record), record["settings_hash"])
            == record["settings_hash"]
        ]
        write_json(folder / "results.json", [*kept, *records])


def _get_method_key(record: Record) -> tuple[str, str, str]:
    """Return the pair, the method and the variant of a run."""
    return record["pair"], record["method"], record["variant"]
