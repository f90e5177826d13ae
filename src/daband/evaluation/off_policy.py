"""Off-policy evaluation: what a policy would be worth, from the log of another one; in the log's domain or a target."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from daband.arguments import finite
from daband.arrays import AnyArray, ArrayLike, FloatArray, IntArray, as_numpy
from daband.domains import Contexts, LoggedDomain, LoggedRounds, RewardDomain
from daband.errors import InvalidInput
from daband.evaluation.density_ratio import DensityRatio
from daband.evaluation.intervals import Estimate, effective_sample_size, normal_interval
from daband.evaluation.off_policy_estimators import (
    choose_threshold,
    direct_method,
    doubly_robust,
    importance_weights,
    inverse_propensity,
    self_normalised,
    switch_doubly_robust,
)
from daband.evaluation.off_policy_warnings import log_warnings
from daband.linear.reward_model import RewardModel, flat_features, split_folds
from daband.policies import Policy
from daband.policies.input_checks import checked_arms, checked_propensities, checked_rewards

__all__ = ["ESTIMATORS", "LogEstimate", "evaluate_log"]

ESTIMATORS = ("dr", "snips", "ips", "switch-dr", "dm")
_BATCH = 1024
_FOLDS = 5
_SUM = 1e-6

Log: TypeAlias = LoggedDomain | LoggedRounds | tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike | None]


class Regressor(Protocol):
    """A regression with scikit-learn's methods."""

    def fit(self, X: FloatArray, y: FloatArray) -> Any: ...

    def predict(self, X: FloatArray) -> FloatArray: ...


@dataclass(frozen=True)
class LogEstimate:
    """The value of a policy, estimated from a log, in the unit of the log's rewards."""

    value: float
    low: float
    high: float
    """The interval that holds the value with probability ``confidence`` where the sample is large."""
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
        """All fields, as JSON can hold them."""
        return {**asdict(self), "warnings": list(self.warnings)}


class _Rounds(NamedTuple):
    contexts: AnyArray
    arms: IntArray
    rewards: FloatArray
    propensities: FloatArray | None


class _Fitted(NamedTuple):
    """Cross-fitted models: each row's numbers come from models that did not see it."""

    predicted: FloatArray
    """Rewards that the model expects of the logged arms, (n,)."""
    direct: FloatArray
    """Rewards that it expects of the policy: (n,), or (m,) on the target's contexts."""
    ratio: FloatArray
    """Target density over source density of the logged contexts, (n,), scaled to a mean of 1; 1 without a target."""
    mass: float
    """The mean of that ratio before it was scaled: below 1 where the target has contexts that the log has not."""
    model_error: float
    """The standard error of the mean of ``direct`` that comes from the rewards which the model was fitted to."""


def evaluate_log(
    policy: Policy | Callable[[AnyArray], ArrayLike],
    log: Log,
    estimator: str = "dr",
    target: ArrayLike | Contexts | None = None,
    *,
    confidence: float = 0.95,
    rule: str | None = None,
    reward_model: Regressor | None = None,
    seed: int = 0,
) -> LogEstimate:
    """Estimate what a policy would be paid per round, from rounds that another policy played.

    Take rounds that the policy did not learn from, e.g. ``pair.source_test`` of a pair whose source is a log.

    Args:
        policy: the policy, unchanged afterwards; or a function from contexts (B, *C) to probabilities of arms (B, K).
        log: the rounds: ``pair.source_test``, ``LoggedRounds``, or a tuple (contexts, arms, rewards, propensities). For
            "dm", which uses none, the propensities may be None.
        estimator: "dr" (doubly robust), "snips" (self-normalised inverse propensity score), "ips", "switch-dr", or
            "dm" (direct method).
        target: contexts (m, *C) of another domain, in which the policy is valued. The log's contexts are weighted by
            estimated ratios of the two densities. This assumes that a context's rewards are the same in both domains,
            and that the log has contexts like the target's.
        confidence: of the interval.
        rule: "ucb" or "greedy" in place of the policy's own way to explore.
        reward_model: a regression with scikit-learn's ``fit`` and ``predict``, copied for every arm; by default a ridge
            regression. "snips" and "ips" use none.
        seed: the folds of cross-fitting.
    """
    if estimator not in ESTIMATORS:
        raise InvalidInput(f"estimator must be one of {', '.join(map(repr, ESTIMATORS))}, got {estimator!r}")
    if not 0.0 < finite("confidence", confidence) < 1.0:
        raise InvalidInput(f"confidence must lie between 0 and 1, got {confidence!r}")
    if not (isinstance(policy, Policy) or callable(policy)):
        raise InvalidInput(f"policy must be a daband policy or a function of contexts, got {type(policy).__name__}")
    rounds = _read_log(log, policy.n_arms if isinstance(policy, Policy) else None)
    if rounds.propensities is None and estimator != "dm":
        raise InvalidInput(
            f"log has no propensities, which estimator={estimator!r} needs: log the probability with which each arm "
            "was pulled; estimator='dm' does without, and is biased as far as its reward model is wrong"
        )
    other = None if target is None else _read_target(target, rounds.contexts)
    where = "target" if target is not None else policy.domain if isinstance(policy, Policy) else "source"
    shares = _probabilities(policy, rounds.contexts, where, rule, "log")
    checked_arms(rounds.arms, len(rounds.arms), shares.shape[1])
    other_shares = None if other is None else _probabilities(policy, other, where, rule, "target")
    shared_arms = isinstance(policy, Policy) and policy.arms == "shared"
    fitted = _cross_fit(rounds, shares, other, other_shares, estimator, reward_model, seed, shared_arms)
    weights = np.ones(len(rounds.arms))
    if rounds.propensities is not None and estimator != "dm":
        weights = importance_weights(shares, rounds.arms, rounds.propensities) * fitted.ratio
    estimate, kept = _estimate(estimator, rounds.rewards, weights, fitted, paired=other is None)
    low, high = normal_interval(estimate, confidence)
    size = effective_sample_size(kept)
    found = log_warnings(
        estimator=estimator,
        weights=weights,
        kept=kept,
        ratio=None if other is None else fitted.ratio,
        mass=fitted.mass,
        shares=shares if other_shares is None else other_shares,
        arms=rounds.arms,
    )
    return LogEstimate(
        value=estimate.value,
        low=low,
        high=high,
        error=estimate.error,
        effective_sample_size=size,
        warnings=found,
        estimator=estimator,
        confidence=float(confidence),
        rounds=len(rounds.arms),
        domain=where,
    )


