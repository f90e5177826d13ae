"""Learn from a log which arm is best for which context, and choose by context only if the log
proves the gain over the best arm.

``trust/_assess.py`` estimates the advantage over any incumbent from these values.

In most randomised experiments one arm is best for nearly all contexts. A policy that chooses by
context may lose to that arm, and its own predictions do not show it. So choosing by context is a
hypothesis that the log tests:

1. The best arm is the arm with the largest shrunken mean of doubly robust scores
   (``_scores.py``). If contexts of the target are known and another arm is proven to be
   better for them (``_target_mix.py``), it is that arm. Means with large standard errors are
   shrunken more (an empirical Bayes estimate).
2. Candidates predict each arm's reward from contexts: two regressions of the scores, linear and
   piecewise; a ridge regression per arm; and boosted trees per arm. Of the last two there is a
   second version, whose differences between contexts are halved.
3. Cross-fitting evaluates the candidates. The value of a round is the score of the arm that was
   chosen without the rounds of its fold. Nothing in a candidate, its training scores or its penalty
   depends on the fold that it is evaluated on. Values depend on the split of rounds into five
   folds, so they are averaged over three such splits.
4. The candidate with the highest lower limit of its gain over the best arm is used if this limit is
   above 0, and if it chooses another arm in at least 100 rounds, so that its gain is approximately
   normal. Otherwise the best arm is always chosen. If there is such a regression, trees must gain
   more by one standard error (the one-standard-error rule of Breiman et al. 1984), because their
   gain is from one split only.
5. A log that grows is tested again and again, and a limit near 0 changes its sign by chance. So once
   a gain was proven, arms are chosen by context as long as the estimated gain is positive.

Limits hold for all candidates at once with probability 95%, by the largest of correlated
studentised means (Chernozhukov, Chetverikov, Kato 2013) and the central limit theorem for
cross-validation (Bayle, Bayle, Janson, Mackey 2020). So the probability of using a candidate that
loses to the best arm, in the domain of the log, is at most 5%. If there are target contexts, and
rewards given contexts may differ between the domains, the limit must also exceed what gains
usually lose between the domains of an experiment (``_experiments.py``).

The log does not show how a regression extrapolates to target contexts that the log does not have.
Trees do not extrapolate. So with target contexts, a limit is at most the gain plus the difference
between the mean gains that trees predict for the target and for the log.

``PolicyValues`` has the values of the final policy, from which the advantage over any incumbent is
estimated. If it chooses by context, they are values of policies learned from four fifths of the
log. If not, they are the scores of the best arm, whose lead over another arm is rather too large;
the number of arms from which it was chosen determines the limit (``_experiments.py``).

Rounds may have weights. All means and regressions are then weighted, and the standard error of a
weighted mean includes the weights. Weights are scaled so that their sum is the effective number of
rounds (Kish), which replaces the number of rounds in minimum numbers and in penalties. If rounds
have clusters, folds and standard errors are by cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple, Protocol

import numpy as np

from daband.base._arrays import BoolArray, FloatArray, IntArray, Mask, take_chosen
from daband.base._folds import N_FOLDS, assign_folds
from daband.features._piecewise import PiecewiseStep, fit_ramps
from daband.logs._experiments import (
    compute_between_deviation,
    compute_lower_limit,
    compute_target_limit,
)
from daband.logs._mean_estimates import MeanEstimate, estimate_mean
from daband.logs._reward_sums import RewardSums, fit_ridge
from daband.logs._scores import SplitScores, list_split_seeds
from daband.logs._target_mix import MixEstimate, TargetMix, compute_shift_index
from daband.rounds._rounds import Rounds

#: Minimum effective number of rounds in which a candidate chooses another arm than the best one.
_MIN_LOG_ROUNDS = 100
#: Minimum effective number of rounds for cross-fitting.
MIN_CROSS_FITTED_ROUNDS = 20
#: Minimum number of clusters for cross-fitting.
MIN_CLUSTERS = 10
#: Minimum weight of the rounds of a *supported* arm. Only supported arms are chosen by context.
_MIN_ARM_ROUNDS = 10
#: Minimum effective number of rounds for boosted trees.
_MIN_TREE_ROUNDS = 400
#: The confidence level of the lower limits of the gains of all candidates.
_CANDIDATES_LEVEL = 0.95
#: The confidence level of other tests.
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
#: The candidates: the best arm, two regressions of scores, and a ridge regression and boosted trees
#: per arm, both also with halved differences between contexts.
CANDIDATES = ("best arm", "linear", "piecewise", "ridge", "half ridge", "trees", "half trees")
#: The factor of the differences between contexts in the predictions of each candidate.
_FACTORS = (0.0, 1.0, 1.0, 1.0, 0.5, 1.0, 0.5)
#: The index of the first candidate with trees.
_FIRST_TREES = 5
#: An arm may be the best one unless its mean is this many standard errors below.
_CONTENDER_QUANTILE = 2.326


def weigh_target_rounds(log: Rounds, is_target: BoolArray, n_arms: int) -> Rounds:
    """Return a log of both domains, corrected and weighted for the target.

    ``is_target`` is a mask (n,). A regression on the source's rounds predicts the target's rewards.
    If the mean error of an arm is not 0, with probability 99%, it is added to the source's rewards
    of this arm. The limit is Bernstein's, with the largest error as the bound, because a normal
    limit does not hold for few rounds or rare rewards. If the mean error is below it, its product
    with the fraction of target rounds in the arm's rounds is added, which is the best estimate if
    the arm's rewards are the same in both domains. Standard errors of the log do not include the
    error of this mean. The corrected predictions are then compared with the arm's mean reward in
    the target. If they are worse by more than the estimation error of effects that are 0, with
    probability 99%, effects differ between the domains. Source and target rounds then count alike:
    the given log is returned.

    Otherwise target rounds count by the precision of their scores. The variance of a doubly robust
    score is about proportional to the sum of the inverse propensities of all arms, which is the
    expectation of 1 / propensity^2. So 2,000 target rounds in which an arm has a propensity of
    0.025 would make the means of 8,000 uniform source rounds less precise.
    """
    if is_target.all() or not is_target.any():
        return log
    features = fit_ramps(log.contexts, 1)(log.contexts)[:, 1:]
    sums = RewardSums(2, n_arms, features, float(log.rewards.mean()))
    sums.add(features, is_target.astype(np.int64), log.arms, log.rewards, log.known_weights)
    predictions = sums.fit({1}).predict(features)
    errors = log.rewards - take_chosen(predictions, log.arms)
    n_source, n_target, error_sums, reward_sums = (
        np.bincount(log.arms, values, minlength=n_arms)
        for values in (~is_target, is_target, is_target * errors, is_target * log.rewards)
    )
    is_compared = is_target & (n_source > 0)[log.arms]
    n_source, n_target = np.maximum((n_source, n_target), 1.0)
    mean_errors = error_sums / n_target
    noise = float(errors.var())
    group_errors = errors
    if log.clusters is not None:  # errors of an arm in a cluster are not independent
        groups = np.unique(log.clusters * n_arms + log.arms, return_inverse=True)[1]
        group_errors = np.bincount(groups, errors).astype(np.float64)
        noise *= float(np.square(group_errors).sum() / (np.square(errors).sum() or 1.0))
    log_level = math.log(2.0 * n_arms / (1.0 - _CONFIDENCE_LEVEL))
    limits = np.sqrt(2.0 * log_level * noise * (1.0 / n_source + 1.0 / n_target))
    limits += log_level * np.abs(group_errors).max() / (3.0 * np.minimum(n_source, n_target))
    is_other = np.abs(mean_errors) > limits
    shifts = mean_errors * np.maximum(is_other, n_target / (n_source + n_target))
    if shifts.any() and is_compared.any():
        shifted_errors = errors - shifts[log.arms]
        mean_rewards = (reward_sums / n_target)[log.arms]
        leads = np.square(log.rewards - mean_rewards) - np.square(shifted_errors)
        clusters = None if log.clusters is None else log.clusters[is_compared]
        lead = estimate_mean(leads[is_compared], clusters=clusters)
        # the loss that estimated effects have if the true ones are 0
        loss = noise * features.shape[1] * (1.0 / n_source[log.arms[is_compared]]).mean()
        quantile = NormalDist().inv_cdf(_CONFIDENCE_LEVEL)
        if lead.value < -loss - quantile * lead.standard_error:
            return log
        log = replace(log, rewards=log.rewards + ~is_target * shifts[log.arms])
    squares = log.known_propensities**-2
    ratio = squares[~is_target].mean() / squares[is_target].mean()
    return replace(log, weights=np.where(is_target, ratio, 1.0) * log.known_weights)


class FeatureStep(Protocol):
    """A transform of contexts (n, d) to features (n, m), one of which is a constant 1."""

    @property
    def constant_index(self) -> int:
        """The index of the constant feature."""

    def __call__(self, contexts: FloatArray, /) -> FloatArray: ...

    @property
    def feature_limits(self) -> tuple[FloatArray, FloatArray]:
        """A lower and an upper limit of each feature, (m,)."""


#: A function that fits trees to rounds: it returns a step with a feature per arm, its predicted
#: reward, and a constant 1 as the last feature.
FitTrees = Callable[[Rounds, int], FeatureStep]


@dataclass(frozen=True)
class LogEvidence:
    """The evidence for choosing by context: the cross-fitted gain over the best arm, in the unit of
    rewards.

    With target contexts, all numbers are estimates for these contexts.
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
    #: The name of the candidate with this gain, one of ``CANDIDATES``.
    candidate: str = CANDIDATES[0]
    #: The number of target contexts; 0 if the numbers are those of the log's contexts.
    target_contexts: int = 0
    #: True if arms are chosen by context: the gain is proven, or it was proven by an earlier fit and
    #: is still estimated to be positive.
    personalises: bool = False
    #: The standard error of the gain.
    error: float = math.inf
    #: The lower limit of the gain, which holds with probability 95%; for contexts of the target, it
    #: is at most the gain that trees predict there.
    low: float = -math.inf


