"""The page of LinUCB and LinUCB-P on DIGIT and signs, from ``benchmarks/records/linear-readings.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pages.runs import fill
from pages.text import accuracies, commits, is_on, lowest_source_regret, mean_and_deviation, number

Record = Mapping[str, Any]
PIXELS = {
    "unit": "in [0, 1]",
    "symmetric": "in [-1, 1]",
    "imagenet": "by ImageNet's mean and deviation",
    "standardised": "standardised by what both domains show, and a constant",
}


def linear_readings(records: Sequence[Record]) -> str:
    """The page as Markdown."""
    alphas = ", ".join(f"{alpha:g}" for alpha in sorted({record["alpha"] for record in records if "alpha" in record}))
    tables = {}
    for pair, title in (("digit", "DIGIT, released MNIST-M"), ("signs", "signs")):
        on_pair = [record for record in records if is_on(pair, record) and "alpha" in record]
        tables[f"{title}, {on_pair[0]['rounds']:,}"] = _rows(on_pair)
    return fill("linear-readings", alphas=alphas, tables=tables, commits=commits(records))


def _rows(records: Sequence[Record]) -> list[list[str]]:
    readings: dict[tuple[str, str, float, int], dict[float, list[Record]]] = {}
    for record in records:
        key = (record["method"], record["pixels"], record["ridge"], record["components"])
        readings.setdefault(key, {}).setdefault(record["alpha"], []).append(record)
    taken = {name: lowest_source_regret([r for r in records if r["method"] == name]) for name in ("linucb", "linucb-p")}
    rows = []
    for (method, pixels, ridge, components), by_alpha in sorted(readings.items()):
        best = lowest_source_regret([record for own in by_alpha.values() for record in own])
        oracle = max(by_alpha.values(), key=lambda own: float(np.mean(accuracies(own))))
        accuracy = mean_and_deviation(best, "target_accuracy", number)
        rows.append([
            "LinUCB-P" if method == "linucb-p" else "LinUCB", PIXELS[pixels], f"{ridge:g}", str(components or ""),
            f"{best[0]['alpha']:g}", f"{np.mean([record['source_regret'] for record in best]):,.0f}",
            f"**{accuracy}**" if best == taken[method] else accuracy, str(len(best)),
            mean_and_deviation(oracle, "target_accuracy", number),
        ])  # fmt: skip
    return rows
