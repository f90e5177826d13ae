"""Summarise the records of runs for the report.

``summarise`` computes means over seeds by method, and ``find_best_method`` compares the best method
with a rival. ``read_paper_accuracy`` and ``paper_ablation`` read the results of the paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from daband.bench._records import (
    Metric,
    PairedTest,
    Record,
    choose_metric,
    compare_paired,
    group_by,
)

#: The text for a value that is not known.
UNKNOWN = "unknown"
#: A method and its variant.
MethodKey = tuple[str, str]
#: The method with which others are compared, Neural-LinUCB.
BASELINE: MethodKey = ("nlinucb", "default")
#: The terms that an ablation keeps: R (regression error), P (predicted reward) and D (divergence of
#: the domains). The last combination is the full method.
ABLATION_LETTERS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
#: Terms of the letter R.
_R_TERMS = ("regression_error",)
#: Terms of the letter P.
_P_TERMS = ("predicted_reward",)
#: The recipes that can be ablated, each with the objective's terms by letter.
ABLATION_BASES: dict[str, dict[str, tuple[str, ...]]] = {
    "paper": {"R": _R_TERMS, "P": _P_TERMS, "D": ("adversarial",)},
    "default-rpd": {
        "R": _R_TERMS,
        "P": _P_TERMS,
        "D": ("adversarial", "target_diversity", "pseudo_labels"),
    },
}
#: Method names as in the paper.
LABEL_BY_METHOD = {
    "daband": "DABand",
    "nlinucb": "NLinUCB",
    "nlinucb-p": "NLinUCB-P",
    "linucb": "LinUCB",
    "linucb-p": "LinUCB-P",
    "mixture": "Mixture",
    "trees": "Trees",
    "random": "Random",
    "constant": "Constant",
}


def get_label(method: str, variant: str = "default") -> str:
    """Return the name of a method in tables and figures, with its variant in brackets unless it is
    the default.
    """
    name = LABEL_BY_METHOD.get(method, method)
    return name if variant == "default" else f"{name} ({variant})"


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with the standard deviation over seeds."""

    #: The mean; None if a seed has no value.
    value: float | None
    #: The sample standard deviation; 0 for a single seed.
    deviation: float
    #: The number of seeds.
    n_seeds: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Mean:
        """Return the mean of values, one per seed. None is a value that is not known."""
        known_values = [value for value in values if value is not None]
        if not known_values or len(known_values) < len(values):
            return cls(None, 0.0, len(values))
        deviation = float(np.std(known_values, ddof=1)) if len(known_values) > 1 else 0.0
        return cls(float(np.mean(known_values)), deviation, len(known_values))

    def format(self, n_decimals: int) -> str:
        """Return the mean as text with this number of decimals, such as "0.91 ± 0.02"; "unknown"
        without a value.

        The standard deviation is left out for a single seed.
        """
        if self.value is None:
            return UNKNOWN
        return f"{self.value:,.{n_decimals}f}" + (
            f" ± {self.deviation:,.{n_decimals}f}" if self.n_seeds > 1 else ""
        )


@dataclass(frozen=True)
class MethodSummary:
    """The results of one method on one pair, over its seeds.

    Results without the prefix ``source_`` are from the target. They are unknown if the target has
    no labels.
    """

    #: Name of the pair.
    pair: str
    #: Name of the method, as on the command line.
    method: str
    #: "default", or a change of the method such as "paper:RP" in an ablation.
    variant: str
    #: The seeds of the runs.
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
    n_rounds: int
    #: The mean duration of a run, in seconds.
    seconds: float
    #: The fraction of target contexts for which each arm was chosen, over all seeds; empty if it
    #: was not counted.
    arm_fractions: tuple[float, ...]

    @property
    def key(self) -> MethodKey:
        """The method and the variant."""
        return self.method, self.variant

    @property
    def label(self) -> str:
        """The name of the method in tables and figures."""
        return get_label(self.method, self.variant)

    @property
    def score(self) -> Mean:
        """The mean of the ranking metric."""
        return self.accuracy if self.metric.field == "target_accuracy" else self.value

    @property
    def sort_score(self) -> float:
        """A key to sort by: the mean of the ranking metric, or minus infinity if it is unknown."""
        return -np.inf if self.score.value is None else self.score.value


def get_key(record: Record) -> MethodKey:
    """Return the method and the variant of a record."""
    return record["method"], record["variant"]


def filter_labelled(records: Sequence[Record]) -> list[Record]:
    """Return the records whose target has labels."""
    return [record for record in records if record["target_accuracy"] is not None]


def summarise(records: Sequence[Record]) -> list[MethodSummary]:
    """Return a summary per pair, method and variant, in the order of first appearance."""
    method_summaries = []
    groups = group_by(records, lambda record: (record["pair"], *get_key(record)))
    for (pair, method, variant), method_records in groups.items():

        def compute_mean(field: str, records: list[Record] = method_records) -> Mean:
            """Return the mean of a field of the method's records."""
            return Mean.of([record.get(field) for record in records])

        mean_fields: dict[str, Any] = {
            **{
                name: compute_mean(f"target_{name}")
                for name in ("accuracy", "accuracy_macro", "value", "regret")
            },
            **{
                name: compute_mean(f"target_{name}").value
                for name in ("best_value", "constant_value")
            },
            **{
                name: compute_mean(name)
                for name in ("source_regret", "source_reward", "logger_value")
            },
        }
        seeds = tuple(record["seed"] for record in method_records)
        metric = choose_metric([record for record in records if record["pair"] == pair])
        seconds = float(np.mean([record.get("wall_seconds", np.nan) for record in method_records]))
        n_rounds = method_records[0]["rounds"]
        arm_fractions = _compute_arm_fractions(method_records)
        other_fields = {"n_rounds": n_rounds, "seconds": seconds, "arm_fractions": arm_fractions}
        method_summaries.append(
            MethodSummary(pair, method, variant, seeds, metric, **mean_fields, **other_fields)
        )
    return method_summaries


