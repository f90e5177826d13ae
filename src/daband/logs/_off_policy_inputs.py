"""Read and check the inputs of ``evaluate_log``: the log, the target contexts, and the policy's
probabilities.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from daband.base._arrays import AnyArray, ArrayLike, FloatArray, Mask, as_numpy, is_finite
from daband.domains._contract import Contexts, LoggedDomain, RewardDomain
from daband.domains.readers._logs import ArrayLog
from daband.domains.readers._reading import LogFiles
from daband.errors import InvalidInput
from daband.logs._learned_logs import is_policy
from daband.rounds._rounds import Rounds
from daband.serving._deployed_policy import DeployedPolicy

#: Number of contexts per call of a policy.
_BATCH_CONTEXTS = 1024
#: The largest accepted difference between 1 and the sum of a context's probabilities.
_SUM_TOLERANCE = 1e-6

#: The types of a log. Strings and paths name Parquet files, which ``evaluate_log`` reads.
Log: TypeAlias = LoggedDomain | Rounds | tuple[ArrayLike | None, ...] | LogFiles
#: A policy, an exported policy, or a function from contexts (B, *C) to probabilities of arms (B,
#: K).
PolicyLike: TypeAlias = Any


def read_log(log: Log, n_arms: int | None, clusters: ArrayLike | None = None) -> LoggedDomain:
    """Return a log in memory as a domain of checked rounds.

    The log must have ``n_arms`` arms, as the policy. If ``n_arms`` is None, the log determines the
    number of arms. ``clusters`` (n,) are the clusters of rounds in arrays.
    """
    arrays: Any = log
    if isinstance(log, Rounds):
        arrays = (log.contexts, log.arms, log.rewards, log.propensities, log.offered)
    if isinstance(arrays, tuple) and len(arrays) in (4, 5):
        n_log_arms = max(as_numpy(arrays[1], "log arms").max(initial=0), 0) + 1
        if len(arrays) == 5 and arrays[4] is not None:
            n_log_arms = as_numpy(arrays[4], "log offered arms").shape[-1]
        n_log_arms = int(n_log_arms) if n_arms is None else n_arms
        log = ArrayLog(log, n_arms=n_log_arms, clusters=clusters, name="log")  # type: ignore[arg-type]
    elif clusters is not None:
        raise InvalidInput(
            "clusters can only be given for a log in arrays or files; a domain has its own"
        )
    if not isinstance(log, LoggedDomain):
        raise InvalidInput(
            "log must be a logged domain, e.g. pair.source_test, or a tuple (contexts, arms,"
            f" rewards, propensities), got {type(log).__name__}"
        )
    if n_arms is not None and log.n_arms != n_arms:
        raise InvalidInput(
            f"log has {log.n_arms} arms, but the policy has {n_arms}; pass a log of the same arms"
        )
    return log


def read_target(target: ArrayLike | Contexts, log_contexts: AnyArray) -> AnyArray:
    """Return the target contexts, (m, *C).

    Raise an error unless they have the shape of the log's contexts, (n, *C).
    """
    if isinstance(target, RewardDomain | LoggedDomain):
        raise InvalidInput("target must be contexts without rewards, e.g. pair.target")
    contexts = (
        target.read(np.arange(len(target)))
        if isinstance(target, Contexts)
        else as_numpy(target, "target")
    )
    if contexts.shape[1:] != log_contexts.shape[1:] or not len(contexts):
        raise InvalidInput(
            "target must hold contexts of the log's shape, (m,"
            f" {', '.join(map(str, log_contexts.shape[1:]))}), got {contexts.shape}"
        )
    if not is_finite(contexts):
        row = np.argwhere(~np.isfinite(contexts))[0][0]
        raise InvalidInput(f"target has a NaN or infinite value, first in row {row}")
    return contexts


def compute_arm_probabilities(
    policy: PolicyLike,
    contexts: AnyArray,
    domain: str,
    rule: str | None,
    name: str,
    *,
    offered: Mask = None,
) -> FloatArray:
    """Return the policy's probabilities of all arms, (n, K), for contexts (n, *C).

    Args:
        policy: the policy.
        contexts: the contexts.
        domain: the domain in which the policy acts.
        rule: "ucb" or "greedy" instead of the exploration of a ``Policy``; None keeps its
            exploration.
        name: what error messages call the contexts: "log" or "target".
        offered: mask of the arms that may be chosen, (n, K); None allows all.
    """
    batch_probabilities: list[FloatArray] = []  # (B, K) each
    for start in range(0, len(contexts), _BATCH_CONTEXTS):
        batch = contexts[start : start + _BATCH_CONTEXTS]
        mask = None if offered is None else offered[start : start + _BATCH_CONTEXTS]
        if is_policy(policy):
            batch_probabilities.append(policy.probabilities(batch, domain, mask, rule=rule))
        elif isinstance(policy, DeployedPolicy):
            frozen = policy.frozen
            if batch.shape[1:] != frozen.row_shape:
                raise InvalidInput(
                    f"{name} has contexts of shape {batch.shape[1:]}, expected {frozen.row_shape}"
                )
            mask = (
                None
                if mask is None and frozen.offered is None
                else policy.make_arm_mask(mask, len(batch))
            )
            probabilities = frozen.compute_probabilities(*frozen.score(batch), mask)
            batch_probabilities.append(probabilities)
        else:
            probabilities = as_numpy(policy(batch), "policy's probabilities").astype(
                np.float64, copy=False
            )
            if mask is not None and probabilities.shape == mask.shape:
                probabilities = probabilities * mask
                row_sums = probabilities.sum(axis=1, keepdims=True)
                if not row_sums.all():
                    row = start + int(np.argmin(row_sums[:, 0]))
                    raise InvalidInput(
                        f"policy has probability 0 for all arms offered in row {row} of {name}"
                    )
                probabilities /= row_sums
            batch_probabilities.append(probabilities)
    if is_policy(policy):
        return np.concatenate(batch_probabilities)
    if rule is not None:
        raise InvalidInput(
            "rule can only be given for a daband policy, not for an exported policy or a function"
        )
    row_shapes = {probabilities.shape[1:] for probabilities in batch_probabilities}
    if len(row_shapes) != 1 or len(row_shapes.pop()) != 1:
        raise InvalidInput("policy must return probabilities of shape (B, K)")
    probabilities = np.concatenate(batch_probabilities)
    if len(probabilities) != len(contexts):
        raise InvalidInput(
            f"policy must return one row per context, got {len(probabilities)} rows for"
            f" {len(contexts)} {name} contexts"
        )
    is_invalid = ~(
        (probabilities >= 0).all(axis=1)
        & (np.abs(probabilities.sum(axis=1) - 1.0) <= _SUM_TOLERANCE)
    )
    if is_invalid.any():
        raise InvalidInput(
            "policy must return probabilities >= 0 with sum 1, which is not so in row "
            f"{int(np.argmax(is_invalid))} of {name}"
        )
    return probabilities
