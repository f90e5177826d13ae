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
from daband.linear._reward_moments import UNSCALED, Scaling

#: Scores within ``TIE_TOLERANCE * (scale + |best - centre|)`` of the best score are tied, so that
#: rounding does not decide.
TIE_TOLERANCE = 1e-12
#: The largest ``alpha`` and the largest ``gamma``; scores would overflow above it.
_MAX_FACTOR = 1e100


@dataclass(frozen=True)
class Exploration:
    """Settings for choosing arms from predicted means and bonuses.

    The score of an arm is its mean, plus ``alpha`` times its bonus unless the rule is "greedy".

    * "greedy" and "ucb" choose the arm with the largest score.
    * "igw" is inverse gap weighting. Of K arms, an arm whose score is by g below the best one is
      drawn with probability 1 / (K + w g), where w is ``gamma`` times the square root of the number
      of rounds, in the unit of bonuses (``RewardMoments``). The best arm has the rest. So every arm
      has a probability above 0, which falls with its gap and with time.

    With probability ``epsilon``, the arm is drawn uniformly instead.

    **Guarantee of "igw".** Let f(x, a) be the scores, f* the true mean rewards, and w the weight of
    gaps. Then the expected regret of a round is at most 2 K / w + w / 4 E[(f - f*)^2] (Abe and Long,
    1999; SquareCB: Foster and Rakhlin, 2020). It does not matter how scores are computed, so bonuses
    are allowed: they add at most their squares, whose sum grows with the logarithm of the number of
    rounds. The sum of the first term over n rounds is of the order of sqrt(n). FALCON (Simchi-Levi
    and Xu, 2020) is the same rule for models that are fitted from time to time.
    """

    #: "ucb", "greedy" or "igw".
    rule: str = "igw"
    #: The factor of the bonus.
    alpha: float = 1.0
    #: The probability of a uniformly drawn arm.
    epsilon: float = 0.0
    #: The factor of gaps for the rule "igw". Policies with a larger factor explore less.
    gamma: float = 30.0

    def __post_init__(self) -> None:
        check_one_of("explore", self.rule, ("ucb", "greedy", "igw"))
        for name in ("alpha", "gamma"):
            value = getattr(self, name)
            if not 0 <= value <= _MAX_FACTOR:
                raise InvalidInput(f"{name} must be in [0, {_MAX_FACTOR:g}], got {value}")
        check_fraction("epsilon", self.epsilon, allow_one=True)

    @property
    def bonus_factor(self) -> float:
        """The factor of the bonus in an arm's score: 0 for "greedy", otherwise ``alpha``."""
        return 0.0 if self.rule == "greedy" else self.alpha

    def with_rule(self, rule: str | None) -> Exploration:
        """Return a copy with this rule and epsilon 0, or this object if ``rule`` is None."""
        return self if rule is None else Exploration(rule, self.alpha)

    def decide(
        self,
        mean: FloatArray,
        bonus: FloatArray,
        draw: DrawFunction,
        available: Mask = None,
        scaling: Scaling = UNSCALED,
    ) -> Decision:
        """Choose an arm for each row of means and bonuses (B, K).

        ``available`` (B, K) has at least one arm per row. Ties and gaps are measured relative to
        ``scaling``. No random number is drawn if every row has one best arm and nothing is random.
        """
        probabilities = self.probabilities(mean, bonus, available=available, scaling=scaling)
        if self.is_deterministic and np.count_nonzero(probabilities) == len(mean):
            return Decision(probabilities.argmax(axis=1), np.ones(len(mean)), mean, bonus)
        cumulative = probabilities.cumsum(axis=1)
        arms = (cumulative > draw(len(mean), 1) * cumulative[:, -1:]).argmax(axis=1)
        return Decision(arms, take_chosen(probabilities, arms), mean, bonus)

    @property
    def is_deterministic(self) -> bool:
        """True if only ties are broken at random."""
        return not self.epsilon and self.rule != "igw"

    def probabilities(
        self,
        mean: FloatArray,
        bonus: FloatArray,
        *,
        available: Mask = None,
        scaling: Scaling = UNSCALED,
    ) -> FloatArray:
        """Return the probability with which ``decide`` chooses each arm, (B, K).

        The arguments are those of ``decide``.
        """
        factor = self.bonus_factor
        scores = mean + factor * bonus if factor else mean
        if available is not None:
            scores = np.where(available, scores, -np.inf)
        best_scores = scores.max(axis=1, keepdims=True)
        tolerance = TIE_TOLERANCE * (scaling.scale + np.abs(best_scores - scaling.centre))
        gaps = best_scores - scores
        is_tied = gaps <= tolerance
        if available is not None:
            is_tied &= available
            gaps[~available] = 0.0
        n_tied = is_tied.sum(axis=1, keepdims=True)
        if np.count_nonzero(n_tied) < len(n_tied):
            raise ValueError("no arm is available, or a score is NaN")
        if self.is_deterministic:
            return is_tied / n_tied
        if self.rule == "igw":
            n_arms = scores.shape[1] if available is None else available.sum(axis=1, keepdims=True)
            probabilities = 1.0 / (n_arms + self.gamma * scaling.certainty * gaps)
            probabilities[is_tied if available is None else is_tied | ~available] = 0.0
            rest = (1.0 - probabilities.sum(axis=1, keepdims=True)) / n_tied
            probabilities += rest * is_tied
        else:
            probabilities = is_tied / n_tied
        if not self.epsilon:
            return probabilities
        drawn = np.ones(scores.shape) if available is None else available
        drawn = drawn / drawn.sum(axis=1, keepdims=True)
        return (1.0 - self.epsilon) * probabilities + self.epsilon * drawn


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
