"""Decisions with their rewards, and the concatenation of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from daband.arrays import FloatArray
from daband.linear import Decision

__all__ = ["Played", "joined"]


@dataclass(frozen=True, slots=True)
class Played(Decision):
    """The decisions of an episode, with the reward (B,) that each chosen arm paid."""

    reward: FloatArray


AnyDecision = TypeVar("AnyDecision", bound=Decision)


def joined(parts: Sequence[AnyDecision]) -> AnyDecision:
    """The rounds of all parts in their order."""
    if len(parts) == 1:
        return parts[0]
    kind = type(parts[0])
    return kind(*[np.concatenate([getattr(part, own.name) for part in parts]) for own in fields(kind)])
