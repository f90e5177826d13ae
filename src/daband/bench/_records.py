"""Define the record of a finished run and the metric of a comparison, and compare methods by paired
tests.

All methods with the same seed see the same contexts in the same order and get rewards from the same
draws. Therefore ``compare_paired`` compares results seed by seed, so that the effect of the seed
cancels in the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from daband.base._files import read_json
from daband.errors import DataError

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT")

#: One finished run, as in its ``result.json`` and in the list ``results.json``.
#:
#: * ``pair, method, variant, seed, folder`` identify the run, ``config_hash`` its settings, and
#:   ``settings_hash`` those without the seed.
#: * ``rounds, source_regret, source_reward`` (the mean per round) and ``wall_seconds`` describe its
#:   training.
#: * ``target_accuracy, target_accuracy_macro, target_value, target_best_value,
#:   target_constant_value, target_regret, per_class`` are the fields of ``Evaluation``.
#: * ``target_arm_counts`` counts the chosen arms on ``target_contexts`` target contexts.
#: * ``class_names`` are the names of the arms, and ``feedback`` is the feedback of the pair.
Record = dict[str, Any]
#: The records of several runs.
Records = list[Record]


#: Number of significant digits in tables.
_N_DIGITS = 4


@dataclass(frozen=True)
class Metric:
    """The field of a record that measures a policy in the target; higher is better."""

    #: Field of the record.
    field: str
    #: Name in tables.
    name: str

    def count_decimals(self, *values: float | None) -> int:
        """Return the number of decimals for printing ``values``: four for accuracies, else
        by magnitude.
        """
        return _N_DIGITS if self is TARGET_ACCURACY else count_decimals(*values)


#: The fraction of target contexts with the right arm.
TARGET_ACCURACY = Metric("target_accuracy", "target accuracy")
#: The mean expected reward of the chosen arms.
TARGET_VALUE = Metric("target_value", "target value")


def choose_metric(records: Sequence[Record]) -> Metric:
    """Return the accuracy if exactly one arm has reward 1 in all these records, else the mean
    expected reward.
    """
    is_one_hot = all(record.get("feedback", "one_hot") == "one_hot" for record in records)
    return TARGET_ACCURACY if is_one_hot else TARGET_VALUE


def count_decimals(*values: float | None) -> int:
    """Return the number of decimals with which the largest of these numbers has four
    significant digits.
    """
    largest = max(
        (abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0
    )
    if largest == 0.0:
        return _N_DIGITS
    return max(0, min(12, _N_DIGITS - 1 - math.floor(math.log10(largest))))


def group_by(items: Iterable[ItemT], key: Callable[[ItemT], KeyT]) -> dict[KeyT, list[ItemT]]:
    """Return lists of items by key. Keys and items are in the order of first appearance."""
    groups: dict[KeyT, list[ItemT]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def read_results(folder: str | Path) -> list[Record]:
    """Return the records in ``results.json`` of a folder of runs."""
    path = Path(folder) / "results.json"
    if not path.is_file():
        problem = "has no finished run" if path.parent.exists() else "does not exist"
        raise DataError(f"{folder} {problem}; start runs with `daband bench`")
    records = read_json(path)
    if not isinstance(records, list) or not all(
        isinstance(record, dict) and isinstance(record.get("folder"), str) for record in records
    ):
        raise DataError(f"{path} is not a list of records; run the bench again to write it")
    return records


@dataclass(frozen=True)
class PairedTest:
    """The mean difference ``first - second`` of paired results, with its interval and a test.

    With a single seed the standard deviation is unknown, so ``low``, ``high`` and ``p_value`` are
    NaN.
    """

    #: The mean of ``first - second``.
    difference: float
    #: The lower end of the 95% interval of the mean difference (Student's t).
    low: float
    #: The upper end of this interval.
    high: float
    #: The p-value of the two-sided paired t test.
    p_value: float


def compare_paired(first: Sequence[float], second: Sequence[float]) -> PairedTest:
    """Return the mean of ``first - second`` with a paired t test.

    The i-th results must have the same seed.

    If all differences are equal, the interval is this difference. The p-value is then 1 if the
    difference is 0, else 0.
    """
    differences = np.subtract(first, second)
    n_seeds = len(differences)
    mean = float(differences.mean())
    if n_seeds == 1:
        return PairedTest(mean, math.nan, math.nan, math.nan)
    rounding_error = 1e-14 * float(np.abs([first, second]).max())
    if np.ptp(differences) <= rounding_error:
        return PairedTest(mean, mean, mean, 1.0 if abs(mean) <= rounding_error else 0.0)
    from scipy.stats import ttest_1samp

    test = ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval()
    return PairedTest(mean, float(low), float(high), float(test.pvalue))


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method, in the order given.

    If adjusted values below 0.05 are called significant, the family-wise error is at most 0.05.
    NaN, which means that no test was possible, stays NaN and does not count as a test.
    """
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values)  # NaN is last
    factors = np.maximum(np.count_nonzero(~np.isnan(values)) - np.arange(len(values)), 1)
    adjusted_values = np.empty(len(values))
    adjusted_values[order] = np.minimum(np.maximum.accumulate(factors * values[order]), 1.0)
    return adjusted_values.tolist()