def _estimate(
    estimator: str, rewards: FloatArray, weights: FloatArray, fitted: _Fitted, *, paired: bool
) -> tuple[Estimate, FloatArray]:
    """The estimate, and the weights (n,) that it uses."""
    predicted, direct = fitted.predicted, fitted.direct
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


def _cross_fit(
    rounds: _Rounds,
    shares: FloatArray,
    other: AnyArray | None,
    other_shares: FloatArray | None,
    estimator: str,
    reward_model: Regressor | None,
    seed: int,
    shared_arms: bool,
) -> _Fitted:
    n, n_arms = shares.shape
    models = estimator in ("dm", "dr", "switch-dr")
    predicted, ratio, influence = np.zeros(n), np.ones(n), np.zeros(n)
    direct, mass = np.zeros(n if other is None else len(other)), 0.0
    if not models and other is None:
        return _Fitted(predicted, direct, ratio, 1.0, 0.0)
    batches = flat_features(rounds.contexts, *([] if other is None else [other]), lead=2 if shared_arms else 1)
    features = batches[0]
    if min(n, n if other is None else len(batches[1])) < 2 * _FOLDS:
        raise InvalidInput(f"log and target must have at least {2 * _FOLDS} rows to fit models to")
    targets = None if other is None else list(split_folds(len(batches[1]), _FOLDS, seed + 1))
    for fold, (fit, held) in enumerate(split_folds(n, _FOLDS, seed)):
        valued, at, places = features[held], shares[held], held
        if targets is not None and other_shares is not None:
            target_fit, places = targets[fold]
            valued, at = batches[1][places], other_shares[places]
            density = DensityRatio(_rows(features[fit]), _rows(batches[1][target_fit]))
            found = density(_rows(features[held]))
            ratio[held] = found / found.mean()  # a density ratio averages to 1 over the source
            mass += float(found.sum()) / n
        if models:
            model = _fit_model(reward_model, features[fit], rounds.arms[fit], rounds.rewards[fit], n_arms)
            predicted[held] = model.predict(features[held])[np.arange(len(held)), rounds.arms[held]]
            direct[places] = (at * model.predict(valued)).sum(axis=1)
            if estimator == "dm" and isinstance(model, RewardModel):
                influence[fit] += model.influence(valued, at)
    return _Fitted(predicted, direct, ratio, mass, float(np.linalg.norm(influence)) / len(direct))


class _PerArm:
    """A copy of a regression for every arm; an arm without rounds is expected to pay the mean of all."""

    def __init__(
        self, regressor: Regressor, features: FloatArray, arms: IntArray, rewards: FloatArray, n_arms: int
    ) -> None:
        self._middle = float(rewards.mean())
        self._shared = features.ndim == 3
        self._models: list[Regressor | None] = []
        if self._shared:
            own = copy.deepcopy(regressor)
            own.fit(features[np.arange(len(arms)), arms], rewards)
            self._models = [own] * n_arms
            return
        for arm in range(n_arms):
            rows = arms == arm
            own_or_none = copy.deepcopy(regressor) if rows.any() else None
            if own_or_none is not None:
                own_or_none.fit(features[rows], rewards[rows])
            self._models.append(own_or_none)

    def predict(self, features: FloatArray) -> FloatArray:
        columns = []
        for arm, model in enumerate(self._models):
            rows = features[:, arm] if self._shared else features
            columns.append(np.full(len(rows), self._middle) if model is None else np.asarray(model.predict(rows)))
        return np.stack(columns, axis=1)


