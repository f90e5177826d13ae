"""Advantages over the best arm, learned from a log and used only if the log proves them.

In most randomised experiments one arm is best for nearly all contexts. A policy that chooses by context anyway loses to
that arm, and its own predictions do not show it. So personalisation is a hypothesis, which the log tests:

1. Doubly robust scores (``_doubly_robust.py``) give the best arm by their means.
2. Two regressions of the scores on contexts, linear and piecewise, predict each arm's advantage. Their penalty shrinks
   advantages towards their means, at which the best arm is chosen everywhere.
3. Cross-fitting evaluates both: the gain of a round is the score of the arm chosen by regressions that have not seen
   its fold, minus the score of the best arm. Nothing in the regressions, their training scores or their penalties
   depends on the fold that they are evaluated on. A gain depends on the split of rounds into five folds, so it is
   averaged over three such splits.
4. A regression is used if the lower limit of its gain is above 0; if both are, the one with the higher limit is used.

Limits hold for both regressions at once with probability 99%, by the largest of correlated studentised means
(Chernozhukov, Chetverikov, Kato 2013) and the central limit theorem for cross-validation (Bayle, Bayle, Janson, Mackey
2020). So the probability of using a regression that loses to the best arm, in the domain of the log, is at most 1%.
The gain is estimated for regressions on four fifths of the log; the final regressions use all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from daband._arrays import BoolArray, FloatArray, IntArray, Mask
from daband.linear._doubly_robust import RewardSums, RidgePath, doubly_robust_scores, fold_numbers
from daband.linear._mean_estimates import MeanEstimate, mean_estimate
from daband.linear._piecewise import PiecewiseStep, ramps_step

_FOLDS = 5
#: Splits of the rounds into folds over which gains and scores are averaged.
_SPLITS = 3
#: Rounds that a log needs for choices by context.
_MIN_LOG = 100
#: Rounds that an arm needs to be chosen by context.
_MIN_ROUNDS = 10
#: The probability that no used regression loses to the best arm.
_CONFIDENCE = 0.99
#: Random draws from which the quantile of the maximum of correlated normal variables is estimated.
_DRAWS = 20_000
#: For the linear regression, context values are clipped at this quantile and at one minus this quantile.
_TRIM = 0.005
_PIECES = 8
#: Distance of an arm with few rounds below the best arm, in standard deviations of the reward.
_GAP = 1e-6


@dataclass(frozen=True)
class LogEvidence:
    """Evidence for choosing by context: the cross-fitted gain over the best arm, in the unit of the rewards."""

    #: The best arm, by the mean of its doubly robust scores.
    arm: int
    #: The mean reward of that arm.
    value: float
    #: The mean gain per round of choosing by context; negative if that loses.
    gain: float
    #: The standard error of the gain.
    error: float
    #: The lower limit of the gain, which holds with probability 99%.
    low: float
    #: Rounds of the log.
    rounds: int
    #: The fraction of rounds in which another arm than the best one is chosen.
    fraction: float

    @property
    def personalises(self) -> bool:
        """True if the gain is proven, so that arms are chosen by context."""
        return self.low > 0.0


@dataclass(frozen=True)
class Advantages:
    """Predicted rewards that are linear in features of contexts."""

    #: Maps contexts to features.
    step: PiecewiseStep
    #: Coefficients of each arm's reward, (K, features).
    theta: FloatArray
    evidence: LogEvidence


def learn_advantages(
    contexts: FloatArray,
    arms: IntArray,
    rewards: FloatArray,
    propensities: FloatArray,
    n_arms: int,
    *,
    by_context: bool = True,
    offered: Mask = None,
    seed: int = 0,
) -> Advantages:
    """Learn from a log: contexts (n, d), and arms, rewards and propensities (n,).

    Without ``by_context`` the best arm is always chosen, and there is no estimated gain. ``offered`` (K,) are the arms
    that may be chosen; if the log has none of them, all arms may be.
    """
    n, counts = len(arms), np.bincount(arms, minlength=n_arms)
    usable = np.ones(n_arms, np.bool_) if offered is None or not counts[offered].any() else offered
    if n < _MIN_LOG:
        return _best_mean(contexts.shape[1], arms, rewards, propensities, usable)
    steps = [ramps_step(contexts, 1, trim=_TRIM), ramps_step(contexts, _PIECES)]
    designs = [step(contexts) for step in steps]
    supported = usable & (counts >= min(_MIN_ROUNDS, max(1, n // (2 * n_arms))))
    supported = supported if supported.any() else usable & (counts > 0)
    splits = [
        _NestedScores(designs[1][:, 1:], arms, rewards, propensities, fold_numbers(0, n, _FOLDS, key), n_arms)
        for key in range(_SPLITS * seed, _SPLITS * (seed + 1))
    ]
    scores = np.mean([nested.scores() for nested in splits], axis=0)
    best = int(np.where(supported, scores.mean(axis=0), -np.inf).argmax())
    gains = np.zeros((n, len(steps)))
    if by_context and supported.sum() > 1:
        gains = np.mean([_cross_fitted_gains(nested, designs, supported, best) for nested in splits], axis=0)
    estimates = [mean_estimate(column) for column in gains.T]
    quantile = _largest_quantile(gains)
    lows = [_lower_limit(estimate, quantile) for estimate in estimates]
    used = int(np.argmax(lows))
    contrasts = _fit_contrasts(designs[used], scores, supported)
    chosen = _choices(designs[used] @ contrasts.T, supported, best)
    evidence = _evidence(estimates[used], lows[used], scores[:, best], best, float((chosen != best).mean()))
    if not evidence.personalises:
        contrasts = _fit_constants(scores, contrasts.shape[1])
    theta = contrasts + _fit_level(designs[used], scores)
    theta[~supported] = theta[best]
    theta[~supported, 0] -= _GAP * (float(rewards.std()) or 1.0)
    return Advantages(steps[used], theta, evidence)


def prove_choices(scores: FloatArray, chosen: IntArray, best: int) -> LogEvidence:
    """Return the gain of choices (n,) over the best arm, by doubly robust scores (n, K) that did not determine them."""
    gains = scores[np.arange(len(chosen)), chosen] - scores[:, best]
    gain = mean_estimate(gains)
    low = _lower_limit(gain, NormalDist().inv_cdf(_CONFIDENCE))
    return _evidence(gain, low, scores[:, best], best, float((chosen != best).mean()))


def _cross_fitted_gains(
    nested: _NestedScores, designs: Sequence[FloatArray], supported: BoolArray, best: int
) -> FloatArray:
    """Return the gain of each round (n, regressions), by regressions that have not seen its fold."""
    scores = nested.scores()
    gains = np.zeros((len(scores), len(designs)))
    for fold in range(_FOLDS):
        held, fit = nested.folds == fold, nested.folds != fold
        inside = nested.scores(without=fold)[fit]
        for which, design in enumerate(designs):
            theta = _fit_contrasts(design[fit], inside, supported)
            chosen = _choices(design[held] @ theta.T, supported, best)
            of_fold = scores[held]
            gains[held, which] = of_fold[np.arange(len(chosen)), chosen] - of_fold[:, best]
    return gains


def _best_mean(
    dim: int, arms: IntArray, rewards: FloatArray, propensities: FloatArray, usable: BoolArray
) -> Advantages:
    """Return the arms' means, weighted by inverse propensities and shrunk towards the mean over all arms."""
    weights, n_arms = 1.0 / propensities, len(usable)
    counts = np.bincount(arms, weights, minlength=n_arms)
    middle = float(weights @ rewards / weights.sum())
    one = float(weights.mean())
    means = (np.bincount(arms, weights * rewards, minlength=n_arms) + one * middle) / (counts + one)
    best = int(np.where(usable & (counts > 0), means, -np.inf).argmax())
    none = np.zeros(0)
    step = PiecewiseStep(np.zeros(0, np.int64), none, none, none, none, dim)
    evidence = LogEvidence(best, float(means[best]), 0.0, math.inf, -math.inf, len(arms), 0.0)
    return Advantages(step, means[:, None], evidence)


