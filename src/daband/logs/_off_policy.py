"""Estimate the value of a policy from the log of another policy, in the domain of the log or in a
target.

``evaluate_log`` reads the log and computes a weight and a predicted reward for each round
(``_scores.py``, for a target with the weights of ``_target_mix.py``). ``_build_estimate`` computes
the estimate from them. The last two functions return reasons to doubt it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daband.base._arguments import check_int, check_probability
from daband.base._arrays import ArrayLike, FloatArray, IntArray, check_arms, take_chosen
from daband.base._folds import N_FOLDS
from daband.base._lazy_polars import pl
from daband.domains._contract import Contexts
from daband.domains.readers._columns import Columns
from daband.domains.readers._logs import ArrayLog
from daband.domains.readers._parquet_log import ParquetLog, open_log
from daband.domains.readers._reading import describe_repeated_ids
from daband.errors import InvalidInput
from daband.logs._learned_logs import (
    check_ids_not_learned,
    count_learned,
    has_learned_all,
    is_policy,
    raise_if_learned,
)
from daband.logs._mean_estimates import (
    compute_effective_size,
    estimate_mean,
)
from daband.logs._off_policy_inputs import (
    Log,
    PolicyLike,
    compute_arm_probabilities,
    read_log,
    read_target,
)
from daband.logs._scores import RewardModel, Scores, build_feature_map
from daband.logs._target_mix import weigh_for_target
from daband.rounds._rounds import Rounds
from daband.serving._deployed_policy import DeployedPolicy

#: Minimum effective sample size without a warning. Below it, intervals are too short too often.
_MIN_EFFECTIVE_ROUNDS = 100
#: If more than this fraction of rounds have the median reward (e.g. 0 for no purchase), it is the
#: usual reward.
_MIN_USUAL_FRACTION = 0.5
#: Largest fraction of the total weight that one round may have without a warning.
_MAX_WEIGHT_FRACTION = 0.1
#: Warnings ignore arms that the policy chooses with a smaller probability.
_NEGLIGIBLE_PROBABILITY = 1e-3
#: Largest difference between the mean weight and its expectation without a warning, in standard
#: errors.
_MAX_STANDARD_ERRORS = 3.0
#: An estimated propensity below this number means that the log hardly ever chooses the arm in such
#: a context. Estimated propensities are clipped at 0.01.
_MAX_RARE_PROPENSITY = 0.011


class WeightedRounds(NamedTuple):
    """The rewards, weights and predicted rewards of a log for a policy."""

    #: The reward of each round, (n,).
    rewards: FloatArray
    #: The policy's probability of the logged arm, divided by its propensity and multiplied by
    #: ``density_ratios``, (n,).
    weights: FloatArray
    #: The predicted reward of each logged arm, (n,).
    arm_predictions: FloatArray
    #: The predicted reward of the policy (the direct method) at each logged context, (n,), or
    #: target context, (m,).
    policy_predictions: FloatArray
    #: The policy's probability of every arm, averaged over the contexts of the domain in which it
    #: is evaluated, (K,).
    mean_probabilities: FloatArray
    #: Number of rounds with each arm in the log, (K,).
    arm_counts: IntArray
    #: The density of target contexts divided by the density of source contexts, at each context of
    #: the log, (n,), with mean 1; None without a target.
    density_ratios: FloatArray | None = None
    #: Index of each round's cluster, (n,); None if rounds are independent.
    clusters: IntArray | None = None


@dataclass(frozen=True)
class LogEstimate:
    """The value of a policy per round, estimated from a log, in the unit of its rewards.

    >>> log = ([[0.0], [1.0]] * 50, [0, 1] * 50, [0.0, 1.0] * 50, [0.5] * 100)
    >>> estimate = daband.evaluate_log(lambda contexts: [[0.5, 0.5]] * len(contexts), log)
    >>> estimate.low <= estimate.value <= estimate.high, estimate.effective_sample_size
    (True, 100.0)
    """

    #: Estimated mean reward.
    value: float
    #: Lower limit of the confidence interval, which is corrected for skewness.
    low: float
    #: Upper limit of the confidence interval.
    high: float
    #: The standard error of the value.
    error: float
    #: The number of rounds of equal weight that would give the same variance:
    #: (sum of weights)^2 / sum of squared weights.
    effective_sample_size: float
    #: Reasons to doubt the estimate; empty if there are none.
    warnings: tuple[str, ...]
    #: Confidence level of the interval.
    confidence: float
    #: Number of rounds of the log.
    rounds: int
    #: The domain in which the policy acts: "source" or "target".
    domain: str

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a dictionary that JSON can hold, with None for a number that is not
        finite.
        """
        fields = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        return {**fields, "warnings": list(self.warnings)}


