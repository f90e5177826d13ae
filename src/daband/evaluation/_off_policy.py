"""Off-policy evaluation: the value of a policy from the log of another policy, in the log's domain or a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._arguments import check_int, check_one_of, check_probability
from daband._arrays import AnyArray, ArrayLike, FloatArray, check_arms, one_blas_thread
from daband.domains._contract import Contexts, LoggedRounds
from daband.domains.readers._columns import Columns
from daband.domains.readers._logs import ArrayLog
from daband.domains.readers._parquet_log import ParquetLog, open_log
from daband.errors import InvalidInput
from daband.evaluation._learned_logs import (
    check_unlearned,
    check_unlearned_ids,
)
from daband.evaluation._off_policy_inputs import Log, Probabilities, policy_of, probabilities, read_log, read_target
from daband.evaluation._weighted_log import (
    FoldModels,
    MemoryRounds,
    StreamedRounds,
    WeightedRounds,
    move_to_target,
    weigh_log,
)
from daband.linear._mean_estimates import MeanEstimate, effective_sample_size, mean_estimate, self_normalised
from daband.policies._policy import Policy
from daband.serving._deployed_policy import DeployedPolicy

ESTIMATORS = ("dr", "snips", "ips")
#: Maximum number of bytes of contexts that are read into memory if an argument needs all of them.
_IN_MEMORY_BYTES = 1 << 30
#: Number of effective rounds below which a warning is given, because intervals are too short too often.
_MIN_ROUNDS = 100
#: Number of rewards other than the most frequent one, below which the skewness of rewards cannot be estimated.
_MIN_REWARDS = 20
#: Fraction of the rounds with the same reward, above which other rewards are counted, such as purchases.
_USUAL = 0.5
#: Largest fraction of the weight that one round may have.
_MAX_FRACTION = 0.1
#: Largest fraction of the variance that may come from one round; coverage falls below 0.93 from about 0.13 on.
_MAX_VARIANCE = 0.12
#: Largest fraction of the variance that may come from one round if the estimate is skewed by a heavy tail.
_MAX_SKEWED_VARIANCE = 0.06
#: Skewness above which an estimate is considered skewed.
_MAX_SKEWNESS = 0.1
#: Probability of an arm below which it is ignored in warnings.
_NEGLIGIBLE = 1e-3
#: Largest difference of the mean weight from its expectation, in standard errors.
_MAX_DEVIATION = 3.0
#: Smallest mean of the density ratio without a warning; the largest is its inverse.
_MIN_MASS = 0.5
#: Estimated propensities are at least 0.01; a value near it means that the log hardly ever has the arm there.
_MIN_PROPENSITY = 0.011


@dataclass(frozen=True)
class LogEstimate:
    """The value of a policy per round, estimated from a log, in the unit of its rewards.

    >>> log = ([[0.0], [1.0]] * 50, [0, 1] * 50, [0.0, 1.0] * 50, [0.5] * 100)
    >>> found = daband.evaluate_log(lambda contexts: [[0.5, 0.5]] * len(contexts), log, estimator="ips")
    >>> found.low <= found.value <= found.high, found.effective_sample_size
    (True, 100.0)
    """

    #: Estimated mean reward.
    value: float
    #: Lower limit of the interval that contains the value with probability ``confidence``, corrected for skewness.
    low: float
    #: Upper limit of the interval.
    high: float
    #: The standard error.
    error: float
    #: The number of rounds of equal weight with the same variance: (sum of weights)^2 / sum of squared weights.
    effective_sample_size: float
    #: Reasons to doubt the estimate; empty if there are none.
    warnings: tuple[str, ...]
    #: Name of the estimator.
    estimator: str
    #: Confidence level of the interval.
    confidence: float
    #: Number of rounds of the log.
    rounds: int
    #: The domain in which the policy acts: "source" or "target".
    domain: str

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a dictionary that JSON can hold, with None for a number that is not finite."""
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
    seed: int = 0,
    columns: Columns | None = None,
    id: Any = None,  # noqa: A002 - the name of the role, as in learn_log
    progress: Callable[[dict[str, float]], None] | None = None,
) -> LogEstimate:
    """Estimate the mean reward of a policy from the log of another policy.

    Use rounds that the policy has not learned, e.g. ``pair.source_test`` of a pair whose source is a log. A file that
    the policy has learned by ``fit_log`` or ``learn_log`` is an error: its value there would be too high. Rounds that
    it has learned by ``update`` are recognised by their ids.

    Args:
        policy: the policy, unchanged afterwards; an exported one (``daband.load_deployed``), with the exploration that
            was exported; or a function from contexts (B, *C) to probabilities of arms (B, K).
        log: the rounds: ``pair.source_test``, ``LoggedRounds``, or a tuple (contexts, arms, rewards, propensities). If
            the propensities are None they are estimated, with a warning. Or Parquet files of any size, which are
            streamed: a folder, a glob such as ``"logs/*.parquet"``, a list of files, or a ``ParquetLog``.
        estimator: "dr" (doubly robust), "snips" (self-normalised inverse propensity score), or "ips".
        target: contexts (m, *C) of another domain, in which the value is estimated. The log's contexts are weighted by
            estimated ratios of the two densities. This assumes that a context's rewards are the same in both domains,
            and that the log has contexts like the target's. All contexts are then needed at once: Parquet files of
            more than a gigabyte are an error.
        confidence: the probability with which the interval contains the value.
        rule: "ucb" or "greedy" instead of the policy's exploration.
        seed: seed of the folds of cross-fitting.
        columns: the roles of columns of Parquet files; by default "arm", "reward" and "propensity", and all others
            are the context. A policy for tables reads the columns of ``policy.table``.
        id: the column of files with the id of a round, as in ``learn_log``; for rounds in memory, an id per round.
        progress: called for every batch of Parquet files with ``pass``, ``rows`` and ``rows_total``.

    >>> log = ([[0.0], [1.0]] * 50, [0, 1] * 50, [0.0, 1.0] * 50, [0.5] * 100)
    >>> found = daband.evaluate_log(lambda contexts: [[0.0, 1.0]] * len(contexts), log, estimator="snips")
    >>> found.value, found.rounds
    (1.0, 100)
    """
    check_one_of("estimator", estimator, ESTIMATORS)
    check_probability("confidence", confidence)
    check_int("seed", seed, minimum=0)
    known = policy_of(policy)
    if known is None and not callable(policy):
        raise InvalidInput(f"policy must be a daband policy or a function of contexts, got {type(policy).__name__}")
    where = "target" if target is not None else "source" if known is None else known.domain
    with_models = estimator == "dr"
    notes = []
    if _is_files(log):
        opened = _open_files(policy, log, columns, id)
        missing = opened.unrewarded.items()
        notes += [f"{path}: {rounds:,} rounds have no reward and are left out" for path, rounds in missing]
        check_unlearned(policy, opened, id)
        if target is None:
            stream = StreamedRounds(opened, progress=progress)

            def of_batch(first: int, contexts: AnyArray) -> FloatArray:
                return probabilities(policy, contexts, where, rule, "log", first=first)

            with one_blas_thread():
                models = FoldModels(stream, seed) if with_models else None
                weighted = weigh_log(stream, of_batch, models, seed)
            return _estimated(weighted, estimator, where, confidence, notes)
        _check_fits(opened)
        log = opened
    elif columns is not None:
        raise InvalidInput("columns can only be given for a log in files, not for rounds in memory")
    logged = read_log(log, None if known is None else known.n_arms)
    if id is not None and not isinstance(log, ParquetLog):
        check_unlearned_ids(policy, id, len(logged))
    rounds: LoggedRounds = logged.read_rounds(np.arange(len(logged)))
    other = None if target is None else read_target(target, rounds.contexts)
    chances = probabilities(policy, rounds.contexts, where, rule, "log", offered=rounds.offered)
    n_arms = chances.shape[1]
    check_arms(rounds.arms, len(rounds), n_arms)
    if isinstance(logged, ArrayLog) and logged.propensities_estimated:
        rare = float((rounds.propensities < _MIN_PROPENSITY).mean())
        support = f"; {rare:.1%} of the rounds have an arm that the log hardly ever chooses there" if rare else ""
        notes.append(f"the log has no propensities; they are {logged.propensities_estimated}{support}")
    in_memory = MemoryRounds(rounds, n_arms, shared=known is not None and known.arms == "shared")
    models = FoldModels(in_memory, seed) if with_models else None
    weighted = weigh_log(in_memory, lambda *_: chances, models, seed)
    if other is not None:
        there = probabilities(policy, other, where, rule, "target")
        weighted = move_to_target(weighted, rounds.contexts, other, there, models, seed)
    return _estimated(weighted, estimator, where, confidence, notes)