@dataclass(frozen=True)
class PolicyValues:
    """Cross-fitted estimates of a policy's reward in each round of a log."""

    #: The doubly robust scores of all arms, (n, K).
    scores: FloatArray
    #: The score of the policy's arm, (n,).
    values: FloatArray
    #: Estimates means for the contexts of the target.
    mix: TargetMix
    #: The number of arms that may be better than the best one, by the log.
    n_contenders: int
    #: The best arm for the contexts of the log.
    source_arm: int
    #: The standard deviation of rewards.
    deviation: float
    #: The rewards that policies predict which have not learned the round, (n, K); minus infinity
    #: for arms that are not chosen.
    predictions: FloatArray

    def find_arms(self) -> IntArray:
        """Return the arm that policies choose which have not learned the round, (n,)."""
        return self.predictions.argmax(axis=1)

    def estimate_source_mean(self, values: FloatArray) -> float:
        """Return the mean of values (n,) for the contexts of the log."""
        return float(self.mix.weights @ values)


@dataclass(frozen=True)
class AdvantageModel:
    """A model of each arm's reward, which is its advantage plus the mean of all arms, and the
    evidence for it.

    Predicted rewards are linear in features of contexts.
    """

    #: The transform of contexts to features: piecewise ramps, or predictions of trees.
    step: FeatureStep
    #: The coefficients of each arm's reward, (K, features).
    theta: FloatArray
    #: The evidence for choosing by context.
    evidence: LogEvidence
    #: The cross-fitted values of the policy; None for a log with few rounds.
    values: PolicyValues | None = None
    #: ``values.values`` and predictions, (n, 1 + K); no rows for the best arm, None if unknown.
    cross_fitted: FloatArray | None = None


