"""Choose arms by predicted means and bonuses, and compute the probabilities of the choices.

Start with ``Exploration``, which has the settings and chooses arms. ``Decision`` is its result. The
functions before ``Exploration`` compute the probabilities of Thompson sampling, and choose among
tied arms.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from daband.base._arguments import check_one_of
from daband.base._arrays import BoolArray, FloatArray, IntArray, Mask
from daband.errors import InvalidInput
from daband.linear._draws import DrawFunction, to_gaussians

#: Scores within ``TIE_TOLERANCE * (1 + |best|)`` of the best score are tied, so that rounding does
#: not decide.
TIE_TOLERANCE = 1e-12
#: Integrals over a normal distribution end at this many standard deviations from its mean.
_MAX_DEVIATIONS = 9.0
#: The nodes and weights of Gauss-Legendre quadrature on [-1, 1].
_QUADRATURE_NODES, _QUADRATURE_WEIGHTS = np.polynomial.legendre.leggauss(12)
#: The points at which an integral is split into pieces, in standard deviations from the mean.
_KNOTS = np.array([-_MAX_DEVIATIONS, -5.0, -3.0, -1.5, 0.0, 1.5, 3.0, 5.0, _MAX_DEVIATIONS])
#: Smaller standard deviations are raised to this value times 1 plus the largest absolute mean.
_MIN_RELATIVE_DEVIATION = 1e-13


def compute_best_probabilities(
    mean: FloatArray, deviation: FloatArray, available: BoolArray, arms: IntArray
) -> FloatArray:
    """Return the probability (B,) that the normal draw of one arm per row is larger than those of
    all available arms.

    Args:
        mean: the means of the draws, (B, K).
        deviation: their standard deviations, (B, K).
        available: the arms that are drawn, (B, K).
        arms: the arm of each row, (B,).

    The probability is the integral of the arm's density times the other arms' distribution
    functions. It is split at fixed multiples of the standard deviation of each arm. Each piece is
    computed with twelve Gauss-Legendre nodes. A standard deviation of zero is replaced by a very
    small one, so two certain arms with equal means are equally likely.
    """
    probabilities = np.empty(len(mean))
    for row in range(len(mean)):
        arm = int(arms[row])
        other_arms = np.flatnonzero(available[row])
        other_arms = other_arms[other_arms != arm]
        probabilities[row] = _compute_best_probability(mean[row], deviation[row], arm, other_arms)
    return probabilities


def _compute_best_probability(
    mean: FloatArray, deviation: FloatArray, arm: int, other_arms: IntArray
) -> float:
    """Return the probability that the draw of ``arm`` is larger than those of ``other_arms``, for
    one row (K,).
    """
    if len(other_arms) == 0:
        return 1.0
    min_deviation = _MIN_RELATIVE_DEVIATION * (1.0 + np.abs(mean).max())
    arm_deviation = max(float(deviation[arm]), min_deviation)
    # In units of the arm's standard deviation, relative to its mean: another arm's draw is mean +
    # deviation * N(0, 1).
    other_means = (mean[other_arms] - mean[arm]) / arm_deviation
    other_deviations = np.maximum(deviation[other_arms], min_deviation) / arm_deviation
    # If the arm's draw is below this value, another draw is certainly larger.
    lower_bound = max(
        -_MAX_DEVIATIONS, float((other_means - _MAX_DEVIATIONS * other_deviations).max())
    )
    if lower_bound >= _MAX_DEVIATIONS:
        return 0.0
    knots = np.concatenate(
        [_KNOTS, (other_means[:, None] + other_deviations[:, None] * _KNOTS).ravel()]
    )
    knots = knots[(knots > lower_bound) & (knots < _MAX_DEVIATIONS)]
    knots = np.unique(np.concatenate([[lower_bound], knots, [_MAX_DEVIATIONS]]))
    half_lengths = 0.5 * np.diff(knots)
    nodes = (knots[:-1] + half_lengths)[:, None] + half_lengths[:, None] * _QUADRATURE_NODES
    density = np.exp(-0.5 * nodes * nodes) / math.sqrt(2.0 * math.pi)
    for other_mean, other_deviation in zip(other_means, other_deviations, strict=True):
        density *= _compute_normal_cdf((nodes - other_mean) / other_deviation)
    return min(max(float(half_lengths @ (density @ _QUADRATURE_WEIGHTS)), 0.0), 1.0)


def _compute_normal_cdf(x: FloatArray) -> FloatArray:
    """Return the standard normal distribution function of every entry.

    scipy is used only if it is already imported, because importing it takes long.
    """
    if (special := sys.modules.get("scipy.special")) is not None:
        return special.ndtr(x)
    return 0.5 * np.asarray(_erfc(-x / math.sqrt(2.0)), np.float64)


_erfc = np.frompyfunc(math.erfc, 1, 1)
#: Maximum number of rows for which lists are faster than numpy arrays.
_MAX_LIST_ROWS = 4
#: The mean and the standard deviation of rewards, relative to which ties of scores are measured.
Scaling = tuple[float, float]


def find_tied_arms(
    scores: list[float], candidates: Sequence[int], centre: float = 0.0, scale: float = 1.0
) -> list[int]:
    """Return the candidates whose score is tied with the best score of a candidate.

    ``scores`` are the scores of all arms, ``candidates`` the indices of arms that may be chosen.
    Scores are tied if they differ by less than ``TIE_TOLERANCE`` times ``scale + |best - centre|``.
    ``centre`` and ``scale`` are the mean and the standard deviation of rewards.
    """
    best_score = (
        max(scores) if len(candidates) == len(scores) else max([scores[arm] for arm in candidates])
    )
    tie_threshold = best_score - TIE_TOLERANCE * (scale + abs(best_score - centre))
    return [arm for arm in candidates if scores[arm] >= tie_threshold]


def draw_arm(
    arms: Sequence[int],
    tied_arms: Sequence[int],
    epsilon: float,
    epsilon_draw: float,
    arm_draw: float,
) -> tuple[int, float]:
    """Return a random arm and its probability: any of ``arms`` with probability epsilon, otherwise
    a tied arm.

    ``epsilon_draw`` is compared with epsilon, and ``arm_draw`` selects an arm.
    """
    options = arms if epsilon_draw < epsilon else tied_arms
    arm = options[int(arm_draw * len(options))]
    return arm, epsilon / len(arms) + (
        (1.0 - epsilon) / len(tied_arms) if arm in tied_arms else 0.0
    )


#: The largest ``alpha``; scores would overflow above it.
_MAX_ALPHA = 1e100


@dataclass(frozen=True)
class Exploration:
    """Settings for choosing arms from predicted means and bonuses.

    The arm with the largest score is chosen. The score is the mean for the rule "greedy". It is the
    mean plus ``alpha`` times the bonus for "ucb", and the mean plus ``alpha`` times the bonus times
    a normal draw for "thompson". With probability ``epsilon``, the arm is drawn uniformly instead.
    """

    #: "ucb", "greedy" or "thompson".
    rule: str = "ucb"
    #: The factor of the bonus. This is the default of every linear policy.
    alpha: float = 0.15
    #: The probability of a uniformly drawn arm.
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        check_one_of("explore", self.rule, ("ucb", "greedy", "thompson"))
        if not (np.isfinite(self.alpha) and self.alpha >= 0):
            raise InvalidInput(f"alpha must be a finite number >= 0, got {self.alpha}")
        if self.alpha > _MAX_ALPHA:
            raise InvalidInput(
                f"alpha must be at most {_MAX_ALPHA:g}, got {self.alpha:g}: scores would overflow"
            )
        if not 0 <= self.epsilon <= 1:
            raise InvalidInput(f"epsilon must be in [0, 1], got {self.epsilon}")

    @property
    def bonus_factor(self) -> float:
        """The factor of the bonus in an arm's score: ``alpha`` for "ucb", otherwise 0."""
        return self.alpha if self.rule == "ucb" else 0.0

    def with_rule(self, rule: str | None) -> Exploration:
        """Return a copy with this rule and epsilon 0, or this object if ``rule`` is None."""
        return self if rule is None else Exploration(rule, self.alpha)

    def draw_bonus_factors(self, n_rounds: int, n_arms: int, draw: DrawFunction) -> FloatArray:
        """Return the factor of each bonus in the scores, (n_rounds, n_arms).

        It is random for "thompson".
        """
        if self.rule != "thompson":
            return np.full((n_rounds, n_arms), self.bonus_factor)
        return self.alpha * to_gaussians(draw(n_rounds, 2 + 2 * n_arms)[:, 2:])

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
        deviation of rewards, relative to which ties are measured. Except for "thompson", no random
        number is drawn if every row has one best arm and epsilon is 0.
        """
        if len(mean) <= _MAX_LIST_ROWS:
            choices = self.choose_rows(mean, bonus, draw, available=available, scaling=scaling)
            arms, propensities = (np.array(column) for column in zip(*choices, strict=True))
            return Decision(arms, propensities, mean, bonus)
        scores = self._compute_scores(mean, bonus, draw)
        arms, propensities = _choose_batch(scores, available, self.epsilon, draw, scaling)
        return Decision(
            arms, self.correct_propensities(arms, propensities, mean, bonus, available), mean, bonus
        )

    def choose_rows(
        self,
        mean: FloatArray,
        bonus: FloatArray,
        draw: DrawFunction,
        *,
        available: Mask = None,
        scaling: Scaling = (0, 1),
    ) -> list[tuple[int, float]]:
        """Return (arm, propensity) for each row of means and bonuses (B, K).

        This is ``decide`` for a few rows.
        """
        scores = self._compute_scores(mean, bonus, draw)
        n, n_arms = scores.shape
        all_arms = range(n_arms)
        epsilon = self.epsilon
        uniform_draws = None
        choices: list[tuple[int, float]] = []
        for row, row_scores in enumerate(scores.tolist()):
            candidates: Sequence[int] = (
                all_arms if available is None else available[row].nonzero()[0].tolist()
            )
            tied_arms = find_tied_arms(row_scores, candidates, *scaling)
            if epsilon == 0.0 and len(tied_arms) == 1:
                choices.append((tied_arms[0], 1.0))
                continue
            if uniform_draws is None:
                uniform_draws = draw(n, 2).tolist()
            choices.append(draw_arm(candidates, tied_arms, epsilon, *uniform_draws[row]))
        if self.rule == "thompson":
            arms = np.array([arm for arm, _ in choices], np.int64)
            propensities = self.correct_propensities(arms, np.empty(n), mean, bonus, available)
            return list(zip(arms.tolist(), propensities.tolist(), strict=True))
        return choices

    def _compute_scores(
        self, mean: FloatArray, bonus: FloatArray, draw: DrawFunction
    ) -> FloatArray:
        """Return the scores by which arms are compared, (B, K)."""
        if self.rule == "thompson":
            return mean + self.draw_bonus_factors(len(mean), mean.shape[1], draw) * bonus
        return mean + self.alpha * bonus if self.rule == "ucb" and self.alpha else mean

    def correct_propensities(
        self,
        arms: IntArray,
        propensities: FloatArray,
        mean: FloatArray,
        bonus: FloatArray,
        available: Mask,
    ) -> FloatArray:
        """Return the propensities (B,) of the chosen ``arms`` (B,), for means and bonuses (B, K).

        For "ucb" and "greedy", ``propensities`` (B,) are returned unchanged. For "thompson", they
        are replaced by the probability, over all draws, that the arm is chosen.
        """
        if self.rule != "thompson":
            return propensities
        mask = np.ones(mean.shape, np.bool_) if available is None else available
        best_probabilities = compute_best_probabilities(mean, self.alpha * bonus, mask, arms)
        return self.epsilon / mask.sum(axis=1) + (1.0 - self.epsilon) * best_probabilities

    def probabilities(
        self,
        mean: FloatArray,
        bonus: FloatArray,
        *,
        available: Mask = None,
        scaling: Scaling = (0, 1),
    ) -> FloatArray:
        """Return the probability with which ``decide`` chooses each arm, (B, K)."""
        mask = np.ones(mean.shape, np.bool_) if available is None else available
        if self.rule == "thompson":
            best_probabilities = np.empty_like(mean)
            for arm in range(mean.shape[1]):
                arms = np.full(len(mean), arm)
                best_probabilities[:, arm] = compute_best_probabilities(
                    mean, self.alpha * bonus, mask, arms
                )
            best_probabilities = np.where(mask, best_probabilities, 0.0)
            # the quadrature error is about 1e-9
            best_probabilities /= best_probabilities.sum(axis=1, keepdims=True)
        else:
            is_tied = _mask_tied(mean + self.bonus_factor * bonus, mask, scaling)
            best_probabilities = np.ascontiguousarray((is_tied / is_tied.sum(axis=0)).T)
        return (1.0 - self.epsilon) * best_probabilities + self.epsilon * mask / mask.sum(
            axis=1, keepdims=True
        )


def _choose_batch(
    scores: FloatArray, available: Mask, epsilon: float, draw: DrawFunction, scaling: Scaling
) -> tuple[IntArray, FloatArray]:
    """Return the arms (B,) for scores (B, K) of many rounds, and their probabilities under ties and
    epsilon (B,).
    """
    is_tied = _mask_tied(scores, available, scaling)
    n_tied = is_tied.sum(axis=0)
    if not n_tied.all():
        raise ValueError("no arm is available, or a score is NaN")
    if epsilon == 0.0 and n_tied.max() == 1:
        return is_tied.argmax(axis=0), np.ones(len(scores))
    mask = np.ones(is_tied.shape, np.bool_) if available is None else available.T
    n_available = mask.sum(axis=0)
    epsilon_draws, arm_draws = draw(len(scores), 2).T
    is_random = epsilon_draws < epsilon
    chosen_rank = (arm_draws * np.where(is_random, n_available, n_tied)).astype(np.int64)
    arms: IntArray = (np.where(is_random, mask, is_tied).cumsum(axis=0) > chosen_rank).argmax(
        axis=0
    )
    return (
        arms,
        epsilon / n_available + is_tied[arms, np.arange(len(arms))] * (1.0 - epsilon) / n_tied,
    )


def _mask_tied(scores: FloatArray, available: Mask, scaling: Scaling) -> BoolArray:
    """Return booleans (K, B) for scores (B, K): True for available arms that are tied with the best
    one.

    Arms are the first axis, because sums over the first axis are fast.
    """
    arm_scores, (centre, scale) = np.array(scores.T, order="C"), scaling
    if available is not None:
        arm_scores[~available.T] = -np.inf
    best_scores = arm_scores.max(axis=0)
    is_tied: BoolArray = arm_scores >= best_scores - TIE_TOLERANCE * (
        scale + np.abs(best_scores - centre)
    )
    return is_tied if available is None else is_tied & available.T


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
    if len(decisions) == 1:
        return decisions[0]
    cls = type(decisions[0])
    return cls(
        *[
            np.concatenate([getattr(decision, field.name) for decision in decisions])
            for field in fields(cls)
        ]
    )
