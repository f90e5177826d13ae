"""Paired comparison of two methods on the same seeds, with its uncertainty.

Methods with one seed see the same contexts in the same order and get rewards from the same table. So results are
compared seed by seed: the effect of the seed on both cancels in the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from daband.errors import InvalidInput


@dataclass(frozen=True)
class Paired:
    """The difference of ``first`` and ``second``, over pairs of results with the same seed.

    With a single pair the standard deviation is unknown: ``low``, ``high`` and ``p_value`` are then NaN.
    """

    #: The number of pairs.
    n: int
    #: The mean of ``first - second``.
    difference: float
    #: The lower end of the 95% interval of the mean difference (Student's t).
    low: float
    #: The upper end of this interval.
    high: float
    #: Two-sided paired t test of the hypothesis of no difference.
    p_value: float

    def as_dict(self) -> dict[str, float | int | None]:
        """Return all fields as JSON values, with None if unknown."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}


def compare_paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compare two lists of results, (n,) each, whose i-th entries have the same seed.

    If all differences are equal, their standard deviation is 0: the interval is that number, and the p-value is 1 if
    it is 0, else 0.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.ndim != 1 or a.shape != b.shape or len(a) == 0:
        raise InvalidInput(f"paired results must be two lists of one length >= 1, got shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InvalidInput("paired results must be finite numbers")
    n, differences = len(a), a - b
    mean = float(differences.mean())
    if n == 1:
        return Paired(1, mean, math.nan, math.nan, math.nan)
    rounding = 8 * np.finfo(np.float64).eps * max(float(np.abs(a).max()), float(np.abs(b).max()))
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    if error <= rounding:
        return Paired(n, mean, mean, mean, 1.0 if abs(mean) <= rounding else 0.0)
    from scipy.special import stdtr, stdtrit

    reach = float(stdtrit(n - 1, 0.975)) * error
    p_value = 2.0 * float(stdtr(n - 1, -abs(mean) / error))
    return Paired(n, mean, mean - reach, mean + reach, p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given: below 0.05, the family-wise error is at most 0.05.

    NaN (no test was possible) stays NaN and does not count as a test.
    """
    values = np.asarray(p_values, np.float64)
    tested = np.flatnonzero(~np.isnan(values))
    if ((values[tested] < 0) | (values[tested] > 1)).any():
        raise InvalidInput(f"p-values must lie in [0, 1], got {list(p_values)}")
    adjusted = values.copy()
    largest = 0.0
    for rank, index in enumerate(tested[np.argsort(values[tested], kind="stable")]):
        largest = max(largest, min(1.0, (len(tested) - rank) * float(values[index])))
        adjusted[index] = largest
    return [float(value) for value in adjusted]
