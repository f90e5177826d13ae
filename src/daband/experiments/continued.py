"""What a finished run does next: target rewards start to arrive, and the head start shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daband.domains import load
from daband.errors import DataError
from daband.experiments.settings import RunSpec
from daband.files import write_text
from daband.policies import load as load_policy
from daband.training import continue_on_target

__all__ = ["continue_run", "finished_runs"]

_FOLDER = "continued"


def finished_runs(folder: str | Path) -> list[Path]:
    """The finished runs in a folder: itself if it is one, else those below it."""
    folder = Path(folder)
    if (folder / "done").exists():
        return [folder]
    runs = sorted(path.parent for path in folder.glob("*/done"))
    if not runs:
        raise DataError(f"{folder} holds no finished run; `daband run NAME` or `daband bench NAME` makes some")
    return runs


def continue_run(
    folder: str | Path, *, rounds: int = 1920, progress: Callable[[dict[str, float]], None] | None = None
) -> dict[str, Any]:
    """Continue one finished run on target rewards, in its subfolder ``continued``; read, not repeated, when done.

    The run itself stays as it is. ``zero_shot_regret`` is the regret of the fixed policy on the evaluation contexts,
    ``continued_regret`` that of the rounds played here, ``total_regret`` their sum.
    """
    folder = Path(folder)
    here = folder / _FOLDER
    config = json.loads((folder / "config.json").read_text())
    spec, length = RunSpec(**config["run"]), config["training"]["episode_length"]
    settings = {"continued_from": spec.config_hash, "rounds": rounds}
    if (here / "done").exists():
        known: dict[str, Any] = json.loads((here / "result.json").read_text())
        if known["rounds_asked"] == rounds:
            return known
        raise DataError(f"{here} was continued for {known['rounds_asked']} rounds; remove it to ask for {rounds}")
    pair = load(spec.pair, **spec.pair_options)
    if pair.target_paying is None:
        raise DataError(f"the pair {spec.pair!r} has no target contexts with rewards to continue on")
    policy = load_policy(folder / "policy.safetensors")
    run = continue_on_target(
        policy,
        target=pair.target_paying,
        rounds=rounds,
        episode_length=length,
        seed=spec.seed,
        directory=here,
        config=settings,
        progress=progress,
    )
    zero_shot = json.loads((folder / "result.json").read_text())["target_regret"]
    known_regret = run.total_regret == run.total_regret  # NaN is not
    record = {
        "pair": spec.pair,
        "method": spec.method,
        "variant": spec.variant,
        "seed": spec.seed,
        "rounds": run.rounds,
        "rounds_asked": rounds,
        "zero_shot_regret": zero_shot,
        "continued_regret": run.total_regret if known_regret else None,
        "total_regret": zero_shot + run.total_regret if known_regret else None,
        "wall_seconds": run.seconds,
        "config_hash": spec.config_hash,
        "folder": folder.name,
    }
    write_text(here / "result.json", json.dumps(record, indent=2) + "\n")
    write_text(here / "done", "")
    return record
