"""Seeded random numbers without a generator: each is a hash (splitmix64) of a key, a round number and a slot.

A batch therefore equals its single rounds, rounds can be drawn in any order, and there is no generator state to save.
The numbers are the same with numba and without, on every processor.
"""

from __future__ import annotations

import numpy as np

from daband.arrays import FloatArray
from daband.linear.kernels import draws

__all__ = ["draw_key", "uniforms"]


def draw_key(seed: int) -> np.uint64:
    """The key that stands for ``seed``: seeds that differ in one bit give unrelated keys."""
    key: np.uint64 = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
    return key


def uniforms(key: np.uint64, first_round: int, n_rounds: int, n_slots: int) -> FloatArray:
    """Uniform numbers in [0, 1), shape (n_rounds, n_slots), for the rounds from ``first_round`` on."""
    numbers: FloatArray = draws.uniforms(key, first_round, n_rounds, n_slots)
    return numbers
