"""Records of runs as plain rows: means and spreads over seeds, a row per pair, method and variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daband.experiments import Metric, Record, metric_of

__all__ = ["UNKNOWN", "Mean", "MethodSummary", "labelled", "summarise"]

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its sample standard deviation, 0 for a single seed; no value where a seed has none."""

    value: float | None
    spread: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Mean:
        """The mean of one value per seed."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(None, 0.0, len(values))
        return cls(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else 0.0, len(known))

    def text(self, digits: int) -> str:
        """As people read it: with its spread where there are several seeds, "unknown" where there is no value."""
        if self.value is None:
            return UNKNOWN
        return f"{self.value:,.{digits}f}" + (f" ± {self.spread:,.{digits}f}" if self.seeds > 1 else "")


@dataclass(frozen=True)
class MethodSummary:
    """One method on one pair, over its seeds. Everything of the target is unknown where the target has no labels."""

    pair: str
    method: str
    variant: str
    seeds: tuple[int, ...]
    metric: Metric
    """What methods are ranked by on this pair: the accuracy, or the value where rewards are real numbers."""
    accuracy: Mean
    accuracy_macro: Mean
    value: Mean
    regret: Mean
    best_value: float | None
    constant_value: float | None
    source_regret: Mean
    source_reward: Mean
    logger_value: Mean
    """What the policy that wrote the source's log earned; unknown where the source is no log."""
    rounds: int
    seconds: float
    arm_shares: tuple[float, ...]
    """How often each arm was chosen in the target, as shares of all contexts and seeds; empty where nobody counted."""

    @property
    def score(self) -> Mean:
        """The metric."""
        return self.accuracy if self.metric.field == "target_accuracy" else self.value

    @property
    def rank(self) -> float:
        """The mean of the metric, lower than any number where it is unknown."""
        return -np.inf if self.score.value is None else self.score.value


def labelled(records: Sequence[Record]) -> list[Record]:
    """The records whose target has labels."""
    return [record for record in records if record["target_accuracy"] is not None]


def summarise(records: Sequence[Record]) -> list[MethodSummary]:
    """A row per pair, method and variant, in the order of first appearance."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["pair"], record["method"], record["variant"]), []).append(record)
    rows = []
    for (pair, method, variant), group in groups.items():
        best, constant = (
            Mean.of([record.get(name) for record in group]) for name in ("target_best_value", "target_constant_value")
        )
        rows.append(
            MethodSummary(
                pair=pair,
                method=method,
                variant=variant,
                seeds=tuple(record["seed"] for record in group),
                metric=metric_of([record for record in records if record["pair"] == pair]),
                accuracy=Mean.of([record["target_accuracy"] for record in group]),
                accuracy_macro=Mean.of([record["target_accuracy_macro"] for record in group]),
                value=Mean.of([record["target_value"] for record in group]),
                regret=Mean.of([record["target_regret"] for record in group]),
                best_value=best.value,
                constant_value=constant.value,
                source_regret=Mean.of([record["source_regret"] for record in group]),
                source_reward=Mean.of([record.get("source_reward") for record in group]),
                logger_value=Mean.of([record.get("logger_value") for record in group]),
                rounds=group[0]["rounds"],
                seconds=float(np.mean([record.get("wall_seconds", np.nan) for record in group])),
                arm_shares=_shares(group),
            )
        )
    return rows


def _shares(group: Sequence[Record]) -> tuple[float, ...]:
    counted = [record["target_arm_counts"] for record in group if record.get("target_arm_counts")]
    if not counted or len({len(counts) for counts in counted}) > 1:
        return ()
    counts = np.sum(counted, axis=0)
    return tuple((counts / counts.sum()).tolist())
