"""Units of reward: what users pass and get is in their own unit, what policies learn lies in [0, 1].

A policy's exploration, its ridge penalty and its losses all assume rewards of order one. So ``Policy`` converts rewards
once, at its door, and converts predicted rewards and widths back. A change of unit then changes nothing of what is
learned.
"""

from __future__ import annotations

import math
import warnings

import numpy as np

from daband._arguments import RewardRange
from daband._arrays import AnyArray, FloatArray
from daband.errors import InvalidInput

_ENOUGH = 32
"""Rewards that "auto" waits for before it fixes a range."""
_AT_MOST = 1024
"""Rewards after which it waits no longer for a second value."""
_RARE = 8
"""Rewards that differ from most, if there are so many, have quartiles of their own."""
_FENCE = 3.0
"""Rewards further than this many interquartile ranges outside the quartiles do not widen the range."""
_SLACK = 1.0
"""Once an estimated range is fixed, rewards are clipped this many ranges outside it."""


class RewardScale:
    """Converts rewards between the user's units and [0, 1].

    Args:
        reward_range: the smallest and largest reward, or "auto": the first 32 rewards fix the range, or a sample of a
            log's. One far outlier among them does not widen it. Rewards far outside a range that was estimated are
            clipped, with a warning.
    """

    def __init__(self, reward_range: RewardRange) -> None:
        self.automatic = isinstance(reward_range, str)
        if self.automatic and reward_range != "auto":
            raise InvalidInput(f"reward_range must be two numbers (low, high) or 'auto', got {reward_range!r}")
        self.known = not self.automatic
        """Whether the range is known, so that rewards can be converted."""
        self.low, self.high = (0.0, 1.0) if self.automatic else _checked_range(reward_range)
        self.is_unit = self.low == 0.0 and self.high == 1.0
        """Whether the user's unit is that of policies."""
        self.is_identity = self.is_unit and not self.automatic
        """Whether ``to_unit`` leaves rewards as they are."""
        self.clipped = 0
        """How many rewards were clipped."""
        self._warned = False

    @property
    def setting(self) -> list[float] | str:
        """The argument that makes this scale anew, as JSON can hold it."""
        return "auto" if self.automatic else [self.low, self.high]

    def check(self, rewards: FloatArray) -> None:
        """Raise where a reward is not a finite number, or lies outside a range that was given."""
        if not self.automatic:
            if rewards.size == 1 and self.low <= rewards.item() <= self.high:  # single rounds need no reductions
                return
            if rewards.min() >= self.low and rewards.max() <= self.high:
                return
        if not np.isfinite(rewards).all():
            row = np.argwhere(~np.isfinite(rewards))[0, 0]
            raise InvalidInput(f"reward has a NaN or infinite value, first in row {row}; leave out rounds without one")
        if not self.automatic:
            wrong = rewards[~((rewards >= self.low) & (rewards <= self.high))][0]
            raise InvalidInput(
                f"reward {wrong} is outside reward_range [{self.low}, {self.high}]; give the policy the range of your "
                "rewards, or reward_range='auto' where nobody knows it"
            )

    def estimate(self, rewards: FloatArray) -> bool:
        """Fix the range by these rewards (n,), if they are enough to tell; returns whether it is known now."""
        smallest, largest = float(rewards.min()), float(rewards.max())
        if len(rewards) < _ENOUGH or (smallest == largest and len(rewards) < _AT_MOST):
            return False
        lower, upper = np.quantile(rewards, (0.25, 0.75))
        common, rare = float(lower), rewards[rewards != lower]
        if lower == upper and len(rare) >= _RARE:  # most are equal, and the others are the signal: who buys
            lower, upper = np.quantile(rare, (0.25, 0.75))
        reach = _FENCE * float(upper - lower)
        if reach > 0:
            inside = rewards[(rewards >= lower - reach) & (rewards <= upper + reach)]
            smallest, largest = min(float(inside.min()), common), max(float(inside.max()), common)
        self.low, self.high = smallest, largest if largest > smallest else smallest + 1.0
        self.known, self.is_unit = True, self.low == 0.0 and self.high == 1.0
        return True

    def to_unit(self, rewards: FloatArray) -> FloatArray:
        """Rewards in the user's units, any shape, as policies learn them."""
        if self.is_identity:
            return rewards
        unit: FloatArray = (rewards - self.low) / (self.high - self.low)
        if not self.automatic:
            return unit
        outside = (unit < -_SLACK) | (unit > 1.0 + _SLACK)
        if outside.any():
            if not self._warned:  # once in a process
                self._warned = True
                warnings.warn(
                    f"reward {rewards[outside][0]:g} lies far outside the range {self.low:g} to {self.high:g} that "
                    "reward_range='auto' estimated, and is clipped; pass reward_range=(low, high) if such rewards are "
                    "real (for files --set pair_options.reward_range=[low,high]). Further ones are clipped without a "
                    "warning",
                    stacklevel=4,
                )
            self.clipped += int(outside.sum())
        return np.clip(unit, -_SLACK, 1.0 + _SLACK)

    def predictions(self, mean: FloatArray, width: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predicted rewards and widths (B, K) in the user's units."""
        span = self.high - self.low
        return self.low + span * mean, span * width

    def state(self) -> AnyArray:
        """What is not a setting: whether the range is known, the range, and how many rewards were clipped."""
        return np.array([float(self.known), self.low, self.high, float(self.clipped)])

    def restore(self, state: AnyArray) -> None:
        """Restore what ``state`` returned."""
        known, self.low, self.high, clipped = (float(value) for value in state)
        self.known, self.clipped = bool(known), int(clipped)
        self.is_unit = self.low == 0.0 and self.high == 1.0
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"the reward range {self.low} to {self.high} is not a range")


def _checked_range(reward_range: RewardRange) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in reward_range)
    except (TypeError, ValueError):
        raise InvalidInput(f"reward_range must be two numbers (low, high) or 'auto', got {reward_range!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
        raise InvalidInput(f"reward_range must be finite with low < high, got {reward_range!r}")
    return low, high
