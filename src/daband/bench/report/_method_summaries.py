"""Summarise records of runs: means over seeds by method, the best method, paired differences, the paper's results."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from daband.bench._records import Metric, Paired, Record, compare_paired, group_by, metric_of

#: The text for a value that is not known.
UNKNOWN = "unknown"
#: A method and its variant.
Key = tuple[str, str]
#: The method that others are compared with.
BASELINE: Key = ("nlinucb", "default")
#: The combinations of terms that an ablation keeps; the last is the full method.
ABLATION_LETTERS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
#: Terms of the letter R.
_R = ("regression_error",)
#: Terms of the letter P.
_P = ("predicted_reward",)
#: The recipes that can be ablated, and the terms of the objective for each letter.
ABLATION_BASES: dict[str, dict[str, tuple[str, ...]]] = {
    "paper": {"R": _R, "P": _P, "D": ("adversarial",)},
    "default-rpd": {"R": _R, "P": _P, "D": ("adversarial", "target_diversity", "pseudo_labels")},
}
#: Method names as in the paper.
_LABELS = {
    "daband": "DABand", "nlinucb": "NLinUCB", "nlinucb-p": "NLinUCB-P", "linucb": "LinUCB", "linucb-p": "LinUCB-P",
    "mixture": "Mixture", "trees": "Trees", "random": "Random", "constant": "Constant",
}  # fmt: skip


def label(method: str, variant: str = "default") -> str:
    """Return the name of a method in tables and figures, with its variant in brackets."""
    name = _LABELS.get(method, method)
    return name if variant == "default" else f"{name} ({variant})"


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its standard deviation."""

    #: The mean; None if a seed has no value.
    value: float | None
    #: The sample standard deviation; 0 for a single seed.
    deviation: float
    #: The number of seeds.
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Mean:
        """Return the mean of one value per seed."""
        known_values = [value for value in values if value is not None]
        if not known_values or len(known_values) < len(values):
            return cls(None, 0.0, len(values))
        deviation = float(np.std(known_values, ddof=1)) if len(known_values) > 1 else 0.0
        return cls(float(np.mean(known_values)), deviation, len(known_values))

    def text(self, digits: int) -> str:
        """Return the mean as text, with its standard deviation over several seeds; "unknown" without a value."""
        if self.value is None:
            return UNKNOWN
        return f"{self.value:,.{digits}f}" + (f" ± {self.deviation:,.{digits}f}" if self.seeds > 1 else "")


@dataclass(frozen=True)
class MethodSummary:
    """One method on one pair, over its seeds. Target fields are unknown if the target has no labels."""

    pair: str
    method: str
    variant: str
    seeds: tuple[int, ...]
    #: The ranking metric of this pair: the accuracy, or the value if rewards are real numbers.
    metric: Metric
    accuracy: Mean
    accuracy_macro: Mean
    value: Mean
    regret: Mean
    best_value: float | None
    constant_value: float | None
    source_regret: Mean
    source_reward: Mean
    #: The mean reward of the logging policy; unknown if the source is not a log.
    logger_value: Mean
    rounds: int
    seconds: float
    #: How often each arm was chosen in the target, as fractions over contexts and seeds; empty if not counted.
    arm_fractions: tuple[float, ...]

    @property
    def key(self) -> Key:
        """The method and the variant."""
        return self.method, self.variant

    @property
    def score(self) -> Mean:
        """The mean of the ranking metric."""
        return self.accuracy if self.metric.field == "target_accuracy" else self.value

    @property
    def rank(self) -> float:
        """A key to sort by: the mean of the ranking metric, or minus infinity if it is unknown."""
        return -np.inf if self.score.value is None else self.score.value


def key_of(record: Record) -> Key:
    """Return the method and the variant of a record."""
    return record["method"], record["variant"]


def filter_labelled(records: Sequence[Record]) -> list[Record]:
    """Return the records whose target has labels."""
    return [record for record in records if record["target_accuracy"] is not None]


def summarise(records: Sequence[Record]) -> list[MethodSummary]:
    """Return a summary per pair, method and variant, in the order of first appearance."""
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
        budget = {"rounds": group[0]["rounds"], "seconds": seconds, "arm_fractions": _arm_fractions(group)}
        rows.append(MethodSummary(pair, method, variant, seeds, metric, **means, **budget))
    return rows


def _arm_fractions(group: Sequence[Record]) -> tuple[float, ...]:
    """Return how often each arm was chosen in the target, as fractions; empty if it was not counted."""
    count_lists = [record["target_arm_counts"] for record in group if record.get("target_arm_counts")]
    if not count_lists or len({len(counts) for counts in count_lists}) > 1:
        return ()
    counts = np.sum(count_lists, axis=0)
    return tuple((counts / counts.sum()).tolist())


def role_of(record: Record) -> str:
    """Return the role of a run: "ablation" or "comparison"."""
    variant = str(record["variant"])
    base, _, letters = variant.partition(":")
    if record["method"] == "daband" and base in ABLATION_BASES and letters in ABLATION_LETTERS:
        return "ablation"
    return "comparison"


def pair_family(pair: str) -> str:
    """Return the data set of a pair: "amazon" for "amazon/books-dvd"."""
    return pair.partition("/")[0]


@dataclass(frozen=True)
class MethodComparison:
    """The best method in the target and its difference to a rival: mean scores over pairs, paired by seed."""

    metric: Metric
    best: Key
    mean: Mean
    #: Neural-LinUCB if it ran and is not the best, else the runner-up; None if nothing else ran.
    rival: Key | None
    paired: Paired | None


def score_by_seed(records: Sequence[Record], key: Key, metric: Metric) -> dict[int, float]:
    """Return the mean score of a method over its pairs, by seed. Seeds that lack one of its pairs are dropped."""
    runs = [record for record in records if key_of(record) == key]
    pairs = {record["pair"] for record in runs}
    by_seed: dict[int, dict[str, float]] = {}
    for record in runs:
        if record[metric.field] is not None:
            by_seed.setdefault(record["seed"], {})[record["pair"]] = record[metric.field]
    return {seed: float(np.mean(list(scores.values()))) for seed, scores in by_seed.items() if scores.keys() == pairs}


def find_best_method(records: Sequence[Record]) -> MethodComparison | None:
    """Return the best of the methods that ran on all pairs; None if there is none, or if no target has labels."""
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
    """Return ``first - second`` on the seeds that both have; None if they have none in common."""
    seeds = sorted(first.keys() & second.keys())
    return compare_paired([first[s] for s in seeds], [second[s] for s in seeds]) if seeds else None


@dataclass(frozen=True)
class PaperAccuracy:
    """The accuracy of one method in a table of the paper, as printed."""

    average: float
    #: Standard deviation of ``average``.
    average_deviation: float
    #: Accuracy by class name.
    per_class: dict[str, float]
    #: Standard deviation by class name.
    deviation: dict[str, float]


@lru_cache(maxsize=1)
def paper_tables() -> dict[str, Any]:
    """Return all tables of the paper, as in ``reference/paper.toml``."""
    return tomllib.loads((resources.files("daband.bench.report") / "reference" / "paper.toml").read_text())


def paper_accuracy(pair: str) -> dict[str, PaperAccuracy]:
    """Return the paper's accuracy table for a pair, by method; empty for pairs that the paper does not have."""
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
    """Return the paper's full ablation for a pair: accuracy and standard deviation by the letters of the kept terms."""
    table = paper_tables()["full_ablation"].get(pair)
    if table is None:
        return {}
    return {letters: (accuracy, table["deviation"][letters]) for letters, accuracy in table["accuracy"].items()}