def _compute_arm_fractions(records: Sequence[Record]) -> tuple[float, ...]:
    """Return the fraction of target contexts for which each arm was chosen; empty if it was not
    counted.
    """
    counts_by_run = [
        record["target_arm_counts"] for record in records if record.get("target_arm_counts")
    ]
    if not counts_by_run or len({len(counts) for counts in counts_by_run}) > 1:
        return ()
    counts = np.sum(counts_by_run, axis=0)
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
    """The best method in the target and its difference to a rival, in mean scores over pairs,
    paired by seed.
    """

    #: The metric by which methods are compared.
    metric: Metric
    #: The method with the largest mean score.
    best: MethodKey
    #: The mean score of ``best``.
    mean: Mean
    #: Neural-LinUCB if it ran and is not the best, else the runner-up; None if nothing else ran.
    rival: MethodKey | None
    #: The test of ``best`` minus ``rival``; None without a rival or without common seeds.
    paired_test: PairedTest | None


def compute_scores_by_seed(
    records: Sequence[Record], key: MethodKey, metric: Metric
) -> dict[int, float]:
    """Return the mean score of a method over its pairs, by seed.

    Seeds that lack one of its pairs are dropped.
    """
    method_records = [record for record in records if get_key(record) == key]
    pairs = {record["pair"] for record in method_records}
    scores_by_seed: dict[int, dict[str, float]] = {}
    for record in method_records:
        if record[metric.field] is not None:
            scores_by_seed.setdefault(record["seed"], {})[record["pair"]] = record[metric.field]
    complete_scores = {
        seed: scores for seed, scores in scores_by_seed.items() if scores.keys() == pairs
    }
    return {seed: float(np.mean(list(scores.values()))) for seed, scores in complete_scores.items()}


def find_best_method(records: Sequence[Record]) -> MethodComparison | None:
    """Return the best of the methods that ran on all pairs; None if there is none, or if no target
    has labels.
    """
    pairs = {record["pair"] for record in records}
    metric = choose_metric(records)
    scores_by_method: dict[MethodKey, dict[int, float]] = {}
    for key, method_records in group_by(records, get_key).items():
        scores_by_seed = compute_scores_by_seed(method_records, key, metric)
        if scores_by_seed and {record["pair"] for record in method_records} == pairs:
            scores_by_method[key] = scores_by_seed
    if not scores_by_method:
        return None
    best, *others = sorted(
        scores_by_method, key=lambda key: -float(np.mean(list(scores_by_method[key].values())))
    )
    rival = BASELINE if BASELINE in others else others[0] if others else None
    paired_test = (
        None if rival is None else compare_seeds(scores_by_method[best], scores_by_method[rival])
    )
    return MethodComparison(
        metric, best, Mean.of(list(scores_by_method[best].values())), rival, paired_test
    )


def compare_seeds(first: Mapping[int, float], second: Mapping[int, float]) -> PairedTest | None:
    """Return ``first - second`` on the seeds that both have; None if they have none in common."""
    seeds = sorted(first.keys() & second.keys())
    return (
        compare_paired([first[seed] for seed in seeds], [second[seed] for seed in seeds])
        if seeds
        else None
    )


@dataclass(frozen=True)
class PaperAccuracy:
    """The accuracy of one method in a table of the paper, as printed."""

    #: Accuracy on all classes.
    average: float
    #: Standard deviation of ``average``.
    average_deviation: float
    #: Accuracy by class name.
    per_class: dict[str, float]
    #: Standard deviation by class name.
    per_class_deviation: dict[str, float]


@lru_cache(maxsize=1)
def read_paper_tables() -> dict[str, Any]:
    """Return all tables of the paper, as in ``reference/paper.toml``."""
    return tomllib.loads(
        (resources.files("daband.bench.report") / "reference" / "paper.toml").read_text()
    )


def read_paper_accuracy(pair: str) -> dict[str, PaperAccuracy]:
    """Return the paper's accuracy table for a pair, by method; empty for pairs that the paper does
    not have.
    """
    table = read_paper_tables()["accuracy"].get(pair, {})
    return {
        method: PaperAccuracy(
            average=row["average"],
            average_deviation=row["average_deviation"],
            per_class=dict(zip(table["classes"], row["per_class"], strict=True)),
            per_class_deviation=dict(zip(table["classes"], row["deviation"], strict=True)),
        )
        for method, row in table.get("methods", {}).items()
    }


def paper_ablation(pair: str) -> dict[str, tuple[float, float]]:
    """Return the paper's full ablation for a pair: accuracy and standard deviation by the letters
    of the kept terms.
    """
    table = read_paper_tables()["full_ablation"].get(pair)
    if table is None:
        return {}
    return {
        letters: (accuracy, table["deviation"][letters])
        for letters, accuracy in table["accuracy"].items()
    }
