"""The seeded uniforms of ``draws`` in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from daband.arrays import FloatArray

STEP_ROUND = np.uint64(0x9E3779B97F4A7C15)
STEP_SLOT = np.uint64(0xD1B54A32D192ED03)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def _mixed(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


def uniforms(key: np.uint64, first_round: int, n_rounds: int, n_slots: int) -> FloatArray:
    """Uniform numbers in [0, 1), shape (n_rounds, n_slots), for the rounds from ``first_round`` on."""
    rounds = np.arange(first_round + 1, first_round + n_rounds + 1, dtype=np.uint64)[:, None]
    slots = np.arange(1, n_slots + 1, dtype=np.uint64)[None, :]
    bits = _mixed(_mixed(np.asarray(key, np.uint64) + rounds * STEP_ROUND) + slots * STEP_SLOT)
    numbers: FloatArray = (bits >> np.uint64(11)).astype(np.float64) * (1.0 / 9007199254740992.0)
    return numbers
