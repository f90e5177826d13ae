"""The statistics behind a report: the best method, paired differences, growth exponents, mixing of domains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from daband.arrays import AnyArray, FloatArray
from daband.evaluation import Paired, compare_paired
from daband.experiments import BASES, COMBINATIONS, Metric, Record, metric_of

__all__ = [
    "Key",
    "MethodComparison",
    "growth_exponent",
    "mixing",
    "pair_family",
    "paired_difference",
    "role_of",
    "score_by_seed",
    "verdict",
]  # fmt: skip

Key = tuple[str, str]
"""A method and its variant."""


def role_of(record: Record) -> str:
    """What a run is part of: "ablation", "sweep" or "comparison"."""
    variant = str(record["variant"])
    base, _, letters = variant.partition(":")
    if record["method"] == "daband" and base in BASES and letters in COMBINATIONS:
        return "ablation"
    return "sweep" if "=" in variant else "comparison"


def pair_family(pair: str) -> str:
    """The data set that a pair belongs to: "amazon" for "amazon/books-dvd"."""
    return pair.partition("/")[0]


@dataclass(frozen=True)
class MethodComparison:
    """Which method is best in the target, and how far from another: in its mean score over pairs, paired by seed."""

    metric: Metric
    best: Key
    score: float
    spread: float
    seeds: int
    rival: Key | None
    """Neural-LinUCB where it ran and is not the best, else the runner-up; None where nothing else ran."""
    paired: Paired | None


def score_by_seed(records: Sequence[Record], key: Key, metric: Metric) -> dict[int, float]:
    """The score of a method by seed, a mean over its pairs; seeds that lack one of its pairs are left out."""
    mine = [record for record in records if (record["method"], record["variant"]) == key]
    pairs = {record["pair"] for record in mine}
    by_seed: dict[int, dict[str, float]] = {}
    for record in mine:
        if record[metric.field] is not None:
            by_seed.setdefault(record["seed"], {})[record["pair"]] = record[metric.field]
    return {seed: float(np.mean(list(found.values()))) for seed, found in by_seed.items() if found.keys() == pairs}


def verdict(records: Sequence[Record]) -> MethodComparison | None:
    """The best of the methods that ran on all of these records' pairs; None where none did, or no target has labels."""
    pairs = {record["pair"] for record in records}
    metric = metric_of(records)
    scores: dict[Key, dict[int, float]] = {}
    for key in dict.fromkeys((record["method"], record["variant"]) for record in records):
        if {r["pair"] for r in records if (r["method"], r["variant"]) == key} == pairs:
            found = score_by_seed(records, key, metric)
            if found:
                scores[key] = found
    if not scores:
        return None
    ranked = sorted(scores, key=lambda key: -float(np.mean(list(scores[key].values()))))
    best = ranked[0]
    rival = ("nlinucb", "default") if ("nlinucb", "default") in ranked[1:] else (ranked[1] if ranked[1:] else None)
    values = np.array(list(scores[best].values()))
    return MethodComparison(
        metric=metric,
        best=best,
        score=float(values.mean()),
        spread=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        seeds=len(values),
        rival=rival,
        paired=None if rival is None else paired_difference(scores[best], scores[rival]),
    )


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Paired | None:
    """``first - second`` on the seeds that both have; None where they share none."""
    seeds = sorted(first.keys() & second.keys())
    return compare_paired([first[s] for s in seeds], [second[s] for s in seeds]) if seeds else None


def growth_exponent(rounds: AnyArray, values: FloatArray) -> float:
    """The slope of log value over log rounds in the later half of the rounds: 1 grows like N, 0.5 like its root.

    NaN where a value is not positive or there are too few points to tell.
    """
    later = np.asarray(rounds) >= np.max(rounds) / 2 if len(rounds) else np.zeros(0, bool)
    x, y = np.asarray(rounds, np.float64)[later], np.asarray(values, np.float64)[later]
    if len(x) < 3 or not np.isfinite(y).all() or y.min() <= 0:
        return math.nan
    across = np.log(x) - np.log(x).mean()
    slope = float(across @ np.log(y) / (across @ across))
    return slope if abs(slope) > 1e-9 else 0.0  # a sum that no longer grows: rounding would print -0.00


def mixing(latents: FloatArray, domain: AnyArray, *, neighbours: int = 10) -> float:
    """How mixed two domains are, 0 (apart) to 1 (as if drawn from one): neighbours that are of the other domain.

    ``latents`` (m, d), ``domain`` (m,) of 0 and 1. The share of each context's nearest neighbours that come from the
    other domain, over the share that chance would give.
    """
    apart = np.square(latents).sum(axis=1)[:, None] + np.square(latents).sum(axis=1)[None, :] - 2 * latents @ latents.T
    np.fill_diagonal(apart, np.inf)
    k = min(neighbours, len(latents) - 1)
    nearest = np.argpartition(apart, k - 1, axis=1)[:, :k]
    shares, chances = [], []
    for side in (0, 1):
        mine = domain == side
        if not mine.any():
            return math.nan
        shares.append(float((domain[nearest[mine]] != side).mean()))
        chances.append(float((domain != side).sum() / (len(domain) - 1)))
    return (
        float(np.mean([share / chance for share, chance in zip(shares, chances, strict=True)]))
        if min(chances)
        else math.nan
    )