def learn_advantages(
    log: Rounds,
    n_arms: int,
    *,
    target: FloatArray | None = None,
    rewards_may_differ: bool = True,
    by_context: bool = True,
    offered: Mask = None,
    fit_trees: FitTrees | None = None,
    seed: int = 0,
    was_proven: bool = False,
) -> AdvantageModel:
    """Return a model that predicts the reward of each arm, learned from a log of n rounds.

    Predictions depend on the context only if the log proves that choosing by context is better than
    the best arm.

    Args:
        log: the log.
        n_arms: the number of arms.
        target: contexts of the target, (m, d); None to learn for the contexts of the log.
        rewards_may_differ: False if rewards given contexts are the same in both domains.
        by_context: if False, the best arm is always chosen, and no gain is estimated.
        offered: the arms that may be chosen, (K,). If it is None or the log has none of these arms,
            all may be chosen.
        fit_trees: fits boosted trees; None to omit these candidates.
        seed: determines the folds of cross-fitting.
        was_proven: True if a log that ended earlier proved a gain. Arms are then chosen by context
            while the estimated gain is positive, also if its limit is not.
    """
    scored = score_log(log, n_arms, target=target, offered=offered, seed=seed)
    if scored is None:
        is_allowed = _mask_allowed(log, n_arms, offered)
        return _fit_mean_rewards(
            replace(log, weights=_scale_weights(log.known_weights)), is_allowed
        )
    learner = scored.learner
    log = learner.log
    is_supported = learner.is_supported
    splits = scored.splits
    scores = scored.scores
    mix = scored.mix
    best_arm = scored.best_arm
    n = float(log.known_weights.sum())
    counts = np.bincount(log.arms, log.known_weights, minlength=n_arms)
    everything = np.ones(len(scores), np.bool_)
    n_candidates = 1
    if by_context and is_supported.sum() > 1 and n >= _MIN_LOG_ROUNDS:
        has_trees = fit_trees is not None and n >= _MIN_TREE_ROUNDS
        n_candidates = len(CANDIDATES) if has_trees else _FIRST_TREES
    values = np.zeros((len(scores), n_candidates))
    predictions = np.zeros((n_candidates, *scores.shape))
    fractions = np.zeros(n_candidates)
    for index, split in enumerate(splits):
        # trees take longest, and are fitted in the first split only
        n_fitted = n_candidates if index == 0 else min(n_candidates, _FIRST_TREES)
        n_splits = np.where(np.arange(n_fitted) < _FIRST_TREES, len(splits), 1)
        split_values, split_fractions, split_predictions = learner.cross_fit(
            split, n_fitted, fit_trees
        )
        values[:, :n_fitted] += split_values / n_splits
        predictions[:n_fitted] += split_predictions / n_splits[:, None, None]
        fractions[:n_fitted] += split_fractions / n_splits
    deviation = float(log.rewards.std())
    # The mean of the best arm is the largest one, so a gain over it is rather too small. The mean of
    # arms that were chosen without the fold may be too small by chance if arms are nearly equal.
    gains = values - scores[:, [best_arm]]
    gains[:, 0] = 0.0
    gains[np.abs(gains) < 1e-12 * deviation] = 0.0  # rounding errors of means of equal scores
    estimates = mix.estimate_all(gains)
    quantile = _estimate_maximum_quantile(estimates, log.clusters)
    moves = target is not None and rewards_may_differ
    limits = [
        _compute_gain_limit(estimate.mean, quantile, fraction, deviation if moves else 0.0)
        if n * fraction >= _MIN_LOG_ROUNDS
        else -math.inf
        for estimate, fraction in zip(estimates, fractions.tolist(), strict=True)
    ]
    tested = [
        estimate.mean.value if was_proven and math.isfinite(limit) else limit
        for estimate, limit in zip(estimates, limits, strict=True)
    ]
    proven = np.flatnonzero(np.array(tested) > 0.0).tolist()
    if proven and target is not None and n_candidates > _FIRST_TREES:
        fits = learner.fit([*proven, _FIRST_TREES], everything, scores, splits[0], (), fit_trees)
        *target_predictions, target_trees = (
            fitted.step(target) @ fitted.theta.T for fitted in fits
        )
        trees = predictions[_FIRST_TREES]
        for index, target_rows in zip(proven, target_predictions, strict=True):
            in_log = learner.predict_gains(predictions[index], trees, best_arm)
            in_target = learner.predict_gains(target_rows, target_trees, best_arm)
            change = float(in_target.mean() - mix.target_weights @ in_log)
            target_gain = estimates[index].mean.value + change
            limits[index] = min(limits[index], target_gain)
            tested[index] = min(tested[index], target_gain)
    candidate = _choose_candidate(limits, tested, gains, mix)
    mean_scores = np.array([estimate.mean.value for estimate in mix.estimate_all(scores)])
    personalises = tested[candidate] > 0.0
    cross_fitted = np.column_stack([values[:, candidate], predictions[candidate]])
    cross_fitted = cross_fitted if personalises else cross_fitted[:0]
    evidence = LogEvidence(
        arm=best_arm,
        value=float(mean_scores[best_arm]),
        gain=estimates[candidate].mean.value,
        rounds=len(log.arms),
        fraction=float(fractions[candidate]),
        candidate=CANDIDATES[candidate],
        target_contexts=0 if target is None else len(target),
        personalises=personalises,
        error=estimates[candidate].mean.standard_error if candidate else math.inf,
        low=limits[candidate] if candidate else -math.inf,
    )
    step, _, theta = (
        learner.fit([candidate], everything, scores, splits[0], (), fit_trees)[0]
        if personalises
        else learner.fit_constant(scored.shrunken_means, scores)
    )
    # Unsupported arms are ranked by their mean scores. Arms without rounds are last.
    losses = -np.where(counts > 0, mean_scores, -np.inf)[~is_supported]
    theta[~is_supported] = compute_lower_theta(step, theta[is_supported], deviation)
    theta[~is_supported, step.constant_index] -= (
        _UNSUPPORTED_GAP * (deviation or 1.0) * np.searchsorted(np.sort(losses), losses)
    )
    return AdvantageModel(step, theta, evidence, scored.make_values(cross_fitted), cross_fitted)


