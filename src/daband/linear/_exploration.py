"""Choose arms by predicted means and bonuses, and compute the probabilities of the choices.

Start with ``Exploration``, which has the settings and chooses arms. ``Decision`` is its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from daband.base._arguments import check_fraction, check_one_of
from daband.base._arrays import FloatArray, IntArray, Mask, take_chosen
from daband.errors import InvalidInput
from daband.linear._draws import DrawFunction

#: Scores within ``TIE_TOLERANCE * (scale + |best - centre|)`` of the best score are tied, so that
#: rounding does not decide.
TIE_TOLERANCE = 1e-12
#: The mean and the standard deviation of rewards, relative to which ties of scores are measured.
Scaling = tuple[float, float]
#: The largest ``alpha``; scores would overflow above it.
_MAX_ALPHA = 1e100


@dataclass(frozen=True)
class Exploration:
    """Settings for choosing arms from predicted means and bonuses.

    The arm with the largest score is chosen. The score is the mean plus ``alpha`` times the bonus
    for the rule "ucb", otherwise the mean. With probability ``epsilon``, the arm is drawn instead.
    The draw is uniform, but for the rule "doubt" only a fraction ``epsilon`` of the draws is. In the
    others, the probability of an arm is proportional to exp(-(m - m_a)^2 / (2 s_a^2)), for the
    largest mean m, and the mean m_a and bonus s_a of the arm (Maillard sampling; Bian and Jun,
    2022). So arms that are proven to be worse are rarely drawn, with a floor of the squared
    ``epsilon`` divided by the number of arms.
    """

    #: "ucb", "greedy" or "doubt".
    rule: str = "ucb"
    #: The factor of the bonus. This is the default of every linear policy.
    alpha: float = 0.15
    #: The probability of a drawn arm.
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        check_one_of("explore", self.rule, ("ucb", "greedy", "doubt"))
        if not 0 <= self.alpha <= _MAX_ALPHA:
            raise InvalidInput(f"alpha must be in [0, {_MAX_ALPHA:g}], got {self.alpha}")
        check_fraction("epsilon", self.epsilon, allow_one=True)

    @property
    def bonus_factor(self) -> float:
        """The factor of the bonus in an arm's score: ``alpha`` for "ucb", otherwise 0."""
        return self.alpha if self.rule == "ucb" else 0.0

    def with_rule(self, rule: str | None) -> Exploration:
        """Return a copy with this rule and epsilon 0, or this object if ``rule`` is None."""
        return self if rule is None else Exploration(rule, self.alpha)

    def decide(
        self,
        mean: FloatArray,
        bonus: FloatArray,
        draw: DrawFunction,
        available: Mask = None,
        scaling: Scaling = (0, 1),
    ) -> Decision:
        """Choose an arm for each row of means and bonuses (B, K).

        ``available`` (B, K) has at least one arm per row. ``scaling`` is the mean and the standard
        deviation of rewards, relative to which ties are measured. No random number is drawn if
        every row has one best arm and epsilon is 0.
        """
        probabilities = self.probabilities(mean, bonus, available=available, scaling=scaling)
        if not self.epsilon and np.count_nonzero(probabilities) == len(mean):
            return Decision(probabilities.argmax(axis=1), np.ones(len(mean)), mean, bonus)
        cumulative = probabilities.cumsum(axis=1)
        arms = (cumulative > draw(len(mean), 1) * cumulative[:, -1:]).argmax(axis=1)
        return Decision(arms, take_chosen(probabilities, arms), mean, bonus)

    def probabilities(
        self,
        mean: FloatArray,
        bonus: FloatArray,
        *,
        available: Mask = None,
        scaling: Scaling = (0, 1),
    ) -> FloatArray:
        """Return the probability with which ``decide`` chooses each arm, (B, K).

        The arguments are those of ``decide``.
        """
        centre, scale = scaling
        scores = mean + self.bonus_factor * bonus if self.bonus_factor else mean
        if available is not None:
            scores = np.where(available, scores, -np.inf)
        best_scores = scores.max(axis=1, keepdims=True)
        tolerance = TIE_TOLERANCE * (scale + np.abs(best_scores - centre))
        is_tied = scores >= best_scores - tolerance
        if available is not None:
            is_tied &= available
        n_tied = is_tied.sum(axis=1, keepdims=True)
        if np.count_nonzero(n_tied) < len(n_tied):
            raise ValueError("no arm is available, or a score is NaN")
        if not self.epsilon:
            return is_tied / n_tied
        drawn = np.ones(scores.shape) if available is None else available
        drawn = drawn / drawn.sum(axis=1, keepdims=True)
        if self.rule == "doubt":
            gaps = (best_scores - scores) / np.maximum(bonus, 1e-100)
            likelihoods = np.exp(-0.5 * np.square(gaps))
            likelihoods /= likelihoods.sum(axis=1, keepdims=True)
            drawn = self.epsilon * drawn + (1.0 - self.epsilon) * likelihoods
        return (1.0 - self.epsilon) * is_tied / n_tied + self.epsilon * drawn


@dataclass(frozen=True, slots=True)
class Decision:
    """The decisions of a policy for a batch of contexts.

    Attributes:
        arm: the chosen arms, (B,).
        propensity: the probabilities with which they were chosen, (B,).
        mean: the predicted reward of each arm at the time of the choice, (B, K).
        bonus: the confidence bonus of each arm at that time, (B, K).

    >>> policy = daband.LinUCB(context_shape=(1,), n_arms=2, epsilon=0.2, seed=0)
    >>> decision = policy.select([[1.0]], available=[False, True])
    >>> decision.arm.tolist(), decision.propensity.tolist()
    ([1], [1.0])
    """

    arm: IntArray
    propensity: FloatArray
    mean: FloatArray
    bonus: FloatArray


AnyDecision = TypeVar("AnyDecision", bound=Decision)


def join_decisions(decisions: Sequence[AnyDecision]) -> AnyDecision:
    """Return one decision with the rounds of all decisions, in order."""
    cls = type(decisions[0])
    return cls(
        *[
            np.concatenate([getattr(decision, field.name) for decision in decisions])
            for field in fields(cls)
        ]
    )
