"""Reward models and density ratios fitted to some folds of a log, and used on the others."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray, Weights
from daband.errors import InvalidInput
from daband.evaluation._off_policy_inputs import CheckedLog
from daband.linear._reward_model import RewardModel, flat_features, fold_numbers

FOLDS = 5
"""Models are fitted to all folds but one, and used on that one. Folds are those of ``fold_numbers``: a log that is read
in pieces has the same."""
_ROWS_PER_COEFFICIENT = 20
"""Squares, and products, are used where each coefficient has as many contexts of the smaller sample."""
_STEPS = 50
_LARGEST_LOGIT = 30.0


class Regressor(Protocol):
    """A regression with scikit-learn's methods."""

    def fit(self, X: FloatArray, y: FloatArray) -> Any: ...

    def predict(self, X: FloatArray) -> FloatArray: ...


class CrossFitted(NamedTuple):
    """What models say of rows that they were not fitted to."""

    predicted: FloatArray
    """Rewards that the model expects of the logged arms, (n,)."""
    direct: FloatArray
    """Rewards that it expects of the policy: (n,), or (m,) on the target's contexts."""
    ratio: FloatArray | None
    """Target density over source density of the logged contexts, (n,), scaled to a mean of 1; None without a target."""
    mass: float
    """The mean of that ratio before it was scaled: below 1 where the target has contexts that the log has not."""
    model_error: float
    """The standard error of the mean of ``direct`` that comes from the rewards which the model was fitted to."""


class WeightedRounds(NamedTuple):
    """What estimators need of a log and of a policy on it."""

    rewards: FloatArray
    """(n,)"""
    weights: Weights
    """How much each round counts, (n,); None where the log has no propensities."""
    fitted: CrossFitted
    shares: FloatArray
    """The policy's probability of every arm, averaged over the contexts in which it is valued, (K,)."""
    plays: IntArray
    """How often the log has each arm, (K,)."""


def cross_fit(
    rounds: CheckedLog,
    shares: FloatArray,
    other: AnyArray | None,
    other_shares: FloatArray | None,
    *,
    rewards: bool,
    reward_model: Regressor | None,
    seed: int,
    shared_arms: bool,
) -> CrossFitted:
    """Fit what is needed, fold by fold: a ratio of densities where there is a target, ``rewards`` where asked for.

    Args:
        rounds: the log.
        shares: the policy's probabilities at the log's contexts, (n, K).
        other: contexts of the target, (m, *C), or None.
        other_shares: the policy's probabilities there, (m, K).
        rewards: whether to fit a reward model.
        reward_model: the regression to copy, or None for ridge regression.
        seed: decides the folds.
        shared_arms: whether a round has a context per arm.
    """
    n, n_arms = shares.shape
    predicted, ratio, influence = np.zeros(n), np.ones(n), np.zeros(n)
    direct, mass = np.zeros(n if other is None else len(other)), 0.0
    if not rewards and other is None:
        return CrossFitted(predicted, direct, None, 1.0, 0.0)
    batches = flat_features(rounds.contexts, *([] if other is None else [other]), lead=2 if shared_arms else 1)
    features = batches[0]
    check_rows(min(n, n if other is None else len(batches[1])))
    numbers = fold_numbers(0, n, FOLDS, seed)
    bounds = float(rounds.rewards.min()), float(rounds.rewards.max())
    targets = None if other is None else fold_numbers(0, len(other), FOLDS, seed + 1)
    for fold in range(FOLDS):
        fit, held = np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold)
        valued, at, places = features[held], shares[held], held
        if targets is not None and other_shares is not None:
            target_fit, places = np.flatnonzero(targets != fold), np.flatnonzero(targets == fold)
            valued, at = batches[1][places], other_shares[places]
            density = DensityRatio(_rows(features[fit]), _rows(batches[1][target_fit]))
            densities = density(_rows(features[held]))
            ratio[held] = densities / densities.mean()  # a density ratio averages to 1 over the source
            mass += float(densities.sum()) / n
        if rewards:
            model = _fit_model(reward_model, features[fit], rounds.arms[fit], rounds.rewards[fit], n_arms, bounds)
            predicted[held] = model.predict(features[held])[np.arange(len(held)), rounds.arms[held]]
            direct[places] = (at * model.predict(valued)).sum(axis=1)
            if isinstance(model, RewardModel):
                influence[fit] += model.influence(valued, at)
    error = float(np.linalg.norm(influence)) / len(direct)
    return CrossFitted(predicted, direct, None if other is None else ratio, mass, error)


