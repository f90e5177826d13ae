"""What is predicted before an audit: the arm of each target context and how much it seems to pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.arguments import finite
from daband.arrays import AnyArray, FloatArray, IntArray, as_numpy
from daband.domains import Contexts, EvaluationDomain
from daband.errors import InvalidInput
from daband.policies import Policy

__all__ = ["ContextReader", "certainty", "decisions", "predictions"]

_BATCH = 1024


class ContextReader:
    """Contexts of any kind of target by position."""

    def __init__(self, target: Any) -> None:
        if not isinstance(target, Contexts | EvaluationDomain):
            target = as_numpy(target, "target")
            if target.ndim < 2:
                raise InvalidInput(f"target must be contexts (N, *C) or e.g. pair.target, got shape {target.shape}")
        self._target = target

    def __len__(self) -> int:
        return len(self._target)

    def files(self, indices: IntArray) -> list[str]:
        """The files that these contexts are in, where they are images on disk; else nothing."""
        known: Sequence[str] = getattr(self._target, "files", ())
        return [known[index] for index in indices.tolist()] if known else []

    def read(self, indices: IntArray) -> AnyArray:
        """The contexts at these positions; of an evaluation domain they must be consecutive."""
        if isinstance(self._target, EvaluationDomain):
            return self._target.read(int(indices[0]), int(indices[-1]) + 1)
        found: AnyArray = self._target.read(indices) if isinstance(self._target, Contexts) else self._target[indices]
        return found


def decisions(policy: Policy, contexts: ContextReader, rule: str) -> tuple[IntArray, FloatArray]:
    """The arm of each context, (N,), and its ``certainty`` (N,)."""
    low, high = policy.reward_range
    arms, means = [], []
    for start in range(0, len(contexts), _BATCH):
        batch = contexts.read(np.arange(start, min(start + _BATCH, len(contexts))))
        decision = policy.decide(batch, "target", rule=rule, round_offset=start)
        arms.append(decision.arm)
        means.append((decision.mean - low) / (high - low))
    arm = np.concatenate(arms)
    return arm, certainty(np.concatenate(means), arm)


def certainty(mean: FloatArray, arm: IntArray) -> FloatArray:
    """The predicted reward of each chosen arm, (N,) in [0, 1], by the predicted rewards of all arms (N, K).

    The predicted rewards of the chosen arms are given to contexts in the order of another number: the predicted reward
    plus the lead over the next best arm. The first tells contexts that pay little from those that pay much; the lead,
    where one arm pays and the others do not, tells right choices from wrong ones better.
    """
    rows = np.arange(len(mean))
    chosen = np.clip(mean[rows, arm], 0.0, 1.0)
    others = mean.copy()
    others[rows, arm] = -np.inf
    lead = mean[rows, arm] - others.max(axis=1) if mean.shape[1] > 1 else np.zeros(len(mean))
    ordered: FloatArray = np.empty(len(mean))
    ordered[np.argsort(chosen + np.clip(lead, -1.0, 1.0), kind="stable")] = np.sort(chosen)
    return ordered


def predictions(own: FloatArray, assessment: Any, n: int, low: float, high: float) -> FloatArray:
    """Predicted rewards (N,) in [0, 1]: the policy's ``own``, or what the assessment says."""
    if assessment is None:
        return own
    given = getattr(assessment, "predicted", None)
    if given is None and not hasattr(assessment, "value"):
        given = assessment
    if given is None:
        return _moved(own, (finite("assessment.value", assessment.value) - low) / (high - low))
    predicted = as_numpy(given, "assessment").astype(np.float64)
    if predicted.shape != (n,) or not np.isfinite(predicted).all():
        raise InvalidInput(
            f"assessment must give a finite predicted reward for each of {n} contexts, got shape {predicted.shape}"
        )
    unit: FloatArray = np.clip((predicted - low) / (high - low), 0.0, 1.0)
    return unit


def _moved(predicted: FloatArray, mean: float) -> FloatArray:
    """Predictions moved by one number on the scale of log odds, so that their mean is ``mean``."""
    inside = np.clip(predicted, 0.001, 0.999)
    odds = np.log(inside / (1.0 - inside))
    wanted = min(max(mean, 0.001), 0.999)
    below, above = -20.0, 20.0
    for _ in range(60):
        middle = (below + above) / 2.0
        if (1.0 / (1.0 + np.exp(-(odds + middle)))).mean() < wanted:
            below = middle
        else:
            above = middle
    moved: FloatArray = 1.0 / (1.0 + np.exp(-(odds + below)))
    return moved
