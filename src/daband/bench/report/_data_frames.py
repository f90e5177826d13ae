"""Read runs as data frames (polars) for notebooks; ``.to_pandas()`` needs pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from daband.bench.report._run_files import RunFiles, load_runs
from daband.errors import InvalidInput

Folders = str | Path | Sequence[str | Path]
_IDENTITY = ("pair", "method", "variant", "seed")


def frame(folders: Folders) -> pl.DataFrame:
    """Return a row per finished run: its record, and its folder in ``run_folder``.

    Args:
        folders: a run's folder, a folder of runs, or several of either.
    """
    rows = [{**run.record, "run_folder": None if run.path is None else str(run.path)} for run in _runs(folders)]
    return _table(rows)


def episodes(folders: Folders) -> pl.DataFrame:
    """Return a row per episode of every run: pair, method, variant, seed, and all measurements of training.

    ``source_rounds`` is the number of rounds up to the end of the episode, ``regret`` the cumulative source regret. A
    column that a method does not measure is null for it.
    """
    rows = []
    for run in _runs(folders):
        length = run.config().get("training", {}).get("episode_length")
        identity = {name: run.record[name] for name in _IDENTITY}
        for record in run.episodes():
            rounds = None if length is None else record["episode"] * length
            rows.append({**identity, "source_rounds": rounds, **record})
    return _table(rows)


def _runs(folders: Folders) -> list[RunFiles]:
    several = [folders] if isinstance(folders, str | Path) else list(folders)
    if not several:
        raise InvalidInput("folders is empty; give at least one run's folder or folder of runs")
    return [run for folder in several for run in load_runs(folder)]


def _table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Build a frame from rows with different keys; integers and floats of one column both become floats."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in names}
    return pl.DataFrame(columns, strict=False)
