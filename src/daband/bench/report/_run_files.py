"""Read run folders for reports (``load_runs``), and as polars data frames for notebooks
(``frame``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from daband.base._arrays import AnyArray, FloatArray
from daband.base._files import read_bytes, read_json, read_npz
from daband.bench._records import Record
from daband.errors import DataError, InvalidInput

#: One folder or several. Each is a run's folder, or contains the folders of runs.
Folders = str | Path | Sequence[str | Path]
#: Fields that every record must have.
_REQUIRED_FIELDS = (
    "pair",
    "method",
    "variant",
    "seed",
    "target_accuracy",
    "target_accuracy_macro",
    "target_value",
    "target_regret",
    "source_regret",
    "rounds",
)
#: Maximum number of points of a curve in a figure. A figure cannot show more, and a run has more
#: rounds.
_MAX_CURVE_POINTS = 240


@dataclass(frozen=True)
class RunCurves:
    """The curves of several runs, such as their cumulative regret, at the same rounds."""

    #: The round numbers at which the curves are known, (n,).
    rounds: AnyArray
    #: The value of each run's curve after these rounds, (n_runs, n).
    values: FloatArray


@dataclass(frozen=True)
class RunFiles:
    """The record and the files of one finished run."""

    #: The content of ``result.json``.
    record: Record
    #: The folder of the run; None if it is missing, so that only the record is known.
    path: Path | None

    @property
    def key(self) -> tuple[str, str]:
        """The method and the variant."""
        return self.record["method"], self.record["variant"]

    @property
    def name(self) -> str:
        """The name of the run in the report: its pair, method and seed."""
        return (
            f"{self.record['pair']}, {' '.join(self.key).removesuffix(' default')}, seed"
            f" {self.record['seed']}"
        )

    def read_json_file(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file of the run; empty if there is none."""
        path = self._find_file(name)
        content = {} if path is None else read_json(path)
        if not isinstance(content, dict):
            raise DataError(f"{path} was not written by daband: a JSON object was expected")
        return content

    def read_episodes(self) -> list[dict[str, Any]]:
        """Return a record per episode; empty if the run has no file of episodes."""
        path = self._find_file("episodes.jsonl")
        if path is None:
            return []
        try:
            lines = read_bytes(path).decode().splitlines()
            # twice as fast as line by line
            records: list[dict[str, Any]] = json.loads(f"[{','.join(lines)}]")
        except ValueError as error:  # also text that is not UTF-8
            raise DataError(
                f"{path} is damaged: {error}; remove the run's folder and run it again"
            ) from None
        if not all(isinstance(record, dict) for record in records):
            raise DataError(
                f"{path} is damaged: a record per line was expected; remove the run's folder"
            )
        return records

    def read_regret(self, domain: str) -> tuple[AnyArray, FloatArray] | None:
        """Return round numbers and the cumulative regret after these rounds; None if the regret is
        not known.

        There are at most 240 points. ``domain`` is "source", or "target" for the continuation in
        the target.
        """
        path = self._find_file("rounds.npz" if domain == "source" else "continued/rounds.npz")
        if domain == "target" and self._find_file("continued/done") is None:
            return None
        regret = None if path is None else read_npz(path, ("regret",)).get("regret")
        if regret is None or not len(regret) or not np.isfinite(regret).all():
            return None
        n_points = min(len(regret), _MAX_CURVE_POINTS)
        indices = np.unique(np.linspace(0, len(regret) - 1, n_points).round().astype(np.int64))
        return indices + 1, np.cumsum(regret)[indices]

    def read_continued(self) -> Record:
        """Return the record of the run's continuation in the target; empty if there is none."""
        return (
            self.read_json_file("continued/result.json")
            if self._find_file("continued/done")
            else {}
        )

    def _find_file(self, name: str) -> Path | None:
        """Return the path of a file of the run, or None if it does not exist."""
        path = None if self.path is None else self.path / name
        return path if path is not None and path.exists() else None


def load_runs(folder: str | Path) -> list[RunFiles]:
    """Return the finished runs in a folder, which is a run's folder or contains the folders of
    runs.
    """
    folder = Path(folder)
    records = read_records(folder)
    if (folder / "done").exists():
        return [RunFiles(records[0], folder)]
    paths = [folder / str(record.get("folder", "missing")) for record in records]
    return [
        RunFiles(record, path if path.is_dir() else None)
        for record, path in zip(records, paths, strict=True)
    ]


def read_records(folder: str | Path) -> list[Record]:
    """Return the records of the finished runs in a folder, from ``results.json`` if the folder has
    that file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    path = folder / "results.json"
    if path.is_file() and not (folder / "done").exists():
        records = read_json(path)
        if isinstance(records, list) and not records:
            raise DataError(f"{path} has no finished run yet")
        return _check_records(records, path)
    done_files = [folder / "done"] if (folder / "done").exists() else sorted(folder.glob("*/done"))
    if not done_files:
        raise DataError(
            f"{folder} has no results.json and no finished run; `daband bench NAME --out {folder}`"
            " makes some"
        )
    return _check_records([read_json(path.with_name("result.json")) for path in done_files], folder)


def _check_records(records: Any, path: Path) -> list[Record]:
    """Return the records. Raise an error if they are not a list, or if a record lacks a field."""
    if not isinstance(records, list) or not all(
        isinstance(record, dict) and all(name in record for name in _REQUIRED_FIELDS)
        for record in records
    ):
        raise DataError(f"{path} is not a list of results that daband wrote")
    return records


def merge_curves(curves: Sequence[tuple[AnyArray, FloatArray] | None]) -> RunCurves | None:
    """Return the curves of several runs at common rounds, by interpolation; None if no run has a
    curve.

    A curve is a pair of round numbers (n,) and values (n,), or None. The common rounds end where
    the shortest curve ends.
    """
    known_curves = [curve for curve in curves if curve is not None and len(curve[0])]
    if not known_curves:
        return None
    last_round = min(int(rounds[-1]) for rounds, _ in known_curves)
    common_rounds = next(
        rounds[rounds <= last_round] for rounds, _ in known_curves if int(rounds[-1]) == last_round
    )
    curve_values = [np.interp(common_rounds, rounds, values) for rounds, values in known_curves]
    return RunCurves(common_rounds, np.stack(curve_values))


def frame(folders: Folders) -> pl.DataFrame:
    """Return a row per finished run, with its record, and its folder in the column ``run_folder``.

    Args:
        folders: a run's folder, a folder of runs, or several of either.
    """
    folder_list = [folders] if isinstance(folders, str | Path) else list(folders)
    if not folder_list:
        raise InvalidInput("folders must have at least one run's folder or folder of runs")
    runs = [run for folder in folder_list for run in load_runs(folder)]
    rows = [{**run.record, "run_folder": run.path and str(run.path)} for run in runs]
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)
