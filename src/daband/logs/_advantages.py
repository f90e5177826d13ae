"""Learn from a log which arm is best for which context, and choose by context only if the log
proves the gain.

In most randomised experiments one arm is best for nearly all contexts. A policy that chooses by
context may lose to that arm, and its own predictions do not show it. So choosing by context is a
hypothesis that the log tests:

1. The best arm is the arm with the largest mean of doubly robust scores (``_doubly_robust.py``).
2. Two regressions of the scores on contexts, linear and piecewise, predict each arm's advantage.
   Their penalty shrinks advantages towards their means. With an infinite penalty, the best arm is
   chosen for every context.
3. Cross-fitting evaluates both regressions. The gain of a round is the score of the arm chosen by a
   regression that has not seen its fold, minus the score of the best arm. Nothing in a regression,
   its training scores or its penalty depends on the fold that it is evaluated on. A gain depends on
   the split of rounds into five folds, so it is averaged over three such splits.
4. A regression is used if the lower limit of its mean gain is above 0. If this holds for both, the
   regression with the higher limit is used.

Limits hold for both regressions at once with probability 99%, by the largest of correlated
studentised means (Chernozhukov, Chetverikov, Kato 2013) and the central limit theorem for
cross-validation (Bayle, Bayle, Janson, Mackey 2020). So the probability of using a regression that
loses to the best arm, in the domain of the log, is at most 1%. The gain is estimated for
regressions on four fifths of the log; the final regressions use all of it.

Rounds may have weights. All means and regressions are then weighted, and the standard error of a
weighted mean includes the weights. Weights are scaled so that their sum is the effective number of
rounds (Kish), which replaces the number of rounds in minimum numbers and in penalties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from daband.base._arrays import BoolArray, FloatArray, IntArray, Mask, Weights
from daband.features._piecewise import PiecewiseStep, fit_ramps
from daband.logs._doubly_robust import (
    RewardSums,
    RidgePath,
    assign_folds,
    compute_doubly_robust_scores,
)
from daband.logs._mean_estimates import MeanEstimate, estimate_mean, estimate_weighted_mean

#: The number of folds of cross-fitting.
_N_FOLDS = 5
#: The number of random splits into folds, over which gains and scores are averaged.
_N_SPLITS = 3
#: Minimum effective number of rounds in a log for choices by context.
_MIN_LOG_ROUNDS = 100
#: Minimum weight of the rounds of a *supported* arm. Only supported arms are chosen by context.
_MIN_ARM_ROUNDS = 10
#: The confidence level of the lower limits of gains.
_CONFIDENCE_LEVEL = 0.99
#: The number of random draws from which the quantile of the maximum of correlated normal variables
#: is estimated.
_N_NORMAL_DRAWS = 20_000
#: For the linear regression, context values are clipped at this quantile and at one minus this
#: quantile.
_CLIP_QUANTILE = 0.005
#: Maximum number of pieces per column in the piecewise regression.
_MAX_PIECES = 8
#: The predicted reward of an unsupported arm is this much below a lower limit of the predictions of
#: all supported arms, in standard deviations of rewards.
_UNSUPPORTED_GAP = 1e-6


@dataclass(frozen=True)
class LogEvidence:
    """The evidence for choosing by context: the cross-fitted gain over the best arm, in the unit of
    rewards.
    """

    #: The best arm, by the mean of its doubly robust scores.
    arm: int
    #: The estimated mean reward of that arm.
    value: float
    #: The mean gain per round of choosing by context instead of always the best arm; negative for a
    #: loss.
    gain: float
    #: The number of rounds in the log.
    rounds: int
    #: The fraction of rounds in which another arm than the best one is chosen.
    fraction: float
    #: The standard error of the gain.
    error: float = math.inf
    #: The lower limit of the gain, which holds with probability 99%.
    low: float = -math.inf

    @property
    def personalises(self) -> bool:
        """True if the gain is proven, so that arms are chosen by context."""
        return self.low > 0.0


@dataclass(frozen=True)
class AdvantageModel:
    """A model of each arm's reward, which is its advantage plus the mean of all arms, and the
    evidence for it.

    Predicted rewards are linear in piecewise features of contexts.
    """

    #: The transform of contexts to features.
    step: PiecewiseStep
    #: The coefficients of each arm's reward, (K, features).
    theta: FloatArray
    #: The evidence for choosing by context.
    evidence: LogEvidence


def learn_advantages(
    contexts: FloatArray,
    arms: IntArray,
    rewards: FloatArray,
    propensities: FloatArray,
    n_arms: int,
    *,
    weights: Weights = None,
    by_context: bool = True,
    offered: Mask = None,
    seed: int = 0,
) -> AdvantageModel:
    """Return a model that predicts the reward of each arm, learned from a log of n rounds.

    Predictions depend on the context only if the log proves that choosing by context is better than
    the best arm.

    Args:
        contexts: the contexts of the log, (n, d).
        arms: the logged arms, (n,).
        rewards: their rewards, (n,).
        propensities: the probability of each logged arm, (n,).
        n_arms: the number of arms.
        weights: how much each round counts, (n,), above 0; equally by default. Only their ratios
            matter.
        by_context: if False, the best arm is always chosen, and no gain is estimated.
        offered: the arms that may be chosen, (K,). If it is None or the log has none of these arms,
            all may be chosen.
        seed: determines the folds of cross-fitting.
    """
    weights = np.ones(len(arms)) if weights is None else weights / weights.max()
    weights *= weights.sum() / (weights @ weights)
    n = float(weights.sum())
    counts = np.bincount(arms, weights, minlength=n_arms)
    is_allowed = (
        np.ones(n_arms, np.bool_) if offered is None or not counts[offered].any() else offered
    )
    if n < _MIN_LOG_ROUNDS:
        return _fit_mean_rewards(
            contexts.shape[1], arms, rewards, propensities, weights, is_allowed
        )
    steps = [fit_ramps(contexts, 1, clip_quantile=_CLIP_QUANTILE), fit_ramps(contexts, _MAX_PIECES)]
    designs = [step(contexts) for step in steps]
    is_supported = is_allowed & (counts >= min(_MIN_ARM_ROUNDS, max(1, n // (2 * n_arms))))
    is_supported = is_supported if is_supported.any() else is_allowed & (counts > 0)
    splits = [
        _NestedScores(
            designs[1][:, 1:],
            arms,
            rewards,
            propensities,
            weights,
            assign_folds(0, len(arms), _N_FOLDS, split_seed),
            n_arms,
        )
        for split_seed in range(_N_SPLITS * seed, _N_SPLITS * (seed + 1))
    ]
    scores = np.mean([nested.compute_scores() for nested in splits], axis=0)
    mean_scores = weights @ scores / n
    best_arm = int(np.where(is_supported, mean_scores, -np.inf).argmax())
    gains = np.zeros((len(arms), len(steps)))
    if by_context and is_supported.sum() > 1:
        gains = np.mean(
            [_compute_gains(nested, designs, is_supported, best_arm) for nested in splits], axis=0
        )
    estimates = [estimate_weighted_mean(gain, weights) for gain in gains.T]
    quantile = _estimate_maximum_quantile(weights[:, None] * (gains - weights @ gains / n))
    lower_limits = [_compute_lower_limit(estimate, quantile) for estimate in estimates]
    best_index = int(np.argmax(lower_limits))
    contrasts = _fit_contrasts(designs[best_index], scores, weights, is_supported)
    chosen_arms = _choose_arms(designs[best_index] @ contrasts.T, is_supported, best_arm)
    fraction = float(weights @ (chosen_arms != best_arm)) / n
    gain = estimates[best_index]
    evidence = LogEvidence(
        best_arm,
        float(mean_scores[best_arm]),
        gain.value,
        len(arms),
        fraction,
        gain.standard_error,
        lower_limits[best_index],
    )
    if not evidence.personalises:
        contrasts = np.zeros_like(contrasts)
        contrasts[:, 0] = mean_scores - mean_scores.mean()
    theta = contrasts + _fit_mean_score(designs[best_index], scores, weights)
    deviation = float(rewards.std()) or 1.0
    # Unsupported arms are ranked by their mean scores. Arms without rounds are last.
    losses = -np.where(counts > 0, mean_scores, -np.inf)[~is_supported]
    theta[~is_supported] = compute_lower_theta(steps[best_index], theta[is_supported], deviation)
    theta[~is_supported, 0] -= (
        _UNSUPPORTED_GAP * deviation * np.searchsorted(np.sort(losses), losses)
    )
    return AdvantageModel(steps[best_index], theta, evidence)


def compute_lower_theta(step: PiecewiseStep, theta: FloatArray, deviation: float) -> FloatArray:
    """Return coefficients (features,) of a prediction that is lower than those of all arms, for
    every context.

    Args:
        step: the transform of contexts to features.
        theta: the coefficients of the arms, (k, features).
        deviation: the standard deviation of rewards.
    """
    lower, upper = step.feature_limits
    lower_theta = theta.mean(axis=0)
    differences = theta - lower_theta
    lower_theta[0] += np.minimum(differences * lower, differences * upper).sum(axis=1).min()
    lower_theta[0] -= _UNSUPPORTED_GAP * deviation
    return lower_theta


def assess_choices(scores: FloatArray, chosen_arms: IntArray, best_arm: int) -> LogEvidence:
    """Return the evidence for the choices ``chosen_arms`` (n,) against always choosing
    ``best_arm``.

    ``scores`` (n, K) are doubly robust scores that did not determine the choices.
    """
    gains = scores[np.arange(len(chosen_arms)), chosen_arms] - scores[:, best_arm]
    gain = estimate_mean(gains)
    low = _compute_lower_limit(gain, NormalDist().inv_cdf(_CONFIDENCE_LEVEL))
    value = float(scores[:, best_arm].mean())
    fraction = float((chosen_arms != best_arm).mean())
    return LogEvidence(best_arm, value, gain.value, len(scores), fraction, gain.standard_error, low)


def _compute_gains(
    nested: _NestedScores, designs: Sequence[FloatArray], is_supported: BoolArray, best_arm: int
) -> FloatArray:
    """Return the gain of each round over the best arm, (n, regressions).

    No regression has seen the round's fold.
    """
    scores = nested.compute_scores()
    gains = np.zeros((len(scores), len(designs)))
    for fold in range(_N_FOLDS):
        is_held_out = nested.folds == fold
        inner_scores = nested.compute_scores(excluded=fold)[~is_held_out]
        for index, design in enumerate(designs):
            theta = _fit_contrasts(
                design[~is_held_out], inner_scores, nested.weights[~is_held_out], is_supported
            )
            arms = _choose_arms(design[is_held_out] @ theta.T, is_supported, best_arm)
            fold_scores = scores[is_held_out]
            gains[is_held_out, index] = (
                fold_scores[np.arange(len(arms)), arms] - fold_scores[:, best_arm]
            )
    return gains


def _fit_mean_rewards(
    dim: int,
    arms: IntArray,
    rewards: FloatArray,
    propensities: FloatArray,
    weights: FloatArray,
    is_allowed: BoolArray,
) -> AdvantageModel:
    """Return a model that predicts each arm's mean reward for all contexts, for a log with few
    rounds.

    Rewards are also weighted by inverse propensities, and means are shrunk towards the overall
    mean.
    """
    prior_weight = float(weights @ (1.0 / propensities) / weights.sum())
    weights = weights / propensities
    n_arms = len(is_allowed)
    arm_weights = np.bincount(arms, weights, minlength=n_arms)
    overall_mean = float(weights @ rewards / weights.sum())
    reward_sums = np.bincount(arms, weights * rewards, minlength=n_arms)
    means = (reward_sums + prior_weight * overall_mean) / (arm_weights + prior_weight)
    best_arm = int(np.where(is_allowed & (arm_weights > 0), means, -np.inf).argmax())
    means[arm_weights == 0] = means[arm_weights > 0].min() - _UNSUPPORTED_GAP * (
        float(rewards.std()) or 1.0
    )
    no_ramps = np.zeros(0)
    step = PiecewiseStep(np.zeros(0, np.int64), no_ramps, no_ramps, no_ramps, no_ramps, dim)
    evidence = LogEvidence(best_arm, float(means[best_arm]), 0.0, len(arms), 0.0)
    return AdvantageModel(step, means[:, None], evidence)


class _NestedScores:
    """Cross-fitted doubly robust scores of a log.

    The model that predicts the rounds of a fold has not seen this fold. On request, it has not seen
    a second fold either, on which choices by the scores can then be evaluated.
    """

    def __init__(
        self,
        features: FloatArray,
        arms: IntArray,
        rewards: FloatArray,
        propensities: FloatArray,
        weights: FloatArray,
        folds: IntArray,
        n_arms: int,
    ) -> None:
        self._features = features
        self._arms = arms
        self._rewards = rewards
        self._propensities = propensities
        self.weights = weights
        self.folds = folds
        self._n_arms = n_arms
        self._sums = RewardSums(_N_FOLDS, n_arms, features, float(rewards.mean()))
        self._sums.add(features, folds, arms, rewards, weights)

    def compute_scores(self, excluded: int | None = None) -> FloatArray:
        """Return the scores (n, K).

        No model has seen the fold ``excluded``; the scores of its rounds are not valid.
        """
        predictions = np.zeros((len(self._arms), self._n_arms))
        penalties = None if excluded is None else self._sums.choose_penalties([excluded])
        for fold in range(self._sums.n_folds):
            if fold != excluded:
                is_held_out = self.folds == fold
                model = self._sums.fit({fold} if excluded is None else {fold, excluded}, penalties)
                predictions[is_held_out] = model.predict(self._features[is_held_out])
        return compute_doubly_robust_scores(
            predictions, self._arms, self._rewards, self._propensities
        )


def _fit_contrasts(
    design: FloatArray, scores: FloatArray, weights: FloatArray, is_supported: BoolArray
) -> FloatArray:
    """Return coefficients (K, features) of each arm's score minus the mean score of
    supported arms.
    """
    contrasts = scores - scores[:, is_supported].mean(axis=1, keepdims=True)
    path = _build_ridge_path(design, contrasts[:, is_supported], weights)
    theta = np.zeros((scores.shape[1], design.shape[1]))
    theta[is_supported] = path.compute_coefficients(path.choose_penalty()).T
    return theta


def _fit_mean_score(design: FloatArray, scores: FloatArray, weights: FloatArray) -> FloatArray:
    """Return coefficients (features,) of the mean score of all arms, which does not affect
    choices.
    """
    path = _build_ridge_path(design, scores.mean(axis=1, keepdims=True), weights)
    return path.compute_coefficients(path.choose_penalty())[:, 0]


def _build_ridge_path(design: FloatArray, targets: FloatArray, weights: FloatArray) -> RidgePath:
    """Return the ridge regressions of targets (n, m) on a design (n, features) with a leading 1,
    for rounds with weights (n,).
    """
    weighted_design = (weights[:, None] * design).T
    return RidgePath(
        weighted_design @ design, weighted_design @ targets, weights @ np.square(targets)
    )


def _choose_arms(predictions: FloatArray, is_supported: BoolArray, best_arm: int) -> IntArray:
    """Return the supported arm with the largest prediction in each row (n,), or ``best_arm`` on
    ties.
    """
    scores = np.where(is_supported, predictions, -np.inf)
    return np.where(scores[:, best_arm] >= scores.max(axis=1), best_arm, scores.argmax(axis=1))


def _estimate_maximum_quantile(gains: FloatArray) -> float:
    """Return the 99% quantile of the largest studentised mean of gains (n, regressions), if their
    expectations are 0.

    The studentised means are approximately normal, with the correlations of the gains. If rounds
    have weights, ``gains`` are centred and multiplied by the weights.
    """
    single_quantile = NormalDist().inv_cdf(_CONFIDENCE_LEVEL)
    varying_gains = gains[:, gains.std(axis=0) > 0]
    if varying_gains.shape[1] < 2:
        return single_quantile
    eigenvalues, eigenvectors = np.linalg.eigh(np.corrcoef(varying_gains.T))
    draws = np.random.default_rng(0).standard_normal((_N_NORMAL_DRAWS, len(eigenvalues)))
    maxima = (draws * np.sqrt(np.maximum(eigenvalues, 0.0)) @ eigenvectors.T).max(axis=1)
    return max(single_quantile, float(np.quantile(maxima, _CONFIDENCE_LEVEL)))


def _compute_lower_limit(gain: MeanEstimate, quantile: float) -> float:
    """Return the lower limit of a gain.

    The correction for skewness may lower the limit but not raise it.
    """
    return (
        min(gain.compute_limit(-quantile), gain.value - quantile * gain.standard_error)
        if gain.standard_error > 0
        else 0.0
    )
