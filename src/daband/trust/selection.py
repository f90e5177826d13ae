"""Which of several candidates is best in the target, from a few rewards asked for where candidates disagree.

Where all candidates choose the same arm, no reward can tell them apart. So a question is a context together with one of
the arms that are proposed for it, drawn evenly and without replacement among all contexts with more than one proposal.
With y_c the reward where the arm is candidate c's own and 0 elsewhere, the mean of y_c over all M such questions, times
M over the number of contexts, is c's value there. The order of questions is fixed before the first reward is seen:
rewards decide which questions may be left out (those on which all remaining candidates agree), and when to stop.

For every two candidates a gambler bets that one is better than the other. By Ville's inequality its wealth is large
with a small probability if it is not (Waudby-Smith and Ramdas, 2024), at any time: so one may look after each answer. A
candidate that another one has beaten is left out. The probability that the best one is ever left out is at most 1 -
``confidence``. The choice itself is the largest estimate among those that remain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from daband.arrays import BoolArray, FloatArray, IntArray
from daband.trust.confidence_sequence import WeightedDraws, confidence_sequence
from daband.trust.score_interval import Interval

__all__ = ["Proposals", "Selection"]

_AGREED_EVERY = 5
"""One question in so many is asked where all candidates agree: for the winner's interval, not for the choice."""
_CAUTION = 0.5
"""The largest share of its wealth that a gambler may lose by one answer."""
_PRIOR_DEVIATION = 0.1
"""How far estimates without rewards are usually off: what rewards have to outweigh (docs/results/trust.md)."""


@dataclass(frozen=True)
class Proposals:
    """What C candidates choose for L target contexts, and all questions about it in the order of asking."""

    arms: IntArray
    """Chosen arms, (C, L)."""
    predicted: FloatArray
    """The predicted reward of each context and arm, (L, K) within [0, 1]. It makes answers tell more, and no bias."""
    seed: int = 0
    apart: IntArray = field(init=False)
    """Questions where candidates differ, (M, 2): context and arm."""
    agreed: IntArray = field(init=False)
    """Questions where all agree, (L - |D|, 2)."""

    def __post_init__(self) -> None:
        proposed = np.zeros(self.predicted.shape, np.bool_)
        for arms in self.arms:
            proposed[np.arange(len(proposed)), arms] = True
        differ = proposed.sum(axis=1) > 1
        generator = np.random.default_rng(self.seed)
        for name, rows in (("apart", differ), ("agreed", ~differ)):
            questions = np.argwhere(proposed & rows[:, None])
            object.__setattr__(self, name, generator.permutation(questions, axis=0))

    @property
    def contexts(self) -> int:
        """How many contexts there are, L."""
        return int(self.arms.shape[1])

    @property
    def disagreement(self) -> float:
        """The share of contexts on which candidates differ."""
        return 1.0 - len(self.agreed) / max(self.contexts, 1)

    def order(self) -> IntArray:
        """All questions, (n, 2): one in five where all agree, as long as there are both kinds."""
        n_apart, n_agreed = len(self.apart), len(self.agreed)
        place_apart = np.arange(n_apart) + np.arange(n_apart) // (_AGREED_EVERY - 1)
        place_agreed = np.arange(1, n_agreed + 1) * _AGREED_EVERY - 1
        order = np.argsort(np.concatenate([place_apart, place_agreed + 0.5]), kind="stable")
        questions: IntArray = np.concatenate([self.apart, self.agreed])[order]
        return questions


