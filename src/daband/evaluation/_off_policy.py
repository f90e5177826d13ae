"""Off-policy evaluation: what a policy would be worth, from the log of another one; in the log's domain or a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._arguments import between_0_and_1, one_of, whole
from daband._arrays import ArrayLike, FloatArray, one_blas_thread
from daband._table_transform import TableTransform
from daband.domains._contract import Contexts
from daband.domains.readers._columns import Columns
from daband.domains.readers._parquet_log import ParquetLog, open_log
from daband.errors import InvalidInput
from daband.evaluation._cross_fitting import FOLDS, CrossFitted, Regressor, WeightedRounds, cross_fit
from daband.evaluation._learned_logs import check_before, check_unlearned, refitted_probabilities
from daband.evaluation._off_policy_estimators import (
    MeanEstimate,
    choose_threshold,
    direct_method,
    doubly_robust,
    effective_sample_size,
    importance_weights,
    inverse_propensity,
    mean_estimate,
    normal_interval,
    self_normalised,
    switch_doubly_robust,
)
from daband.evaluation._off_policy_inputs import Log, Probabilities, policy_of, probabilities, read_log, read_target
from daband.evaluation._streamed_log import LogStream, weigh_log
from daband.policies._incoming_rounds import check_arms
from daband.policies._policy import Policy

ESTIMATORS = ("dr", "snips", "ips", "switch-dr", "dm")
_IN_MEMORY_BYTES = 1 << 30
"""Contexts of a log in files that are read as a whole, at most, where an argument needs all of them at once."""
_FEWEST = 100
"""Below as many effective rounds a normal interval is too short too often."""
_LARGEST_SHARE = 0.1
_NEGLIGIBLE = 1e-3
_DEVIATIONS = 4.0
_LEAST_MASS = 0.5
_ROUNDING = 1e-12


@dataclass(frozen=True)
class LogEstimate:
    """The value of a policy, estimated from a log, in the unit of the log's rewards.

    >>> log = ([[0.0], [1.0]] * 50, [0, 1] * 50, [0.0, 1.0] * 50, [0.5] * 100)
    >>> found = daband.evaluate_log(lambda contexts: [[0.5, 0.5]] * len(contexts), log, estimator="ips")
    >>> found.low <= found.value <= found.high, found.effective_sample_size
    (True, 100.0)
    """

    value: float
    low: float
    high: float
    """The interval that holds the value with probability ``confidence`` where the sample is large, cut off at the
    smallest and largest reward of the log."""
    error: float
    """The standard error."""
    effective_sample_size: float
    """How many rounds of equal weight would say as much: (sum of weights)^2 / sum of squared weights."""
    warnings: tuple[str, ...]
    """Reasons to doubt the estimate; empty where none was found."""
    estimator: str
    confidence: float
    rounds: int
    """Rounds of the log."""
    domain: str
    """Where the policy acts: "source" or "target"."""

    def as_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them: None for a number that is not finite."""
        fields = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        return {**fields, "warnings": list(self.warnings)}


