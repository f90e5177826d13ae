"""Draw questions about target rewards, and estimate each candidate's advantage from the answers.

``Questions`` draws the questions. ``Evidence`` holds the answers, and computes estimates and
intervals from them.

A question is a target context and an arm. Every second context is drawn uniformly from all
contexts. The others are drawn from the disputed contexts, for which candidates choose different
arms. The arm is drawn uniformly from the arms that candidates choose for the context. Each question
therefore has a known probability p, and **every answer is used to evaluate all candidates**. Let
g(x, a) be the predicted reward of arm a for context x, c(x) the arm of a candidate, b(x) the arm of
the baseline, and L the number of contexts. The advantage of c over b is estimated by

    mean over contexts of g(x, c(x)) - g(x, b(x))
    + mean over draws of (1{arm = c(x)} - 1{arm = b(x)}) (reward - g(x, arm)) / (L p).

The estimate is unbiased for any predictions. Contexts on which c and b agree cancel. On the other
contexts, the means of 1{arm = c(x)} / (L p) and of 1{arm = b(x)} / (L p) over draws are known. Both
factors therefore serve as control variates, with coefficients that are shrunk towards 0. Questions
are drawn with replacement. A question that is drawn again reuses its answer.

Half the width of an interval is the standard error of the estimate times a quantile of the largest
of all candidates' errors, which have a Student distribution. The intervals hold for all candidates
at once, and so for the candidate that is chosen from the answers. The variance of an estimate is a
weighted mean of the sample variance, of the variance that the sampling design predicts from the
pooled residuals, and of the variance that the design predicts from the source rewards. The last
weight is large if the source rewards are skewed, such as rare purchases: n answers can miss by
chance all rewards of a kind whose frequency is below 3.7 / n, so their own variance says little.

The contexts are a sample of the target. So the variance of their mean gain is added, which is the
only variance once all questions are answered. Without it, 200 answers about a few hundred contexts
would give an interval for these contexts, in which the gain of later contexts is too seldom.

The intervals also hold after any number of answers of a planned budget N. Let S be the sum of the
errors of n answers, in units of its standard deviation at n = N. An interval from n < N answers
misses if abs(S) > c, and the last one if abs(S) > d. By Levy's inequality, which reflects the errors
after the first miss, the probability that any interval misses is at most

    P(abs(S) > d at n = N) + P(abs(S) > 2 c - d at n = N)

for independent symmetric errors. c and d are chosen so that the two terms share the error
probability. ``benchmarks/questions.py`` measures the coverage of the intervals.

``Evidence.choose_candidate`` is Bayesian. The prior mean of a candidate's advantage over the
default is a fraction of its advantage on held-out source rounds. The prior variance grows with that
advantage, and with the fraction of contexts on which the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from daband.base._arrays import FloatArray, IntArray
from daband.linear._reward_moments import RewardMoments

#: Ridge penalty of the coefficients of control variates, as a number of answers; chosen on the
#: development data sets.
_CONTROL_PENALTY_ANSWERS = 5.0
#: Weight of the variance that the sampling design predicts, as a number of answers; chosen on the
#: development data sets.
_DESIGN_VARIANCE_ANSWERS = 20.0
#: With a probability of 97.5%, some rewards are seen if more than this number are expected:
#: -log(0.025). The weight of the variance of source rewards, as a number of answers, is this number
#: times their kurtosis, which is the inverse of their frequency if a rare reward is 1, else 0.
_MAX_UNSEEN_REWARDS = 3.7
#: Fraction of the error probability for the intervals before the last answer. The last interval is
#: then 2% wider than an interval that is computed only once.
_EARLY_FRACTION = 0.1
#: Expected fraction of a source advantage that is left in the target: the median over shifts
#: between real tables.
_KEPT_FRACTION = 0.7
#: Standard deviation of that fraction.
_KEPT_FRACTION_DEVIATION = 0.6
#: Prior standard deviation of an advantage, in standard deviations of the reward, if candidates
#: differ everywhere.
_PRIOR_DEVIATION = 0.25
#: Number of posterior standard deviations subtracted from the advantage of every candidate except
#: the default.
_N_CAUTION_DEVIATIONS = 0.25
#: Number of random draws from which the quantile of the largest error is estimated.
_N_ERROR_DRAWS = 4000
#: Number of questions that are drawn at a time.
_QUESTIONS_PER_CHUNK = 256
#: Maximum number of draws per distinct question, as a mean over the questions.
_MAX_DRAWS_PER_QUESTION = 20


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided limits, in the unit of the rewards."""

    #: The estimate.
    value: float
    #: Lower limit.
    low: float
    #: Upper limit.
    high: float


