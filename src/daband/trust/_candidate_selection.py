"""Which of several candidates is best in the target, from a few rewards asked for where the best of them disagree.

A question is a context together with an arm that a candidate proposes for it. Where two candidates choose the same arm
no reward can tell them apart, and most candidates are soon out of the running. So each question is about two that may
both be the best (top-two Thompson sampling: Russo, 2020): two draws from the posterior of all values, then a question
among those whose arm is proposed by exactly one of the two, half of the time drawn evenly, half in proportion to what
its answer tells of their difference. One question in six has an evenly drawn context and the leader's arm: for the
leader's interval.

The posterior is that of a linear regression. What a question pays differs from the mean prediction by an effect of
every candidate that proposes the arm, a share of what every candidate predicts beyond the mean, and noise; the value of
a candidate is a mean over all contexts. The deviations of effects and shares, and how questions are drawn, were chosen
on stored predictions of 157 data sets for development, all of them in view: on others the gain may be smaller.

A guarantee that needs no model comes beside it. Given the two candidates, a question is drawn with a known probability
without replacement, so that the difference of their values has an unbiased estimate after each. For every two
candidates a gambler bets on it; by Ville's inequality the wealth is large with a small probability if the bet is on the
wrong one (Waudby-Smith and Ramdas, 2024), at any time: so one may look after each answer. A candidate that another one
has beaten is left out. The probability that the best one is ever left out is at most 1 - ``confidence``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from daband._arrays import BoolArray, FloatArray, IntArray
from daband.trust._confidence_intervals import Interval, WeightedDraws, confidence_sequence

_VALUE_EVERY = 6
"""One question in so many is for the leader's interval."""
_CAUTION = 0.5
"""The largest share of its wealth that a gambler may lose by one answer."""
_EVEN = 0.5
"""With this probability a question is drawn evenly, which limits what one answer may count."""
_EFFECT, _SHARE, _NOISE = 0.1, 0.5, 0.2
"""Deviations of a candidate's effect and of the share of its predictions, and the variance of a reward: nearly the
largest that a 0 or 1 can have."""
_DRAWS = 40
"""Draws from the posterior among which another best candidate than the first is looked for."""
_FEWEST_ANSWERS, _UNLIKELY = 20, 0.02
"""Before so many answers the posterior neither chooses nor ends the asking; then it ends where another is better with
this probability."""


@dataclass(frozen=True)
class Proposals:
    """What C candidates choose for L target contexts, and the M questions about those on which they differ."""

    arms: IntArray
    """Chosen arms, (C, L)."""
    means: FloatArray
    """Predicted rewards of each context and arm, (P, L, K): by the candidates, or others. They make answers tell more,
    and no bias in what is left out."""
    predicted: FloatArray = field(init=False)
    """Their mean within [0, 1], (L, K)."""
    questions: IntArray = field(init=False)
    """Context and arm, (M, 2)."""
    proposes: BoolArray = field(init=False)
    """Whether a candidate proposes the arm of a question, (C, M)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicted", np.clip(self.means.mean(axis=0), 0.0, 1.0))
        proposed = np.zeros(self.predicted.shape, np.bool_)
        for arms in self.arms:
            proposed[np.arange(len(proposed)), arms] = True
        questions = np.argwhere(proposed & (proposed.sum(axis=1) > 1)[:, None])
        object.__setattr__(self, "questions", questions)
        object.__setattr__(self, "proposes", self.arms[:, questions[:, 0]] == questions[:, 1])

    @property
    def contexts(self) -> int:
        """How many contexts there are, L."""
        return int(self.arms.shape[1])

    @property
    def disagreement(self) -> float:
        """The share of contexts on which candidates differ."""
        return len(np.unique(self.questions[:, 0])) / max(self.contexts, 1)

    def features(self, contexts: IntArray, arms: IntArray) -> FloatArray:
        """What the regression knows of questions, (n, 1 + C + P): who proposes the arm, and predicts how much more."""
        proposes = (self.arms[:, contexts] == arms).T
        beyond = np.clip(self.means[:, contexts, arms], -0.5, 1.5).T - self.predicted[contexts, arms][:, None]
        return np.concatenate([np.ones((len(contexts), 1)), proposes, beyond], axis=1)


@dataclass(frozen=True)
class _Drawn:
    """A question that was drawn and is not answered yet."""

    context: int
    arm: int
    place: int = -1
    """Its position among the questions; -1 where it is asked for the leader's interval."""
    pair: tuple[int, int] = (0, 0)
    """The candidates that it is to tell apart."""
    open: BoolArray | None = None
    """What it was drawn from, (M,)."""
    probability: float = 1.0
    """With which it was drawn from these."""