def _is_files(log: Any) -> bool:
    """Return True if a log is in files."""
    if isinstance(log, list) and log:
        return all(isinstance(one, str | Path) for one in log)
    return isinstance(log, str | Path | ParquetLog)


def _open_files(policy: Probabilities, log: Any, columns: Columns | None, id_column: str | None) -> ParquetLog:
    if not isinstance(policy, Policy | DeployedPolicy):
        if isinstance(log, ParquetLog) and columns is None:
            return log
        raise InvalidInput(
            "policy is a function, so the number of arms is not known; pass the log as "
            "daband.domains.ParquetLog(files, n_arms=...)"
        )
    roles = {} if id_column is None else {"id": id_column}
    return open_log(log, policy, columns=columns, roles=roles, skip_unrewarded=True)


def _check_fits(log: ParquetLog) -> None:
    """Raise an error if the contexts of a log are too large for the memory."""
    numbers = len(log) * math.prod(log.context_shape) * (log.n_arms if log.shared else 1)
    if 8 * numbers > _IN_MEMORY_BYTES:
        raise InvalidInput(
            "target needs all contexts of the log in memory, and those of "
            f"{len(log):,} rounds take {8 * numbers / 2**30:.1f} GiB; omit target, or pass fewer files"
        )


def _estimated(
    log: WeightedRounds, estimator: str, domain: str, confidence: float, notes: Sequence[str]
) -> LogEstimate:
    """Return the estimate with its interval and warnings, the first of which are ``notes``."""
    estimate, terms = _estimate(estimator, log)
    low, high = estimate.interval(confidence)
    return LogEstimate(
        value=estimate.value,
        low=low,
        high=high,
        error=estimate.error,
        effective_sample_size=effective_sample_size(log.weights),
        warnings=(*notes, *_support_warnings(log), *_sample_warnings(log, terms, estimate.skewness)),
        estimator=estimator,
        confidence=float(confidence),
        rounds=len(log.rewards),
        domain=domain,
    )