class _NestedScores:
    """Doubly robust scores of a log, cross-fitted; optionally by models that have not seen one more fold either."""

    def __init__(
        self,
        features: FloatArray,
        arms: IntArray,
        rewards: FloatArray,
        propensities: FloatArray,
        folds: IntArray,
        n_arms: int,
    ) -> None:
        self._features, self._arms, self._rewards = features, arms, rewards
        self._propensities, self.folds, self._n_arms = propensities, folds, n_arms
        self._sums = RewardSums(_FOLDS, n_arms, features, float(rewards.mean()))
        self._sums.add(features, folds, arms, rewards)

    def scores(self, without: int | None = None) -> FloatArray:
        """Return the scores (n, K); models do not see the fold ``without``, whose own scores are undefined."""
        predicted = np.zeros((len(self._arms), self._n_arms))
        penalties = None if without is None else self._sums.penalties([without])
        for fold in range(self._sums.folds):
            if fold != without:
                held = self.folds == fold
                model = self._sums.fit({fold} if without is None else {fold, without}, penalties)
                predicted[held] = model.predict(self._features[held])
        return doubly_robust_scores(predicted, self._arms, self._rewards, self._propensities)


def _fit_contrasts(design: FloatArray, scores: FloatArray, supported: BoolArray) -> FloatArray:
    """Return coefficients (K, features) of each arm's score less the mean score of all supported arms."""
    contrasts = scores - scores[:, supported].mean(axis=1, keepdims=True)
    path = _ridge_path(design, contrasts[:, supported])
    theta = np.zeros((scores.shape[1], design.shape[1]))
    theta[supported] = path.coefficients(path.best_penalty()).T
    return theta