def _scale_weights(weights: FloatArray) -> FloatArray:
    """Return weights (n,) whose sum is the effective number of rounds."""
    weights = weights / weights.max()
    weights *= weights.sum() / (weights @ weights)
    return weights


def _mask_allowed(log: Rounds, n_arms: int, offered: Mask) -> BoolArray:
    """Return the arms that may be chosen, (K,)."""
    counts = np.bincount(log.arms, minlength=n_arms)
    if offered is None or not counts[offered].any():
        return np.ones(n_arms, np.bool_)
    return offered


def _choose_candidate(
    limits: Sequence[float], tested: Sequence[float], gains: FloatArray, mix: TargetMix
) -> int:
    """Return the index of the candidate with the highest limit.

    If there is a regression with a positive ``tested`` value, trees must also gain more than it by
    one standard error.
    """
    if len(limits) == 1:
        return 0
    regression = 1 + int(np.argmax(limits[1:_FIRST_TREES]))
    best = 1 + int(np.argmax(limits[1:]))
    if best == regression or tested[regression] <= 0.0:
        return best
    lead = mix.estimate(gains[:, best] - gains[:, regression]).mean
    return best if lead.value > lead.standard_error and tested[best] > 0.0 else regression


def _compute_gain_limit(
    estimate: MeanEstimate, quantile: float, fraction: float, moving_deviation: float
) -> float:
    """Return the lower limit of a gain over the best arm.

    Args:
        estimate: the estimated gain.
        quantile: the number of standard errors of the limit in the domain of the log.
        fraction: the fraction of rounds with another arm than the best one.
        moving_deviation: the standard deviation of rewards if rewards given contexts may differ in
            the target, otherwise 0.
    """
    low = compute_lower_limit(estimate, quantile)
    if moving_deviation:
        between = compute_between_deviation(estimate.value, fraction, moving_deviation)
        low = min(low, compute_target_limit(estimate, between_deviation=between))
    return low


