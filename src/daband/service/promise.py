"""A test that rewards have fallen below a promise; it may be looked at after every reward.

Rewards lie in [0, 1] and are promised to have a mean of at least m. Gamblers bet on less: one who stakes the share s of
the wealth that a single reward can cost multiplies it by 1 + s (m - y) / (1 - m) for a reward y. As long as the promise
holds, given all that came before, that factor is at most 1 on average. So the wealth of any mixture of gamblers is a
supermartingale, and it ever exceeds 1 / level with probability at most ``level`` (Ville's inequality; Waudby-Smith and
Ramdas, 2024, for this kind of bet). Gamblers who start later, for whom a part of the wealth is kept back, find a change
that comes late.
"""

from __future__ import annotations

import math

import numpy as np

from daband.arrays import FloatArray
from daband.errors import InvalidInput

__all__ = ["PromiseTest"]

_STAKES = np.array([0.02, 0.05, 0.1, 0.2, 0.4])
_FIRST_START = 64
_START_FACTOR = 1.15
"""A gambler starts when this many times as many rewards have come as at the start before."""
_LEAST_GAP = 1e-9


class PromiseTest:
    """Whether the mean of rewards (in [0, 1]) has fallen below ``promise``."""

    def __init__(self, promise: float, *, level: float = 0.01) -> None:
        if not 0.0 <= promise <= 1.0:
            raise InvalidInput(f"promise must lie within the range of rewards, got {promise} on a scale of 0 to 1")
        if not 0.0 < level < 1.0:
            raise InvalidInput(f"level must lie between 0 and 1, got {level}")
        self.promise, self.level = promise, level
        self.n = 0
        self.broken_at: int | None = None
        """After how many rewards the test said that the promise is broken; None before."""
        self._stakes = _STAKES / max(1.0 - promise, _LEAST_GAP)
        self._wealth: FloatArray = np.zeros((1, len(_STAKES)))  # logarithms
        self._next_start = _FIRST_START

    @property
    def evidence(self) -> float:
        """The logarithm of the wealth, in units of the threshold: 1 or more breaks the promise."""
        started = np.arange(1.0, len(self._wealth) + 1.0)
        shares = (1.0 / (started * (started + 1.0)))[:, None] / len(_STAKES)
        largest = max(float(self._wealth.max()), 0.0)
        mixed = float((shares * np.exp(self._wealth - largest)).sum()) + math.exp(-largest) / (len(started) + 1.0)
        return (math.log(mixed) + largest) / -math.log(self.level)

    def add(self, reward: float) -> None:
        """One more reward, in [0, 1]."""
        self._wealth += np.log1p(self._stakes * (self.promise - reward))
        self.n += 1
        if self.n >= self._next_start:
            self._wealth = np.concatenate([self._wealth, np.zeros((1, len(_STAKES)))])
            self._next_start = max(self.n + _FIRST_START, math.ceil(self.n * _START_FACTOR))
        # No mixture has more than its richest gambler, so most of the time one look at that one is enough.
        if self.broken_at is None and self._wealth.max() >= -math.log(self.level) and self.evidence >= 1.0:
            self.broken_at = self.n
