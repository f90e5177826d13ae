"""How often each arm is expected to be the best one in the target, from a policy's own rounds and target contexts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from daband.arrays import AnyArray, FloatArray, as_numpy
from daband.linear.arm_frequencies import arm_probabilities, calibrated_scale, label_shift

__all__ = ["MOST_CONTEXTS", "expected_arms"]

MOST_CONTEXTS = 2048
"""Contexts of a domain to estimate from at the most: more take time and change little."""

Rows = AnyArray | torch.Tensor
Predict = Callable[[Rows, str], FloatArray]


def expected_arms(predict: Predict, rounds: tuple[Rows, Rows, Rows], target: Rows) -> FloatArray | None:
    """Expected frequencies (K,): predictions are calibrated on source rounds, and EM does the rest; None without rows.

    Args:
        predict: predicted rewards (n, K) of contexts of a domain.
        rounds: contexts (n, *C), arms and rewards (n,) of the source.
        target: contexts of the target, (m, *C).
    """
    contexts, arms, rewards = rounds
    if not len(contexts) or not len(target):
        return None
    here, there = predict(contexts, "source"), predict(target, "target")
    scale = calibrated_scale(here, np.asarray(as_numpy(arms, "arms")), as_numpy(rewards, "rewards"))
    return label_shift(arm_probabilities(here, scale), arm_probabilities(there, scale))