def evaluate_log(
    policy: Probabilities,
    log: Log,
    estimator: str = "dr",
    target: ArrayLike | Contexts | None = None,
    *,
    confidence: float = 0.95,
    rule: str | None = None,
    reward_model: Regressor | None = None,
    seed: int = 0,
    columns: Columns | None = None,
    table: TableTransform | None = None,
    on_damaged: str = "refuse",
    before: Policy | None = None,
    progress: Callable[[dict[str, float]], None] | None = None,
) -> LogEstimate:
    """Estimate what a policy would be paid per round, from rounds that another policy played.

    Use rounds that the policy has not learned, e.g. ``pair.source_test`` of a pair whose source is a log. A file that
    the policy has learned by ``fit_log`` or ``learn_log`` is an error: its value there would be too high.

    Args:
        policy: the policy, unchanged afterwards; an exported one (``daband.load_deployed``), with the exploration that
            was exported; or a function from contexts (B, *C) to probabilities of arms (B, K).
        log: the rounds: ``pair.source_test``, ``LoggedRounds``, or a tuple (contexts, arms, rewards, propensities). For
            "dm", which uses none, the propensities may be None. Or Parquet files of any size, which are streamed: a
            folder, a glob such as ``"logs/*.parquet"``, a list of files, or a ``ParquetLog``.
        estimator: "dr" (doubly robust), "snips" (self-normalised inverse propensity score), "ips", "switch-dr", or
            "dm" (direct method).
        target: contexts (m, *C) of another domain, in which the policy is valued. The log's contexts are weighted by
            estimated ratios of the two densities. This assumes that a context's rewards are the same in both domains,
            and that the log has contexts like the target's. All contexts are then needed at once: Parquet files of
            more than a gigabyte are refused.
        confidence: of the interval.
        rule: "ucb" or "greedy" in place of the policy's own way to explore.
        reward_model: a regression with scikit-learn's ``fit`` and ``predict``, copied for every arm; by default a ridge
            regression. "snips" and "ips" use none. As ``target``, it needs all rounds at once.
        seed: the folds of cross-fitting.
        columns: which columns of Parquet files mean what; by default "arm", "reward" and "propensity", and all others
            are the context.
        table: turns the context columns into contexts, where they are not all numbers (``pair.table``). A policy
            for tables has its own, ``policy.table``, which is taken where neither columns nor a table are given.
        on_damaged: "refuse" Parquet files that cannot be read, with an error that names them, or "skip" them; the
            estimate's warnings then say which. That takes one more pass.
        before: the policy as it was before it learned this log, if it has learned it. The estimate is then
            cross-fitted: five copies of ``before`` learn four fifths of the log each and are evaluated on the rest.
            All rounds are needed in memory.
        progress: called for every batch of Parquet files with ``pass``, ``rows`` and ``rows_total``.

    >>> log = ([[0.0], [1.0]] * 50, [0, 1] * 50, [0.0, 1.0] * 50, [0.5] * 100)
    >>> found = daband.evaluate_log(lambda contexts: [[0.0, 1.0]] * len(contexts), log, estimator="snips")
    >>> found.value, found.rounds
    (1.0, 100)
    """
    return compare_estimators(
        policy, log, (estimator,), target, confidence=confidence, rule=rule, reward_model=reward_model, seed=seed,
        columns=columns, table=table, on_damaged=on_damaged, before=before, progress=progress,
    )[estimator]  # fmt: skip


