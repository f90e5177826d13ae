"""The seeded uniforms of ``draws``, compiled; bit for bit those of ``draws_numpy``."""

from __future__ import annotations

from typing import Any

import numpy as np

from daband.linear.compiling import compiled
from daband.linear.draws_numpy import MIX_1, MIX_2, STEP_ROUND, STEP_SLOT

_ONE = np.uint64(1)


@compiled()
def _mixed(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


@compiled()
def uniform(key: Any, round_number: Any, slot: Any) -> Any:
    """The uniform number in [0, 1) of one round and slot."""
    bits = _mixed(key + (np.uint64(round_number) + _ONE) * STEP_ROUND)
    bits = _mixed(bits + (np.uint64(slot) + _ONE) * STEP_SLOT)
    return float(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled()
def uniforms(key: Any, first_round: int, n_rounds: int, n_slots: int) -> Any:
    """Uniform numbers in [0, 1), shape (n_rounds, n_slots), for the rounds from ``first_round`` on."""
    out = np.empty((n_rounds, n_slots))
    for i in range(n_rounds):
        for j in range(n_slots):
            out[i, j] = uniform(key, first_round + i, j)
    return out
