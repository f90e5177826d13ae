"""Records of runs as numbers: means over seeds by method, the best method, paired differences."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray
from daband.bench._ablation import BASES, COMBINATIONS
from daband.bench._records import Metric, Record, group_by, metric_of
from daband.evaluation._paired_test import Paired, compare_paired

UNKNOWN = "unknown"
#: A method and its variant.
Key = tuple[str, str]
BASELINE: Key = ("nlinucb", "default")


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its sample standard deviation, 0 for a single seed; no value where a seed has none."""

    value: float | None
    deviation: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Mean:
        """The mean of one value per seed."""
        numbers = [value for value in values if value is not None]
        if not numbers or len(numbers) < len(values):
            return cls(None, 0.0, len(values))
        deviation = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0
        return cls(float(np.mean(numbers)), deviation, len(numbers))

    def text(self, digits: int) -> str:
        """As people read it: with its deviation where there are several seeds, "unknown" where there is no value."""
        if self.value is None:
            return UNKNOWN
        return f"{self.value:,.{digits}f}" + (f" ± {self.deviation:,.{digits}f}" if self.seeds > 1 else "")


@dataclass(frozen=True)
class MethodSummary:
    """One method on one pair, over its seeds. Everything of the target is unknown where the target has no labels."""

    pair: str
    method: str
    variant: str
    seeds: tuple[int, ...]
    #: What methods are ranked by on this pair: the accuracy, or the value where rewards are real numbers.
    metric: Metric
    accuracy: Mean
    accuracy_macro: Mean
    value: Mean
    regret: Mean
    best_value: float | None
    constant_value: float | None
    source_regret: Mean
    source_reward: Mean
    #: The mean reward of the policy that wrote the source's log; unknown where the source is no log.
    logger_value: Mean
    rounds: int
    seconds: float
    #: How often each arm was chosen in the target, as shares of all contexts and seeds; empty where nobody counted.
    arm_shares: tuple[float, ...]

    @property
    def key(self) -> Key:
        """The method and the variant."""
        return self.method, self.variant

    @property
    def score(self) -> Mean:
        """The metric."""
        return self.accuracy if self.metric.field == "target_accuracy" else self.value

    @property
    def rank(self) -> float:
        """The mean of the metric, lower than any number where it is unknown."""
        return -np.inf if self.score.value is None else self.score.value


def key_of(record: Record) -> Key:
    """The method and the variant of a record."""
    return record["method"], record["variant"]


def labelled(records: Sequence[Record]) -> list[Record]:
    """The records whose target has labels."""
    return [record for record in records if record["target_accuracy"] is not None]


def summarise(records: Sequence[Record]) -> list[MethodSummary]:
    """A row per pair, method and variant, in the order of first appearance."""
    rows = []
    for (pair, method, variant), group in group_by(records, lambda record: (record["pair"], *key_of(record))).items():

        def mean(field: str, group: list[Record] = group) -> Mean:
            return Mean.of([record.get(field) for record in group])

        means: dict[str, Any] = {
            **{name: mean(f"target_{name}") for name in ("accuracy", "accuracy_macro", "value", "regret")},
            **{name: mean(f"target_{name}").value for name in ("best_value", "constant_value")},
            **{name: mean(name) for name in ("source_regret", "source_reward", "logger_value")},
        }
        seeds = tuple(record["seed"] for record in group)
        metric = metric_of([record for record in records if record["pair"] == pair])
        seconds = float(np.mean([record.get("wall_seconds", np.nan) for record in group]))
        budget = {"rounds": group[0]["rounds"], "seconds": seconds, "arm_shares": _arm_shares(group)}
        rows.append(MethodSummary(pair, method, variant, seeds, metric, **means, **budget))
    return rows


def _arm_shares(group: Sequence[Record]) -> tuple[float, ...]:
    counted = [record["target_arm_counts"] for record in group if record.get("target_arm_counts")]
    if not counted or len({len(counts) for counts in counted}) > 1:
        return ()
    counts = np.sum(counted, axis=0)
    return tuple((counts / counts.sum()).tolist())


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
    mean: Mean
    #: Neural-LinUCB where it ran and is not the best, else the runner-up; None where nothing else ran.
    rival: Key | None
    paired: Paired | None