def evaluate_log(
    policy: PolicyLike,
    log: Log,
    target: ArrayLike | Contexts | None = None,
    *,
    confidence: float = 0.95,
    rule: str | None = None,
    seed: int = 0,
    columns: Columns | None = None,
    id: Any = None,  # noqa: A002
    clusters: Any = None,
    model: RewardModel = "piecewise",
) -> LogEstimate:
    """Estimate the mean reward of a policy from the log of another policy.

    Use rounds that the policy has not learned, e.g. ``pair.source_test`` of a pair whose source is
    a log. An estimate from learned rounds would be too high. A file raises an error if the policy
    has learned it, by ``fit_log`` or ``learn_log``, or by ``train`` or ``choose`` on a pair that was
    made from its path. Other rounds in memory are recognised by their ids.

    Args:
        policy: a policy, which does not change; an exported policy (``daband.load_deployed``) with
            the exploration that was exported; or a function from contexts (B, *C) to probabilities
            of arms (B, K).
        log: ``pair.source_test``, ``Rounds``, or a tuple (contexts, arms, rewards,
            propensities). If the propensities are None, they are estimated, with a warning. For
            Parquet files, pass a folder, a glob such as ``"logs/*.parquet"``, a list of files, or a
            ``ParquetLog``; their rounds must fit into memory.
        target: contexts (m, *C) of another domain, in which the value is estimated. The log's
            contexts are weighted so that they are like the target's. This assumes that a
            context's rewards are the same in both domains, and that the log has contexts like the
            target's.
        confidence: the probability with which the interval contains the value.
        rule: "ucb" or "greedy" instead of the policy's exploration.
        seed: seed of the folds of cross-fitting.
        columns: the roles of columns of Parquet files; by default "arm", "reward" and "propensity",
            and all others are the context. A policy for tables reads the columns of
            ``policy.table``.
        id: the column of files with the id of a round, as in ``learn_log``; for rounds in memory,
            an id per round.
        clusters: the column of files with the cluster that arms were drawn for, such as a school or
            a customer; for rounds in memory, a cluster per round. By default arms were drawn for
            each round. Folds and standard errors are then by cluster.
        model: the model of rewards: "piecewise", "ridge", "trees", or a regressor of scikit-learn.

    >>> log = ([[0.0], [1.0]] * 50, [0, 1] * 50, [0.0, 1.0] * 50, [0.5] * 100)
    >>> estimate = daband.evaluate_log(lambda contexts: [[0.0, 1.0]] * len(contexts), log)
    >>> round(estimate.value, 2), estimate.rounds
    (1.0, 100)
    """
    check_probability("confidence", confidence)
    check_int("seed", seed, minimum=0)
    daband_policy: Any = policy if is_policy(policy) else None
    if isinstance(policy, DeployedPolicy):
        daband_policy = policy.frozen
    if daband_policy is None and not callable(policy):
        raise InvalidInput(
            f"policy must be a daband policy or a function of contexts, got {type(policy).__name__}"
        )
    domain = (
        "target"
        if target is not None
        else "source"
        if daband_policy is None
        else daband_policy.domain
    )
    notes = []
    file_log = None
    if _is_file_log(log):
        file_log = _open_file_log(policy, log, columns, id, clusters)
        unrewarded_counts = file_log.unrewarded.items()
        notes += [
            f"{path}: {count:,} rounds have no reward and are left out"
            for path, count in unrewarded_counts
        ]
        notes += file_log.describe_repeated_ids(id)
        raise_if_learned(count_learned(policy, file_log, id), len(file_log))
        log = file_log
        clusters = None
    elif columns is not None:
        raise InvalidInput("columns can only be given for a log in files, not for rounds in memory")
    n_policy_arms = None if daband_policy is None else daband_policy.n_arms
    log_domain = read_log(log, n_policy_arms, clusters)
    n_rounds = len(log_domain)
    raise_if_learned(n_rounds if has_learned_all(policy, log_domain) else 0, n_rounds)
    rounds: Rounds = log_domain.read_rounds(np.arange(len(log_domain)))
    if id is not None and file_log is None:
        check_ids_not_learned(policy, id, n_rounds)
        if rounds.clusters is None:
            id_frame = pl.DataFrame({"id": id, "arm": rounds.arms}, strict=False)
            notes += describe_repeated_ids(id_frame)
    target_contexts = None if target is None else read_target(target, rounds.contexts)
    log_probabilities = compute_arm_probabilities(
        policy, rounds.contexts, domain, rule, "log", offered=rounds.offered
    )
    n_arms = log_probabilities.shape[1]
    check_arms(rounds.arms, len(rounds), n_arms)
    if isinstance(log_domain, ArrayLog) and log_domain.propensity_method:
        rare_fraction = float((rounds.known_propensities < _MAX_RARE_PROPENSITY).mean())
        remark = (
            f"; {rare_fraction:.1%} of the rounds have an arm that the log hardly ever chooses in"
            " such contexts"
        )
        remark = remark if rare_fraction else ""
        notes.append(
            f"the log has no propensities; they are {log_domain.propensity_method}{remark}"
        )
    _check_rows(n_rounds)
    scores = Scores(rounds, n_arms, model=model, seed=seed)
    predictions = scores.predictions
    weighted_log = WeightedRounds(
        rounds.rewards,
        take_chosen(log_probabilities, rounds.arms) / rounds.known_propensities,
        take_chosen(predictions, rounds.arms),
        (log_probabilities * predictions).sum(axis=1),
        log_probabilities.mean(axis=0),
        np.bincount(rounds.arms, minlength=n_arms),
    )
    if rounds.clusters is not None:
        indices = np.unique(rounds.clusters, return_inverse=True)[1]
        weighted_log = weighted_log._replace(clusters=indices)
    if target_contexts is not None:
        _check_rows(len(target_contexts))
        probabilities = compute_arm_probabilities(policy, target_contexts, domain, rule, "target")
        # components of the log alone could lack a shift between the domains
        to_features = build_feature_map(np.concatenate([rounds.contexts, target_contexts]))
        ratios = weigh_for_target(to_features(rounds.contexts), to_features(target_contexts))
        weighted_log = weighted_log._replace(
            weights=weighted_log.weights * ratios,
            policy_predictions=(probabilities * scores.predict(target_contexts)).sum(axis=1),
            mean_probabilities=probabilities.mean(axis=0),
            density_ratios=ratios,
        )
    return _build_estimate(weighted_log, domain, confidence, notes)


