"""From an estimate, its bound and what is required to a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Verdict", "rewards_to_ask", "verdict_of"]

FEWEST_ASKED, MOST_ASKED = 50, 1000
_NORMAL_95 = 1.645
_CLEARLY = 0.01


@dataclass(frozen=True)
class Verdict:
    """What to do, how many rewards to ask for where that is what to do, and why in one sentence."""

    text: str
    """"hand over", "ask" or "do not"."""
    rewards: int
    why: str


def rewards_to_ask(value: float, required: float) -> int:
    """How many evenly drawn rewards show that ``value``, if that is the value, is above ``required``; both in [0, 1].

    So many that the one-sided 95% bound of their mean is expected at ``required``; between 50 and 1,000.
    """
    gap = max(abs(value - required), 1e-3)
    needed = math.ceil(_NORMAL_95**2 * max(value * (1.0 - value), 0.05) / gap**2)
    return min(max(FEWEST_ASKED, 10 * math.ceil(needed / 10)), MOST_ASKED)


def verdict_of(*, value: float, low: float, required: float, disagreement: float, doubts: list[str]) -> Verdict:
    """The verdict for values scaled to [0, 1].

    "hand over" needs a bound clearly above what is required and no doubt. Where the estimate itself is not above it,
    "do not". In between only rewards of the target can tell: "ask".

    Args:
        value: the estimate.
        low: its bound.
        required: what the value has to reach.
        disagreement: the share of contexts on which the two most different explanations of the target disagree.
        doubts: signs of collapse and the like, a phrase each.
    """
    if value <= required:
        return Verdict("do not", 0, "the estimate is no better than what is required")
    if low >= required + _CLEARLY and not doubts:
        return Verdict("hand over", 0, "every explanation of the target leaves it above what is required")
    if doubts:
        why = doubts[0]
    elif disagreement > 1.0 - value:
        why = f"two explanations of the target disagree on {disagreement:.0%} of contexts"
    else:
        why = "too much of the reward depends on what contexts do not show"
    return Verdict("ask", rewards_to_ask(value, required), why)
