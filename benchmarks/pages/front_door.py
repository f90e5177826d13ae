"""The page of ``front_door.py``'s records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from front_door import ALPHAS, CHANGED, EARLIER, FACTORS, pair_names

from pages.runs import fill
from pages.text import accuracies, commits, number

NEAR, UNMOVED = 0.02, 0.01
FIXED = [f"alpha {alpha:g}" for alpha in ALPHAS]
Record = dict[str, Any]
Runs = dict[str, list[Record]]


def front_door(records: Sequence[Record]) -> str:
    """The page of what ``LinUCB.for_pair`` gives without a setting."""
    pairs = {name: runs for name, runs in _by_pair(records).items() if {"default", *FIXED} <= runs.keys()}
    rows, misses = [], []
    for name, runs in pairs.items():
        gap, error = _shortfall(runs, "default")
        below = f"{gap:+.3f} ± {error:.3f}"
        misses += [f"`{name}` by {number(gap)} ± {number(error)}"] if gap > NEAR else []
        rows.append([
            name, number(runs["default"][0]["alpha"]),
            f"{number(_mean(runs['default']))} ± {number(float(np.std(accuracies(runs['default']), ddof=1)))}",
            *(number(_mean(runs[one])) for one in FIXED), f"**{below}**" if gap > NEAR else below,
            *(f"{_moved(runs, change):+.3f}" if change in runs else "" for change in CHANGED),
        ])  # fmt: skip
    changed = {name: runs for name, runs in pairs.items() if set(CHANGED) <= runs.keys()}
    counts = sorted({len(runs[change]) for runs in changed.values() for change in CHANGED})
    absent = [name.partition("/")[0] for name in pair_names() if name not in pairs]
    earlier = f"alpha {EARLIER:g}"
    return fill(
        "front-door", records=records, pairs=pairs, rows=rows, misses=misses, changed=changed, near=NEAR,
        unmoved=UNMOVED, moved=max(abs(_moved(runs, change)) for runs in changed.values() for change in CHANGED),
        changed_seeds=f"{' to '.join(map(str, counts[:: len(counts) - 1 or 1]))} seeds",
        missing=[f"{absent.count(family)} of `{family}`" for family in dict.fromkeys(absent)],
        earlier=[_shortfall(runs, earlier)[0] for runs in pairs.values() if earlier in runs],
        families=_families(pairs), seeds=len({record["seed"] for record in records}), commits=commits(records),
    )  # fmt: skip


def _families(pairs: dict[str, Runs]) -> list[list[str]]:
    """By family, the source regret of half the alpha, the default and twice, over the least of the three."""
    columns = ["default x 0.5", "default", "default x 2"]
    ratios: dict[str, list[list[float]]] = {}
    for name, runs in pairs.items():
        if all(f"default x {factor:g}" in runs for factor in FACTORS):
            of_pair = _common(runs, columns)
            regrets = [  # at least one round's, so that a ratio exists
                max(1.0, float(np.mean([record["source_regret"] for record in of_pair[column]]))) for column in columns
            ]
            ratios.setdefault(name.partition("/")[0], []).append([regret / min(regrets) for regret in regrets])
    ratios["all"] = [row for of_family in ratios.values() for row in of_family]
    return [
        [family, str(len(of_family)), *(f"{value:.3f}" for value in np.mean(of_family, axis=0))]
        for family, of_family in ratios.items()
    ]


def _shortfall(runs: Runs, variant: str) -> tuple[float, float]:
    """How far the mean of a variant is below the best fixed alpha, and the standard error of that difference."""
    best = max(FIXED, key=lambda one: _mean(runs[one]))
    differences = np.array(accuracies(runs[best])) - np.array(accuracies(runs[variant]))
    return float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(len(differences)))


def _moved(runs: Runs, change: str) -> float:
    """How much the mean moves with other contexts, over the seeds that ran with both."""
    both = _common(runs, ["default", change])
    return _mean(both[change]) - _mean(both["default"])


def _common(runs: Runs, variants: Sequence[str]) -> Runs:
    """The records of these variants, of the seeds that all of them have."""
    seeds = set.intersection(*({record["seed"] for record in runs[variant]} for variant in variants))
    return {variant: [record for record in runs[variant] if record["seed"] in seeds] for variant in variants}


def _by_pair(records: Sequence[Record]) -> dict[str, Runs]:
    pairs: dict[str, Runs] = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        pairs.setdefault(record["pair"], {}).setdefault(record["variant"], []).append(record)
    return {pair: pairs[pair] for pair in dict.fromkeys(record["pair"] for record in records)}


def _mean(runs: Sequence[Record]) -> float:
    return float(np.mean(accuracies(runs)))
