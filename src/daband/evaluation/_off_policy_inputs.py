"""Check the inputs of ``evaluate_log``: a log's rounds, a target's contexts, and a policy's probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from daband._arrays import AnyArray, ArrayLike, FloatArray, Mask, as_numpy
from daband.domains._contract import Contexts, LoggedDomain, LoggedRounds, RewardDomain
from daband.domains.readers._logs import ArrayLog
from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.serving._deployed_policy import DeployedPolicy
from daband.serving._frozen_policy import FrozenPolicy

_BATCH = 1024
_SUM = 1e-6

#: The types of a log; without propensities only the direct method can use it. Strings are names of Parquet files.
Log: TypeAlias = LoggedDomain | LoggedRounds | tuple[ArrayLike | None, ...] | str | Path | Sequence[str | Path]
#: A policy, an exported policy, or a function from contexts (B, *C) to probabilities of arms (B, K).
Probabilities: TypeAlias = Policy | DeployedPolicy | Callable[[AnyArray], ArrayLike]


def read_log(log: Log, n_arms: int | None) -> LoggedDomain:
    """Return a log in memory as a domain of checked rounds; ``n_arms`` None takes the number of arms from the log."""
    if isinstance(log, LoggedRounds):
        log = (log.contexts, log.arms, log.rewards, log.propensities, log.offered)
    if isinstance(log, tuple) and len(log) in (4, 5):
        found = max(as_numpy(log[1], "log arms").max(initial=0), 0) + 1
        if len(log) == 5 and log[4] is not None:
            found = as_numpy(log[4], "log offered arms").shape[-1]
        log = ArrayLog(*log, n_arms=int(found) if n_arms is None else n_arms, name="log")
    if not isinstance(log, LoggedDomain):
        raise InvalidInput(
            "log must be a logged domain, e.g. pair.source_test, or a tuple (contexts, arms, rewards, propensities), "
            f"got {type(log).__name__}"
        )
    if n_arms is not None and log.n_arms != n_arms:
        raise InvalidInput(f"log has {log.n_arms} arms, the policy {n_arms}")
    return log


def read_target(target: ArrayLike | Contexts, logged: AnyArray) -> AnyArray:
    """Return the target contexts, (m, *C), with the same shape as the logged ones."""
    if isinstance(target, RewardDomain | LoggedDomain):
        raise InvalidInput("target must be contexts without rewards, e.g. pair.target")
    contexts = target.read(np.arange(len(target))) if isinstance(target, Contexts) else as_numpy(target, "target")
    if contexts.shape[1:] != logged.shape[1:] or not len(contexts):
        raise InvalidInput(
            f"target must hold contexts of the log's shape, (m, {', '.join(map(str, logged.shape[1:]))}), got "
            f"{contexts.shape}"
        )
    _check_finite(contexts, "target has")
    return contexts


def probabilities(
    policy: Probabilities,
    contexts: AnyArray,
    domain: str,
    rule: str | None,
    name: str,
    *,
    first: int = 0,
    offered: Mask = None,
) -> FloatArray:
    """Return the policy's probability of every arm, (n, K), among the ``offered`` arms (n, K).

    Errors count the rows of ``name`` from ``first`` on.
    """
    parts = []
    for start in range(0, len(contexts), _BATCH):
        part = contexts[start : start + _BATCH]
        some = None if offered is None else offered[start : start + _BATCH]
        if isinstance(policy, Policy):
            parts.append(policy.probabilities(part, domain, some, rule=rule))
        elif isinstance(policy, DeployedPolicy):
            if part.shape[1:] != policy.frozen.row_shape:
                raise InvalidInput(f"{name} has contexts of shape {part.shape[1:]}, expected {policy.frozen.row_shape}")
            frozen = policy.frozen
            mask = None if some is None and frozen.offered is None else policy.arm_mask(some, None, len(part))
            parts.append(frozen.probabilities(*frozen.score(part), mask, new=policy.limit_new_arms()))
        else:
            own = as_numpy(policy(part), "policy's probabilities").astype(np.float64, copy=False)
            if some is not None and own.shape == some.shape:
                own = own * some / np.maximum((own * some).sum(axis=1, keepdims=True), 1e-300)
            parts.append(own)
    if isinstance(policy, Policy):
        return np.concatenate(parts)
    if rule is not None:
        raise InvalidInput("rule is for a daband policy; an exported one or a function has its own probabilities")
    if any(part.ndim != 2 for part in parts) or len({part.shape[1] for part in parts}) != 1:
        raise InvalidInput("policy must return probabilities of shape (B, K)")
    probability = np.concatenate(parts)
    if len(probability) != len(contexts):
        raise InvalidInput(
            f"policy must return one row per context, got {len(probability)} for the {len(contexts)} of {name}"
        )
    wrong = ~((probability >= 0).all(axis=1) & (np.abs(probability.sum(axis=1) - 1.0) <= _SUM))
    if wrong.any():
        raise InvalidInput(
            f"policy's probabilities must sum to 1, those of row {first + int(np.argmax(wrong))} of {name} do not"
        )
    return probability


def policy_of(policy: Any) -> Policy | FrozenPolicy | None:
    """Return the policy, or the frozen policy of an exported file; None for a function."""
    if isinstance(policy, DeployedPolicy):
        return policy.frozen
    return policy if isinstance(policy, Policy) else None


def _check_finite(contexts: AnyArray, who: str) -> None:
    if contexts.dtype.kind == "f" and not np.isfinite(contexts).all():
        raise InvalidInput(f"{who} a NaN or infinite value, first in row {np.argwhere(~np.isfinite(contexts))[0][0]}")