class Selection:
    """Candidates, the answers so far, and what follows from them; rewards are scaled to [0, 1].

    Args:
        proposals: what candidates choose, and the questions.
        one_hot: whether exactly one arm of each context pays 1 and the others 0, so that a 1 answers other questions.
        confidence: that the best candidate is not left out, and of the winner's interval.
        tolerance: how much the chosen candidate may be worse than another for the asking to stop.
        seed: of the draws.
    """

    def __init__(
        self,
        proposals: Proposals,
        *,
        one_hot: bool = False,
        confidence: float = 0.95,
        tolerance: float = 0.01,
        seed: int = 0,
    ) -> None:
        self.proposals = proposals
        self.confidence, self.tolerance = confidence, tolerance
        arms, questions = proposals.arms, proposals.questions
        n, contexts = arms.shape
        self.asked = 0
        """How many rewards were asked for."""
        self.remaining: BoolArray = np.ones(n, np.bool_)
        """Which candidates have not been left out, (C,)."""
        self._one_hot = one_hot
        self._generator = np.random.default_rng(seed)
        self._order = self._generator.permutation(contexts)
        self._queue: list[_Drawn] = []
        self._n_drawn = 0
        self._for_value: list[tuple[int, int, float]] = []
        self._open: BoolArray = np.ones(len(questions), np.bool_)
        self._known: FloatArray = np.zeros(len(questions))
        self._guess = proposals.predicted[questions[:, 0], questions[:, 1]]
        self._wealth, self._bets = np.zeros((2, n, n)), np.zeros((n, n))
        self._sum, self._squares = np.zeros((n, n)), np.zeros((n, n))
        # A value is what was predicted, and the regression's correction for the candidate's own choices.
        rows = np.arange(contexts)
        self._predicted = proposals.predicted[rows, arms].mean(axis=1)
        self._design = np.stack([proposals.features(rows, own).mean(axis=0) for own in arms])
        self._features = proposals.features(questions[:, 0], questions[:, 1])
        self._precision = np.diag([1.0, *[_EFFECT**-2] * n, *[_SHARE**-2] * len(proposals.means)])
        self._score = np.zeros(len(self._precision))

    @property
    def finished(self) -> bool:
        """Whether no reward is likely to change the choice by more than the tolerance."""
        proposes = self.proposals.proposes[self.remaining][:, self._open]
        if not (proposes.any(axis=0) & ~proposes.all(axis=0)).any():
            return True
        leader, rivals = self.leader, self.remaining.copy()
        rivals[leader] = False
        if (self._wealth[1, leader] >= self._threshold)[rivals].all():
            return True
        values, covariance, _ = self._posterior()
        ahead = values[leader] - values[rivals] + self.tolerance
        deviation = np.sqrt(_variance_of_difference(covariance, leader)[rivals])
        better = sum(0.5 * math.erfc(z / math.sqrt(2.0)) for z in ahead / deviation)
        return self.asked >= _FEWEST_ANSWERS and better <= _UNLIKELY

    @property
    def leader(self) -> int:
        """The candidate to choose now."""
        return int(np.where(self.remaining, self.values(), -np.inf).argmax())

    def choice(self, preferred: int) -> int:
        """The leader; before 20 answers the preferred candidate, unless it is beaten or nothing is left to ask."""
        few = self.asked < _FEWEST_ANSWERS and self.remaining[preferred] and not self.finished
        return preferred if few else self.leader

    def values(self) -> FloatArray:
        """Estimated values of all candidates, (C,): what they predict, corrected by the answers."""
        return self._posterior()[0]

    def draw(self, n: int = 1) -> list[tuple[int, int]]:
        """The next questions as context and arm, ``n`` of them or as many as there are; not all need an answer."""
        while len(self._queue) < n and (drawn := self._drawn_question()) is not None:
            self._queue.append(drawn)
            if drawn.place >= 0:
                self._open[drawn.place] = False
        return [(one.context, one.arm) for one in self._queue[:n]]

    def answer(self, reward: float) -> None:
        """Take the reward of the first question that is not answered, scaled to [0, 1]."""
        self.draw()
        drawn = self._queue.pop(0)
        self.asked += 1
        self._learn(drawn.context, drawn.arm, reward)
        if drawn.place < 0:
            self._for_value.append((drawn.context, drawn.arm, reward))
        else:
            self._bet(drawn, reward)
            self._known[drawn.place] = reward
        for place in np.flatnonzero(self._open & (self.proposals.questions[:, 0] == drawn.context)):
            same = self.proposals.questions[place, 1] == drawn.arm
            if same or (self._one_hot and reward == 1.0):
                self._open[place] = False
                self._known[place] = reward if same else 0.0
                if not same:
                    self._learn(drawn.context, int(self.proposals.questions[place, 1]), 0.0)
        beaten = (self._wealth[0] >= self._threshold) & self.remaining[:, None]
        self.remaining &= ~beaten.any(axis=0)

    def interval(self, candidate: int) -> Interval:
        """The value of a candidate over all contexts with limits that hold for every candidate at once, at any time.

        They rest on the evenly drawn contexts. Where the arm that was asked for is not the candidate's, its reward may
        be anything.
        """
        n = self.proposals.contexts
        predicted = self.proposals.predicted[np.arange(n), self.proposals.arms[candidate]]
        rows = np.array([context for context, _, _ in self._for_value], np.int64)
        limits = []
        for unknown in (0.0, 1.0):
            rewards = np.array([self._reward_of(candidate, *one, unknown) for one in self._for_value])
            draws = WeightedDraws(
                predicted=predicted[rows],
                probability=np.full(len(rows), 1.0 / n),
                predicted_total=float(predicted.sum()),
                n_contexts=n,
                deepest=float(predicted.max() * n),
                highest=float((1.0 - predicted).max() * n),
            )
            confidence = 1.0 - (1.0 - self.confidence) / len(self.remaining)
            limits.append(confidence_sequence(draws, rewards, confidence=confidence))
        low, high = limits[0].low, max(limits[1].high, limits[0].low)
        return Interval(float(np.clip(self.values()[candidate], low, high)), low, high)

    def _reward_of(self, candidate: int, context: int, arm: int, reward: float, unknown: float) -> float:
        if self.proposals.arms[candidate, context] == arm:
            return reward
        return 0.0 if self._one_hot and reward == 1.0 else unknown

    @property
    def _threshold(self) -> float:
        return math.log(max(len(self.remaining) - 1, 1) / (1.0 - self.confidence))

    def _drawn_question(self) -> _Drawn | None:
        """The next question; the answers to those that wait are taken to be what is expected."""
        if (self._n_drawn + 1) % _VALUE_EVERY == 0 and self._n_drawn // _VALUE_EVERY < len(self._order):
            context = int(self._order[self._n_drawn // _VALUE_EVERY])
            self._n_drawn += 1
            return _Drawn(context, int(self.proposals.arms[self.leader, context]))
        proposes = self.proposals.proposes
        alive = np.flatnonzero(self.remaining)
        values, covariance, of_effects = self._posterior(waiting=True)
        first = self._two_that_may_be_best(values, covariance)
        pairs = [first, *((int(i), int(j)) for i in alive for j in alive if i < j)]
        for pair in pairs:
            from_these = self._open & (proposes[pair[0]] != proposes[pair[1]])
            if from_these.any():
                break
        else:
            return None
        places = np.flatnonzero(from_these)
        told = np.square(self._features[places] @ of_effects @ (self._design[pair[0]] - self._design[pair[1]])) + 1e-12
        probabilities = _EVEN / len(places) + (1.0 - _EVEN) * told / told.sum()
        drawn = int(self._generator.choice(len(places), p=probabilities))
        self._n_drawn += 1
        context, arm = (int(value) for value in self.proposals.questions[places[drawn]])
        return _Drawn(context, arm, int(places[drawn]), pair, self._open.copy(), float(probabilities[drawn]))

    def _two_that_may_be_best(self, values: FloatArray, covariance: FloatArray) -> tuple[int, int]:
        values = np.where(self.remaining, values, -np.inf)
        root = np.linalg.cholesky(covariance + 1e-10 * np.eye(len(values)))
        best = (values[:, None] + root @ self._generator.standard_normal((len(values), _DRAWS))).argmax(axis=0)
        first = int(best[0])
        others = best[best != first]
        if len(others):
            return first, int(others[0])
        distance = (values - values[first]) / np.sqrt(_variance_of_difference(covariance, first))
        distance[first] = -np.inf
        return first, int(distance.argmax())

    def _posterior(self, *, waiting: bool = False) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean (C,) and covariance (C, C) of the values, and the covariance of the regression's coefficients."""
        precision = self._precision
        if waiting and self._queue:
            contexts, arms = np.array([(one.context, one.arm) for one in self._queue]).T
            features = self.proposals.features(contexts, arms)
            precision = precision + features.T @ features / _NOISE
        covariance = np.linalg.inv(precision)
        effects = np.linalg.solve(self._precision, self._score)
        return self._predicted + self._design @ effects, self._design @ covariance @ self._design.T, covariance

    def _learn(self, context: int, arm: int, reward: float) -> None:
        (features,) = self.proposals.features(np.array([context]), np.array([arm]))
        self._precision = self._precision + np.outer(features, features) / _NOISE
        self._score = self._score + features * (reward - self.proposals.predicted[context, arm]) / _NOISE

    def _bet(self, drawn: _Drawn, reward: float) -> None:
        """Let the gamblers of two candidates bet on the answer to a question that was drawn to tell them apart."""
        assert drawn.open is not None
        one, other = drawn.pair
        sign = self.proposals.proposes[one].astype(np.float64) - self.proposals.proposes[other]
        unknown = drawn.open & (sign != 0)
        reach = float(unknown.sum()) / self.proposals.contexts
        # What is known, what is predicted of the rest, and a draw from its error by its probability: the conditional
        # expectation is the difference of the two values, whatever was drawn before.
        centre = float(sign @ np.where(unknown, self._guess, self._known)) / self.proposals.contexts
        error = sign[drawn.place] * (reward - self._guess[drawn.place])
        difference = centre + error / (drawn.probability * self.proposals.contexts)
        for better, worse, won in ((one, other, difference), (other, one, -difference)):
            n = self._bets[better, worse]
            mean = self._sum[better, worse] / (n + 1)
            variance = (self._squares[better, worse] + reach**2) / (n + 1)
            for kind, margin in enumerate((0.0, self.tolerance)):
                edge = max(mean + margin, 0.0)
                stake = min(edge / (variance + edge**2), _CAUTION / (reach / _EVEN + abs(centre)))
                self._wealth[kind, better, worse] += math.log1p(stake * (won + margin))
            self._sum[better, worse] += won
            self._squares[better, worse] += won**2
            self._bets[better, worse] += 1


def _variance_of_difference(covariance: FloatArray, place: int) -> FloatArray:
    """Of all values and the one at a place, (C,)."""
    diagonal = covariance.diagonal()
    return np.maximum(diagonal + diagonal[place] - 2.0 * covariance[place], 1e-12)