def _fit_model(
    regressor: Regressor | None, features: FloatArray, arms: IntArray, rewards: FloatArray, n_arms: int
) -> RewardModel | _PerArm:
    if regressor is None:
        return RewardModel(features, arms, rewards, n_arms=n_arms)
    if not (hasattr(regressor, "fit") and hasattr(regressor, "predict")):
        raise InvalidInput(f"reward_model must have fit and predict, got {type(regressor).__name__}")
    return _PerArm(regressor, features, arms, rewards, n_arms)


def _probabilities(
    policy: Policy | Callable[[AnyArray], ArrayLike], contexts: AnyArray, domain: str, rule: str | None, name: str
) -> FloatArray:
    """The policy's probability of every arm, (n, K)."""
    parts = []
    for start in range(0, len(contexts), _BATCH):
        part = contexts[start : start + _BATCH]
        if isinstance(policy, Policy):
            parts.append(policy.probabilities(part, domain, rule=rule))
        else:
            parts.append(as_numpy(policy(part), "policy's probabilities").astype(np.float64, copy=False))
    if isinstance(policy, Policy):
        return np.concatenate(parts)
    if rule is not None:
        raise InvalidInput("rule is for a daband policy; a function says its own probabilities")
    if any(part.ndim != 2 for part in parts) or len({part.shape[1] for part in parts}) != 1:
        raise InvalidInput("policy must return probabilities of shape (B, K)")
    shares = np.concatenate(parts)
    if len(shares) != len(contexts):
        raise InvalidInput(
            f"policy must return one row per context, got {len(shares)} for the {len(contexts)} of {name}"
        )
    wrong = ~((shares >= 0).all(axis=1) & (np.abs(shares.sum(axis=1) - 1.0) <= _SUM))
    if wrong.any():
        raise InvalidInput(
            f"policy's probabilities must sum to 1, those of row {int(np.argmax(wrong))} of {name} do not"
        )
    return shares


def _read_log(log: Log, n_arms: int | None) -> _Rounds:
    """The checked rounds of a log."""
    contexts: ArrayLike
    arms: ArrayLike
    rewards: ArrayLike
    propensities: ArrayLike | None
    if isinstance(log, LoggedDomain):
        rows = np.arange(len(log))
        if not len(rows):
            raise InvalidInput("log is empty")
        contexts, (arms, rewards, propensities) = log.read(rows), log.read_log(rows)
        if n_arms is not None and log.n_arms != n_arms:
            raise InvalidInput(f"log has {log.n_arms} arms, the policy {n_arms}")
    elif isinstance(log, LoggedRounds):
        contexts, arms, rewards, propensities = log.contexts, log.arms, log.rewards, log.propensities
    elif isinstance(log, tuple) and len(log) == 4:
        contexts, arms, rewards, propensities = log
    else:
        raise InvalidInput(
            "log must be a logged domain, e.g. pair.source_test, or a tuple (contexts, arms, rewards, propensities), "
            f"got {type(log).__name__}"
        )
    checked = as_numpy(contexts, "log's contexts")
    if checked.ndim < 2 or not len(checked):
        raise InvalidInput(f"log is empty or its contexts are no array (n, *C), got shape {checked.shape}")
    _check_finite(checked, "log's contexts have")
    n = len(checked)
    try:
        paid = checked_rewards(rewards, (n,))
        pulled = checked_arms(arms, n, np.iinfo(np.int64).max if n_arms is None else n_arms)
        chances = None if propensities is None else checked_propensities(propensities, n)
    except InvalidInput as error:
        raise InvalidInput(f"log: {error}") from None
    if not np.isfinite(paid).all():
        raise InvalidInput(f"log: reward in row {int(np.argmin(np.isfinite(paid)))} is not a finite number")
    return _Rounds(checked, pulled, paid, chances)


def _read_target(target: ArrayLike | Contexts, logged: AnyArray) -> AnyArray:
    if isinstance(target, RewardDomain | LoggedDomain):
        raise InvalidInput("target must be contexts alone, e.g. pair.target; its rewards have no use here")
    contexts = target.read(np.arange(len(target))) if isinstance(target, Contexts) else as_numpy(target, "target")
    if contexts.shape[1:] != logged.shape[1:] or not len(contexts):
        raise InvalidInput(
            f"target must hold contexts of the log's shape, (m, {', '.join(map(str, logged.shape[1:]))}), got "
            f"{contexts.shape}"
        )
    _check_finite(contexts, "target has")
    return contexts


def _check_finite(contexts: AnyArray, who: str) -> None:
    if contexts.dtype.kind == "f" and not np.isfinite(contexts).all():
        raise InvalidInput(f"{who} a NaN or infinite value, first in row {np.argwhere(~np.isfinite(contexts))[0][0]}")


def _rows(features: FloatArray) -> FloatArray:
    """Features with one row a round, (n, d)."""
    return features.reshape(len(features), math.prod(features.shape[1:]))
