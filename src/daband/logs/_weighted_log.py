"""Compute what estimators need from a log: the reward, weight and predicted reward of each round.

``FoldModels`` fits reward models, and ``weigh_log`` computes the result. ``move_to_target`` changes
the weights for another domain, by ``DensityRatio``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray, take_chosen
from daband.domains._contract import gather_rows
from daband.errors import InvalidInput
from daband.logs._doubly_robust import (
    RewardModel,
    RewardSums,
    assign_folds,
    build_feature_map,
    compute_doubly_robust_scores,
)
from daband.rounds._rounds import Rounds

#: A density ratio uses squares and products of features if the smaller sample has this many rows
#: per coefficient.
_ROWS_PER_COEFFICIENT = 20
#: Maximum number of iterations of the logistic regression.
_MAX_ITERATIONS = 50
#: Largest absolute value of a logit; the odds of larger ones could overflow.
_MAX_LOGIT = 30.0
#: Number of folds of cross-fitting. A model is fitted to all folds but one, and predicts for that
#: one.
N_FOLDS = 5
#: Maximum number of rows from which means and scales of features are estimated.
_SAMPLE_ROWS = 4096
#: Largest allowed weight; sums of squares of such weights are finite.
_MAX_WEIGHT = 1e100


class WeightedRounds(NamedTuple):
    """The rewards, weights and predicted rewards that estimators need from a log and a policy."""

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
    #: the log, (n,); None without a target. It is scaled to a mean of 1.
    density_ratios: FloatArray | None = None
    #: The mean of ``density_ratios`` before scaling. It is below 1 if the target has contexts that
    #: the log lacks.
    mean_ratio: float = 1.0
    #: Index of each round's cluster, (n,); None if rounds are independent.
    clusters: IntArray | None = None


class FoldModels:
    """Reward models for cross-fitting: one for every fold, fitted to the other folds.

    Args:
        rounds: the rounds of a log.
        n_arms: the number of arms, K.
        seed: seed of the assignment of rounds to folds.
    """

    def __init__(self, rounds: Rounds, n_arms: int, seed: int) -> None:
        _check_rows(len(rounds))
        #: The fold of each round, (n,): by cluster if there are clusters.
        self.folds: IntArray = assign_folds(len(rounds), N_FOLDS, seed)
        if rounds.clusters is not None:
            self.folds = (rounds.clusters + seed) % N_FOLDS
        self.to_features = build_feature_map(rounds.contexts)
        features = self.to_features(rounds.contexts)
        mean_reward = float(rounds.rewards.mean())
        sums = RewardSums(N_FOLDS, n_arms, features[:_SAMPLE_ROWS], mean_reward)
        sums.add(features, self.folds, rounds.arms, rounds.rewards)
        self._models: list[RewardModel] = [sums.fit([fold]) for fold in range(N_FOLDS)]

    def predict(self, contexts: AnyArray, folds: IntArray) -> FloatArray:
        """Return predicted rewards of every arm, (n, K), by the models that were fitted without the
        contexts' folds.
        """
        features = self.to_features(contexts)
        (predictions,) = gather_rows(
            folds, lambda fold, rows: [self._models[fold].predict(features[rows])]
        )
        return predictions


def score_rounds(rounds: Rounds, n_arms: int, *, seed: int = 0) -> FloatArray:
    """Return the doubly robust scores (n, K) of rounds.

    With fewer than 10 rounds no models are fitted, and the mean reward is predicted for every arm.
    The score of an arm that was not offered is the logged reward, as if a policy that prefers this
    arm had to choose the logged arm.
    """
    if len(rounds) < 2 * N_FOLDS:
        predictions = np.full((len(rounds), n_arms), rounds.rewards.mean())
    else:
        models = FoldModels(rounds, n_arms, seed)
        predictions = models.predict(rounds.contexts, models.folds)
    scores = compute_doubly_robust_scores(
        predictions, rounds.arms, rounds.rewards, rounds.known_propensities
    )
    return (
        scores
        if rounds.offered is None
        else np.where(rounds.offered, scores, rounds.rewards[:, None])
    )


def weigh_log(rounds: Rounds, probabilities: FloatArray, models: FoldModels) -> WeightedRounds:
    """Return the rewards, weights and predicted rewards of a log.

    ``probabilities`` (n, K) are those of the policy.
    """
    predictions = models.predict(rounds.contexts, models.folds)
    clusters = rounds.clusters
    return WeightedRounds(
        rounds.rewards,
        _compute_importance_weights(probabilities, rounds),
        take_chosen(predictions, rounds.arms),
        (probabilities * predictions).sum(axis=1),
        probabilities.mean(axis=0),
        np.bincount(rounds.arms, minlength=probabilities.shape[1]),
        clusters=None if clusters is None else np.unique(clusters, return_inverse=True)[1],
    )


def move_to_target(
    weighted_log: WeightedRounds,
    source_contexts: AnyArray,
    target_contexts: AnyArray,
    target_probabilities: FloatArray,
    models: FoldModels,
    seed: int,
) -> WeightedRounds:
    """Return the rounds of a log, weighted for the target.

    Weights are multiplied by the density ratios at the log's ``source_contexts`` (n, *C). The
    fields ``policy_predictions`` and ``mean_probabilities`` are computed for ``target_contexts``
    (m, *C), where the policy's probabilities are ``target_probabilities`` (m, K).
    """
    _check_rows(min(len(source_contexts), len(target_contexts)))
    source_folds = assign_folds(len(source_contexts), N_FOLDS, seed)
    target_folds = assign_folds(len(target_contexts), N_FOLDS, seed + 1)
    # components of the log alone could lack a shift between the domains
    to_features = build_feature_map(np.concatenate([source_contexts, target_contexts]))
    density_ratios, mean_ratio = estimate_density_ratios(
        to_features(source_contexts),
        source_folds,
        to_features(target_contexts),
        target_folds,
    )
    predictions = models.predict(target_contexts, target_folds)
    return weighted_log._replace(
        weights=weighted_log.weights * density_ratios,
        policy_predictions=(target_probabilities * predictions).sum(axis=1),
        mean_probabilities=target_probabilities.mean(axis=0),
        density_ratios=density_ratios,
        mean_ratio=mean_ratio,
    )


def _compute_importance_weights(probabilities: FloatArray, rounds: Rounds) -> FloatArray:
    """Return the policy's probability of the logged arm, divided by its propensity, (n,)."""
    with np.errstate(over="ignore"):
        weights: FloatArray = take_chosen(probabilities, rounds.arms) / rounds.known_propensities
    is_too_large = ~(weights < _MAX_WEIGHT)
    if is_too_large.any():
        row = int(np.argmax(is_too_large))
        raise InvalidInput(
            f"log: the propensity {rounds.known_propensities[row]:g} gives a weight of"
            f" {weights[row]:.2g}, which is too large for an estimate; check that propensities are"
            " probabilities of the logged arm, and drop such rounds"
        )
    return weights


