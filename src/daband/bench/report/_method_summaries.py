"""Summarise the records of runs for the report.

``summarise`` computes means over seeds by method, and ``find_best_method`` compares the best method with a rival.
``read_paper_accuracy`` and ``paper_ablation`` read the results of the paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from daband.bench._records import Metric, PairedTest, Record, choose_metric, compare_paired, group_by

#: The text for a value that is not known.
UNKNOWN = "unknown"
#: A method and its variant.
Key = tuple[str, str]
#: The method with which others are compared, Neural-LinUCB.
BASELINE: Key = ("nlinucb", "default")
#: The terms that an ablation keeps: R (regression error), P (predicted reward) and D (divergence of the domains). The
#: last combination is the full method.
ABLATION_LETTERS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
#: Terms of the letter R.
_R_TERMS = ("regression_error",)
#: Terms of the letter P.
_P_TERMS = ("predicted_reward",)
#: The recipes that can be ablated, each with the objective's terms by letter.
ABLATION_BASES: dict[str, dict[str, tuple[str, ...]]] = {
    "paper": {"R": _R_TERMS, "P": _P_TERMS, "D": ("adversarial",)},
    "default-rpd": {"R": _R_TERMS, "P": _P_TERMS, "D": ("adversarial", "target_diversity", "pseudo_labels")},
}
#: Method names as in the paper.
_LABELS = {
    "daband": "DABand", "nlinucb": "NLinUCB", "nlinucb-p": "NLinUCB-P", "linucb": "LinUCB", "linucb-p": "LinUCB-P",
    "mixture": "Mixture", "trees": "Trees", "random": "Random", "constant": "Constant",
}  # fmt: skip


def label(method: str, variant: str = "default") -> str:
    """Return the name of a method in tables and figures, with its variant in brackets unless it is the default."""
    name = _LABELS.get(method, method)
    return name if variant == "default" else f"{name} ({variant})"


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with the standard deviation over seeds."""

    #: The mean; None if a seed has no value.
    value: float | None
    #: The sample standard deviation; 0 for a single seed.
    deviation: float
    #: The number of seeds.
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Mean:
        """Return the mean of values, one per seed. None is a value that is not known."""
        known_values = [value for value in values if value is not None]
        if not known_values or len(known_values) < len(values):
            return cls(None, 0.0, len(values))
        deviation = float(np.std(known_values, ddof=1)) if len(known_values) > 1 else 0.0
        return cls(float(np.mean(known_values)), deviation, len(known_values))

    def format(self, digits: int) -> str:
        """Return the mean as text with this number of decimals, such as "0.91 ± 0.02"; "unknown" without a value.

        The standard deviation is left out for a single seed.
        """
        if self.value is None:
            return UNKNOWN
        return f"{self.value:,.{digits}f}" + (f" ± {self.deviation:,.{digits}f}" if self.seeds > 1 else "")


@dataclass(frozen=True)
class MethodSummary:
    """The results of one method on one pair, over its seeds.

    Fields without a prefix are results in the target. They are unknown if the target has no labels.
    """

    pair: str
    method: str
    variant: str
    seeds: tuple[int, ...]
    #: The ranking metric of this pair: the accuracy, or the value if rewards are real numbers.
    metric: Metric
    #: The fraction of contexts whose chosen arm is a best arm.
    accuracy: Mean
    #: The mean of the accuracies on the contexts of each class.
    accuracy_macro: Mean
    #: The mean expected reward of the chosen arms.
    value: Mean
    #: The sum over contexts of the best arm's expected reward minus the chosen arm's.
    regret: Mean
    #: The value of choosing the best arm for each context; None if it is unknown.
    best_value: float | None
    #: The value of the best constant arm; None if it is unknown.
    constant_value: float | None
    #: The cumulative regret in training.
    source_regret: Mean
    #: The mean reward per round in training.
    source_reward: Mean
    #: The mean reward of the logging policy; unknown if the source is not a log.
    logger_value: Mean
    #: The number of training rounds of a run.
    rounds: int
    #: The mean duration of a run, in seconds.
    seconds: float
    #: The fraction of target contexts for which each arm was chosen, over all seeds; empty if it was not counted.
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


def get_key(record: Record) -> Key:
    """Return the method and the variant of a record."""
    return record["method"], record["variant"]


def filter_labelled(records: Sequence[Record]) -> list[Record]:
    """Return the records whose target has labels."""
    return [record for record in records if record["target_accuracy"] is not None]


