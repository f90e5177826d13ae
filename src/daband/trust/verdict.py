"""From an estimate, its bound and what is required to a verdict with reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Verdict", "rewards_to_audit", "verdict_of"]

FEWEST_AUDITED, MOST_AUDITED = 50, 1000
_NORMAL_95 = 1.645
CLEARLY, CLEARLY_ESTIMATED = 0.01, 0.08
"""How far a bound has to lie above what is required: given, and where it is an estimate itself."""


@dataclass(frozen=True)
class Verdict:
    """What to do, and how many rewards to ask for where that is what to do."""

    text: str
    rewards: int = 0


def rewards_to_audit(value: float, required: float) -> int:
    """How many evenly drawn rewards show that ``value``, if that is the value, is above ``required``; both in [0, 1].

    So many that the one-sided 95% bound of their mean is expected at ``required``.
    """
    gap = max(value - required, 1e-9)
    needed = math.ceil(_NORMAL_95**2 * max(value * (1.0 - value), 0.05) / gap**2)
    return max(FEWEST_AUDITED, 10 * math.ceil(needed / 10))


def verdict_of(*, value: float, low: float, required: float, estimated: bool = False, doubts: int = 0) -> Verdict:
    """The verdict for values scaled to [0, 1].

    "hand over" needs a bound clearly above what is required and no doubt (sign of collapse, target outside the source's
    support); "hand over and audit" an estimate above it, by enough that at most 1,000 rewards could show it. Where what
    is required was ``estimated``, its own error is allowed for.
    """
    if low >= required + (CLEARLY_ESTIMATED if estimated else CLEARLY) and not doubts:
        return Verdict("hand over")
    rewards = rewards_to_audit(value, required)
    if value <= required or rewards > MOST_AUDITED:
        return Verdict("do not")
    return Verdict("hand over and audit", rewards)