def _check_rows(n_rows: int) -> None:
    """Raise an error if ``n_rows`` rows are too few for cross-fitting."""
    if n_rows < 2 * N_FOLDS:
        raise InvalidInput(
            f"log and target must have at least {2 * N_FOLDS} rows each to fit models, got {n_rows}"
        )


class DensityRatio:
    """The ratio of the target density to the source density, estimated from samples of both.

    A logistic regression separates the two samples. Its odds, times the ratio of the sample sizes,
    estimate the ratio of the densities (Bickel, Bruckner, Scheffer 2009). Features are
    standardised. If there are enough contexts, squares and products are added, because the log
    ratio of two normal densities is quadratic.

    Args:
        source_features: features of source contexts, (n, d).
        target_features: features of target contexts, (m, d).
    """

    def __init__(self, source_features: FloatArray, target_features: FloatArray) -> None:
        # Imported here, because the import takes a second.
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler

        n_features = source_features.shape[1]
        max_coefficients = min(len(source_features), len(target_features)) // _ROWS_PER_COEFFICIENT
        pipeline_steps: list[Any] = [StandardScaler()]
        if 1 + n_features + n_features * (n_features + 1) // 2 <= max_coefficients:
            pipeline_steps.append(PolynomialFeatures(2, include_bias=False))
        elif 1 + 2 * n_features <= max_coefficients:
            pipeline_steps.append(FunctionTransformer(lambda x: np.concatenate([x, x**2], axis=1)))
        pipeline_steps.append(
            LogisticRegression(solver="newton-cholesky", tol=1e-8, max_iter=_MAX_ITERATIONS)
        )
        is_target = np.repeat([0, 1], [len(source_features), len(target_features)])
        self._model = make_pipeline(*pipeline_steps).fit(
            np.concatenate([source_features, target_features]), is_target
        )
        self._log_size_ratio = math.log(len(source_features) / len(target_features))

    def __call__(self, features: FloatArray) -> FloatArray:
        """Return the ratio at contexts with these features, (n,)."""
        logits = np.clip(self._model.decision_function(features), -_MAX_LOGIT, _MAX_LOGIT)
        return np.exp(logits + self._log_size_ratio)


def estimate_density_ratios(
    source_features: FloatArray,
    source_folds: IntArray,
    target_features: FloatArray,
    target_folds: IntArray,
) -> tuple[FloatArray, float]:
    """Return the density ratio at source contexts (n,), scaled to a mean of 1, and its mean before
    scaling.

    The ratio at a context is estimated from the other folds of both samples. The mean is below 1 if
    the target has contexts that the source lacks.
    """
    density_ratios = np.empty(len(source_features))
    mean_ratio = 0.0
    for fold in np.unique(source_folds):
        is_held_out = source_folds == fold
        density_ratio = DensityRatio(
            source_features[~is_held_out], target_features[target_folds != fold]
        )
        fold_ratios = density_ratio(source_features[is_held_out])
        density_ratios[is_held_out] = fold_ratios / fold_ratios.mean()
        mean_ratio += float(fold_ratios.sum()) / len(source_features)
    return density_ratios, mean_ratio
