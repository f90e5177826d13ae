"""The reference class: the fraction of its source advantage that a policy kept in shifts between
real domains.

``reference.json`` has a row per data set: the advantage of a policy over the source's best arm on
held-out source rounds, its standard error, and the advantage that was left in the target. If the
policy learned the rewards of all arms (``FULL``), the first number is the advantage that it
predicts for the target instead. The expected target advantage of a policy is a fraction k of the
first number. The score of a row is its target advantage minus the expected one, divided by the
standard deviation of this difference, which is

    sqrt((k * standard error)^2 + (d * advantage)^2 + (z * standard deviation of rewards)^2).

For a new policy, the 0.1 quantile of the scores of its kind of data is multiplied by the standard
deviation of the new policy, and added to its expected advantage. The result is the lower limit.
This is conformal prediction with data sets as the exchangeable units. If a new data set is like
those in the file, the limit holds with probability 0.9 for any values of the constants k, d and z.
The constants only determine how tight the limit is. ``benchmarks/reference_class.py`` writes the file,
and measures the coverage of the limits by leaving out each data set.
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

from daband.base._arrays import AnyArray, BoolArray, FloatArray
from daband.logs._experiments import (
    N_EXPERIMENTS,
    N_HYPOTHESES,
    compute_between_deviation,
    compute_target_limit,
)
from daband.logs._mean_estimates import MeanEstimate

#: Kind of a policy that learned the rewards of all arms, whose predictions are assessed.
FULL = "full"
#: Kinds that have a reference class in the file. All but the first are kinds of data.
KINDS = (FULL, "tables", "features", "images")
#: Kind of a log's policy, whose reference class are experiments (``_experiments.py``).
EXPERIMENTS = "experiments"
#: The constants k, d and z: the expected fraction of an advantage that is left in the target, its
#: standard deviation, and the standard deviation of an advantage that is expected to be 0, in
#: standard deviations of the reward.
_CONSTANTS = 0.85, 0.6, 0.03
#: These constants for ``FULL``: d and z are a maximum likelihood fit, with a t distribution with 4
#: degrees of freedom, to every other data set (``benchmarks/table_verdicts.py``).
_FULL_CONSTANTS = 1.0, 0.22, 0.09
#: Probability that the advantage is below the lower limit.
_MISS_PROBABILITY = 0.1
#: Smallest source advantage for which the kept fraction is computed, in standard deviations of the
#: reward.
_MIN_ADVANTAGE = 0.1
#: Largest number of columns of a table. Longer vectors are features, such as the output of a
#: network or word counts.
_MAX_TABLE_COLUMNS = 64


@dataclass(frozen=True)
class Forecast:
    """The target advantage expected from the reference class, in the unit of the rewards."""

    #: Median of the target advantage. It is at most the source advantage.
    advantage: float
    #: Lower limit of the target advantage, which holds with probability 0.9.
    low: float
    #: Number of data sets in the class.
    n_data_sets: int
    #: Median over the class of the fraction of the source advantage that was left in the target;
    #: None for experiments.
    median_kept: float | None = None
    #: Tenth percentile of that fraction.
    tenth_percentile_kept: float | None = None
    #: Fraction of the class in which nothing of the source advantage was left.
    lost_fraction: float | None = None
    #: Standard deviation of the difference between the domains, for experiments.
    between_deviation: float | None = None


def forecast_effect(
    estimate: MeanEstimate, *, fraction: float | None, reward_deviation: float, n_contenders: int
) -> Forecast:
    """Return the expected target advantage of a log's policy, from experiments in several domains.

    Args:
        estimate: the estimated advantage for the target's contexts.
        fraction: the fraction of target contexts for which the policy and the incumbent choose
            different arms; None if rewards given contexts are the same in both domains.
        reward_deviation: the standard deviation of rewards.
        n_contenders: the number of arms from which the best one may have been chosen by chance.
    """
    between = (
        0.0
        if fraction is None
        else compute_between_deviation(estimate.value, fraction, reward_deviation)
    )
    low = compute_target_limit(estimate, between_deviation=between, n_contenders=n_contenders)
    return Forecast(estimate.value, low, N_HYPOTHESES + N_EXPERIMENTS, between_deviation=between)


@dataclass(frozen=True)
class ReferenceClass:
    """Shifts between real domains, with the advantage of a policy in both domains.

    There is one row per shift. A row may have any unit, because only ratios are used.
    """

    #: Name of the data set of each row, (n,). All rows of a data set together have weight 1.
    data_sets: AnyArray
    #: Kind of data of each row, one of ``KINDS``, (n,).
    kinds: AnyArray
    #: Advantage on held-out source rounds, (n,); predicted for the target if the kind is ``FULL``.
    source_advantages: FloatArray
    #: Standard error of ``source_advantages``, (n,).
    standard_errors: FloatArray
    #: Standard deviation of source rewards, (n,).
    reward_deviations: FloatArray
    #: Advantage in the target, (n,).
    target_advantages: FloatArray

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> ReferenceClass:
        """Return the class of rows with the keys ``set``, ``kind``, ``source``, ``error``,
        ``scale`` and ``target``.
        """
        names = ("set", "kind", "source", "error", "scale", "target")
        return cls(*[np.array([row[name] for row in rows]) for name in names])

    def select(self, mask: BoolArray) -> ReferenceClass:
        """Return the reference class of the rows for which the mask (n,) is True."""
        return ReferenceClass(*[column[mask] for column in vars(self).values()])

    def select_kind(self, kind: str) -> ReferenceClass:
        """Return the reference class of the rows of one kind."""
        return self.select(self.kinds == kind)

    def forecast(
        self, advantage: float, standard_error: float, reward_deviation: float
    ) -> Forecast:
        """Return the expected target advantage of a policy. All rows have its kind.

        Args:
            advantage: advantage on held-out source rounds, or the predicted one of ``FULL``.
            standard_error: standard error of ``advantage``.
            reward_deviation: standard deviation of source rewards.
        """
        _, set_indices, row_counts = np.unique(
            self.data_sets, return_inverse=True, return_counts=True
        )
        weights = 1.0 / row_counts[set_indices]
        n_data_sets = len(row_counts)
        constants = _FULL_CONSTANTS if self.kinds[0] == FULL else _CONSTANTS
        deviations = _compute_deviations(
            constants, self.source_advantages, self.standard_errors, self.reward_deviations
        )
        scores = (self.target_advantages - constants[0] * self.source_advantages) / deviations
        new_row = np.array([advantage, standard_error, reward_deviation])
        deviation = float(_compute_deviations(constants, *new_row))
        # The new data set counts as one of n_data_sets + 1, as in conformal prediction.
        low_level = _MISS_PROBABILITY * (n_data_sets + 1) / n_data_sets
        low_score = _find_quantile(scores, weights, low_level, from_below=True)
        median_score = _find_quantile(scores, weights, 0.5)
        has_advantage = self.source_advantages > _MIN_ADVANTAGE * self.reward_deviations
        kept_fractions = (
            self.target_advantages[has_advantage] / self.source_advantages[has_advantage]
        )
        kept_weights = weights[has_advantage]
        expected_advantage = constants[0] * advantage
        return Forecast(
            advantage=min(expected_advantage + deviation * median_score, advantage),
            low=min(expected_advantage + deviation * low_score, advantage),
            n_data_sets=n_data_sets,
            median_kept=_find_quantile(kept_fractions, kept_weights, 0.5),
            tenth_percentile_kept=_find_quantile(kept_fractions, kept_weights, 0.1),
            lost_fraction=float(
                kept_weights @ (kept_fractions <= 0.0) / max(kept_weights.sum(), 1e-12)
            ),
        )


def _compute_deviations(
    constants: tuple[float, float, float],
    advantages: FloatArray,
    standard_errors: FloatArray,
    reward_deviations: FloatArray,
) -> FloatArray:
    """Return the standard deviations of target advantages around the expected ones, as in the
    module's formula.
    """
    k, d, z = constants
    variances = np.square(k * standard_errors) + np.square(d * advantages)
    return np.sqrt(variances + np.square(z * reward_deviations) + 1e-300)


def _find_quantile(
    values: FloatArray, weights: FloatArray, level: float, *, from_below: bool = False
) -> float:
    """Return the smallest value at which the cumulative weight reaches the fraction ``level``.

    With ``from_below``, return the largest value at which the cumulative weight is at most this
    fraction, or minus infinity if there is none.
    """
    order = np.argsort(values)
    cumulative_weights = np.cumsum(weights[order])
    weight_limit = level * cumulative_weights[-1]
    if from_below:
        index = int(np.searchsorted(cumulative_weights, weight_limit + 1e-9, side="right")) - 1
        return float(values[order][index]) if index >= 0 else -math.inf
    index = min(int(np.searchsorted(cumulative_weights, weight_limit - 1e-9)), len(values) - 1)
    return float(values[order][index])


def infer_kind(context_shape: Sequence[int]) -> str:
    """Return the kind of data, one of ``KINDS``, of contexts of this shape."""
    if len(context_shape) > 1:
        return "images"
    return "tables" if math.prod(context_shape) <= _MAX_TABLE_COLUMNS else "features"


@cache
def load_reference_class() -> ReferenceClass:
    """Return the reference class that is part of the package."""
    content = json.loads(
        resources.files("daband.trust").joinpath("reference.json").read_text(encoding="utf-8")
    )
    return ReferenceClass.from_rows(
        [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
    )
