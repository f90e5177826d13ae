"""The page of results on several sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.runs import fill

Record = dict[str, Any]
_POISONS = ("shuffled", "foreign")


def sources_page(record: Record) -> str:
    """The page, from the record of ``sources.py``."""
    records = record["runs"]
    targets: dict[tuple[str, str], dict[str, dict[int, Record]]] = {}
    for one in records:
        methods = targets.setdefault((one["family"], one["target"]), {})
        methods.setdefault(one["method"], {})[one["seed"]] = one
    development = {(family, target) for family, names in record["development"].items() for target in names}
    rows = [_row(where, methods, where in development) for where, methods in targets.items()]
    bounds = [one for one in records if one["method"] == "bound"]
    return fill(
        "sources",
        commit=record["commit"],
        rows=[row["cells"] for row in rows],
        halves={
            half: _summary([row for row in rows if row["development"] == (half == "development")])
            for half in ("development", "report")
        },
        sources=_sources([one for one in records if "weights" in one]),
        bounds=_bounds(bounds),
        errors=_errors(bounds),
    )


def _row(where: tuple[str, str], methods: dict[str, dict[int, Record]], development: bool) -> dict[str, Any]:
    values = {name: {seed: one["value"] for seed, one in seeds.items()} for name, seeds in methods.items()}
    means = {method: float(np.mean(list(seeds.values()))) for method, seeds in values.items()}
    singles = {method.removeprefix("single-"): mean for method, mean in means.items() if method.startswith("single-")}
    best = max(singles, key=lambda name: singles[name])
    weighted = values["weighted"]
    against = {"pooled": values["pooled"], "best": values[f"single-{best}"], "linear": values["linucb-pooled"]}
    gains = {name: _paired(weighted, other) for name, other in against.items()}
    costs = {poison: _paired(weighted, values[f"poison-{poison}"]) for poison in _POISONS}
    cells = ["/".join(where), "development" if development else "report", str(len(weighted))]
    cells += [f"{means['weighted']:.3f}", _told(gains["pooled"])]
    cells += [f"{singles[best]:.3f} ({best})", _told(gains["best"])]
    cells += [f"{means['linucb-weighted']:.3f}", f"{means['linucb-pooled']:.3f}"]
    cells += [_told((-mean, error)) for mean, error in costs.values()]
    return {"cells": cells, "development": development, **gains, **costs}


def _paired(one: dict[int, float], other: dict[int, float]) -> tuple[float, float]:
    """The mean difference over common seeds, and its standard error."""
    differences = [one[seed] - other[seed] for seed in sorted(one) if seed in other]
    error = np.std(differences, ddof=1) / len(differences) ** 0.5 if len(differences) > 1 else np.nan
    return float(np.mean(differences)), float(error)


def _told(difference: tuple[float, float]) -> str:
    mean, error = difference
    return "0" if mean == error == 0 else f"{mean:+.3f} ± {error:.3f}"


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts and extremes over some targets."""
    means = {name: [row[name][0] for row in rows] for name in ("pooled", "best", "linear", *_POISONS)}
    beyond = {poison: [row[poison] for row in rows if row[poison][0] > 0.02] for poison in _POISONS}
    return {
        "targets": len(rows),
        "lowest": min(means["pooled"]),
        "not_below_pooled": sum(mean >= -0.01 for mean in means["pooled"]),
        "above_best": sum(mean > 0 for mean in means["best"]),
        "above_linear": sum(mean > 0 for mean in means["linear"]),
        "costs": {
            poison: {
                "cheap": sum(mean <= 0.02 for mean in means[poison]),
                "most": max(means[poison]),
                "surely": sum(mean - 2 * error > 0.02 for mean, error in beyond[poison]),
            }
            for poison in _POISONS
        },
    }


def _sources(records: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """How often a poisoned source, and a healthy one, counts for nothing, and of how many."""
    poisons = [one["weights"]["poison"] for one in records if "poison" in one["weights"]]
    measured = [one for one in records if one["method"] == "weighted"]
    healthy = [weight for one in measured for weight in one["weights"].values()]
    return {"poisoned": (poisons.count(0.0), len(poisons)), "healthy": (healthy.count(0.0), len(healthy))}


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