def compare_estimators(
    policy: Probabilities,
    log: Log,
    estimators: Sequence[str] = ESTIMATORS,
    target: ArrayLike | Contexts | None = None,
    *,
    confidence: float = 0.95,
    rule: str | None = None,
    reward_model: Regressor | None = None,
    seed: int = 0,
    columns: Columns | None = None,
    table: TableTransform | None = None,
    on_damaged: str = "refuse",
    before: Policy | None = None,
    progress: Callable[[dict[str, float]], None] | None = None,
) -> dict[str, LogEstimate]:
    """The estimates of several estimators, which share their models; arguments as in ``evaluate_log``."""
    for name in estimators:
        one_of("estimator", name, ESTIMATORS)
    between_0_and_1("confidence", confidence)
    whole("seed", seed, least=0)
    known = policy_of(policy)
    if known is None and not callable(policy):
        raise InvalidInput(f"policy must be a daband policy or a function of contexts, got {type(policy).__name__}")
    if before is not None and not (isinstance(policy, Policy) and isinstance(before, Policy)):
        raise InvalidInput("before must be the daband policy that policy was before it learned the log")
    where = "target" if target is not None else "source" if known is None else known.domain
    if _is_files(log):
        opened = _open_files(policy, log, columns, table, on_damaged)
        if before is None:
            check_unlearned(policy, opened)
        else:
            check_before(known, before, opened)
        if target is None and reward_model is None and before is None:
            stream = LogStream(opened, skip_damaged=on_damaged == "skip", progress=progress)
            with one_blas_thread():
                weighted = weigh_log(policy, stream, estimators, domain=where, rule=rule, seed=seed)
            return _estimate_each(weighted, estimators, where, confidence, tuple(stream.left_out))
        _check_fits(opened, "target" if target is not None else "before" if before is not None else "reward_model")
        log = opened
    elif (columns, table) != (None, None):
        raise InvalidInput("columns and table are for a log in Parquet files; this one is in memory")
    rounds = read_log(log, None if known is None else known.n_arms)
    needing = [name for name in estimators if name != "dm"]
    if rounds.propensities is None and needing:
        raise InvalidInput(
            f"log has no propensities, which estimator={needing[0]!r} needs: log the probability with which each arm "
            "was chosen; estimator='dm' does without, and is biased as far as its reward model is wrong"
        )
    other = None if target is None else read_target(target, rounds.contexts)
    if before is not None and target is not None:
        raise InvalidInput("before is for the domain of the log; leave target out")
    notes = []
    if before is None:
        shares = probabilities(policy, rounds.contexts, where, rule, "log")
    else:
        shares = refitted_probabilities(before, rounds, domain=where, rule=rule, seed=seed)
        notes = [f"the policy has learned this log: policies that learned {FOLDS - 1} of {FOLDS} folds are evaluated"]
    check_arms(rounds.arms, len(rounds.arms), shares.shape[1])
    other_shares = None if other is None else probabilities(policy, other, where, rule, "target")
    fitted = cross_fit(
        rounds,
        shares,
        other,
        other_shares,
        rewards=any(name in ("dm", "dr", "switch-dr") for name in estimators),
        reward_model=reward_model,
        seed=seed,
        shared_arms=known is not None and known.arms == "shared",
    )
    weights = None
    if rounds.propensities is not None:
        weights = importance_weights(shares, rounds.arms, rounds.propensities)
        weights = weights if fitted.ratio is None else weights * fitted.ratio
    valued = (shares if other_shares is None else other_shares).mean(axis=0)
    plays = np.bincount(rounds.arms, minlength=shares.shape[1])
    weighted = WeightedRounds(rounds.rewards, weights, fitted, valued, plays)
    return _estimate_each(weighted, estimators, where, confidence, tuple(notes))


def _is_files(log: Any) -> bool:
    if isinstance(log, list) and log:
        return all(isinstance(one, str | Path) for one in log)
    return isinstance(log, str | Path | ParquetLog)


def _open_files(
    policy: Probabilities, log: Any, columns: Columns | None, table: TableTransform | None, on_damaged: str
) -> ParquetLog:
    known = policy_of(policy)
    if known is None:
        if isinstance(log, ParquetLog) and columns is None and table is None:
            return log
        raise InvalidInput(
            "policy is a function, which does not tell the number of arms; give the log as "
            "daband.domains.ParquetLog(files, n_arms=...)"
        )
    return open_log(log, known, columns=columns, table=table, on_damaged=on_damaged)


def _check_fits(log: ParquetLog, argument: str) -> None:
    numbers = len(log) * math.prod(log.context_shape) * (log.n_arms if log.shared else 1)
    if 8 * numbers > _IN_MEMORY_BYTES:
        raise InvalidInput(
            f"{argument} cannot be had of a log that is streamed: it needs all contexts at once, and those of "
            f"{len(log):,} rounds take {8 * numbers / 2**30:.1f} GiB; leave it out, or give some of the files"
        )


def _estimate_each(
    log: WeightedRounds, estimators: Sequence[str], domain: str, confidence: float, notes: tuple[str, ...] = ()
) -> dict[str, LogEstimate]:
    """Return every estimate with its interval and warnings, the first of which are ``notes``."""
    estimates = {}
    for name in estimators:
        weights = np.ones(len(log.rewards)) if name == "dm" or log.weights is None else log.weights
        estimate, kept = _estimate(name, log.rewards, weights, log.fitted)
        low, high = normal_interval(estimate, confidence)
        if math.isfinite(estimate.value):  # no mean lies beyond the rewards; an unbiased estimate of it may
            low = max(low, min(float(log.rewards.min()), estimate.value))
            high = min(high, max(float(log.rewards.max()), estimate.value))
        estimates[name] = LogEstimate(
            value=estimate.value,
            low=low,
            high=high,
            error=estimate.error,
            effective_sample_size=effective_sample_size(kept),
            warnings=(*notes, *_warnings(log, name, weights, kept)),
            estimator=name,
            confidence=float(confidence),
            rounds=len(log.rewards),
            domain=domain,
        )
    return estimates


