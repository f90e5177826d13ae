"""One run of an experiment, from settings to a finished folder: prepare, train, evaluate."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from daband.domains import LoggedDomain
from daband.errors import DataError, FolderInUse
from daband.evaluation import Evaluation, count_arms, evaluate
from daband.experiments.artifacts import ArtifactRecorder, gather
from daband.experiments.prepared import Prepared, prepare
from daband.experiments.records import Record
from daband.experiments.settings import RunSpec
from daband.files import finish_folder, locked, read_json, write_text
from daband.training import Run, train

__all__ = ["RUN_FILES", "conclude", "execute", "finished_record", "read_spec"]

RUN_FILES = ("config.json", "rounds.npz", "episodes.jsonl", "artifacts.npz", "environment.json", "result.json")
"""What ``done`` has digests of; the policy's file has its own."""


def finished_record(spec: RunSpec, out: Path) -> Record | None:
    """The record of a run that is done, None for one that is not."""
    folder = out / spec.folder_name
    if not (folder / "done").exists():
        return None
    try:
        record: Record = read_json(folder / "result.json")
    except DataError as error:
        raise DataError(f"{error}; remove the folder to run it again") from None
    return record


def read_spec(folder: str | Path) -> RunSpec:
    """What ran in a folder."""
    path = Path(folder) / "config.json"
    try:
        return RunSpec(**read_json(path)["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not say which run of an experiment this is: {error}") from None


def execute(
    spec: RunSpec, out: Path, *, progress: Callable[[dict[str, float]], None] | None = None, save_every: float = 30.0
) -> Record:
    """Run, or go on with, what ``spec`` says, in a folder below ``out``. A finished run is read, not repeated.

    ``progress`` is called after every episode with its record, in which ``of`` says how many there will be.
    """
    known = finished_record(spec, out)
    if known is not None:
        return known
    prepared = prepare(spec, out)
    training = prepared.training()
    tell = None if progress is None else lambda record: progress({**record, "of": training["episodes"]})
    while True:
        try:
            run = train(prepared.policy, **training, save_every=save_every, progress=tell)
        except FolderInUse:  # another process has this run: its result will be this one's
            with locked(prepared.folder, wait=True):
                pass
            known = finished_record(spec, out)
            if known is not None:
                return known
        else:
            return conclude(prepared, run)


def conclude(prepared: Prepared, run: Run) -> Record:
    """Evaluate a trained policy, write what is left to write, and mark the folder as done.

    Where the target has no labels, every field that needs them is None.
    """
    spec, pair, folder, policy = prepared.spec, prepared.pair, prepared.folder, prepared.policy
    started = time.perf_counter()
    recorder = ArtifactRecorder(pair)
    result: Evaluation | None = None
    if pair.target_test is None:
        arm_counts = count_arms(policy, pair.target, rule=spec.rule, seed=spec.seed, observe=recorder.see)
    else:
        result = evaluate(policy, pair.target_test, rule=spec.rule, observe=recorder.see)
        arm_counts = result.arm_counts
    record: Record = {
        "pair": spec.pair,
        "method": spec.method,
        "variant": spec.variant,
        "seed": spec.seed,
        **_target_fields(result),
        "target_arm_counts": arm_counts,
        "target_contexts": sum(arm_counts),
        "source_regret": None if math.isnan(run.total_regret) else run.total_regret,
        "source_reward": float(run.reward.mean()),
        "logger_value": float(run.reward.mean()) if isinstance(pair.source, LoggedDomain) else None,
        "rounds": run.rounds,
        "wall_seconds": run.seconds + time.perf_counter() - started,
        "selection": spec.selection,
        "config_hash": spec.config_hash,
        "class_names": list(pair.class_names),
        "feedback": pair.feedback,
        "folder": spec.folder_name,
    }
    gather(prepared, recorder)
    write_text(folder / "result.json", json.dumps(record, indent=2) + "\n")
    finish_folder(folder, RUN_FILES)
    return record


def _target_fields(result: Evaluation | None) -> Record:
    """What the evaluation says of the target; None throughout where there was none."""
    names = ("accuracy", "accuracy_macro", "value", "best_value", "constant_value", "regret")
    fields = {f"target_{name}": None if result is None else getattr(result, name) for name in names}
    return {**fields, "per_class": None if result is None else result.per_class}
