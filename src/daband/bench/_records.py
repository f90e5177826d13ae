"""The record of a finished run, and the metric by which methods are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from daband._files import locked, read_json
from daband.errors import DataError

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT")

#: One finished run, as in its ``result.json`` and in the list ``results.json``.
#:
#: ``pair, method, variant, seed, selection, config_hash, folder`` identify the run. ``rounds, source_regret,
#: source_reward`` (the mean per round) and ``wall_seconds`` describe its training. ``logger_value`` is the mean reward
#: of the policy that wrote the log, if the source is a log. ``target_accuracy, target_accuracy_macro, target_value,
#: target_best_value, target_constant_value, target_regret, per_class`` are the fields of ``Evaluation``, None if the
#: target has no labels. ``target_arm_counts`` counts the chosen arms on ``target_contexts`` target contexts.
#: ``class_names`` are the names of the arms, and ``feedback`` is the feedback of the pair.
Record = dict[str, Any]
Records = list[Record]


@dataclass(frozen=True)
class Metric:
    """The field of a record that measures a policy in the target; higher is better."""

    field: str
    name: str

    def digits(self, *values: float | None, significant: int = 3) -> int:
        """Return the decimals to print ``values`` with: fixed for accuracies, by magnitude for other values."""
        return significant if self is TARGET_ACCURACY else decimals(*values, significant=significant)


TARGET_ACCURACY = Metric("target_accuracy", "target accuracy")
TARGET_VALUE = Metric("target_value", "target value")


def metric_of(records: Sequence[Record]) -> Metric:
    """Return the accuracy if exactly one arm has reward 1 in all these records, else the mean expected reward."""
    one_hot = all(record.get("feedback", "one_hot") == "one_hot" for record in records)
    return TARGET_ACCURACY if one_hot else TARGET_VALUE


def decimals(*values: float | None, significant: int = 3) -> int:
    """Return the decimals that give the largest of these numbers ``significant`` significant digits."""
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    if largest == 0.0:
        return significant
    return max(0, min(12, significant - 1 - math.floor(math.log10(largest))))


def group_by(items: Iterable[ItemT], key: Callable[[ItemT], KeyT]) -> dict[KeyT, list[ItemT]]:
    """Group items by their key, both in the order of first appearance."""
    groups: dict[KeyT, list[ItemT]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def read_results(out: str | Path) -> list[Record]:
    """Return the records of a bench."""
    path = Path(out) / "results.json"
    records = read_json(path)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise DataError(f"{path} is not a list of records; run the bench again, which writes it anew")
    return records


def results_locked(out: Path) -> AbstractContextManager[None]:
    """Lock the files that summarise the runs of a folder while one is rewritten; other writers wait."""
    return locked(out, wait=True, file=".results.lock")
