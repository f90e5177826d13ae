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

#: Number of contexts per call of a policy.
_BATCH_CONTEXTS = 1024
#: The maximum difference between 1 and the sum of a row of probabilities.
_SUM_TOLERANCE = 1e-6

#: The types of a log. Strings and paths name Parquet files.
Log: TypeAlias = LoggedDomain | LoggedRounds | tuple[ArrayLike | None, ...] | str | Path | Sequence[str | Path]
#: A policy, an exported policy, or a function from contexts (B, *C) to probabilities of arms (B, K).
PolicyLike: TypeAlias = Policy | DeployedPolicy | Callable[[AnyArray], ArrayLike]


def read_log(log: Log, n_arms: int | None) -> LoggedDomain:
    """Return a log in memory as a domain of checked rounds. If ``n_arms`` is None, it is determined from the log."""
    if isinstance(log, LoggedRounds):
        log = (log.contexts, log.arms, log.rewards, log.propensities, log.offered)
    if isinstance(log, tuple) and len(log) in (4, 5):
        n_log_arms = max(as_numpy(log[1], "log arms").max(initial=0), 0) + 1
        if len(log) == 5 and log[4] is not None:
            n_log_arms = as_numpy(log[4], "log offered arms").shape[-1]
        log = ArrayLog(*log, n_arms=int(n_log_arms) if n_arms is None else n_arms, name="log")
    if not isinstance(log, LoggedDomain):
        raise InvalidInput(
            "log must be a logged domain, e.g. pair.source_test, or a tuple (contexts, arms, rewards, propensities), "
            f"got {type(log).__name__}"
        )
    if n_arms is not None and log.n_arms != n_arms:
        raise InvalidInput(f"log has {log.n_arms} arms, the policy {n_arms}")
    return log


def read_target(target: ArrayLike | Contexts, logged: AnyArray) -> AnyArray:
    """Return the target contexts, (m, *C). Raise an error if they differ in shape from ``logged`` contexts (n, *C)."""
    if isinstance(target, RewardDomain | LoggedDomain):
        raise InvalidInput("target must be contexts without rewards, e.g. pair.target")
    contexts = target.read(np.arange(len(target))) if isinstance(target, Contexts) else as_numpy(target, "target")
    if contexts.shape[1:] != logged.shape[1:] or not len(contexts):
        raise InvalidInput(
            f"target must hold contexts of the log's shape, (m, {', '.join(map(str, logged.shape[1:]))}), got "
            f"{contexts.shape}"
        )
    if contexts.dtype.kind == "f" and not np.isfinite(contexts).all():
        row = np.argwhere(~np.isfinite(contexts))[0][0]
        raise InvalidInput(f"target has a NaN or infinite value, first in row {row}")
    return contexts


def arm_probabilities(
    policy: PolicyLike,
    contexts: AnyArray,
    domain: str,
    rule: str | None,
    name: str,
    *,
    first_row: int = 0,
    offered: Mask = None,
) -> FloatArray:
    """Return the policy's probabilities of all arms, (n, K), for contexts (n, *C).

    Args:
        policy: the policy.
        contexts: the contexts.
        domain: the domain in which a policy acts.
        rule: the exploration rule of a policy; None keeps its own.
        name: name of the contexts in errors.
        first_row: index of the first context in errors.
        offered: mask of the arms that may be chosen, (n, K); None allows all.
    """
    tables = []
    for start in range(0, len(contexts), _BATCH_CONTEXTS):
        batch = contexts[start : start + _BATCH_CONTEXTS]
        mask = None if offered is None else offered[start : start + _BATCH_CONTEXTS]
        if isinstance(policy, Policy):
            tables.append(policy.probabilities(batch, domain, mask, rule=rule))
        elif isinstance(policy, DeployedPolicy):
            frozen = policy.frozen
            if batch.shape[1:] != frozen.row_shape:
                raise InvalidInput(f"{name} has contexts of shape {batch.shape[1:]}, expected {frozen.row_shape}")
            mask = None if mask is None and frozen.offered is None else policy.arm_mask(mask, len(batch))
            tables.append(frozen.probabilities(*frozen.score(batch), mask, limit=policy.limit_new_arms()))
        else:
            values = as_numpy(policy(batch), "policy's probabilities").astype(np.float64, copy=False)
            if mask is not None and values.shape == mask.shape:
                values = values * mask
                total = values.sum(axis=1, keepdims=True)
                if not total.all():
                    row = first_row + start + int(np.argmin(total[:, 0]))
                    raise InvalidInput(f"policy has probability 0 for all arms offered in row {row} of {name}")
                values /= total
            tables.append(values)
    if isinstance(policy, Policy):
        return np.concatenate(tables)
    if rule is not None:
        raise InvalidInput("rule is for a daband policy; an exported one or a function has its own probabilities")
    if any(table.ndim != 2 for table in tables) or len({table.shape[1] for table in tables}) != 1:
        raise InvalidInput("policy must return probabilities of shape (B, K)")
    probabilities = np.concatenate(tables)
    if len(probabilities) != len(contexts):
        raise InvalidInput(
            f"policy must return one row per context, got {len(probabilities)} for the {len(contexts)} of {name}"
        )
    is_invalid = ~((probabilities >= 0).all(axis=1) & (np.abs(probabilities.sum(axis=1) - 1.0) <= _SUM_TOLERANCE))
    if is_invalid.any():
        raise InvalidInput(
            f"policy's probabilities must sum to 1, but not in row {first_row + int(np.argmax(is_invalid))} of {name}"
        )
    return probabilities


def find_policy(policy: Any) -> Policy | FrozenPolicy | None:
    """Return the policy, or the frozen policy of an exported file; None for a function."""
    if isinstance(policy, DeployedPolicy):
        return policy.frozen
    return policy if isinstance(policy, Policy) else None