def _warnings(log: WeightedRounds, estimator: str, weights: FloatArray, kept: FloatArray) -> tuple[str, ...]:
    """Reasons to doubt the estimate: few rounds that count, arms or contexts that the log does not have."""
    shares, plays, rounds = log.shares, log.plays, len(log.rewards)
    reasons = []
    unseen = np.flatnonzero((plays == 0) & (shares > _NEGLIGIBLE))
    share = float(shares[plays == 0].sum())
    if len(unseen):
        names = ", ".join(map(str, unseen[:5])) + (", ..." if len(unseen) > 5 else "")
        reasons.append(
            f"support is missing: the log never chose arm {names}, which the policy takes in {share:.1%} of "
            "rounds; nothing is known of what that pays"
        )
    ratio = log.fitted.ratio
    unlike = "" if ratio is None else _unlike_target(ratio, log.fitted.mass)
    if unlike:
        reasons.append(unlike)
    if estimator == "dm":
        reasons.append(
            "'dm' trusts its reward model, and its interval leaves out the model's bias; 'dr' corrects for it"
        )
        return tuple(reasons)
    size, total, largest = effective_sample_size(kept), float(kept.sum()), int(kept.argmax())
    if size < _FEWEST:
        reasons.append(
            f"the effective sample is small: {size:.0f} of {rounds} rounds; the interval may be too short, "
            "and a policy closer to the log's would be estimated better"
        )
    if rounds > 1 and total > 0 and kept[largest] > _LARGEST_SHARE * total:
        reasons.append(f"one round (row {largest}) carries {kept[largest] / total:.0%} of all weight")
    # Arms that the log never has take their share of the weight away; what is missing beyond that is no less lost.
    average = mean_estimate(weights)
    if abs(average.value - (1.0 - share)) > _DEVIATIONS * average.error:
        reasons.append(
            f"weights average {average.value:.3g} instead of {1.0 - share:.3g}: propensities are not those of the "
            "log, or the policy takes arms in contexts where the log never does; of those nothing is known, and "
            "the estimate leaves them out"
        )
    every = float(weights.sum())
    dropped = every - total
    if estimator == "switch-dr" and dropped > _ROUNDING * every:
        reasons.append(
            f"'switch-dr' leaves {dropped / every:.1%} of the weight to its reward model, whose error the "
            "interval does not include"
        )
    return tuple(reasons)


def _unlike_target(ratio: FloatArray, mass: float) -> str:
    """Whether the log has contexts like the target's; an empty text where it has."""
    size = effective_sample_size(ratio)
    if size < max(_FEWEST, _LARGEST_SHARE * len(ratio)):
        left = f"{size:.0f} of {len(ratio)} rounds"
        return f"the log has few contexts like the target's: the ratio of densities leaves {left}"
    if not _LEAST_MASS < mass < 1.0 / _LEAST_MASS:
        return (
            f"the log has few contexts like the target's: the ratio of densities averages {mass:.2g} over the log "
            "instead of 1, so most of the target lies where the log has nothing"
        )
    return ""


def _estimate(
    estimator: str, rewards: FloatArray, weights: FloatArray, fitted: CrossFitted
) -> tuple[MeanEstimate, FloatArray]:
    """The estimate, and the weights (n,) that it uses."""
    predicted, direct, paired = fitted.predicted, fitted.direct, fitted.ratio is None
    if estimator == "dm":
        return direct_method(direct, fitted.model_error), weights
    if estimator == "ips":
        return inverse_propensity(rewards, weights), weights
    if estimator == "snips":
        return self_normalised(rewards, weights), weights
    if estimator == "dr":
        return doubly_robust(rewards, weights, predicted, direct, paired=paired), weights
    threshold = choose_threshold(rewards, weights, predicted, direct, paired=paired)
    estimate = switch_doubly_robust(rewards, weights, predicted, direct, threshold=threshold, paired=paired)
    return estimate, np.where(weights <= threshold, weights, 0.0)
