"""The page of LinUCB and LinUCB-P on DIGIT, from ``benchmarks/records/linear-readings.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["linear_readings"]

Record = dict[str, Any]
PIXELS = {
    "unit": "in [0, 1]",
    "symmetric": "in [-1, 1]",
    "imagenet": "by ImageNet's mean and deviation",
    "standardised": "standardised by what both domains show, and a constant",
}
PAPER = {"linucb": ".3808", "linucb-p": ".3060"}


def linear_readings(records: Sequence[Record]) -> str:
    """The page as Markdown."""
    readings: dict[tuple[str, str, float, int], dict[float, list[Record]]] = {}
    for record in records:
        key = (record["method"], record["pixels"], record["ridge"], record["components"])
        readings.setdefault(key, {}).setdefault(record["alpha"], []).append(record)
    lines = [
        "# LinUCB and LinUCB-P on DIGIT",
        "",
        "<!-- Written by benchmarks/results_pages.py from benchmarks/records/linear-readings.json. Do not edit. -->",
        "",
        "The paper gives neither the ridge nor the number of principal components, and says that images are",
        "normalised. Its table has .3808 (LinUCB) and .3060 (LinUCB-P). For each reading alpha is chosen by source",
        "regret, which needs no target label; the last column has the `oracle`, which looks at target accuracy.",
        "",
        "| method | pixels | ridge | components | alpha | source regret | target accuracy | oracle |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (method, pixels, ridge, components), by_alpha in sorted(readings.items(), key=lambda item: item[0][0]):
        best = min(by_alpha, key=lambda alpha: float(np.mean([r["source_regret"] for r in by_alpha[alpha]])))
        oracle = max(by_alpha.values(), key=lambda own: float(np.mean([r["target_accuracy"] for r in own])))
        cells = [
            "LinUCB-P" if method == "linucb-p" else "LinUCB",
            PIXELS[pixels],
            f"{ridge:g}",
            str(components or ""),
            f"{best:g}",
            f"{np.mean([r['source_regret'] for r in by_alpha[best]]):,.0f}",
            _mean(by_alpha[best]),
            _mean(oracle),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(record["commit"] for record in records))
    alphas = ", ".join(f"{alpha:g}" for alpha in sorted({record["alpha"] for record in records}))
    return "\n".join(
        [
            *lines,
            "",
            f"Released MNIST-M, {records[0]['rounds']:,} rounds, alpha from {alphas}, three seeds, commits {commits}.",
            "",
            "```",
            "python benchmarks/linear_readings.py --out records/",
            "```",
            "",
        ]
    )


def _mean(records: Sequence[Record]) -> str:
    values = np.array([record["target_accuracy"] for record in records])
    return f"{values.mean():.3f} ± {values.std(ddof=1):.3f}".replace("0.", ".")
