"""Compute the running mean and standard deviation of rewards, and the unit of each arm's bonus.

A ridge penalty pulls predictions towards a prior mean, the mean of all rewards. A confidence bonus
has the unit of a reward. The unit u_a of arm a is an estimate of the standard deviation of its
rewards,

    u_a^2 = (n_0 h^2 + S_a) / (n_0 + n_a)          h = (largest reward - smallest reward) / 2

where n_a is the number of rounds of the arm, and S_a is the sum of squared differences of their
rewards from their mean. h is the largest standard deviation that rewards in the observed range can
have (Popoviciu's inequality). It counts as n_0 rounds, as in the conjugate prior of a variance. The
range never shrinks, so u_a can only fall by evidence about its own arm: rounds of arm a whose
rewards differ little. The standard deviation of all rewards would fall while another arm pays a
constant, and exploration of an arm would end after one unlucky reward.

Multiplied by a confidence width of 1 / sqrt(n_a), the unit gives a bonus between the maximum and
the sum of sqrt(S_a) / n_a and sqrt(n_0) h / n_a. These are the two terms of UCB-V (Audibert, Munos,
Szepesvari: "Exploration-exploitation tradeoff using variance estimates in multi-armed bandits",
2009), which is valid for all bounded rewards.

Rewards ``a r + b`` with a > 0 lead to the same decisions as rewards r. The moments do not depend on
the order of rounds, except for rounding.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple, Self

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray, Weights

#: n_0 in the formula of the module, in rounds.
_N_PRIOR_ROUNDS = 10.0


class Scaling(NamedTuple):
    """The unit and the number of rewards, relative to which an ``Exploration`` compares arms."""

    #: The mean of rewards.
    centre: float = 0.0
    #: The standard deviation of rewards.
    scale: float = 1.0
    #: The square root of the number of rounds, divided by the largest unit of an arm's bonus.
    certainty: float = 0.0


#: The ``Scaling`` before the first reward.
UNSCALED = Scaling()


class RewardMoments:
    """The moments of all rewards and of each arm's rewards.

    Args:
        standardise: if False, the prior mean is always 0 and units are always 1.

    >>> from daband.linear._reward_moments import RewardMoments
    >>> import numpy as np
    >>> moments = RewardMoments(standardise=True)
    >>> moments.centre, moments.scale
    (0.0, 1.0)
    >>> moments.add(np.array([10.0, 30.0]), np.array([0, 0]))
    >>> moments.centre, moments.scale
    (20.0, 10.0)
    >>> moments.compute_units(2)  # the largest possible standard deviation
    array([10., 10.])
    """

    __slots__ = (
        "_arms",
        "_units",
        "centre",
        "high",
        "low",
        "mean",
        "scale",
        "squared_differences",
        "standardise",
        "total_weight",
    )

    def __init__(self, *, standardise: bool) -> None:
        self.standardise = standardise
        #: The sum of the weights of all rewards.
        self.total_weight = 0.0
        self.mean = 0.0
        #: The weighted sum of squared differences from the mean.
        self.squared_differences = 0.0
        #: The smallest reward.
        self.low = math.inf
        #: The largest reward.
        self.high = -math.inf
        #: The prior mean of a reward: the mean of all rewards; 0 before the first reward or without
        #: ``standardise``.
        self.centre = 0.0
        #: The standard deviation of rewards, 1 before they differ or without ``standardise``.
        self.scale = 1.0
        #: The total weight, the mean, and the sum of squared differences from it, for the rewards
        #: of each arm, (3, K). Later arms have no rewards.
        self._arms: FloatArray = np.zeros((3, 0))
        #: The result of ``compute_units``; None if the range of rewards has changed since.
        self._units: FloatArray | None = None

    def __copy__(self) -> Self:
        other = type(self)(standardise=self.standardise)
        for name in self.__slots__:
            setattr(other, name, copy.copy(getattr(self, name)))
        return other

    def add(
        self, rewards: FloatArray, arms: IntArray | None = None, weights: Weights = None
    ) -> None:
        """Add rewards (B,) with weights (B,), by default 1.

        ``arms`` (B,) are needed for the units of bonuses only.
        """
        if len(rewards) == 1:
            reward = rewards.item()
            weight = 1.0 if weights is None else weights.item()
            self._combine(weight, reward, 0.0, reward, reward)
            if arms is not None:
                self._combine_arm(arms.item(), weight, reward, 0.0)
            return
        if weights is not None:
            is_used = weights > 0
            rewards = rewards[is_used]
            arms = None if arms is None else arms[is_used]
            weights = weights[is_used]
        if not len(rewards):
            return
        self._combine(*_summarise(rewards, weights), float(rewards.min()), float(rewards.max()))
        for arm in [] if arms is None else np.unique(arms).tolist():
            rows = arms == arm
            self._combine_arm(
                arm, *_summarise(rewards[rows], None if weights is None else weights[rows])
            )

    def merge(self, other: RewardMoments) -> None:
        """Add the rewards of ``other``."""
        self._combine(
            other.total_weight, other.mean, other.squared_differences, other.low, other.high
        )
        for arm, moments in enumerate(other._arms.T.tolist()):
            self._combine_arm(arm, *moments)

    def _combine(
        self, total_weight: float, mean: float, squares: float, low: float, high: float
    ) -> None:
        """Add the moments of other rewards; ``squares`` is the sum of squared differences from
        their mean.
        """
        if not total_weight > 0.0:
            return
        if low < self.low or high > self.high:
            self._units = None
        new_weight = self.total_weight + total_weight
        difference = mean - self.mean
        self.squared_differences += squares + difference * difference * (
            self.total_weight * total_weight / new_weight
        )
        self.mean += difference * (total_weight / new_weight)
        self.total_weight = new_weight
        self.low = low if low < self.low else self.low
        self.high = high if high > self.high else self.high
        if self.standardise:
            self.centre = self.mean
            self.scale = (
                (math.sqrt(self.squared_differences / self.total_weight) or 1.0)
                if self.low < self.high
                else 1.0
            )

    def _combine_arm(self, arm: int, total_weight: float, mean: float, squares: float) -> None:
        """Add the moments of other rewards of an arm, as ``_combine`` does for all arms."""
        if not total_weight > 0.0:
            return
        n_new = arm + 1 - self._arms.shape[1]
        if n_new > 0:
            self._arms = np.pad(self._arms, ((0, 0), (0, n_new)))
        old_weight, old_mean, old_squares = self._arms[:, arm].tolist()
        new_weight = old_weight + total_weight
        difference = mean - old_mean
        self._arms[:, arm] = (
            new_weight,
            old_mean + difference * (total_weight / new_weight),
            old_squares
            + squares
            + difference * difference * (old_weight * total_weight / new_weight),
        )
        if self._units is not None and arm < len(self._units) and self.low < self.high:
            # only the unit of this arm changes; the old array may be in use
            self._units = self._units.copy()
            self._units[arm] = self._compute_unit(*self._arms[::2, arm].tolist())

    def _compute_unit(self, weight: float, squares: float) -> float:
        """Return the unit of an arm with this total weight and sum of squared differences."""
        unit = self.largest_unit
        if not self.standardise:
            return unit
        # the ratio cannot overflow, as the square of a unit could
        ratio = _N_PRIOR_ROUNDS + min(squares / unit / unit, weight)
        return unit * math.sqrt(ratio / (_N_PRIOR_ROUNDS + weight))

    @property
    def largest_unit(self) -> float:
        """Half of the range of rewards; 1 before rewards differ or without ``standardise``."""
        is_known = self.standardise and self.low < self.high
        return (0.5 * (self.high - self.low) or 1.0) if is_known else 1.0

    def compute_units(self, n_arms: int) -> FloatArray:
        """Return the unit of each arm's bonus, (n_arms,). The array must not be changed."""
        if self._units is not None and len(self._units) == n_arms:
            return self._units
        units = np.full(n_arms, self.largest_unit)
        if self.low < self.high:
            known = self._arms[::2, :n_arms].T.tolist()
            units[: len(known)] = [self._compute_unit(*moments) for moments in known]
        self._units = units
        return units

    def compute_shrunk_means(self, n_arms: int) -> FloatArray:
        """Return the mean reward of each arm, shrunk by one round towards ``centre``, (n_arms,)."""
        means = np.full(n_arms, self.centre)
        weights, arm_means, _ = self._arms[:, :n_arms]
        means[: len(weights)] += (arm_means - self.centre) * (weights / (1.0 + weights))
        return means

    def make_scaling(self, units: FloatArray) -> Scaling:
        """Return the ``Scaling`` for arms with these ``units`` of ``compute_units``."""
        return Scaling(self.centre, self.scale, math.sqrt(self.total_weight) / float(units.max()))

    def state(self) -> FloatArray:
        """Return all moments as an array: those of all rewards (5,), and those of each arm."""
        low, high = (self.low, self.high) if self.total_weight else (0.0, 0.0)
        return np.concatenate(
            [
                [self.total_weight, self.mean, self.squared_differences, low, high],
                self._arms.ravel(),
            ]
        )

    def restore(self, state: AnyArray) -> None:
        """Restore the array that ``state`` returned."""
        moments = np.asarray(state, np.float64)
        if (
            moments.ndim != 1
            or len(moments) < 5
            or (len(moments) - 5) % 3
            or np.isnan(moments).any()
        ):
            raise ValueError(f"rewards has the shape {moments.shape}")
        total_weight, mean, squares, low, high = moments[:5].tolist()
        arms = moments[5:].reshape(3, -1).copy()
        if total_weight < 0.0 or squares < 0.0 or not low <= high or (arms[[0, 2]] < 0.0).any():
            raise ValueError(
                f"rewards cannot have count {total_weight}, squares {squares} and range {low} to"
                f" {high}"
            )
        self.__init__(standardise=self.standardise)  # type: ignore[misc]
        self._combine(total_weight, mean, squares, low, high)
        self._arms = arms
        self._units = None


def _summarise(rewards: FloatArray, weights: Weights) -> tuple[float, float, float]:
    """Return the total weight, the mean, and the weighted sum of squared differences from it."""
    low = float(rewards.min())  # differences lose no digits to a common offset
    mean = low + float(np.average(rewards - low, weights=weights))
    squares = np.square(rewards - mean)
    if weights is None:
        return float(len(rewards)), mean, float(squares.sum())
    return float(weights.sum()), mean, float(squares @ weights)