def scores(records: Sequence[Record], key: Key, metric: Metric) -> FloatArray:
    """The score of every run of a method whose target has labels, (seeds,)."""
    return np.array([record[metric.field] for record in labelled(records) if key_of(record) == key], np.float64)


def score_by_seed(records: Sequence[Record], key: Key, metric: Metric) -> dict[int, float]:
    """The score of a method by seed, a mean over its pairs; seeds that lack one of its pairs are left out."""
    runs = [record for record in records if key_of(record) == key]
    pairs = {record["pair"] for record in runs}
    by_seed: dict[int, dict[str, float]] = {}
    for record in runs:
        if record[metric.field] is not None:
            by_seed.setdefault(record["seed"], {})[record["pair"]] = record[metric.field]
    return {seed: float(np.mean(list(of.values()))) for seed, of in by_seed.items() if of.keys() == pairs}


def verdict(records: Sequence[Record]) -> MethodComparison | None:
    """The best of the methods that ran on all of these records' pairs; None where none did, or no target has labels."""
    pairs = {record["pair"] for record in records}
    metric = metric_of(records)
    by_key: dict[Key, dict[int, float]] = {}
    for key, runs in group_by(records, key_of).items():
        by_seed = score_by_seed(runs, key, metric)
        if by_seed and {record["pair"] for record in runs} == pairs:
            by_key[key] = by_seed
    if not by_key:
        return None
    best, *others = sorted(by_key, key=lambda key: -float(np.mean(list(by_key[key].values()))))
    rival = BASELINE if BASELINE in others else others[0] if others else None
    paired = None if rival is None else paired_difference(by_key[best], by_key[rival])
    return MethodComparison(metric, best, Mean.of(list(by_key[best].values())), rival, paired)


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Paired | None:
    """``first - second`` on the seeds that both have; None where they share none."""
    seeds = sorted(first.keys() & second.keys())
    return compare_paired([first[s] for s in seeds], [second[s] for s in seeds]) if seeds else None


def column_means(values: FloatArray) -> FloatArray:
    """The mean of each column of a table, of its finite numbers; NaN where a column has none."""
    means: FloatArray = np.ma.masked_invalid(values).mean(axis=0).filled(np.nan)
    return means


def growth_exponent(rounds: AnyArray, values: FloatArray) -> float:
    """The slope of log value over log rounds in the later half of the rounds: 1 grows like N, 0.5 like its root.

    NaN where a value is not positive or there are too few points to tell.
    """
    later = np.asarray(rounds) >= np.max(rounds, initial=0) / 2
    x, y = np.asarray(rounds, np.float64)[later], np.asarray(values, np.float64)[later]
    if len(x) < 3 or not np.isfinite(y).all() or y.min() <= 0:
        return math.nan
    slope = float(np.polyfit(np.log(x), np.log(y), 1)[0])
    return slope if abs(slope) > 1e-9 else 0.0  # a sum that no longer grows: rounding would print -0.00


# The paper's own numbers, shipped with the package so that every report can stand beside them.


@dataclass(frozen=True)
class PaperAccuracy:
    """One method in one of the paper's accuracy tables: by class name, and its average as printed."""

    average: float
    average_deviation: float
    per_class: dict[str, float]
    deviation: dict[str, float]


@lru_cache(maxsize=1)
def paper_tables() -> dict[str, Any]:
    """All tables of the paper as they stand in ``reference/paper.toml``."""
    return tomllib.loads((resources.files("daband.bench.report") / "reference" / "paper.toml").read_text())


def paper_accuracy(pair: str) -> dict[str, PaperAccuracy]:
    """The paper's accuracy table for a pair, by method; empty for pairs that the paper does not have."""
    table = paper_tables()["accuracy"].get(pair, {})
    return {
        method: PaperAccuracy(
            average=row["average"],
            average_deviation=row["average_deviation"],
            per_class=dict(zip(table["classes"], row["per_class"], strict=True)),
            deviation=dict(zip(table["classes"], row["deviation"], strict=True)),
        )
        for method, row in table.get("methods", {}).items()
    }


def paper_ablation(pair: str) -> dict[str, tuple[float, float]]:
    """The paper's full ablation for a pair: accuracy and deviation by the letters of the terms that are kept."""
    table = paper_tables()["full_ablation"].get(pair)
    if table is None:
        return {}
    return {letters: (accuracy, table["deviation"][letters]) for letters, accuracy in table["accuracy"].items()}
