"""The page of results on several sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.runs import fill

__all__ = ["sources_page"]

Record = dict[str, Any]
_POISONS = ("shuffled", "foreign")


def sources_page(record: Record) -> str:
    """The page, from the record of ``sources.py``."""
    records = record["runs"]
    values: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for one in records:
        methods = values.setdefault((one["family"], one["target"]), {})
        methods.setdefault(one["method"], {})[one["seed"]] = one["value"]
    rows = [_row(where, methods) for where, methods in values.items()]
    costs = {poison: [row["costs"][poison] for row in rows if poison in row["costs"]] for poison in _POISONS}
    return fill(
        "sources",
        commit=record["commit"],
        rows=[row["cells"] for row in rows],
        margins=[row["means"]["weighted"] - row["means"]["pooled"] for row in rows],
        singles=[row["means"]["weighted"] - row["best"] for row in rows],
        linear=[row["means"]["weighted"] - row["means"]["linucb-pooled"] for row in rows],
        costs={poison: found for poison, found in costs.items() if found},
        bounds=_bounds([one for one in records if one["method"] == "bound"]),
        errors=_errors([one for one in records if one["method"] == "bound"]),
    )


def _row(where: tuple[str, str], methods: dict[str, dict[int, float]]) -> dict[str, Any]:
    means = {method: float(np.mean(list(by_seed.values()))) for method, by_seed in methods.items()}
    singles = {method.removeprefix("single-"): mean for method, mean in means.items() if method.startswith("single-")}
    best = max(singles, key=lambda name: singles[name])
    costs = {}
    for poison in _POISONS:
        poisoned = methods.get(f"poison-{poison}", {})
        common = [seed for seed in poisoned if seed in methods["weighted"]]
        if common:
            costs[poison] = float(np.mean([methods["weighted"][seed] - poisoned[seed] for seed in common]))
    cells = ["/".join(where), str(len(methods["weighted"]))]
    cells += [f"{means[method]:.3f}" for method in ("weighted", "pooled")]
    cells += [f"{singles[best]:.3f} ({best})", f"{means['linucb-weighted']:.3f}", f"{means['linucb-pooled']:.3f}"]
    cells += [f"{-costs[poison]:+.3f}" if poison in costs else "" for poison in _POISONS]
    return {"cells": cells, "means": means, "best": singles[best], "costs": costs}


def _bounds(records: Sequence[Record]) -> list[list[str]]:
    """For each number of sources: how often the bounds cover, and how far below the value they are."""
    rows = []
    for count in sorted({len(one["left_out"]) for one in records}):
        some = [one for one in records if len(one["left_out"]) == count]
        value, low, other = (np.array([one[key] for one in some]) for key in ("value", "low", "low_by_sources"))
        bounds = (low, np.clip(other, 0.0, 1.0), np.minimum(low, np.clip(other, 0.0, 1.0)))
        covers = [f"{(value >= bound).mean():.0%}" for bound in bounds]
        rows.append([str(count), str(len(some)), *covers, *(f"{(value - bound).mean():.2f}" for bound in bounds)])
    return rows


def _errors(records: Sequence[Record]) -> tuple[float, float]:
    """The mean absolute error of the estimate, as it is and moved by the mean error of the left-out sources."""
    estimate, value = (np.array([one[key] for one in records]) for key in ("estimate", "value"))
    moved = [np.mean([row[2] - row[0] for row in one["left_out"].values()]) for one in records]
    return float(np.abs(estimate - value).mean()), float(np.abs(estimate + moved - value).mean())
