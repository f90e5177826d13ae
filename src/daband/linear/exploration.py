"""How arms are chosen from predicted means and widths, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daband.arrays import FloatArray, IntArray
from daband.errors import InvalidInput

__all__ = ["Decision", "Exploration"]


_LARGEST_ALPHA = 1e100


@dataclass(frozen=True)
class Exploration:
    """How arms are chosen from predicted means and widths.

    ``rule`` "ucb" adds ``alpha`` times the width to the mean, "greedy" adds nothing, "thompson" adds ``alpha`` times
    the width times a normal draw. With probability ``epsilon`` the arm is drawn uniformly instead. The default of
    ``alpha`` here, ``Exploration.alpha``, is that of every linear policy.
    """

    rule: str = "ucb"
    alpha: float = 0.15
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        if self.rule not in ("ucb", "greedy", "thompson"):
            raise InvalidInput(f"explore must be 'ucb', 'greedy' or 'thompson', got {self.rule!r}")
        if not (np.isfinite(self.alpha) and self.alpha >= 0):
            raise InvalidInput(f"alpha must be a finite number >= 0, got {self.alpha}")
        if self.alpha > _LARGEST_ALPHA:
            raise InvalidInput(f"alpha must be at most {_LARGEST_ALPHA:g}, got {self.alpha:g}: scores would overflow")
        if not 0 <= self.epsilon <= 1:
            raise InvalidInput(f"epsilon must lie in [0, 1], got {self.epsilon}")


@dataclass(frozen=True, slots=True)
class Decision:
    """Chosen arms (B,), their probabilities (B,), and the means and widths (B, K) they were chosen at.

    >>> policy = daband.LinUCB(context_shape=(1,), n_arms=2, epsilon=0.2, seed=0)
    >>> decision = policy.select([[1.0]], available=[False, True])
    >>> decision.arm.tolist(), decision.propensity.tolist()
    ([1], [1.0])
    """

    arm: IntArray
    propensity: FloatArray
    mean: FloatArray
    width: FloatArray
