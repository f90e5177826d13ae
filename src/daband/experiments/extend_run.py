"""A run of more episodes starts from a shorter one of the same settings, where that gives the same result."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from daband.errors import DataError
from daband.experiments.run import read_spec
from daband.experiments.settings import RunSpec
from daband.files import locked, read_json, write_text

__all__ = ["start_from_shorter"]

_FILES = ("config.json", "rounds.npz", "episodes.jsonl", "policy.safetensors")


def start_from_shorter(spec: RunSpec, out: Path) -> Path | None:
    """Copy the longest run in ``out`` that ``spec`` extends into the folder of ``spec``; returns where it came from.

    Nothing is done where the folder exists, or where there is no such run. A transform is fitted on the contexts of a
    whole run, so methods with one are left alone: extended, they would differ from a run of that length at once.
    """
    folder = out / spec.folder_name
    if folder.exists() or isinstance(spec.episodes, str):
        return None
    found: list[tuple[int, Path]] = []
    for config in out.glob("*/config.json"):
        try:
            other, settings = read_spec(config.parent), read_json(config)
        except DataError:  # not a run of an experiment
            continue
        if settings.get("policy", {}).get("transform") is not None:
            continue
        shorter = isinstance(other.episodes, int) and other.episodes < spec.episodes
        if shorter and other.model_copy(update={"episodes": spec.episodes}) == spec:
            found.append((int(other.episodes), config.parent))
    complete = [(episodes, path) for episodes, path in found if all((path / name).is_file() for name in _FILES)]
    if not complete:
        return None
    _, source = max(complete)
    aside = Path(tempfile.mkdtemp(dir=out, prefix=".extending-"))
    try:
        with locked(source, wait=True):
            for name in _FILES:
                shutil.copyfile(source / name, aside / name)
        config = read_json(aside / "config.json")
        config["run"] = spec.model_dump(mode="json")  # its training is still the shorter one's: ``train`` extends it
        write_text(aside / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
        aside.chmod(0o755)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return source