def score_log(
    log: Rounds, n_arms: int, *, target: FloatArray | None, offered: Mask, seed: int
) -> ScoredLog | None:
    """Return a log with its cross-fitted scores; None if it has too few rounds.

    Arguments are as in ``learn_advantages``.
    """
    log = replace(log, weights=_scale_weights(log.known_weights))
    n = float(log.known_weights.sum())
    n_clusters = len(log.arms) if log.clusters is None else int(log.clusters.max()) + 1
    if n < MIN_CROSS_FITTED_ROUNDS or n_clusters < MIN_CLUSTERS:
        return None
    counts = np.bincount(log.arms, log.known_weights, minlength=n_arms)
    is_allowed = _mask_allowed(log, n_arms, offered)
    is_supported = is_allowed & (counts >= min(_MIN_ARM_ROUNDS, max(1, n // (2 * n_arms))))
    is_supported = is_supported if is_supported.any() else is_allowed & (counts > 0)
    learner = _Learner(log, n_arms, is_supported, target)
    split_seeds = list_split_seeds(len(log.arms), seed)
    splits = [learner.make_split(split_seed) for split_seed in split_seeds]
    return ScoredLog(learner, splits)


def score_rewards(
    contexts: FloatArray,
    rewards: FloatArray,
    *,
    target: FloatArray | None,
    offered: Mask,
    seed: int,
) -> ScoredLog:
    """Return rounds with the rewards (n, K) of all arms, which are their scores."""
    n, n_arms = rewards.shape
    log = Rounds(contexts, rewards.argmax(axis=1), rewards.max(axis=1), np.ones(n), np.ones(n))
    is_supported = np.ones(n_arms, np.bool_) if offered is None else offered
    folds = assign_folds(n, seed=seed)
    scored = ScoredLog(_Learner(log, n_arms, is_supported, target), [_KnownScores(folds, rewards)])
    # as in the verdict on rewards of all arms
    scored.tested_mix = scored.mix.without_target()
    scored.best_arm = int(np.where(is_supported, rewards.mean(axis=0), -np.inf).argmax())
    return scored


def compute_lower_theta(step: FeatureStep, theta: FloatArray, deviation: float) -> FloatArray:
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
    least_difference = np.minimum(differences * lower, differences * upper).sum(axis=1).min()
    lower_theta[step.constant_index] += least_difference - _UNSUPPORTED_GAP * (deviation or 1.0)
    return lower_theta


def assess_choices(scores: FloatArray, chosen_arms: IntArray, best_arm: int) -> LogEvidence:
    """Return the evidence for the choices ``chosen_arms`` (n,) against always choosing
    ``best_arm``.

    ``scores`` (n, K) are doubly robust scores that did not determine the choices.
    """
    gains = take_chosen(scores, chosen_arms) - scores[:, best_arm]
    gain = estimate_mean(gains)
    low = compute_lower_limit(gain, NormalDist().inv_cdf(_CONFIDENCE_LEVEL))
    return LogEvidence(
        best_arm,
        float(scores[:, best_arm].mean()),
        gain.value,
        len(scores),
        float((chosen_arms != best_arm).mean()),
        personalises=low > 0.0,
        error=gain.standard_error,
        low=low,
    )


class GainEvidence(NamedTuple):
    """The cross-fitted gain of choices by context over the best arm."""

    #: The arm that was chosen in each round, (n,).
    arms: IntArray
    #: Its score, (n,).
    values: FloatArray
    #: The mean gain per round, for the contexts of the target.
    gain: MeanEstimate
    #: The fraction of rounds with another arm than the best one.
    fraction: float
    #: The lower limit of the tested gain, which holds with probability 99%. The test is for the
    #: contexts of the target, or if rewards of all arms are known for those of the source.
    low: float


class ScoredLog:
    """A log with its cross-fitted scores, with which choices are learned and evaluated.

    Args:
        learner: the log and its estimators.
        splits: the scores for several splits of the rounds into folds.
    """

    def __init__(self, learner: _Learner, splits: Sequence[Any]) -> None:
        self.learner = learner
        self.splits = splits
        #: The scores, averaged over the splits, (n, K).
        self.scores = np.mean([split.compute() for split in splits], axis=0)
        #: The estimator of means for the contexts of the target.
        self.mix = learner.make_mix(np.ones(len(self.scores), np.bool_), self.scores)
        #: The estimator of the gain that is tested.
        self.tested_mix = self.mix
        self.shrunken_means = learner.rank_arms(self.scores, self.mix)
        #: The arm with the largest shrunken mean.
        self.best_arm = int(self.shrunken_means.argmax())

    def make_values(self, cross_fitted: FloatArray) -> PolicyValues:
        """Return the values and predictions ``AdvantageModel.cross_fitted`` with the scores."""
        learner = self.learner
        log = learner.log
        scores = self.scores
        source_means = learner.shrink_means(scores, TargetMix(log.known_weights, log.clusters))
        if not len(cross_fitted):
            means = np.tile(self.shrunken_means, (len(scores), 1))
            cross_fitted = np.column_stack([scores[:, self.best_arm], means])
        return PolicyValues(
            scores=scores,
            values=cross_fitted[:, 0],
            mix=self.mix,
            n_contenders=learner.count_contenders(scores, self.mix, self.best_arm),
            source_arm=int(source_means.argmax()),
            deviation=float(log.rewards.std()),
            predictions=np.where(learner.is_supported, cross_fitted[:, 1:], -np.inf),
        )

    def evaluate(
        self, candidates: Sequence[Callable[[FloatArray, BoolArray], IntArray]]
    ) -> list[GainEvidence]:
        """Return the evidence for the choices that each candidate learns.

        A candidate is a function of scores (n, K) and a mask (n,) of the rounds from which it may
        learn, which returns the arms of all rounds, (n,).
        """
        split = self.splits[0]
        arms = np.zeros((len(candidates), len(self.scores)), np.int64)
        for fold in range(N_FOLDS):
            is_held_out = split.folds == fold
            fold_scores = split.compute(excluded=fold)
            for chosen, choose in zip(arms, candidates, strict=True):
                chosen[is_held_out] = choose(fold_scores, ~is_held_out)[is_held_out]
        values = self.scores[np.arange(len(self.scores)), arms]
        gains = values - self.scores[:, self.best_arm]
        tested = self.tested_mix.estimate_all(gains.T)
        quantile = _estimate_maximum_quantile(tested, self.learner.log.clusters)
        return [
            GainEvidence(
                chosen,
                reward,
                self.mix.estimate(gain).mean,
                float(self.mix.weights @ (chosen != self.best_arm)),
                compute_lower_limit(estimate.mean, quantile),
            )
            for chosen, reward, gain, estimate in zip(arms, values, gains, tested, strict=True)
        ]


class _FittedCandidate(NamedTuple):
    """A candidate that was fitted to some rounds of a log."""

    #: The transform of contexts to features.
    step: FeatureStep
    #: The features of the rounds on which it is evaluated, (rounds, features).
    features: FloatArray
    #: The coefficients of each arm's reward, (K, features).
    theta: FloatArray


class _Learner:
    """Fits the best arm and the candidates to parts of a log.

    Args:
        log: the log.
        n_arms: the number of arms.
        is_supported: the arms that may be chosen, (K,).
        target: contexts of the target, (m, d), or None.
    """

    def __init__(
        self, log: Rounds, n_arms: int, is_supported: BoolArray, target: FloatArray | None
    ) -> None:
        self.log = log
        self.weights = log.known_weights
        self.n_arms = n_arms
        self.is_supported = is_supported
        #: The features of the linear and of the piecewise regression.
        self.steps = [
            fit_ramps(log.contexts, 1, clip_quantile=_CLIP_QUANTILE),
            fit_ramps(log.contexts, _MAX_PIECES),
        ]
        self.designs = [step(log.contexts) for step in self.steps]
        self._index: FloatArray | None = None
        self._target_index = 0.0
        if target is not None:
            self._index, self._target_index = compute_shift_index(log.contexts, target)

    def make_split(self, seed: int) -> SplitScores:
        """Return the scores of a random split of the clusters into folds."""
        folds = assign_folds(len(self.log), seed=seed, clusters=self.log.clusters)
        return SplitScores(self.designs[1][:, 1:], self.log, folds, self.n_arms)

    def make_mix(self, rows: BoolArray, scores: FloatArray) -> TargetMix:
        """Return the estimator of means of the rounds for which a mask (n,) is True, with their
        scores (rows, K).
        """
        log = self.log
        clusters = log.clusters
        if clusters is not None:
            clusters = np.unique(clusters[rows], return_inverse=True)[1]
        index = None if self._index is None else self._index[rows]
        contrasts = self._compute_contrasts(scores)
        return TargetMix(self.weights[rows], clusters, index, self._target_index, contrasts)

    def _compute_contrasts(self, scores: FloatArray) -> FloatArray:
        """Return the scores (n, K) of supported arms minus their mean in each round."""
        supported = scores[:, self.is_supported]
        return supported - supported.mean(axis=1, keepdims=True)

    def shrink_means(self, scores: FloatArray, mix: TargetMix) -> FloatArray:
        """Return the shrunken means (K,) of scores (n, K) minus the mean score of a round; minus
        infinity for unsupported arms.
        """
        estimates = [
            estimate.mean for estimate in mix.estimate_all(self._compute_contrasts(scores))
        ]
        means = np.array([estimate.value for estimate in estimates])
        errors = np.array([estimate.standard_error for estimate in estimates])
        shrunken_means = np.full(self.n_arms, -np.inf)
        shrunken_means[self.is_supported] = _shrink_means(means, np.square(errors))
        return shrunken_means

    def rank_arms(self, scores: FloatArray, mix: TargetMix) -> FloatArray:
        """Return the shrunken means (K,) whose largest determines the best arm.

        These are the means for the contexts of the target if the same arm is best in the log, or if
        the 90% limit of its lead over the log's best arm is above 0. Otherwise they are those of the
        log, because arms were randomised there, and weights for the target add noise.
        """
        target_means = self.shrink_means(scores, mix)
        if not mix.factor:
            return target_means
        log_means = self.shrink_means(scores, mix.without_target())
        new_arm, old_arm = int(target_means.argmax()), int(log_means.argmax())
        lead = mix.estimate(scores[:, new_arm] - scores[:, old_arm]).mean
        is_proven = new_arm == old_arm or compute_target_limit(lead) > 0.0
        return target_means if is_proven else log_means

    def count_contenders(self, scores: FloatArray, mix: TargetMix, best_arm: int) -> int:
        """Return the number of other arms that may be better than ``best_arm``, at least 1."""
        others = np.flatnonzero(self.is_supported & (np.arange(self.n_arms) != best_arm))
        if not len(others):
            return 1
        leads = mix.estimate_all(scores[:, [best_arm]] - scores[:, others])
        is_contender = [
            lead.mean.value < _CONTENDER_QUANTILE * lead.mean.standard_error for lead in leads
        ]
        return max(1, sum(is_contender))

    def cross_fit(
        self, split: SplitScores, n_candidates: int, fit_trees: FitTrees | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the values of the first candidates, (n, n_candidates), the fraction of rounds in
        which each chooses another arm than the first, and the predictions, (n_candidates, n, K).

        No candidate has seen the round's fold.
        """
        scores = split.compute()
        weights = self.weights
        values = np.empty((len(scores), n_candidates))
        fractions = np.zeros(n_candidates)
        all_predictions = np.zeros((n_candidates, *scores.shape))
        for fold in range(N_FOLDS):
            is_held_out = split.folds == fold
            inner_scores = split.compute(excluded=fold)[~is_held_out]
            mix = self.make_mix(~is_held_out, inner_scores)
            best_arm = int(self.rank_arms(inner_scores, mix).argmax())
            held_out_scores = scores[is_held_out]
            fold_weights = weights[is_held_out] / weights.sum()
            values[is_held_out, 0] = held_out_scores[:, best_arm]
            fits = self.fit(
                range(1, n_candidates), is_held_out, inner_scores, split, {fold}, fit_trees
            )
            for candidate, fitted in enumerate(fits, start=1):
                predictions = fitted.features @ fitted.theta.T
                arms = _choose_arms(predictions, self.is_supported, best_arm)
                values[is_held_out, candidate] = take_chosen(held_out_scores, arms)
                fractions[candidate] += fold_weights @ (arms != best_arm)
                all_predictions[candidate, is_held_out] = predictions
        return values, fractions, all_predictions

    def fit(
        self,
        candidates: Sequence[int],
        evaluated: BoolArray,
        scores: FloatArray,
        split: SplitScores,
        excluded: Collection[int],
        fit_trees: FitTrees | None,
    ) -> list[_FittedCandidate]:
        """Fit candidates, given by their indices, to all folds of ``split`` except ``excluded``.

        ``scores`` (rounds, K) are the scores of these rounds. Features are computed of the rounds
        for which the mask ``evaluated`` (n,) is True.
        """
        rows = ~np.isin(split.folds, list(excluded))
        weights = self.weights[rows]
        fits: dict[str, _FittedCandidate] = {}
        results = []
        for candidate in candidates:
            name = CANDIDATES[candidate].removeprefix("half ")
            if name not in fits:
                if name == "ridge":
                    theta = split.fit_reward_theta(excluded)
                    design = self.designs[1]
                    fits[name] = _FittedCandidate(self.steps[1], design[evaluated], theta)
                elif name == "trees":
                    assert fit_trees is not None
                    step = fit_trees(self.log.select(rows), self.n_arms)
                    theta = np.eye(self.n_arms, self.n_arms + 1)
                    features = step(self.log.contexts[evaluated])
                    fits[name] = _FittedCandidate(step, features, theta)
                else:
                    design = self.designs[candidate - 1]
                    supported = scores[:, self.is_supported]
                    contrasts = supported - supported.mean(axis=1, keepdims=True)
                    theta = self._fit_mean_score(design[rows], scores, weights)
                    theta[self.is_supported] += fit_ridge(design[rows], contrasts, weights)
                    step = self.steps[candidate - 1]
                    fits[name] = _FittedCandidate(step, design[evaluated], theta)
            factor = _FACTORS[candidate]
            fitted = fits[name]
            mean_features = fitted.features.mean(axis=0)
            theta = factor * fitted.theta
            theta[:, fitted.step.constant_index] += (1.0 - factor) * fitted.theta @ mean_features
            results.append(fitted._replace(theta=theta))
        return results

    def predict_gains(
        self, predictions: FloatArray, rewards: FloatArray, best_arm: int
    ) -> FloatArray:
        """Return the gains (n,) over ``best_arm`` of choices by ``predictions`` (n, K), by the
        predicted ``rewards`` (n, K) of another model.
        """
        arms = _choose_arms(predictions, self.is_supported, best_arm)
        return take_chosen(rewards, arms) - rewards[:, best_arm]

    def _fit_mean_score(
        self, design: FloatArray, scores: FloatArray, weights: FloatArray
    ) -> FloatArray:
        """Return coefficients (K, features) of the mean score of all arms, which does not affect
        choices.
        """
        theta = fit_ridge(design, scores.mean(axis=1, keepdims=True), weights)
        return np.repeat(theta, self.n_arms, axis=0)

    def fit_constant(self, means: FloatArray, scores: FloatArray) -> _FittedCandidate:
        """Return predictions whose differences between supported arms are those of ``means``
        (K,).
        """
        design = self.designs[1]
        theta = self._fit_mean_score(design, scores[:, self.is_supported], self.weights)
        theta[self.is_supported, 0] += means[self.is_supported] - means[self.is_supported].mean()
        return _FittedCandidate(self.steps[1], design, theta)


def _shrink_means(means: FloatArray, variances: FloatArray) -> FloatArray:
    """Return means (K,), shrunken towards their common mean by their variances.

    The variance between arms is estimated by DerSimonian and Laird (1986).
    """
    if not variances.max() > 0.0:
        return means
    precisions = 1.0 / np.maximum(variances, 1e-12 * variances.max())
    centre = precisions @ means / precisions.sum()
    excess = float(precisions @ np.square(means - centre)) - (len(means) - 1)
    scale = precisions.sum() - precisions @ precisions / precisions.sum()
    # a small variance keeps the order of equally precise means
    between = max(excess / max(scale, 1e-300), 1e-6 * float(variances.mean()))
    return centre + between / (between + variances) * (means - centre)


def _fit_mean_rewards(log: Rounds, is_allowed: BoolArray) -> AdvantageModel:
    """Return a model that predicts each arm's mean reward for all contexts, for a log with few
    rounds.

    Rewards are also weighted by inverse propensities, and means are shrunk towards the overall
    mean.
    """
    prior_weight = float(
        log.known_weights @ (1.0 / log.known_propensities) / log.known_weights.sum()
    )
    weights = log.known_weights / log.known_propensities
    n_arms = len(is_allowed)
    arm_weights = np.bincount(log.arms, weights, minlength=n_arms)
    overall_mean = float(weights @ log.rewards / weights.sum())
    reward_sums = np.bincount(log.arms, weights * log.rewards, minlength=n_arms)
    means = (reward_sums + prior_weight * overall_mean) / (arm_weights + prior_weight)
    best_arm = int(np.where(is_allowed & (arm_weights > 0), means, -np.inf).argmax())
    means[arm_weights == 0] = means[arm_weights > 0].min() - _UNSUPPORTED_GAP * (
        float(log.rewards.std()) or 1.0
    )
    no_ramps = np.zeros(0)
    step = PiecewiseStep(
        np.zeros(0, np.int64), no_ramps, no_ramps, no_ramps, no_ramps, log.contexts.shape[1]
    )
    evidence = LogEvidence(best_arm, float(means[best_arm]), 0.0, len(log.arms), 0.0)
    return AdvantageModel(step, means[:, None], evidence)


class _KnownScores(NamedTuple):
    """The rewards of all arms, which are scores that need no model."""

    folds: IntArray
    rewards: FloatArray

    def compute(self, excluded: int | None = None) -> FloatArray:  # noqa: ARG002
        """Return the rewards (n, K)."""
        return self.rewards


def _choose_arms(predictions: FloatArray, is_supported: BoolArray, best_arm: int) -> IntArray:
    """Return the supported arm with the largest prediction in each row (n,), or ``best_arm`` on
    ties.
    """
    scores = np.where(is_supported, predictions, -np.inf)
    return np.where(scores[:, best_arm] >= scores.max(axis=1), best_arm, scores.argmax(axis=1))


def _estimate_maximum_quantile(
    estimates: Sequence[MixEstimate], clusters: IntArray | None
) -> float:
    """Return the 95% quantile of the largest studentised mean, if all expectations are 0.

    The studentised means are approximately normal, with the correlations of their terms.
    """
    single_quantile = NormalDist().inv_cdf(_CANDIDATES_LEVEL)
    terms = np.stack([estimate.terms for estimate in estimates])
    if clusters is not None:
        terms = np.stack([np.bincount(clusters, row) for row in terms])
    terms = terms[terms.std(axis=1) > 0]
    if len(terms) < 2:
        return single_quantile
    eigenvalues, eigenvectors = np.linalg.eigh(np.corrcoef(terms))
    draws = np.random.default_rng(0).standard_normal((_N_NORMAL_DRAWS, len(eigenvalues)))
    maxima = (draws * np.sqrt(np.maximum(eigenvalues, 0.0)) @ eigenvectors.T).max(axis=1)
    return max(single_quantile, float(np.quantile(maxima, _CANDIDATES_LEVEL)))
