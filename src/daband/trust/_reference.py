"""The reference class: the fraction of its source advantage that a policy kept in shifts between real domains.

``reference.json`` has a row per data set: the advantage of a policy over the source's best arm on held-out source
rounds, its standard error, and the advantage that was left in the target. A new policy is compared with all rows of
its kind. Its expected advantage in the target is ``_KEPT`` times its source advantage; the error is divided by

    sqrt((_KEPT * standard error)^2 + (_VARIES * advantage)^2 + (_ABSOLUTE * standard deviation of rewards)^2).

The lower limit follows from the 0.1 quantile of the class's errors, scaled in this way. This is
conformal prediction with data sets as the exchangeable units: for a data set like these, the limit is true in 90 of 100
cases for any values of the three constants. They only determine how tight the limit is.
``benchmarks/reference_class.py`` makes the file, and measures the limits by leaving each data set out.
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

KINDS = ("tables", "features", "images")
#: Expected fraction of a source advantage that is left in the target.
_KEPT = 0.85
#: Standard deviation of that fraction.
_VARIES = 0.6
#: Standard deviation of an advantage that is 0 in the source, in standard deviations of the reward.
_ABSOLUTE = 0.03
#: Probability that the advantage is below the lower limit.
_LEVEL = 0.1
#: Fractions are counted for advantages above this many standard deviations of the reward: others are noise.
_CLEAR = 0.1
#: Vectors of more numbers are features, such as the output of a network or counts of words.
_MAX_TABLE_COLUMNS = 64


@dataclass(frozen=True)
class Forecast:
    """The target advantage that the reference class suggests, in the unit of the rewards."""

    #: Median.
    advantage: float
    #: Lower limit, true in 90 of 100 cases.
    low: float
    #: Number of data sets in the class.
    shifts: int
    #: Fraction of the source advantage that half of the class kept at least.
    half_kept: float
    #: Fraction that all but a tenth of the class kept at least.
    tenth_kept: float
    #: Fraction of the class in which nothing was left.
    lost: float


@dataclass(frozen=True)
class ReferenceClass:
    """Shifts between real domains: one row each, advantages in any unit."""

    #: Name of the data set of each row, (n,); all rows of one data set together count as one.
    sets: Sequence[str]
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
        """Return the class of rows with ``set``, ``kind``, ``source``, ``error``, ``scale`` and ``target``."""
        numbers = {name: np.array([row[name] for row in rows]) for name in ("source", "error", "scale", "target")}
        return cls([row["set"] for row in rows], [row["kind"] for row in rows], **numbers)

    def where(self, kept: BoolArray) -> ReferenceClass:
        """Return the class of some rows."""
        rows = np.flatnonzero(kept).tolist()
        names = [self.sets[row] for row in rows], [self.kinds[row] for row in rows]
        return ReferenceClass(*names, *(values[rows] for values in (self.source, self.error, self.scale, self.target)))

    def of_kind(self, kind: str) -> ReferenceClass:
        """Return the rows of a kind."""
        return self.where(np.array([one == kind for one in self.kinds]))

    def forecast(self, advantage: float, error: float, scale: float) -> Forecast:
        """Return the expected target advantage.

        Args:
            advantage: advantage on held-out source rounds.
            error: its standard error.
            scale: standard deviation of source rewards.
        """
        _, rows, counts = np.unique(self.sets, return_inverse=True, return_counts=True)
        weights = 1.0 / counts[rows]
        n = len(counts)
        scores = (self.target - _KEPT * self.source) / _spread(self.source, self.error, self.scale)
        spread = float(_spread(advantage, error, scale))
        low = _quantile(scores, weights, _LEVEL * (n + 1) / n, below=True)  # n + 1 includes the new data set
        middle = _quantile(scores, weights, 0.5)
        clear = self.source > _CLEAR * self.scale
        kept = self.target[clear] / self.source[clear]
        half, tenth = (_quantile(kept, weights[clear], share) for share in (0.5, 0.1))
        expected = _KEPT * advantage
        return Forecast(
            advantage=expected + spread * middle,
            low=expected + spread * low,
            shifts=n,
            half_kept=half,
            tenth_kept=tenth,
            lost=float(weights[clear] @ (kept <= 0.0) / max(weights[clear].sum(), 1e-12)),
        )


def _spread(advantage: FloatArray | float, error: FloatArray | float, scale: FloatArray | float) -> FloatArray:
    parts = np.square(_KEPT * np.asarray(error)) + np.square(_VARIES * np.asarray(advantage))
    return np.sqrt(parts + np.square(_ABSOLUTE * np.asarray(scale)) + 1e-300)


def _quantile(values: FloatArray, weights: FloatArray, level: float, *, below: bool = False) -> float:
    """Return the smallest value at which this fraction of the weight is reached.

    With ``below`` return the largest value at which at most this fraction is reached; minus infinity if there is none.
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    if below:
        last = int(np.searchsorted(reached, level * reached[-1] + 1e-9, side="right")) - 1
        return float(values[order][last]) if last >= 0 else -math.inf
    return float(values[order][min(int(np.searchsorted(reached, level * reached[-1] - 1e-9)), len(values) - 1)])


def kind_of(context_shape: Sequence[int]) -> str:
    """Return the kind of data that contexts of this shape are compared with."""
    if len(context_shape) > 1:
        return "images"
    return "tables" if math.prod(context_shape) <= _MAX_TABLE_COLUMNS else "features"


@cache
def reference_class() -> ReferenceClass:
    """Return the class that is part of the package."""
    text = resources.files("daband.trust").joinpath("reference.json").read_text(encoding="utf-8")
    record = json.loads(text)
    return ReferenceClass.from_rows([dict(zip(record["columns"], row, strict=True)) for row in record["rows"]])
