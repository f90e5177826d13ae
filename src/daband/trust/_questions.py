"""Draw questions about target rewards, and estimate each candidate's advantage from the answers.

A question is a target context and an arm. Every second context is drawn uniformly from all contexts, the others from
the disputed ones, for which candidates choose different arms. The arm is drawn uniformly among those that candidates
choose for the context. Each
question therefore has a known probability p, and **every answer is used to evaluate all candidates**. With g the
predicted reward, c a candidate, b the baseline, L contexts and n draws, the advantage of c over b is estimated by

    mean over contexts of g(x, c(x)) - g(x, b(x))
    + mean over draws of (1{arm = c(x)} - 1{arm = b(x)}) (reward - g(x, arm)) / (L p),

which is unbiased for any predictions. Contexts on which c and b agree cancel. The weights of both candidates
have known means, so they serve as control variates, with coefficients that are shrunk towards 0. Questions are drawn
with replacement; a repeated question uses the first answer and costs nothing.

Intervals are calibrated, not exact. They use Student quantiles of the largest of all candidates' errors, and a variance
in which the prediction of the sampling design and the pooled residuals counts as ``_VARIANCE_ANSWERS`` answers. They
hold for the chosen candidate, and after any number of answers of a planned budget (O'Brien and Fleming, 1979: an early
interval is wider by the square root of budget / answers). ``benchmarks/questions.py`` measures their coverage.

The choice is Bayesian. The prior mean of a candidate's advantage over the default is a fraction of its advantage on
held-out source rounds. The prior variance is proportional to the fraction of contexts on which the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from daband._arrays import FloatArray, IntArray

#: Ridge penalty of the coefficients of control variates, as a number of answers; chosen on the development data sets.
_CONTROL_ANSWERS = 5.0
#: Weight of the variance that the sampling design predicts, as a number of answers; chosen on the development data
#: sets.
_VARIANCE_ANSWERS = 20.0
#: Weight of the variance of source rewards in the pooled residual variance, as a number of answers.
_SCALE_ANSWERS = 5.0
#: Expected fraction of a source advantage that is left in the target: the median of the reference class on tables.
_KEPT_FRACTION = 0.7
#: Standard deviation of that fraction.
_KEPT_DEVIATION = 0.6
#: Prior standard deviation of an advantage, in standard deviations of the reward, if candidates differ everywhere.
_PRIOR_DEVIATION = 0.25
#: Posterior standard deviations that are subtracted from the advantage of candidates other than the default.
_CAUTION = 0.25
#: Number of random draws from which the quantile of the largest error is computed.
_NORMAL_DRAWS = 4000
#: Questions that are drawn at a time.
_CHUNK = 256
#: Maximum number of draws, in multiples of the number of distinct questions.
_MAX_REPEATS = 20


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided limits, in the unit of the rewards."""

    value: float
    low: float
    high: float


class Questions:
    """The sequence of questions about L target contexts that compare C candidates.

    Args:
        arms: the arm that each candidate chooses for each context, (C, L). The incumbent is a candidate.
        predicted: predicted reward of each context and arm, (L, K), in the unit of the rewards.
        scale: standard deviation of source rewards.
        seed: determines the questions and their order.
    """

    def __init__(self, arms: IntArray, predicted: FloatArray, *, scale: float, seed: int = 0) -> None:
        self.arms, self.predicted, self.scale, self.seed = arms, predicted, scale, seed
        n_contexts = arms.shape[1]
        ordered = np.sort(arms, axis=0)
        first = np.concatenate([np.ones((1, n_contexts), np.bool_), ordered[1:] != ordered[:-1]])
        self._n_proposed = first.sum(axis=0)
        # The distinct arms of each context come first, in ascending order.
        self._proposed = np.take_along_axis(ordered, np.argsort(~first, axis=0, kind="stable"), axis=0)
        #: Indices of the contexts for which candidates choose different arms.
        self.disputed = np.flatnonzero(self._n_proposed > 1)
        context_probability = np.full(n_contexts, 1.0 / n_contexts)
        if len(self.disputed):
            context_probability /= 2.0
            context_probability[self.disputed] += 0.5 / len(self.disputed)
        #: Probability of a question about each context, for any of its proposed arms, (L,).
        self.probability = context_probability / self._n_proposed
        #: Number of distinct questions.
        self.n_questions = int(self._n_proposed.sum())
        self._generator = np.random.default_rng(seed)
        self._draws: list[tuple[int, int]] = []
        self._distinct: dict[tuple[int, int], None] = {}

    def first(self, n: int) -> list[tuple[int, int]]:
        """Return the first ``n`` distinct questions, or all if there are fewer, as pairs of context index and arm."""
        while len(self._distinct) < min(n, self.n_questions) and len(self._draws) < _MAX_REPEATS * self.n_questions:
            self._draw_chunk()
        return list(self._distinct)[:n]

    def evidence(self, answers: Mapping[tuple[int, int], float]) -> Evidence:
        """Return the estimates from answers by question. Draws are used up to the first one without an answer."""
        n = 0
        while answers:
            while n < len(self._draws) and self._draws[n] in answers:
                n += 1
            if n < len(self._draws) or len(self._distinct) == self.n_questions or n >= _MAX_REPEATS * self.n_questions:
                break
            self._draw_chunk()
        draws = np.array(self._draws[:n], np.int64).reshape(-1, 2)
        rewards = np.array([answers[draw] for draw in self._draws[:n]], np.float64)
        return Evidence(self, draws[:, 0], draws[:, 1], rewards, len(set(self._draws[:n])))

    def _draw_chunk(self) -> None:
        """Draw further questions."""
        n_contexts = self.arms.shape[1]
        context, arm = self._generator.random((2, _CHUNK))
        rows = (context * n_contexts).astype(np.int64)
        if len(self.disputed):
            rows[1::2] = self.disputed[(context[1::2] * len(self.disputed)).astype(np.int64)]
        columns = self._proposed[(arm * self._n_proposed[rows]).astype(np.int64), rows]
        drawn = list(zip(rows.tolist(), columns.tolist(), strict=True))
        self._draws += drawn
        self._distinct.update(dict.fromkeys(drawn))