def check_rows(n: int) -> None:
    """Refuse n rows where models are to be fitted and these are too few."""
    if n < 2 * FOLDS:
        raise InvalidInput(f"log and target must have at least {2 * FOLDS} rows to fit models to")


class _PerArm:
    """A copy of a regression for every arm; an arm without rounds is expected to pay the mean of all."""

    def __init__(
        self, regressor: Regressor, features: FloatArray, arms: IntArray, rewards: FloatArray, n_arms: int
    ) -> None:
        self._middle = float(rewards.mean())
        self._shared = features.ndim == 3
        self._models: list[Regressor | None] = []
        if self._shared:
            model = copy.deepcopy(regressor)
            model.fit(features[np.arange(len(arms)), arms], rewards)
            self._models = [model] * n_arms
            return
        for arm in range(n_arms):
            rows = arms == arm
            model_of_arm = copy.deepcopy(regressor) if rows.any() else None
            if model_of_arm is not None:
                model_of_arm.fit(features[rows], rewards[rows])
            self._models.append(model_of_arm)

    def predict(self, features: FloatArray) -> FloatArray:
        columns = []
        for arm, model in enumerate(self._models):
            rows = features[:, arm] if self._shared else features
            columns.append(np.full(len(rows), self._middle) if model is None else np.asarray(model.predict(rows)))
        return np.stack(columns, axis=1)


def _fit_model(
    regressor: Regressor | None,
    features: FloatArray,
    arms: IntArray,
    rewards: FloatArray,
    n_arms: int,
    bounds: tuple[float, float],
) -> RewardModel | _PerArm:
    if regressor is None:
        return RewardModel(features, arms, rewards, n_arms=n_arms, bounds=bounds)
    if not (hasattr(regressor, "fit") and hasattr(regressor, "predict")):
        raise InvalidInput(f"reward_model must have fit and predict, got {type(regressor).__name__}")
    return _PerArm(regressor, features, arms, rewards, n_arms)


def _rows(features: FloatArray) -> FloatArray:
    """Features with one row a round, (n, d)."""
    return features.reshape(len(features), math.prod(features.shape[1:]))


class DensityRatio:
    """How much more likely a context is in the target than in the source, from samples of both.

    A logistic regression tells the two samples apart; its odds, times the ratio of the sample sizes, estimate the
    ratio of the densities (Bickel, Bruckner, Scheffer 2009). Features are standardised, with their squares and products
    beside them where there are contexts enough: the log ratio of two normal densities is quadratic.

    Args:
        source: features of source contexts, (n, d).
        target: features of target contexts, (m, d).
    """

    def __init__(self, source: FloatArray, target: FloatArray) -> None:
        from sklearn.linear_model import LogisticRegression  # takes a second to import

        both = np.concatenate([source, target])
        self._centre = both.mean(axis=0)
        deviation = both.std(axis=0)
        varies = deviation > 1e-12 * (1.0 + np.abs(self._centre))
        self._scale = np.where(varies, deviation, np.inf)  # a constant becomes 0
        dim, most = source.shape[1], min(len(source), len(target)) // _ROWS_PER_COEFFICIENT
        self._squares = 1 + 2 * dim <= most
        self._products = 1 + dim + dim * (dim + 1) // 2 <= most
        self._offset = math.log(len(source) / len(target))
        is_target = np.concatenate([np.zeros(len(source)), np.ones(len(target))])
        model = LogisticRegression(solver="newton-cholesky", tol=1e-8, max_iter=_STEPS)
        model.fit(self._design(both)[:, 1:], is_target)
        self.coefficients = np.concatenate([model.intercept_, model.coef_[0]])
        """(1 + d,); (1 + 2 d,) with squares; (1 + d + d (d + 1) / 2,) with products as well."""

    def __call__(self, features: FloatArray) -> FloatArray:
        """The ratio at these contexts, (n,)."""
        logits = np.clip(self._design(features) @ self.coefficients, -_LARGEST_LOGIT, _LARGEST_LOGIT)
        return np.exp(logits + self._offset)

    def _design(self, features: FloatArray) -> FloatArray:
        standard = (features - self._centre) / self._scale
        columns = [np.ones((len(features), 1)), standard]
        if self._products:
            first, second = np.triu_indices(features.shape[1])
            columns.append(standard[:, first] * standard[:, second])
        elif self._squares:
            columns.append(standard**2)
        return np.concatenate(columns, axis=1)