class Selection:
    """Candidates, the answers so far, and what follows from them; rewards are scaled to [0, 1].

    Args:
        proposals: what candidates choose, and the questions.
        estimates: estimated values without rewards, (C,).
        confidence: that the best candidate is not left out, and of the winner's interval.
        tolerance: how much the chosen candidate may be worse than another for the asking to stop.
    """

    def __init__(
        self, proposals: Proposals, estimates: FloatArray, *, confidence: float = 0.95, tolerance: float = 0.01
    ) -> None:
        self.proposals = proposals
        self.confidence, self.tolerance = confidence, tolerance
        self.estimates = np.asarray(estimates, np.float64)
        n = len(self.estimates)
        self.remaining: BoolArray = np.ones(n, np.bool_)
        """Which candidates have not been left out, (C,)."""
        self._next_apart = 0
        self._apart_rewards: list[float] = []
        self._agreed_rewards: list[float] = []
        self._asked_apart: list[int] = []
        self._wealth = np.zeros((2, n, n))
        self._sum, self._squares = np.zeros((n, n)), np.zeros((n, n))
        rows = proposals.apart[:, 0], proposals.apart[:, 1]
        self._own = proposals.arms[:, rows[0]] == rows[1][None, :]  # (C, M)
        guess = proposals.predicted[rows]
        self._predicted = self._own * guess  # (C, M): what the draw is expected to be
        self._left = self._predicted.sum(axis=1)
        self._seen = np.zeros(n)
        self._draws: list[FloatArray] = []
        self._scale = len(proposals.apart) / max(proposals.contexts, 1)

    @property
    def asked(self) -> int:
        """How many rewards were asked for."""
        return len(self._apart_rewards) + len(self._agreed_rewards)

    @property
    def finished(self) -> bool:
        """Whether no reward can change the choice by more than the tolerance, with this confidence."""
        if self._open_question() is None:
            return True
        leader = self.leader
        good_enough = self._wealth[1, leader] >= self._threshold
        return bool((good_enough | ~self.remaining | (np.arange(len(self.estimates)) == leader)).all())

    @property
    def leader(self) -> int:
        """The candidate to choose now."""
        values = np.where(self.remaining, self.values(), -np.inf)
        return int(values.argmax())

    def question(self) -> tuple[int, int] | None:
        """The next context and arm to ask for; None where nothing is left to ask."""
        agreed_due = (self.asked + 1) % _AGREED_EVERY == 0 and len(self._agreed_rewards) < len(self.proposals.agreed)
        place = self._open_question()
        if agreed_due or place is None:
            if len(self._agreed_rewards) >= len(self.proposals.agreed):
                return None
            context, arm = self.proposals.agreed[len(self._agreed_rewards)]
        else:
            context, arm = self.proposals.apart[place]
        return int(context), int(arm)

    def answer(self, reward: float) -> None:
        """Take the reward of ``question()``, scaled to [0, 1]."""
        agreed_due = (self.asked + 1) % _AGREED_EVERY == 0 and len(self._agreed_rewards) < len(self.proposals.agreed)
        place = self._open_question()
        if agreed_due or place is None:
            self._agreed_rewards.append(reward)
            return
        for skipped in range(self._next_apart, place):
            self._take(skipped, None)
        self._take(place, reward)
        self._apart_rewards.append(reward)
        self._asked_apart.append(place)
        self._next_apart = place + 1
        beaten = (self._wealth[0] >= self._threshold) & self.remaining[:, None]
        self.remaining &= ~beaten.any(axis=0)

    def values(self) -> FloatArray:
        """Estimated values of all candidates, (C,): estimates without rewards and answers, by their precision."""
        n = len(self._draws)
        if not n:
            return self.estimates
        draws = np.stack(self._draws)
        centred = draws - draws.mean(axis=1, keepdims=True)
        # As if one more answer had been as uncertain as can be: few answers that happen to be alike prove little.
        variance = (np.square(centred - centred.mean(axis=0)).sum(axis=0) + 0.25 * self._scale**2) / (n + 1) / n
        answered, before = centred.mean(axis=0), self.estimates - self.estimates.mean()
        weight = _PRIOR_DEVIATION**2 / (_PRIOR_DEVIATION**2 + variance)
        values: FloatArray = weight * answered + (1.0 - weight) * before + self.estimates.mean()
        return values

    def interval(self, candidate: int) -> Interval:
        """The value of a candidate over all contexts with limits that hold for every candidate at once, at any time."""
        share = self.proposals.disagreement
        confidence = 1.0 - (1.0 - self.confidence) / (2.0 * len(self.estimates))
        answered = self._contiguous(candidate)
        apart = _mean_of(
            self._predicted[candidate], np.array([reward for _, reward in answered]), confidence=confidence
        )
        rows = self.proposals.agreed
        agreed = _mean_of(
            self.proposals.predicted[rows[:, 0], rows[:, 1]], np.array(self._agreed_rewards), confidence=confidence
        )
        # A candidate has one of the questions about each context: the mean over questions times questions by context.
        low, value, high = (
            min(self._scale * own, share) + (1.0 - share) * other
            for own, other in ((apart.low, agreed.low), (apart.value, agreed.value), (apart.high, agreed.high))
        )
        return Interval(value, low, high)

    def _contiguous(self, candidate: int) -> list[tuple[int, float]]:
        """The answers in the order of draws, up to the first that was left out and matters for this candidate."""
        known = dict(zip(self._asked_apart, self._apart_rewards, strict=True))
        found: list[tuple[int, float]] = []
        for place in range(self._next_apart):
            if self._own[candidate, place] and place not in known:
                break
            found.append((place, known.get(place, 0.0) if self._own[candidate, place] else 0.0))
        return found

    @property
    def _threshold(self) -> float:
        return math.log(max(len(self.estimates) - 1, 1) / (1.0 - self.confidence))

    def _open_question(self) -> int | None:
        """The next question whose answer can tell the remaining candidates apart."""
        own = self._own[self.remaining][:, self._next_apart :]
        if not own.size:
            return None
        matters = own.any(axis=0) & ~own.all(axis=0)
        return self._next_apart + int(matters.argmax()) if matters.any() else None

    def _take(self, place: int, reward: float | None) -> None:
        """Let every gambler bet on one draw; one that was not asked adds the same to all candidates that remain."""
        total, left = self._own.shape[1], self._own.shape[1] - place
        own, guess = self._own[:, place], self._predicted[:, place]
        paid = own * (guess if reward is None else reward)
        # The conditional expectation of this is the mean over all questions, whatever was drawn before.
        drawn = (self._seen + self._left + (paid - guess) * left) / total
        self._bet(drawn * self._scale, self._scale * (1.0 + left / total))
        self._draws.append(drawn * self._scale)
        self._seen += paid
        self._left -= guess

    def _bet(self, drawn: FloatArray, reach: float) -> None:
        """Bet on one draw, (C,); no difference between two candidates exceeds ``reach``."""
        difference = drawn[:, None] - drawn[None, :]  # row better than column
        n = len(self._draws)
        mean = self._sum / (n + 1)
        variance = (self._squares + self._scale**2) / (n + 1)
        for kind, margin in enumerate((0.0, self.tolerance)):
            edge = np.maximum(mean + margin, 0.0)
            stake = np.minimum(edge / (variance + np.square(edge)), _CAUTION / (reach + margin))
            self._wealth[kind] += np.log1p(stake * (difference + margin))
        self._sum += difference
        self._squares += np.square(difference)


def _mean_of(predicted: FloatArray, rewards: FloatArray, *, confidence: float) -> Interval:
    """The mean over a finite set from an even draw without replacement of the first rewards."""
    n = len(predicted)
    if not n:
        return Interval(0.0, 0.0, 0.0)
    even = np.full(n, 1.0 / n)
    draws = WeightedDraws(
        predicted=predicted[: len(rewards)],
        probability=even[: len(rewards)],
        predicted_total=float(predicted.sum()),
        n_contexts=n,
        deepest=float(predicted.max() * n),
        highest=float((1.0 - predicted).max() * n),
    )
    return confidence_sequence(draws, rewards, confidence=confidence)