def _check_rows(n_rows: int) -> None:
    """Raise an error if ``n_rows`` rows are too few for cross-fitting."""
    if n_rows < 2 * N_FOLDS:
        raise InvalidInput(
            f"log and target must have at least {2 * N_FOLDS} rows each to fit models, got {n_rows}"
        )


def _is_file_log(log: Any) -> bool:
    """Return True if a log consists of Parquet files, and False if it is in memory."""
    if isinstance(log, list) and log:
        return all(isinstance(path, str | Path) for path in log)
    return isinstance(log, str | Path | ParquetLog)


def _open_file_log(
    policy: PolicyLike,
    log: Any,
    columns: Columns | None,
    id_column: str | None,
    cluster_column: str | None,
) -> ParquetLog:
    """Return a log in files whose columns are read into contexts of the policy's shape."""
    reader: Any = policy
    if not (is_policy(policy) or isinstance(policy, DeployedPolicy)):
        if not isinstance(log, ParquetLog):
            raise InvalidInput(
                "policy is a function, so the number of arms is not known; pass the log as "
                "daband.domains.ParquetLog(files, n_arms=...)"
            )
        reader = log
    return open_log(
        log, reader, columns=columns, skip_unrewarded=True, id=id_column, cluster=cluster_column
    )


def _build_estimate(
    weighted_log: WeightedRounds,
    domain: str,
    confidence: float,
    notes: Sequence[str],
) -> LogEstimate:
    """Return the estimate with its interval and its warnings, the first of which are ``notes``."""
    corrections = weighted_log.weights * (weighted_log.rewards - weighted_log.arm_predictions)
    if weighted_log.density_ratios is None:
        terms = weighted_log.policy_predictions + corrections
        estimate = estimate_mean(terms, weighted_log.clusters)
    else:  # target contexts and logged rounds are two independent samples
        estimate = estimate_mean(weighted_log.policy_predictions)
        estimate = estimate.plus(estimate_mean(corrections, weighted_log.clusters))
    low, high = estimate.compute_interval(confidence)
    return LogEstimate(
        value=estimate.value,
        low=low,
        high=high,
        error=estimate.standard_error,
        effective_sample_size=compute_effective_size(weighted_log.weights),
        warnings=(
            *notes,
            *_check_support(weighted_log),
            *_check_sample(weighted_log, confidence),
        ),
        confidence=float(confidence),
        rounds=len(weighted_log.rewards),
        domain=domain,
    )