@dataclass(frozen=True)
class Evidence:
    """Answers to the first draws, and the estimates of values and advantages from them."""

    questions: Questions
    #: Index of the context of each draw, (n,).
    contexts: IntArray
    #: Arm of each draw, (n,).
    arms: IntArray
    #: Reward of each draw, (n,).
    rewards: FloatArray
    #: Number of distinct questions that were answered.
    answered: int

    @property
    def complete(self) -> bool:
        """True if every possible question was answered, so that values are known exactly."""
        return self.answered == self.questions.n_questions

    def advantages(self, baseline: int | None) -> tuple[FloatArray, FloatArray]:
        """Return the candidates' advantages over the baseline, (C,), and the covariance of their errors, (C, C).

        ``baseline`` is the index of a candidate; None estimates values instead of advantages.
        """
        questions = self.questions
        choices, predicted, n = questions.arms, questions.predicted, len(self.rewards)
        n_contexts = choices.shape[1]
        rows = np.arange(n_contexts)
        base = np.zeros(n_contexts) if baseline is None else predicted[rows, choices[baseline]]
        means = (predicted[rows, choices] - base).mean(axis=1)
        if not n:
            return means, np.full((len(choices), len(choices)), np.inf)
        weight = 1.0 / (n_contexts * questions.probability[self.contexts])
        residual = self.rewards - predicted[self.contexts, self.arms]
        terms = np.zeros((len(choices), n))
        for index, chosen in enumerate(choices):
            differs = np.ones(n_contexts, np.bool_) if baseline is None else chosen != choices[baseline]
            if index == baseline or not differs.any():
                continue
            used_weight = weight * differs[self.contexts]
            signed_weight = used_weight * (chosen[self.contexts] == self.arms)
            controls = signed_weight[None] - differs.mean()
            if baseline is not None:
                baseline_weight = used_weight * (choices[baseline][self.contexts] == self.arms)
                controls = np.stack([signed_weight, baseline_weight]) - differs.mean()
                signed_weight = signed_weight - baseline_weight
            terms[index] = signed_weight * residual
            gram = controls @ controls.T + _CONTROL_ANSWERS * differs.mean() ** 2 * np.eye(len(controls))
            terms[index] -= np.linalg.solve(gram, controls @ terms[index]) @ controls
        return means + terms.mean(axis=1), self._covariance(terms, residual, baseline)

    def _covariance(self, terms: FloatArray, residual: FloatArray, baseline: int | None) -> FloatArray:
        """Return the covariance of the mean terms: a weighted mean of the sample covariance and the one by design."""
        n = len(residual)
        pooled = (np.square(residual).sum() + _SCALE_ANSWERS * self.questions.scale**2) / (n + _SCALE_ANSWERS)
        designed = pooled * _design_moments(self.questions.arms, self.questions.probability, baseline)
        sampled = n if n > 3 else 0  # two coefficients and a mean are fitted
        sample = np.cov(terms) * n / (n - 2) if sampled else np.zeros_like(designed)
        blended: FloatArray = (sampled * sample + _VARIANCE_ANSWERS * designed) / (sampled + _VARIANCE_ANSWERS) / n
        return blended

    def intervals(self, baseline: int | None, *, confidence: float = 0.95, budget: int | None = None) -> list[Interval]:
        """Return an interval for each candidate's advantage over the baseline. The intervals hold simultaneously.

        Args:
            baseline: index of a candidate; None returns intervals for values.
            confidence: level of the two-sided intervals.
            budget: number of planned answers. Intervals from fewer answers are wider, so that they may be looked at
                after any answer.
        """
        values, covariance = self.advantages(baseline)
        if self.complete:
            return [Interval(float(value), float(value), float(value)) for value in self._exact_values(baseline)]
        if not len(self.rewards):
            known = (
                np.zeros(len(values))
                if baseline is None
                else (self.questions.arms == self.questions.arms[baseline]).mean(1)
            )
            return [
                Interval(float(v), *(2 * (float(v),) if k == 1 else (-math.inf, math.inf)))
                for v, k in zip(values, known, strict=True)
            ]
        errors = np.sqrt(covariance.diagonal())
        degrees_of_freedom = max(len(self.rewards) - 3, 0) + _VARIANCE_ANSWERS
        early_factor = 1.0 if budget is None else math.sqrt(max(budget / self.answered, 1.0))
        half = _largest_error_quantile(covariance, degrees_of_freedom, confidence) * early_factor * errors
        return [Interval(float(v), float(v - h), float(v + h)) for v, h in zip(values, half, strict=True)]

    def _exact_values(self, baseline: int | None) -> FloatArray:
        """Return values, or advantages over the baseline, if every question was answered, (C,)."""
        rewards = dict(zip(zip(self.contexts.tolist(), self.arms.tolist(), strict=True), self.rewards, strict=True))
        values = np.array(
            [np.mean([rewards[row, arm] for row, arm in enumerate(chosen.tolist())]) for chosen in self.questions.arms]
        )
        return values if baseline is None else values - values[baseline]

    def choose(self, default: int, source_values: FloatArray) -> int:
        """Return the index of the candidate with the largest cautious posterior advantage over the default.

        Args:
            default: index of the candidate that is chosen without answers.
            source_values: mean rewards on held-out source rounds of the first M candidates, (M,). One of them is
                chosen.
        """
        n = len(source_values)
        arms = self.questions.arms[:n]
        if not len(self.rewards):
            return default
        if self.complete:
            return int(self._exact_values(None)[:n].argmax())
        estimates, errors = self.advantages(default)
        estimates, errors = estimates[:n], errors[:n, :n]
        differs = (arms[:, None] != arms[None]).mean(axis=2)
        # A Hamming distance is of negative type, so this is a covariance.
        prior = (differs[:, [default]] + differs[[default]] - differs) / 2.0
        prior *= np.square(_PRIOR_DEVIATION * self.questions.scale)
        gained = source_values - source_values[default]
        expected = _KEPT_FRACTION * gained
        prior += np.square(_KEPT_DEVIATION) * np.outer(gained, gained)
        ridge = 1e-9 * max(float(errors.diagonal().max()), 1e-300) * np.eye(n)
        gain = np.linalg.solve(prior + errors + ridge, prior).T
        posterior = expected + gain @ (estimates - expected)
        deviation = np.sqrt(np.maximum((prior - gain @ prior).diagonal(), 0.0))
        cautious = posterior - _CAUTION * deviation
        cautious[default] = 0.0
        return int(cautious.argmax())


