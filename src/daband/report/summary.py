"""What a folder of runs says, as plain rows: a mean and a spread per method, and curves over rounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from daband.arrays import FloatArray
from daband.errors import DataError

__all__ = ["MethodSummary", "read_records", "regret_curves", "summarise", "with_spread"]

Record = dict[str, Any]


@dataclass(frozen=True)
class MethodSummary:
    """One method on one pair, over its seeds. Spreads are sample standard deviations, 0 for a single seed."""

    pair: str
    method: str
    variant: str
    seeds: tuple[int, ...]
    accuracy: float
    accuracy_spread: float
    accuracy_macro: float
    source_regret: float | None
    source_regret_spread: float
    rounds: int
    seconds: float


def with_spread(value: float | None, spread: float, seeds: int, digits: int) -> str:
    """A mean as people read it: with its spread where there is one, "unknown" where there is no value."""
    if value is None:
        return "unknown"
    return f"{value:.{digits}f}" if seeds < 2 else f"{value:.{digits}f} ± {spread:.{digits}f}"


def read_records(folder: str | Path) -> list[Record]:
    """The records in a folder's ``results.json``."""
    path = Path(folder) / "results.json"
    if not path.is_file():
        raise DataError(f"{folder} has no results.json; `daband bench NAME --out {folder}` makes one")
    try:
        records: list[Record] = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not records:
        raise DataError(f"{path} holds no finished run yet")
    wanted = (
        "pair",
        "method",
        "variant",
        "seed",
        "target_accuracy",
        "target_accuracy_macro",
        "source_regret",
        "rounds",
    )
    if not isinstance(records, list) or not all(
        isinstance(record, dict) and all(name in record for name in wanted) for record in records
    ):
        raise DataError(f"{path} is not a list of results that daband wrote")
    return records


def summarise(records: Sequence[Record]) -> list[MethodSummary]:
    """A row per pair, method and variant, in the order of first appearance."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["pair"], record["method"], record["variant"]), []).append(record)
    rows = []
    for (pair, method, variant), group in groups.items():
        accuracies = np.array([record["target_accuracy"] for record in group])
        regrets = [record["source_regret"] for record in group]
        known = None not in regrets
        rows.append(
            MethodSummary(
                pair=pair,
                method=method,
                variant=variant,
                seeds=tuple(record["seed"] for record in group),
                accuracy=float(accuracies.mean()),
                accuracy_spread=_spread(accuracies),
                accuracy_macro=float(np.mean([record["target_accuracy_macro"] for record in group])),
                source_regret=float(np.mean(regrets)) if known else None,
                source_regret_spread=_spread(np.array(regrets, np.float64)) if known else 0.0,
                rounds=group[0]["rounds"],
                seconds=float(np.mean([record["wall_seconds"] for record in group])),
            )
        )
    return rows


def regret_curves(folder: str | Path, records: Sequence[Record]) -> dict[str, FloatArray]:
    """Cumulative source regret of each method, (seeds, rounds); methods whose source cannot tell are left out."""
    curves: dict[str, list[FloatArray]] = {}
    for record in records:
        path = Path(folder) / record["folder"] / "rounds.npz"
        try:
            with np.load(path, allow_pickle=False) as table:
                regret = table["regret"]
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise DataError(f"{path} cannot be read ({error}); `daband bench` makes the run again") from None
        if np.isfinite(regret).all():
            curves.setdefault(record["method"], []).append(np.cumsum(regret))
    return {method: np.stack([row[: min(map(len, rows))] for row in rows]) for method, rows in curves.items()}


def _spread(values: FloatArray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0