def _check_support(log: WeightedRounds) -> list[str]:
    """Return reasons to doubt the estimate: arms or contexts that the log lacks, or wrong
    propensities.
    """
    reasons = []
    unseen_arms = np.flatnonzero(
        (log.arm_counts == 0) & (log.mean_probabilities > _NEGLIGIBLE_PROBABILITY)
    )
    unseen_probability = float(log.mean_probabilities[log.arm_counts == 0].sum())
    if len(unseen_arms):
        arm_list = ", ".join(map(str, unseen_arms[:5])) + (", ..." if len(unseen_arms) > 5 else "")
        reasons.append(
            f"support is missing: the log never chose arm {arm_list}, which the policy chooses in "
            f"{unseen_probability:.1%} of rounds; its reward is unknown"
        )
    if log.density_ratios is not None:
        effective_size = compute_effective_size(log.density_ratios)
        cause = "the log has few contexts like the target's: the ratio of densities"
        if effective_size < max(
            _MIN_EFFECTIVE_ROUNDS, _MAX_WEIGHT_FRACTION * len(log.density_ratios)
        ):
            reasons.append(
                f"{cause} leaves {effective_size:.0f} of {len(log.density_ratios)} rounds"
            )
    mean_weight = estimate_mean(log.weights, log.clusters)
    expected_weight = 1.0 - unseen_probability
    if abs(mean_weight.value - expected_weight) > _MAX_STANDARD_ERRORS * mean_weight.standard_error:
        reasons.append(
            f"weights average {mean_weight.value:.3g} instead of {expected_weight:.3g}:"
            " propensities are not those of the log, or the policy chooses arms in contexts where"
            " the log never does"
        )
    return reasons


def _check_sample(log: WeightedRounds, confidence: float) -> list[str]:
    """Return reasons why the interval contains the value less often than ``confidence``: a small
    effective sample, or few unusual rewards.
    """
    reasons = []
    n_rounds = len(log.rewards)
    weights = log.weights
    total_weight = float(weights.sum())
    heaviest_row = int(weights.argmax())
    if (effective_size := compute_effective_size(weights)) < _MIN_EFFECTIVE_ROUNDS:
        reasons.append(
            f"the effective sample is small: {effective_size:.0f} of {n_rounds} rounds; the"
            " interval may be too short, and a policy closer to the log's would be estimated"
            " better"
        )
    if (
        n_rounds > 1
        and total_weight > 0
        and weights[heaviest_row] > _MAX_WEIGHT_FRACTION * total_weight
    ):
        reasons.append(
            f"one round (row {heaviest_row}) has {weights[heaviest_row] / total_weight:.0%} of all"
            " weight"
        )
    usual_reward = float(np.median(log.rewards))
    is_unusual = log.rewards != usual_reward
    n_unusual = compute_effective_size(weights * is_unusual)
    # If a log is expected to have fewer unusual rewards than this number, it has none, and an
    # interval around the usual reward, with a probability above (1 - confidence) / 2.
    min_unusual = -math.log((1.0 - confidence) / 2.0)
    if is_unusual.mean() < 1.0 - _MIN_USUAL_FRACTION and n_unusual < min_unusual:
        reasons.append(
            f"only {n_unusual:.0f} rounds of the policy's arms have another reward than"
            f" {usual_reward:g}; the interval may be too short"
        )
    return reasons