def summarise(records: Sequence[Record]) -> list[MethodSummary]:
    """Return a summary per pair, method and variant, in the order of first appearance."""
    rows = []
    for (pair, method, variant), group in group_by(records, lambda record: (record["pair"], *get_key(record))).items():

        def average(field: str, group: list[Record] = group) -> Mean:
            return Mean.of([record.get(field) for record in group])

        means: dict[str, Any] = {
            **{name: average(f"target_{name}") for name in ("accuracy", "accuracy_macro", "value", "regret")},
            **{name: average(f"target_{name}").value for name in ("best_value", "constant_value")},
            **{name: average(name) for name in ("source_regret", "source_reward", "logger_value")},
        }
        seeds = tuple(record["seed"] for record in group)
        metric = choose_metric([record for record in records if record["pair"] == pair])
        seconds = float(np.mean([record.get("wall_seconds", np.nan) for record in group]))
        fields = {"rounds": group[0]["rounds"], "seconds": seconds, "arm_fractions": _compute_arm_fractions(group)}
        rows.append(MethodSummary(pair, method, variant, seeds, metric, **means, **fields))
    return rows


def _compute_arm_fractions(group: Sequence[Record]) -> tuple[float, ...]:
    """Return the fraction of target contexts for which each arm was chosen; empty if it was not counted."""
    arm_counts = [record["target_arm_counts"] for record in group if record.get("target_arm_counts")]
    if not arm_counts or len({len(counts) for counts in arm_counts}) > 1:
        return ()
    counts = np.sum(arm_counts, axis=0)
    return tuple((counts / counts.sum()).tolist())


def get_role(record: Record) -> str:
    """Return the role of a run: "ablation" or "comparison"."""
    variant = str(record["variant"])
    base, _, letters = variant.partition(":")
    if record["method"] == "daband" and base in ABLATION_BASES and letters in ABLATION_LETTERS:
        return "ablation"
    return "comparison"


def get_data_set(pair: str) -> str:
    """Return the data set of a pair: "amazon" for "amazon/books-dvd"."""
    return pair.partition("/")[0]


@dataclass(frozen=True)
class MethodComparison:
    """The best method in the target and its difference to a rival, in mean scores over pairs, paired by seed."""

    metric: Metric
    best: Key
    mean: Mean
    #: Neural-LinUCB if it ran and is not the best, else the runner-up; None if nothing else ran.
    rival: Key | None
    paired: PairedTest | None


def score_by_seed(records: Sequence[Record], key: Key, metric: Metric) -> dict[int, float]:
    """Return the mean score of a method over its pairs, by seed. Seeds that lack one of its pairs are dropped."""
    runs = [record for record in records if get_key(record) == key]
    pairs = {record["pair"] for record in runs}
    by_seed: dict[int, dict[str, float]] = {}
    for record in runs:
        if record[metric.field] is not None:
            by_seed.setdefault(record["seed"], {})[record["pair"]] = record[metric.field]
    return {seed: float(np.mean(list(scores.values()))) for seed, scores in by_seed.items() if scores.keys() == pairs}


def find_best_method(records: Sequence[Record]) -> MethodComparison | None:
    """Return the best of the methods that ran on all pairs; None if there is none, or if no target has labels."""
    pairs = {record["pair"] for record in records}
    metric = choose_metric(records)
    by_key: dict[Key, dict[int, float]] = {}
    for key, runs in group_by(records, get_key).items():
        by_seed = score_by_seed(runs, key, metric)
        if by_seed and {record["pair"] for record in runs} == pairs:
            by_key[key] = by_seed
    if not by_key:
        return None
    best, *others = sorted(by_key, key=lambda key: -float(np.mean(list(by_key[key].values()))))
    rival = BASELINE if BASELINE in others else others[0] if others else None
    paired = None if rival is None else compare_seeds(by_key[best], by_key[rival])
    return MethodComparison(metric, best, Mean.of(list(by_key[best].values())), rival, paired)


def compare_seeds(first: Mapping[int, float], second: Mapping[int, float]) -> PairedTest | None:
    """Return ``first - second`` on the seeds that both have; None if they have none in common."""
    seeds = sorted(first.keys() & second.keys())
    return compare_paired([first[seed] for seed in seeds], [second[seed] for seed in seeds]) if seeds else None


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
def read_paper_tables() -> dict[str, Any]:
    """Return all tables of the paper, as in ``reference/paper.toml``."""
    return tomllib.loads((resources.files("daband.bench.report") / "reference" / "paper.toml").read_text())


def read_paper_accuracy(pair: str) -> dict[str, PaperAccuracy]:
    """Return the paper's accuracy table for a pair, by method; empty for pairs that the paper does not have."""
    table = read_paper_tables()["accuracy"].get(pair, {})
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
    table = read_paper_tables()["full_ablation"].get(pair)
    if table is None:
        return {}
    return {letters: (accuracy, table["deviation"][letters]) for letters, accuracy in table["accuracy"].items()}
