"""One run of an experiment, from settings to a finished folder: prepared, trained, concluded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daband.domains import Pair, load
from daband.errors import DataError
from daband.evaluation import evaluate
from daband.experiments.artifacts import ArtifactRecorder, gather
from daband.experiments.methods import build_policy
from daband.experiments.settings import RunSpec
from daband.files import read_json, write_text
from daband.policies import Policy
from daband.training import Run, train

__all__ = ["Prepared", "conclude", "execute", "finished_record", "prepare", "read_spec"]

Record = dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to be trained."""

    spec: RunSpec
    pair: Pair
    policy: Policy
    folder: Path

    def training(self) -> dict[str, Any]:
        """What ``train`` is told besides the policy."""
        spec, source = self.spec, self.pair.source
        whole = max(1, source.rounds_available // spec.episode_length)
        return {
            "source": source,
            "target": self.pair.target,
            "episodes": whole if spec.episodes == "all" else spec.episodes,
            "episode_length": spec.episode_length,
            "seed": spec.seed,
            "directory": self.folder,
            "config": {"run": spec.model_dump(mode="json")},
        }


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
        return RunSpec(**json.loads(path.read_text())["run"])
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
    run = train(prepared.policy, **training, save_every=save_every, progress=tell)
    return conclude(prepared, run)


def prepare(spec: RunSpec, out: Path, *, pair: Pair | None = None) -> Prepared:
    """Load the pair, unless it is given, and build the policy of a run."""
    pair = load(spec.pair, **spec.pair_options) if pair is None else pair
    policy = build_policy(spec.method, pair, seed=spec.seed, settings=spec.policy, components=spec.components)
    return Prepared(spec, pair, policy, out / spec.folder_name)


def conclude(prepared: Prepared, run: Run) -> Record:
    """Evaluate a trained policy, write what is left to write, and mark the folder as done."""
    spec, pair, folder = prepared.spec, prepared.pair, prepared.folder
    started = time.perf_counter()
    recorder = ArtifactRecorder(pair)
    result = evaluate(prepared.policy, pair.require_target_test(), rule=spec.rule, observe=recorder.see)
    record = {
        "pair": spec.pair,
        "method": spec.method,
        "variant": spec.variant,
        "seed": spec.seed,
        "target_accuracy": result.accuracy,
        "target_accuracy_macro": result.accuracy_macro,
        "target_regret": result.regret,
        "per_class": result.per_class,
        "source_regret": None if run.total_regret != run.total_regret else run.total_regret,
        "rounds": run.rounds,
        "wall_seconds": run.seconds + time.perf_counter() - started,
        "selection": spec.selection,
        "config_hash": spec.config_hash,
        "class_names": list(pair.class_names),
        "target_contexts": result.contexts,
        "folder": spec.folder_name,
    }
    gather(prepared, recorder)
    write_text(folder / "result.json", json.dumps(record, indent=2) + "\n")
    write_text(folder / "done", "")
    return record