def _fit_constants(scores: FloatArray, features: int) -> FloatArray:
    theta = np.zeros((scores.shape[1], features))
    theta[:, 0] = scores.mean(axis=0) - scores.mean()
    return theta


def _fit_level(design: FloatArray, scores: FloatArray) -> FloatArray:
    """Return coefficients (features,) of the mean score of all arms, which does not affect choices."""
    path = _ridge_path(design, scores.mean(axis=1, keepdims=True))
    return path.coefficients(path.best_penalty())[:, 0]


def _ridge_path(design: FloatArray, targets: FloatArray) -> RidgePath:
    return RidgePath(design.T @ design, design.T @ targets, np.square(targets).sum(axis=0))


def _choices(predicted: FloatArray, supported: BoolArray, best: int) -> IntArray:
    """Return the arm with the largest prediction (n,), or the best arm on ties."""
    allowed = np.where(supported, predicted, -np.inf)
    chosen = allowed.argmax(axis=1)
    return np.where(allowed[:, best] >= allowed.max(axis=1), best, chosen)


def _largest_quantile(gains: FloatArray) -> float:
    """Return the quantile of the largest of the columns' studentised means, if all their expectations are 0."""
    alone = NormalDist().inv_cdf(_CONFIDENCE)
    deviations = gains.std(axis=0)
    varying = gains[:, deviations > 0]
    if varying.shape[1] < 2:
        return alone
    values, vectors = np.linalg.eigh(np.corrcoef(varying.T))
    draws = np.random.default_rng(0).standard_normal((_DRAWS, len(values)))
    largest = (draws * np.sqrt(np.maximum(values, 0.0)) @ vectors.T).max(axis=1)
    return max(alone, float(np.quantile(largest, _CONFIDENCE)))


def _lower_limit(gain: MeanEstimate, quantile: float) -> float:
    """Return the lower limit of a gain; the correction for skewness may lower it but not raise it."""
    return min(gain.limit(quantile), gain.value - quantile * gain.error) if gain.error > 0 else 0.0


def _evidence(gain: MeanEstimate, low: float, scores: FloatArray, best: int, fraction: float) -> LogEvidence:
    return LogEvidence(best, float(scores.mean()), gain.value, gain.error, low, len(scores), fraction)
