"""Compute the running mean and standard deviation of rewards, the prior mean and the unit of
predicted rewards.

A ridge penalty pulls predictions towards a prior mean, and a confidence bonus has the unit of a
reward. Here the prior mean is the mean of the rewards, and the unit is their standard deviation.
Rewards ``a r + b`` with a > 0 therefore lead to the same decisions as rewards r. The moments do not
depend on the order of rounds, except for rounding.
"""

from __future__ import annotations

import math

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, Weights, read_array


class RewardMoments:
    """The total weight, mean and variance of rewards, and the smallest and largest reward.

    Args:
        standardise: if False, the prior mean is always 0 and the unit is always 1.

    >>> from daband.linear._reward_moments import RewardMoments
    >>> import numpy as np
    >>> moments = RewardMoments(standardise=True)
    >>> moments.centre, moments.scale
    (0.0, 1.0)
    >>> moments.add(np.array([10.0, 30.0]))
    >>> moments.centre, moments.scale
    (20.0, 10.0)
    """

    __slots__ = (
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
        #: The unit of a bonus: the standard deviation of rewards, 1 before they differ or without
        #: ``standardise``.
        self.scale = 1.0

    def add(self, rewards: FloatArray, weights: Weights = None) -> None:
        """Add rewards (B,) with weights (B,), by default 1."""
        if len(rewards) == 1:
            reward = rewards.item()
            self._combine(1.0 if weights is None else weights.item(), reward, 0.0, reward, reward)
            return
        if weights is not None:
            rewards = rewards[weights > 0]
            weights = weights[weights > 0]
        if len(rewards):
            total_weight = float(len(rewards) if weights is None else weights.sum())
            low = float(rewards.min())  # differences lose no digits to a common offset
            mean = low + float(np.average(rewards - low, weights=weights))
            squares = float(
                np.square(rewards - mean) @ (np.ones(len(rewards)) if weights is None else weights)
            )
            self._combine(total_weight, mean, squares, low, float(rewards.max()))

    def merge(self, other: RewardMoments) -> None:
        """Add the rewards of ``other``."""
        self._combine(
            other.total_weight, other.mean, other.squared_differences, other.low, other.high
        )

    def _combine(
        self, total_weight: float, mean: float, squares: float, low: float, high: float
    ) -> None:
        """Add the moments of other rewards; ``squares`` is the sum of squared differences from
        their mean.
        """
        if not total_weight > 0.0:
            return
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
                (math.sqrt(self.squared_differences / new_weight) or 1.0)
                if self.low < self.high
                else 1.0
            )

    def state(self) -> FloatArray:
        """Return an array (5,) for kernels: weight, mean, sum of squared differences, smallest and
        largest reward.
        """
        low, high = (self.low, self.high) if self.total_weight else (0.0, 0.0)
        return np.array([self.total_weight, self.mean, self.squared_differences, low, high])

    def restore(self, state: AnyArray) -> None:
        """Restore the array that ``state`` returned."""
        moments = read_array({"rewards": state}, "rewards", np.empty(5))
        total_weight, mean, squares, low, high = moments.tolist()
        if total_weight < 0.0 or squares < 0.0 or not low <= high:
            raise ValueError(
                f"rewards cannot have count {total_weight}, squares {squares} and range {low} to"
                f" {high}"
            )
        self.__init__(standardise=self.standardise)  # type: ignore[misc]
        self._combine(total_weight, mean, squares, low, high)