def _design_moments(arms: IntArray, probability: FloatArray, baseline: int | None) -> FloatArray:
    """Return the second moments of the candidates' weights minus the baseline's, for one draw, (C, C)."""
    n_candidates, n_contexts = arms.shape
    inverse = 1.0 / (probability * n_contexts**2)
    same = np.stack([(arms == arms[index]) @ inverse for index in range(n_candidates)])
    if baseline is None:
        return same
    moments: FloatArray = same - same[:, [baseline]] - same[[baseline]] + same[baseline, baseline]
    return moments


def _largest_error_quantile(covariance: FloatArray, degrees_of_freedom: float, confidence: float) -> float:
    """Return the quantile of the largest absolute error of all candidates, in standard errors."""
    errors = np.sqrt(covariance.diagonal())
    differs = errors > 1e-12 * max(float(errors.max()), 1e-300)
    if differs.sum() < 2:
        return float(stdtrit(degrees_of_freedom, 0.5 + confidence / 2.0))
    correlation = covariance[np.ix_(differs, differs)] / np.outer(errors[differs], errors[differs])
    values, vectors = np.linalg.eigh(correlation)
    generator = np.random.default_rng(0)
    normal = generator.standard_normal((_NORMAL_DRAWS, len(values)))
    largest = np.abs(normal @ (vectors * np.sqrt(np.maximum(values, 0.0))).T).max(axis=1)
    chi = np.sqrt(generator.chisquare(degrees_of_freedom, _NORMAL_DRAWS) / degrees_of_freedom)
    return float(np.quantile(largest / chi, confidence))