def _estimate(estimator: str, log: WeightedRounds) -> tuple[MeanEstimate, FloatArray]:
    """Return the estimate, and the terms (n,) of the log's rounds from which its error is computed."""
    if estimator == "ips":
        terms = log.weights * log.rewards
        return mean_estimate(terms), terms
    if estimator == "snips":
        estimate = self_normalised(log.rewards, log.weights)
        return estimate, log.weights * (log.rewards - estimate.value)
    corrections = log.weights * (log.rewards - log.predicted)
    if log.ratio is None:
        terms = log.direct + corrections
        return mean_estimate(terms), terms
    return mean_estimate(log.direct).plus(mean_estimate(corrections)), corrections  # two independent samples


def _support_warnings(log: WeightedRounds) -> list[str]:
    """Return reasons to doubt the estimate: arms or contexts missing from the log, wrong propensities."""
    reasons = []
    unseen = np.flatnonzero((log.arm_counts == 0) & (log.probabilities > _NEGLIGIBLE))
    missing = float(log.probabilities[log.arm_counts == 0].sum())
    if len(unseen):
        names = ", ".join(map(str, unseen[:5])) + (", ..." if len(unseen) > 5 else "")
        reasons.append(
            f"support is missing: the log never chose arm {names}, which the policy chooses in {missing:.1%} of "
            "rounds; its reward is unknown"
        )
    if log.ratio is not None:
        size = effective_sample_size(log.ratio)
        few = "the log has few contexts like the target's: the ratio of densities"
        if size < max(_MIN_ROUNDS, _MAX_FRACTION * len(log.ratio)):
            reasons.append(f"{few} leaves {size:.0f} of {len(log.ratio)} rounds")
        elif not _MIN_MASS < log.mass < 1.0 / _MIN_MASS:
            reasons.append(f"{few} averages {log.mass:.2g} over the log instead of 1")
    average = mean_estimate(log.weights)
    if abs(average.value - (1.0 - missing)) > _MAX_DEVIATION * average.error:
        reasons.append(
            f"weights average {average.value:.3g} instead of {1.0 - missing:.3g}: propensities are not those of the "
            "log, or the policy chooses arms in contexts where the log never does"
        )
    return reasons


def _sample_warnings(log: WeightedRounds, terms: FloatArray, skewness: float) -> list[str]:
    """Return reasons to doubt the interval: few effective rounds or rewards, or one round that dominates."""
    reasons = []
    n, weights = len(log.rewards), log.weights
    size, total, largest = effective_sample_size(weights), float(weights.sum()), int(weights.argmax())
    if size < _MIN_ROUNDS:
        reasons.append(
            f"the effective sample is small: {size:.0f} of {n} rounds; the interval may be too short, and a policy "
            "closer to the log's would be estimated better"
        )
    if n > 1 and total > 0 and weights[largest] > _MAX_FRACTION * total:
        reasons.append(f"one round (row {largest}) has {weights[largest] / total:.0%} of all weight")
    usual = float(np.median(log.rewards))
    others = log.rewards != usual
    counted = int((others & (weights > 0)).sum())
    if others.mean() < 1.0 - _USUAL and counted < _MIN_REWARDS:
        reasons.append(
            f"only {counted} rounds of the policy's arms have another reward than {usual:g}; the interval may be too "
            "short"
        )
    squares = np.square(terms - terms.mean())
    largest_term, variance = int(squares.argmax()), float(squares.sum())
    max_fraction = _MAX_SKEWED_VARIANCE if abs(skewness) > _MAX_SKEWNESS else _MAX_VARIANCE
    if variance > 0 and squares[largest_term] > max_fraction * variance:
        reasons.append(
            f"one reward (row {largest_term}: {log.rewards[largest_term]:g}) contributes "
            f"{squares[largest_term] / variance:.0%} of the variance; the interval may be too short"
        )
    return reasons