class Questions:
    """A random sequence of questions about L target contexts, which compare C candidates.

    Args:
        candidate_arms: the arm that each candidate chooses for each context, (C, L). The incumbent
            is a candidate.
        predicted_rewards: predicted reward of every arm for each context, (L, K), in the unit of
            the rewards.
        reward_deviation: standard deviation of source rewards, in the same unit.
        reward_skewness: skewness of source rewards.
        seed: determines the questions and their order.
    """

    def __init__(
        self,
        candidate_arms: IntArray,
        predicted_rewards: FloatArray,
        *,
        reward_deviation: float,
        reward_skewness: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.candidate_arms = candidate_arms
        self.predicted_rewards = predicted_rewards
        self.reward_deviation = reward_deviation
        self.reward_skewness = reward_skewness
        #: Weight of the variance of source rewards, as a number of answers. A kurtosis is at least
        #: 1 plus the squared skewness.
        self.source_answers = _MAX_UNSEEN_REWARDS * (1.0 + reward_skewness**2)
        self.seed = seed
        n_contexts = candidate_arms.shape[1]
        sorted_arms = np.sort(candidate_arms, axis=0)
        is_distinct = np.concatenate(
            [np.ones((1, n_contexts), np.bool_), sorted_arms[1:] != sorted_arms[:-1]]
        )
        self._n_proposed_arms = is_distinct.sum(axis=0)
        # The distinct arms of each context come first, in ascending order.
        self._proposed_arms = np.take_along_axis(
            sorted_arms, np.argsort(~is_distinct, axis=0, kind="stable"), axis=0
        )
        #: Indices of the contexts for which candidates choose different arms.
        self.disputed_contexts = np.flatnonzero(self._n_proposed_arms > 1)
        context_probabilities = np.full(n_contexts, 1.0 / n_contexts)
        if len(self.disputed_contexts):
            context_probabilities /= 2.0
            context_probabilities[self.disputed_contexts] += 0.5 / len(self.disputed_contexts)
        #: Probability of each question about a context, equal for all its proposed arms, (L,).
        self.probabilities = context_probabilities / self._n_proposed_arms
        #: Number of distinct questions.
        self.n_questions = int(self._n_proposed_arms.sum())
        self._max_draws = _MAX_DRAWS_PER_QUESTION * self.n_questions
        self._generator = np.random.default_rng(seed)
        self._draws: list[tuple[int, int]] = []
        self._distinct_questions: dict[tuple[int, int], None] = {}

    def draw_first(self, n: int) -> list[tuple[int, int]]:
        """Return the first ``n`` distinct questions, or all if there are fewer, as pairs of context
        index and arm.
        """
        while (
            len(self._distinct_questions) < min(n, self.n_questions)
            and len(self._draws) < self._max_draws
        ):
            self._draw_chunk()
        return list(self._distinct_questions)[:n]

    def compute_evidence(self, answers: Mapping[tuple[int, int], float]) -> Evidence:
        """Return the evidence from the answers so far, the reward by question (context index, arm).

        Only the draws before the first one without an answer are used, because these are a random
        sample.
        """
        n_used = 0
        while answers:
            while n_used < len(self._draws) and self._draws[n_used] in answers:
                n_used += 1
            is_exhausted = (
                len(self._distinct_questions) == self.n_questions or n_used >= self._max_draws
            )
            if n_used < len(self._draws) or is_exhausted:
                break
            self._draw_chunk()
        draws = np.array(self._draws[:n_used], np.int64).reshape(-1, 2)
        rewards = np.array([answers[draw] for draw in self._draws[:n_used]], np.float64)
        return Evidence(self, draws[:, 0], draws[:, 1], rewards, len(set(self._draws[:n_used])))

    def _draw_chunk(self) -> None:
        """Append further random questions to the draws."""
        n_contexts = self.candidate_arms.shape[1]
        context_uniforms, arm_uniforms = self._generator.random((2, _QUESTIONS_PER_CHUNK))
        context_indices = (context_uniforms * n_contexts).astype(np.int64)
        if n_disputed := len(self.disputed_contexts):
            context_indices[1::2] = self.disputed_contexts[
                (context_uniforms[1::2] * n_disputed).astype(np.int64)
            ]
        arm_rows = (arm_uniforms * self._n_proposed_arms[context_indices]).astype(np.int64)
        arms = self._proposed_arms[arm_rows, context_indices]
        questions = list(zip(context_indices.tolist(), arms.tolist(), strict=True))
        self._draws += questions
        self._distinct_questions.update(dict.fromkeys(questions))


@dataclass(frozen=True)
class Evidence:
    """The answers to the first n draws of ``Questions``, and estimates of values and advantages
    from them.
    """

    questions: Questions
    #: Index of the context of each draw, (n,).
    context_indices: IntArray
    #: Arm of each draw, (n,).
    arms: IntArray
    #: Reward of each draw, (n,).
    rewards: FloatArray
    #: Number of distinct questions that were answered.
    n_answered: int

    @property
    def is_complete(self) -> bool:
        """True if every possible question was answered, so that values are known exactly."""
        return self.n_answered == self.questions.n_questions

    def estimate_advantages(self, baseline: int | None) -> tuple[FloatArray, FloatArray]:
        """Return the candidates' advantages over the baseline, (C,), and the covariance of their
        errors, (C, C).

        ``baseline`` is the index of a candidate; None estimates values instead of advantages.
        """
        questions = self.questions
        n_draws = len(self.rewards)
        all_arms = questions.candidate_arms
        predicted_rewards = questions.predicted_rewards
        n_candidates, n_contexts = all_arms.shape
        rows = np.arange(n_contexts)
        baseline_predictions = (
            0.0 if baseline is None else predicted_rewards[rows, all_arms[baseline]]
        )
        estimates = (predicted_rewards[rows, all_arms] - baseline_predictions).mean(axis=1)
        if not n_draws:
            return estimates, np.full((n_candidates, n_candidates), np.inf)
        draw_weights = 1.0 / (n_contexts * questions.probabilities[self.context_indices])
        residuals = self.rewards - predicted_rewards[self.context_indices, self.arms]
        corrections = np.zeros((n_candidates, n_draws))
        for index, arms in enumerate(all_arms):
            is_different = (
                np.ones(n_contexts, np.bool_) if baseline is None else arms != all_arms[baseline]
            )
            if index == baseline or not is_different.any():
                continue
            compared_arms = arms[None] if baseline is None else np.stack([arms, all_arms[baseline]])
            is_drawn = compared_arms[:, self.context_indices] == self.arms
            compared_weights = draw_weights * is_different[self.context_indices] * is_drawn
            controls = compared_weights - is_different.mean()
            corrections[index] = (
                compared_weights[0] - compared_weights[1:].sum(axis=0)
            ) * residuals
            gram = (
                controls @ controls.T
                + _CONTROL_PENALTY_ANSWERS * is_different.mean() ** 2 * np.eye(len(controls))
            )
            corrections[index] -= np.linalg.solve(gram, controls @ corrections[index]) @ controls
        return estimates + corrections.mean(axis=1), self._estimate_covariance(
            corrections, residuals, baseline
        )

    def _estimate_covariance(
        self, corrections: FloatArray, residuals: FloatArray, baseline: int | None
    ) -> FloatArray:
        """Return the covariance of the estimates, (C, C), from the corrections of each draw, (C,
        n).

        The mean of a candidate's corrections is added to its estimate from predicted rewards.
        ``residuals`` (n,) are the rewards minus their predictions. The covariance is a weighted
        mean of the sample covariance and of the covariance that the sampling design predicts from
        the residuals and from source rewards.
        """
        n_draws = len(residuals)
        questions = self.questions
        moments = _compute_weight_moments(
            questions.candidate_arms, questions.probabilities, baseline
        )
        variance = float(np.square(residuals).mean())
        source_variance = max(variance, questions.reward_deviation**2)
        # the corrections depend on two fitted coefficients and a mean
        sample_size = n_draws if n_draws > 3 else 0
        sample_covariance = (
            np.cov(corrections) * n_draws / (n_draws - 2) if sample_size else np.zeros_like(moments)
        )
        sum_of_squares = (
            _DESIGN_VARIANCE_ANSWERS * variance + questions.source_answers * source_variance
        )
        weighted_sum: FloatArray = sample_size * sample_covariance + sum_of_squares * moments
        weight = sample_size + _DESIGN_VARIANCE_ANSWERS + questions.source_answers
        return weighted_sum / weight / n_draws

    def compute_intervals(
        self, baseline: int | None, *, confidence: float = 0.95, budget: int = 0
    ) -> list[Interval]:
        """Return an interval for each candidate's advantage over the baseline.

        The intervals hold simultaneously.

        Args:
            baseline: index of a candidate; None returns intervals for values.
            confidence: level of the two-sided intervals.
            budget: number of planned answers. Intervals from fewer answers are wider, so that the
                intervals hold even if answers are collected until one excludes 0.
        """
        values, covariance = self.estimate_advantages(baseline)
        n_contexts = len(self.questions.probabilities)
        levels = 1.0 - (1.0 - confidence) * np.array([1.0 - _EARLY_FRACTION, _EARLY_FRACTION])
        if self.is_complete:
            values = self._compute_exact_gains(baseline).mean(axis=1)
            variances = self._estimate_context_variances(baseline)
            quantile = _find_error_quantiles(np.diag(variances), n_contexts - 1.0, levels)[0]
            half_widths = quantile * np.sqrt(variances)
        elif not len(self.rewards):
            arms = self.questions.candidate_arms
            is_same = (
                np.zeros(len(arms), np.bool_)
                if baseline is None
                else (arms == arms[baseline]).all(axis=1)
            )
            half_widths = np.where(is_same, 0.0, np.inf)
        else:
            degrees_of_freedom = (
                max(len(self.rewards) - 3, 0)
                + _DESIGN_VARIANCE_ANSWERS
                + self.questions.source_answers
            )
            quantile, early_quantile = _find_error_quantiles(covariance, degrees_of_freedom, levels)
            factor = 1.0
            if self.n_answered < budget:
                factor = (1.0 + early_quantile / quantile) / 2.0
                factor *= math.sqrt(budget / self.n_answered)
            variances = factor**2 * covariance.diagonal()
            variances += self._estimate_context_variances(baseline)
            half_widths = quantile * np.sqrt(variances)
        estimates = zip(values, values - half_widths, values + half_widths, strict=True)
        return [Interval(*map(float, estimate)) for estimate in estimates]

    def _compute_exact_gains(self, baseline: int | None) -> FloatArray:
        """Return the value of each context, (C, L), or the advantage over the baseline.

        Every question must be answered.
        """
        reward_by_question = np.full(self.questions.predicted_rewards.shape, np.nan)
        reward_by_question[self.context_indices, self.arms] = self.rewards
        return _compute_gains(reward_by_question, self.questions.candidate_arms, baseline)

    def _estimate_context_variances(self, baseline: int | None) -> FloatArray:
        """Return upper limits of the variances (C,) of the mean gains of the L contexts, which are a
        sample of the target.

        No context has answers for two arms, so their rewards are assumed to be opposite: the
        standard deviation of the difference is twice that of one reward. The deviation of the gain
        is also at most that of the predicted gain plus that of the difference between the errors.
        """
        questions = self.questions
        all_arms = questions.candidate_arms
        n_contexts = all_arms.shape[1]
        if self.is_complete:
            return self._compute_exact_gains(baseline).var(axis=1, ddof=1) / n_contexts
        predictions = questions.predicted_rewards
        residuals = self.rewards - predictions[self.context_indices, self.arms]
        fractions = np.ones(len(all_arms))
        factor = 1.0
        if baseline is not None:
            fractions = (all_arms != all_arms[baseline]).mean(axis=1)
            factor = 2.0
        deviations = factor * np.sqrt(fractions)
        by_predictions = _compute_gains(predictions, all_arms, baseline).std(axis=1)
        by_predictions += deviations * math.sqrt(np.square(residuals).mean())
        limits = np.minimum(deviations * self.rewards.std(), by_predictions)
        return np.square(limits) / n_contexts

    def choose_candidate(self, default: int, source_values: FloatArray) -> int:
        """Return the index of the candidate with the largest posterior advantage over the default.

        A fraction of its standard deviation is subtracted from the advantage of every candidate
        except the default.

        Args:
            default: index of the candidate that is chosen without answers.
            source_values: mean reward of each of the first M candidates on held-out source rounds,
                (M,). Only these candidates can be chosen; the incumbent comes after them.
        """
        n_eligible = len(source_values)
        candidate_arms = self.questions.candidate_arms[:n_eligible]
        if not len(self.rewards):
            return default
        if self.is_complete:
            return int(self._compute_exact_gains(None).mean(axis=1)[:n_eligible].argmax())
        all_estimates, full_covariance = self.estimate_advantages(default)
        estimates = all_estimates[:n_eligible]
        error_covariance = full_covariance[:n_eligible, :n_eligible]
        disagreement = (candidate_arms[:, None] != candidate_arms[None]).mean(axis=2)
        # This matrix is positive semidefinite, because a Hamming distance is of negative type.
        prior_covariance = (
            disagreement[:, [default]] + disagreement[[default]] - disagreement
        ) / 2.0
        prior_covariance *= np.square(_PRIOR_DEVIATION * self.questions.reward_deviation)
        source_gains = source_values - source_values[default]
        expected_gains = _KEPT_FRACTION * source_gains
        prior_covariance += np.square(_KEPT_FRACTION_DEVIATION) * np.outer(
            source_gains, source_gains
        )
        jitter = 1e-9 * max(float(error_covariance.diagonal().max()), 1e-300) * np.eye(n_eligible)
        kalman_gain = np.linalg.solve(
            prior_covariance + error_covariance + jitter, prior_covariance
        ).T
        posterior_means = expected_gains + kalman_gain @ (estimates - expected_gains)
        posterior_deviations = np.sqrt(
            np.maximum((prior_covariance - kalman_gain @ prior_covariance).diagonal(), 0.0)
        )
        cautious_advantages = posterior_means - _N_CAUTION_DEVIATIONS * posterior_deviations
        cautious_advantages[default] = 0.0
        return int(cautious_advantages.argmax())


def _compute_gains(
    rewards: FloatArray, candidate_arms: IntArray, baseline: int | None
) -> FloatArray:
    """Return the reward of each candidate's arm for each context, (C, L), minus the baseline's, from
    the rewards (L, K) of all arms.
    """
    values: FloatArray = rewards[np.arange(len(rewards)), candidate_arms]
    return values if baseline is None else values - values[baseline]


def _compute_weight_moments(
    candidate_arms: IntArray, probabilities: FloatArray, baseline: int | None
) -> FloatArray:
    """Return the second moments (C, C) of the weights by which a draw enters the candidates'
    estimates.

    A candidate's weight is 1 / (L p) if it chooses the drawn arm, otherwise 0. The baseline's
    weight is subtracted.
    """
    n_contexts = candidate_arms.shape[1]
    inverse_probabilities = 1.0 / (probabilities * n_contexts**2)
    moments: FloatArray = np.stack(
        [(candidate_arms == arms) @ inverse_probabilities for arms in candidate_arms]
    )
    if baseline is not None:
        moments = (
            moments - moments[:, [baseline]] - moments[[baseline]] + moments[baseline, baseline]
        )
    return moments


def _find_error_quantiles(
    covariance: FloatArray, degrees_of_freedom: float, levels: FloatArray
) -> FloatArray:
    """Return quantiles of the candidates' largest absolute error, in standard errors.

    They are estimated from random draws of a multivariate Student distribution. For one candidate
    they are exact.
    """
    errors = np.sqrt(covariance.diagonal())
    is_uncertain = errors > 1e-12 * max(float(errors.max()), 1e-300)
    if is_uncertain.sum() < 2:
        from scipy.special import stdtrit  # importing takes a quarter of a second

        return np.asarray(stdtrit(degrees_of_freedom, 0.5 + levels / 2.0))
    correlation = covariance[np.ix_(is_uncertain, is_uncertain)] / np.outer(
        errors[is_uncertain], errors[is_uncertain]
    )
    eigenvalues, eigenvectors = np.linalg.eigh(correlation)
    rng = np.random.default_rng(0)
    normal_draws = rng.standard_normal((_N_ERROR_DRAWS, len(eigenvalues)))
    largest_errors = np.abs(
        normal_draws @ (eigenvectors * np.sqrt(np.maximum(eigenvalues, 0.0))).T
    ).max(axis=1)
    scales = np.sqrt(rng.chisquare(degrees_of_freedom, _N_ERROR_DRAWS) / degrees_of_freedom)
    return np.asarray(np.quantile(largest_errors / scales, levels))


def summarise_rewards(moments: RewardMoments) -> tuple[float, float]:
    """Return the standard deviation and the skewness of rewards; (1, 0) if all are equal.

    The skewness is computed as if the smallest and the largest reward were the only ones. It is
    near 0 if rewards are symmetric.
    """
    if not moments.squared_differences > 0.0:
        return 1.0, 0.0
    deviation = math.sqrt(moments.squared_differences / moments.total_weight)
    return deviation, (moments.low + moments.high - 2.0 * moments.mean) / deviation
