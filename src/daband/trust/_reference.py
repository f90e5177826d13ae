"""The reference class: the fraction of its source advantage that a policy kept in shifts between real domains.

``reference.json`` has a row per data set: the advantage of a policy over the source's best arm on held-out source
rounds, its standard error, and the advantage that was left in the target. The expected target advantage of a policy is
``_KEPT_FRACTION`` times its source advantage. The score of a row is its target advantage minus the expected one,
divided by the standard deviation of this difference, which is

    sqrt((_KEPT_FRACTION * standard error)^2 + (_KEPT_DEVIATION * advantage)^2
         + (_ZERO_DEVIATION * standard deviation of rewards)^2).

For a new policy, the 0.1 quantile of the scores of its kind of data is multiplied by the standard deviation of the new
policy, and added to its expected advantage. The result is the lower limit. This is conformal prediction with data sets
as the exchangeable units. If a new data set is like those in the file, the limit holds with probability 0.9 for any
values of the three constants. The constants only determine how tight the limit is.
``benchmarks/reference_class.py`` writes the file, and measures the coverage of the limits by leaving out each data set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from daband._arrays import BoolArray, FloatArray

#: Kinds of data that have a reference class.
KINDS = ("tables", "features", "images")
#: Expected fraction of a source advantage that is left in the target.
_KEPT_FRACTION = 0.85
#: Standard deviation of that fraction.
_KEPT_DEVIATION = 0.6
#: Standard deviation of an advantage that is 0 in the source, in standard deviations of the reward.
_ZERO_DEVIATION = 0.03
#: Probability that the advantage is below the lower limit.
_LOW_LEVEL = 0.1
#: Smallest source advantage for which the kept fraction is computed, in standard deviations of the reward.
_MIN_ADVANTAGE = 0.1
#: Largest number of columns of a table. Longer vectors are features, such as the output of a network or word counts.
_MAX_TABLE_COLUMNS = 64


@dataclass(frozen=True)
class Forecast:
    """The target advantage expected from the reference class, in the unit of the rewards."""

    #: Median of the target advantage. It is at most the source advantage.
    advantage: float
    #: Lower limit of the target advantage, which holds with probability 0.9.
    low: float
    #: Number of data sets in the class.
    shifts: int
    #: Median over the class of the fraction of the source advantage that was left in the target.
    median_kept: float
    #: Tenth percentile of that fraction.
    tenth_percentile_kept: float
    #: Fraction of the class in which nothing of the source advantage was left.
    lost_fraction: float


@dataclass(frozen=True)
class ReferenceClass:
    """Shifts between real domains, with the advantage of a policy in both domains.

    There is one row per shift. A row may have any unit, because only ratios are used.
    """

    #: Name of the data set of each row, (n,). All rows of a data set together have weight 1.
    sets: Sequence[str]
    #: Kind of data of each row, one of ``KINDS``, (n,).
    kinds: Sequence[str]
    #: Advantage on held-out source rounds, (n,).
    source: FloatArray
    #: Standard error of ``source``, (n,).
    error: FloatArray
    #: Standard deviation of source rewards, (n,).
    scale: FloatArray
    #: Advantage in the target, (n,).
    target: FloatArray

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> ReferenceClass:
        """Return the class of rows with the keys ``set``, ``kind``, ``source``, ``error``, ``scale`` and ``target``."""
        columns = {name: np.array([row[name] for row in rows]) for name in ("source", "error", "scale", "target")}
        return cls([row["set"] for row in rows], [row["kind"] for row in rows], **columns)

    def select(self, mask: BoolArray) -> ReferenceClass:
        """Return the reference class of the rows for which the mask (n,) is True."""
        rows = np.flatnonzero(mask).tolist()
        names = [self.sets[row] for row in rows], [self.kinds[row] for row in rows]
        return ReferenceClass(*names, *(values[rows] for values in (self.source, self.error, self.scale, self.target)))

    def of_kind(self, kind: str) -> ReferenceClass:
        """Return the reference class of the rows of one kind."""
        return self.select(np.array([row_kind == kind for row_kind in self.kinds]))

    def forecast(self, advantage: float, error: float, scale: float) -> Forecast:
        """Return the expected target advantage of a policy.

        Args:
            advantage: advantage on held-out source rounds.
            error: standard error of ``advantage``.
            scale: standard deviation of source rewards.
        """
        _, set_indices, row_counts = np.unique(self.sets, return_inverse=True, return_counts=True)
        weights = 1.0 / row_counts[set_indices]
        n = len(row_counts)
        scores = (self.target - _KEPT_FRACTION * self.source) / _get_deviation(self.source, self.error, self.scale)
        deviation = float(_get_deviation(advantage, error, scale))
        # The new data set counts as one of n + 1, as in conformal prediction.
        low_score = _find_quantile(scores, weights, _LOW_LEVEL * (n + 1) / n, below=True)
        median_score = _find_quantile(scores, weights, 0.5)
        is_clear = self.source > _MIN_ADVANTAGE * self.scale
        fractions = self.target[is_clear] / self.source[is_clear]
        median_kept, tenth_percentile = (_find_quantile(fractions, weights[is_clear], level) for level in (0.5, 0.1))
        expected = _KEPT_FRACTION * advantage
        return Forecast(
            advantage=min(expected + deviation * median_score, advantage),
            low=min(expected + deviation * low_score, advantage),
            shifts=n,
            median_kept=median_kept,
            tenth_percentile_kept=tenth_percentile,
            lost_fraction=float(weights[is_clear] @ (fractions <= 0.0) / max(weights[is_clear].sum(), 1e-12)),
        )


def _get_deviation(advantage: FloatArray | float, error: FloatArray | float, scale: FloatArray | float) -> FloatArray:
    """Return the standard deviation of target advantages around the expected ones, as in the module's formula."""
    variance = np.square(_KEPT_FRACTION * np.asarray(error)) + np.square(_KEPT_DEVIATION * np.asarray(advantage))
    return np.sqrt(variance + np.square(_ZERO_DEVIATION * np.asarray(scale)) + 1e-300)


def _find_quantile(values: FloatArray, weights: FloatArray, level: float, *, below: bool = False) -> float:
    """Return the smallest value at which the cumulative weight reaches the fraction ``level``.

    With ``below``, return the largest value at which the cumulative weight is at most this fraction, or minus infinity
    if there is none.
    """
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    if below:
        last_index = int(np.searchsorted(cumulative, level * cumulative[-1] + 1e-9, side="right")) - 1
        return float(values[order][last_index]) if last_index >= 0 else -math.inf
    return float(values[order][min(int(np.searchsorted(cumulative, level * cumulative[-1] - 1e-9)), len(values) - 1)])


def infer_kind(context_shape: Sequence[int]) -> str:
    """Return the kind of data, one of ``KINDS``, of contexts of this shape."""
    if len(context_shape) > 1:
        return "images"
    return "tables" if math.prod(context_shape) <= _MAX_TABLE_COLUMNS else "features"


@cache
def reference_class() -> ReferenceClass:
    """Return the reference class that is part of the package."""
    text = resources.files("daband.trust").joinpath("reference.json").read_text(encoding="utf-8")
    record = json.loads(text)
    return ReferenceClass.from_rows([dict(zip(record["columns"], row, strict=True)) for row in record["rows"]])
