"""What a folder of runs says, as plain rows: a mean and a spread per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray
from daband.report.runs import Record

__all__ = ["MethodSummary", "summarise", "with_spread"]


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
                seconds=float(np.mean([record.get("wall_seconds", np.nan) for record in group])),
            )
        )
    return rows


def _spread(values: FloatArray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0
