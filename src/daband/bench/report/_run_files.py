"""Run folders as a report sees them: each file is read when it is asked for, and one that is damaged is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray
from daband._files import read_bytes, read_json, read_npz
from daband.bench._records import Record
from daband.errors import DataError
from daband.trust._assessment import Assessment, read_assessment

_WANTED = (
    "pair", "method", "variant", "seed", "target_accuracy", "target_accuracy_macro", "target_value", "target_regret",
    "source_regret", "rounds",
)  # fmt: skip
#: Points of a drawn curve: more than a figure can show, fewer than a run has rounds.
_POINTS = 240


@dataclass(frozen=True)
class Curve:
    """A number over rounds: ``rounds`` (n,) and ``values`` (runs, n)."""

    rounds: AnyArray
    values: FloatArray


@dataclass(frozen=True)
class RunFiles:
    """One finished run: its record, and its folder; None where only the record is left."""

    record: Record
    path: Path | None

    @property
    def key(self) -> tuple[str, str]:
        """The method and the variant."""
        return self.record["method"], self.record["variant"]

    def config(self) -> dict[str, Any]:
        """``config.json``; empty where there is none."""
        return self._json("config.json")

    def environment(self) -> dict[str, Any]:
        """``environment.json``; empty for runs of versions that did not write it."""
        return self._json("environment.json")

    def episodes(self) -> list[dict[str, Any]]:
        """A record per episode; empty where the folder is gone."""
        path = self._existing("episodes.jsonl")
        if path is None:
            return []
        try:
            lines = read_bytes(path).decode().splitlines()
            records: list[dict[str, Any]] = json.loads(f"[{','.join(lines)}]")  # twice as fast as line by line
        except ValueError as error:  # also what is no UTF-8
            raise DataError(f"{path} is damaged: {error}; remove the run's folder and run it again") from None
        if not all(isinstance(record, dict) for record in records):
            raise DataError(f"{path} is damaged: a record per line was expected; remove the run's folder")
        return records

    def shared_arms(self) -> bool:
        """Whether each arm has a context of its own: then arm 3 is another thing in every round."""
        return bool(self.config().get("policy", {}).get("arms") == "shared")

    def regret(self, where: str) -> tuple[AnyArray, FloatArray] | None:
        """Rounds and cumulative regret, thinned, in the source, or in the target for a run that was continued there.

        None where it is not known.
        """
        path = self._existing("rounds.npz")
        if where == "target":
            path = self._existing("continued/rounds.npz") if self._existing("continued/done") else None
        regret = None if path is None else read_npz(path, ("regret",)).get("regret")
        if regret is None or not len(regret) or not np.isfinite(regret).all():
            return None
        at = np.unique(np.linspace(0, len(regret) - 1, min(len(regret), _POINTS)).round().astype(np.int64))
        return at + 1, np.cumsum(regret)[at]

    def continued(self) -> Record | None:
        """The record of the run's sequel in the target, where there is one that is done."""
        return self._json("continued/result.json") if self._existing("continued/done") else None

    def assessment(self) -> Assessment | None:
        """What ``daband assess`` wrote, where it did."""
        path = self._existing("assessment.json")
        return None if path is None else read_assessment(path)

    def artifacts(self, *names: str) -> dict[str, AnyArray]:
        """The arrays in ``artifacts.npz``, or only those named; empty where there is no such file."""
        path = self._existing("artifacts.npz")
        return {} if path is None else read_npz(path, names)

    def _existing(self, name: str) -> Path | None:
        if self.path is None:
            return None
        path = self.path / name
        return path if path.exists() else None

    def _json(self, name: str) -> dict[str, Any]:
        path = self._existing(name)
        if path is None:
            return {}
        content = read_json(path)
        if not isinstance(content, dict):
            raise DataError(f"{path} is not what daband writes: a JSON object was expected")
        return content


def load_runs(folder: str | Path) -> list[RunFiles]:
    """The finished runs of a bench, of any folder of runs, or of a single run's folder."""
    folder = Path(folder)
    records = read_records(folder)
    if (folder / "done").exists():
        return [RunFiles(records[0], folder)]
    runs = []
    for record in records:
        path = folder / record["folder"] if record.get("folder") else None
        runs.append(RunFiles(record, path if path is not None and path.is_dir() else None))
    return runs


def read_records(folder: str | Path) -> list[Record]:
    """The records in a folder's ``results.json``, or where there is none, those of the finished runs in it."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    path = folder / "results.json"
    if (folder / "done").exists():
        return _check([read_json(folder / "result.json")], folder / "result.json")
    if not path.is_file():
        done = sorted(folder.glob("*/done"))
        if not done:
            raise DataError(
                f"{folder} has no results.json and no finished run; `daband bench NAME --out {folder}` makes some"
            )
        return [_check([read_json(p.parent / "result.json")], p.parent / "result.json")[0] for p in done]
    return _check(read_json(path), path)


def common_curve(curves: Sequence[tuple[AnyArray, FloatArray] | None]) -> Curve | None:
    """Curves of several runs over the rounds that all of them have; None where no run has one."""
    measured = [curve for curve in curves if curve is not None and len(curve[0])]
    if not measured:
        return None
    last = min(int(rounds[-1]) for rounds, _ in measured)
    grid = next(rounds[rounds <= last] for rounds, _ in measured if int(rounds[-1]) == last)
    return Curve(grid, np.stack([np.interp(grid, rounds, values) for rounds, values in measured]))


def _check(records: Any, path: Path) -> list[Record]:
    if isinstance(records, list) and not records:
        raise DataError(f"{path} holds no finished run yet")
    if not isinstance(records, list) or not all(
        isinstance(record, dict) and all(name in record for name in _WANTED) for record in records
    ):
        raise DataError(f"{path} is not a list of results that daband wrote")
    return records
