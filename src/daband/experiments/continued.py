"""Finished runs continued in the target, where rewards now arrive: how much the head start is worth."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from daband.domains import load
from daband.errors import DataError, FolderInUse
from daband.experiments.bench import BenchError, read_results, results_locked
from daband.experiments.executors import Event, Listener, in_processes, in_turn
from daband.experiments.records import Record
from daband.experiments.run import RUN_FILES, read_spec
from daband.experiments.settings import RunSpec
from daband.files import finish_folder, locked, read_json, write_text
from daband.policies import load as load_policy
from daband.training import continue_on_target

__all__ = ["continue_bench", "continue_run", "finished_runs"]


_FOLDER = "continued"


def finished_runs(folder: str | Path) -> list[Path]:
    """The finished runs in a folder: itself if it is one, those of its ``results.json``, or else all below it."""
    folder = Path(folder)
    if (folder / "done").exists():
        return [folder]
    # A bench that was started again with other settings has old runs beside the ones that count.
    listed = (folder / "results.json").is_file()
    names = {str(record.get("folder")) for record in read_results(folder)} if listed else None
    runs = sorted(path.parent for path in folder.glob("*/done") if names is None or path.parent.name in names)
    if not runs:
        raise DataError(f"{folder} holds no finished run; `daband run NAME` or `daband bench NAME` makes some")
    return runs


def continue_bench(
    folder: str | Path,
    *,
    rounds: int = 1920,
    prior_trust: float | str | None = None,
    jobs: int = 1,
    on_event: Listener | None = None,
) -> list[Record]:
    """Continue every finished run of a bench on target rewards, ``jobs`` at a time; what is done is not repeated.

    ``prior_trust`` is that of ``daband.continue_on_target``.

    Writes ``continued.json`` after each: a record per run as ``continue_run`` gives it. ``rounds_file`` names the file,
    relative to the bench, whose column ``regret`` holds the regret of every round played in the target.
    """
    folder = Path(folder)
    found = [(read_spec(path), path) for path in finished_runs(folder)]
    specs = {spec.folder_name: spec for spec, _ in found}
    places = {spec.folder_name: path for spec, path in found}
    alone = list(places.values()) == [folder]
    listener = on_event or (lambda _: None)
    records: dict[str, Record] = {}
    failures: list[str] = []
    todo = []
    for name, spec in specs.items():
        known = _known(places[name], rounds, prior_trust)
        if known is None:
            todo.append(spec)
        else:
            records[name] = known
            listener(Event("found", spec, known))

    def write() -> None:
        if alone:
            return
        with results_locked(folder):
            for name in specs:  # what another process has continued in the meantime
                if name not in records and (known := _known(places[name], rounds, prior_trust)) is not None:
                    records[name] = known
            listed = [
                {**records[name], "rounds_file": f"{places[name].name}/{_FOLDER}/rounds.npz"}
                for name in specs
                if name in records
            ]
            content = {"rounds": rounds, "records": listed}
            write_text(folder / "continued.json", json.dumps(content, indent=2) + "\n")

    where = {name: str(path) for name, path in places.items()}
    work = partial(_continue_spec, places=where, rounds=rounds, prior_trust=prior_trust)
    several = jobs > 1 and len(todo) > 1
    outcomes = (
        in_processes(jobs, work=work)(todo, folder, listener) if several else in_turn(todo, folder, listener, work=work)
    )
    for spec, outcome in outcomes:
        if isinstance(outcome, Exception):
            failures.append(f"{spec.label}: {outcome}")
            listener(Event("failed", spec, {"error": str(outcome)}))
            continue
        records[spec.folder_name] = outcome
        listener(Event("finished", spec, outcome))
        write()
    write()
    continued = [records[name] for name in specs if name in records]
    if failures:
        raise BenchError(
            f"{len(failures)} of {len(specs)} runs could not be continued; the others are. First: {failures[0]}",
            continued,
        )
    return continued


def _continue_spec(
    spec: RunSpec,
    _out: Path,
    *,
    progress: Callable[[dict[str, float]], None],
    places: dict[str, str],
    rounds: int,
    prior_trust: float | str | None,
) -> Record:
    return continue_run(places[spec.folder_name], rounds=rounds, prior_trust=prior_trust, progress=progress)


def _known(folder: Path, rounds: int, prior_trust: float | str | None) -> Record | None:
    here = folder / _FOLDER
    if not (here / "done").exists():
        return None
    known: Record = read_json(here / "result.json")
    if known["rounds_asked"] != rounds:
        raise DataError(f"{here} was continued for {known['rounds_asked']} rounds; remove it to ask for {rounds}")
    if known.get("prior_trust", 1.0) != prior_trust:
        raise DataError(f"{here} was continued with another prior_trust; remove it to ask for {prior_trust}")
    return known


def continue_run(
    folder: str | Path,
    *,
    rounds: int = 1920,
    prior_trust: float | str | None = None,
    progress: Callable[[dict[str, float]], None] | None = None,
) -> Record:
    """Continue one finished run on target rewards, in its subfolder ``continued``; read, not repeated, when done.

    The run itself stays as it is. ``zero_shot_regret`` is the regret of the fixed policy on the evaluation contexts
    (``zero_shot_contexts`` of them), ``continued_regret`` that of the rounds played here, ``total_regret`` their sum;
    ``zero_shot_value`` and ``continued_reward`` are the mean rewards of a context and of a round, all in the user's
    unit. What needs labels is None where there are none.
    """
    folder = Path(folder)
    here = folder / _FOLDER
    known = _known(folder, rounds, prior_trust)
    if known is not None:
        return known
    spec = read_spec(folder)
    length = read_json(folder / "config.json")["training"]["episode_length"]
    pair = load(spec.pair, **spec.pair_options)
    if pair.target_labelled is None:
        raise DataError(f"the pair {spec.pair!r} has no target contexts with rewards to continue on")
    policy = load_policy(folder / "policy.safetensors")
    episodes = -(-min(rounds, pair.target_labelled.rounds_available) // length)
    tell = None if progress is None else lambda record: progress({**record, "of": episodes})
    while True:
        try:
            run = continue_on_target(
                policy,
                target=pair.target_labelled,
                rounds=rounds,
                episode_length=length,
                prior_trust=prior_trust,
                seed=spec.seed,
                directory=here,
                config={"continued_from": spec.config_hash, "rounds": rounds},
                progress=tell,
            )
        except FolderInUse:  # another process continues this run: its record will be this one's
            with locked(here, wait=True):
                pass
            known = _known(folder, rounds, prior_trust)
            if known is not None:
                return known
        else:
            break
    before = read_json(folder / "result.json")
    zero_shot, continued = before["target_regret"], None if math.isnan(run.total_regret) else run.total_regret
    record = {
        "pair": spec.pair,
        "method": spec.method,
        "variant": spec.variant,
        "seed": spec.seed,
        "rounds": run.rounds,
        "rounds_asked": rounds,
        "prior_trust": prior_trust,
        "zero_shot_regret": zero_shot,
        "zero_shot_contexts": before.get("target_contexts"),
        "zero_shot_value": before.get("target_value"),
        "continued_regret": continued,
        "continued_reward": float(run.reward.mean()),
        "total_regret": None if zero_shot is None or continued is None else zero_shot + continued,
        "feedback": before.get("feedback", "one_hot"),
        "wall_seconds": run.seconds,
        "config_hash": spec.config_hash,
        "folder": folder.name,
    }
    write_text(here / "result.json", json.dumps(record, indent=2) + "\n")
    finish_folder(here, RUN_FILES)
    return record
