"""How the propensities of a log enter learning: as weights of rounds, or in pseudo-rewards of every arm.

A logging policy that prefers some arms in some contexts leaves a sample of each arm's rewards that is not a sample of
all contexts. A regression that cannot represent the rewards exactly then fits them where the arm was chosen often.
Weights of one over the propensity undo that, at the price of more variance. Flattened weights, a power of those, are
between the two (Shimodaira: "Improving predictive inference under covariate shift", 2000).
"""

from __future__ import annotations

import numpy as np

from daband.arrays import FloatArray, IntArray
from daband.errors import InvalidInput

__all__ = ["LARGEST_WEIGHT", "WEIGHTINGS", "pseudo_rewards", "resolve_weighting", "round_weights"]

WEIGHTINGS = ("flattened", "importance", "doubly_robust", "none")
"""What ``propensity_weighting`` may be. The first that a policy offers is its default."""

LARGEST_WEIGHT = 10.0
"""Weights are cut off here: rounds of an arm that the log hardly ever chose would decide everything."""


def round_weights(propensities: FloatArray, n_arms: int, *, weighting: str) -> FloatArray | None:
    """The weight of each round (B,), from the probability with which its arm was chosen (B,).

    With "importance" it is ``1 / (n_arms * propensity)``, as in Vowpal Wabbit's ``mtr``, and at most 10; with
    "flattened" the fourth root of ``1 / (n_arms * propensity)``; with "none" there is none. Rounds of a log that chose
    arms evenly have a weight of 1: learning with weights is then learning without them. A weight depends on its own
    round alone, so that the statistics of the parts of a log add up to those of the whole.
    """
    if weighting == "none":
        return None
    if weighting not in ("flattened", "importance"):
        raise InvalidInput(f"propensity_weighting={weighting!r} is not by weights of rounds")
    weights: FloatArray = 1.0 / (n_arms * propensities)
    return np.minimum(weights if weighting == "importance" else np.sqrt(np.sqrt(weights)), LARGEST_WEIGHT)


def pseudo_rewards(
    predicted: FloatArray, arms: IntArray, rewards: FloatArray, propensities: FloatArray, *, largest: float
) -> FloatArray:
    """Doubly robust rewards of every arm (B, K), unbiased where propensities or predictions are right.

    Args:
        predicted: rewards that a model predicts which did not see these rounds, (B, K).
        arms: the arm that was played in each round, (B,).
        rewards: its reward, (B,).
        propensities: the probability with which it was chosen, (B,).
        largest: the largest ``1 / propensity``; larger ones are cut off.
    """
    rows = np.arange(len(arms))
    filled = predicted.copy()
    filled[rows, arms] += (rewards - predicted[rows, arms]) * np.minimum(1.0 / propensities, largest)
    return filled


def resolve_weighting(weighting: str | None, offered: tuple[str, ...], policy: str) -> str:
    """The weighting to use: the one asked for, or the first that the policy offers."""
    if weighting is None:
        return offered[0]
    if weighting not in WEIGHTINGS:
        raise InvalidInput(
            f"propensity_weighting must be one of {', '.join(repr(name) for name in WEIGHTINGS)}, got {weighting!r}"
        )
    if weighting not in offered:
        raise InvalidInput(
            f"propensity_weighting={weighting!r} is not offered by {policy}, which has "
            f"{', '.join(repr(name) for name in offered)}"
        )
    return weighting
