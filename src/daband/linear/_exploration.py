"""Choice of arms from predicted means and bonuses, with choice probabilities: for training and for serving."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from daband._arguments import one_of
from daband._arrays import BoolArray, FloatArray, IntArray, Mask
from daband.errors import InvalidInput
from daband.linear._kernels_numpy import TIE, drawn_arm, tied_arms, uniforms

# The probability that an arm has the largest of K independent Gaussian draws, by quadrature.


_REACH = 9.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_KNOTS = np.array([-_REACH, -5.0, -3.0, -1.5, 0.0, 1.5, 3.0, 5.0, _REACH])
_SMALLEST = 1e-13


def gaussians(uniform: FloatArray) -> FloatArray:
    """Return standard normal numbers (B, K) from uniform ones (B, 2 K), each from its own pair (Box-Muller)."""
    first, second = uniform[:, 0::2], uniform[:, 1::2]
    radius = np.sqrt(-2.0 * np.log1p(-first))
    return radius * np.cos(2.0 * np.pi * second)


def probability_of_best(mean: FloatArray, deviation: FloatArray, available: BoolArray, arms: IntArray) -> FloatArray:
    """Return P(the draw of ``arms`` is the largest among available arms) for each row; mean, deviation (B, K) to (B,).

    The integral of the arm's density times the other arms' distribution functions is split where any of these bends
    (at fixed multiples of its standard deviation). Each piece gets twelve Gauss-Legendre nodes. A standard deviation of
    zero is replaced by a very small one, so two certain arms with equal means are equally likely, as in ties.
    """
    out = np.empty(len(mean))
    for row in range(len(mean)):
        arm = int(arms[row])
        rivals = np.flatnonzero(available[row])
        rivals = rivals[rivals != arm]
        out[row] = _one(mean[row], deviation[row], arm, rivals)
    return out


def _one(mean: FloatArray, deviation: FloatArray, arm: int, rivals: IntArray) -> float:
    if len(rivals) == 0:
        return 1.0
    floor = _SMALLEST * (1.0 + np.abs(mean).max())
    unit = max(float(deviation[arm]), floor)
    others = np.maximum(deviation[rivals], floor)
    # In units of the arm's standard deviation: its draw is t, a rival's is centre + deviation * N(0, 1).
    centre, rival_deviation = (mean[rivals] - mean[arm]) / unit, others / unit
    lowest = max(-_REACH, float((centre - _REACH * rival_deviation).max()))  # below, some rival is certainly larger
    if lowest >= _REACH:
        return 0.0
    knots = np.concatenate([_KNOTS, (centre[:, None] + rival_deviation[:, None] * _KNOTS).ravel()])
    knots = np.unique(np.concatenate([[lowest], knots[(knots > lowest) & (knots < _REACH)], [_REACH]]))
    half = 0.5 * np.diff(knots)
    t = (knots[:-1] + half)[:, None] + half[:, None] * _NODES
    density = np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
    for c, s in zip(centre, rival_deviation, strict=True):
        density *= _normal_cdf((t - c) / s)
    return min(max(float(half @ (density @ _WEIGHTS)), 0.0), 1.0)


def _normal_cdf(x: FloatArray) -> FloatArray:
    """Return the standard normal distribution function of every entry; importing scipy would take half a second."""
    if (special := sys.modules.get("scipy.special")) is not None:
        values: FloatArray = special.ndtr(x)
        return values
    return 0.5 * np.asarray(_erfc(-x / math.sqrt(2.0)), np.float64)


_erfc = np.frompyfunc(math.erfc, 1, 1)
_RESOLUTION = 2.0**-53
#: Maximum number of rows for which lists are faster than arrays.
_FEW = 4
#: The zero point and the unit of rewards.
Unit = tuple[float, float]
#: Uniform numbers in [0, 1), (rounds, slots). Slot 0 decides on epsilon, slot 1 among tied arms.
UniformDraws = Callable[[int, int], FloatArray]


def seeded_draws(key: np.uint64, first_round: int) -> UniformDraws:
    """Return the draws of the rounds from ``first_round`` on, which depend only on the key and the round."""
    return functools.partial(uniforms, key, first_round)


def fresh_draws(n_rounds: int, n_slots: int) -> FloatArray:
    """Return draws from the operating system, which need no state that threads or forked processes would share."""
    bits = np.frombuffer(os.urandom(8 * n_rounds * n_slots), np.uint64).reshape(n_rounds, n_slots)
    return (bits >> np.uint64(11)).astype(np.float64) * _RESOLUTION


_LARGEST_ALPHA = 1e100


@dataclass(frozen=True)
class Exploration:
    """Settings for choosing arms from predicted means and bonuses.

    ``rule`` "ucb" adds ``alpha`` times the bonus to the mean, "greedy" adds nothing, "thompson" adds ``alpha`` times
    the bonus times a normal draw. With probability ``epsilon`` the arm is drawn uniformly instead. Every linear policy
    has the default ``alpha`` of this class, ``Exploration.alpha``.
    """

    rule: str = "ucb"
    alpha: float = 0.15
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        one_of("explore", self.rule, ("ucb", "greedy", "thompson"))
        if not (np.isfinite(self.alpha) and self.alpha >= 0):
            raise InvalidInput(f"alpha must be a finite number >= 0, got {self.alpha}")
        if self.alpha > _LARGEST_ALPHA:
            raise InvalidInput(f"alpha must be at most {_LARGEST_ALPHA:g}, got {self.alpha:g}: scores would overflow")
        if not 0 <= self.epsilon <= 1:
            raise InvalidInput(f"epsilon must lie in [0, 1], got {self.epsilon}")

    @property
    def optimism(self) -> float:
        """The factor of a bonus in the score of an arm, without random draws."""
        return self.alpha if self.rule == "ucb" else 0.0

    def by_rule(self, rule: str | None) -> Exploration:
        """Return this exploration with ``rule`` and without epsilon; with None, return it unchanged."""
        return self if rule is None else Exploration(rule, self.alpha)

    def multiplier(self, n: int, n_arms: int, draws: UniformDraws) -> FloatArray:
        """Return the factor of each bonus in the score, (n, K)."""
        if self.rule != "thompson":
            return np.full((n, n_arms), self.optimism)
        return self.alpha * gaussians(draws(n, 2 + 2 * n_arms)[:, 2:])

    def decide(
        self, mean: FloatArray, bonus: FloatArray, draws: UniformDraws, available: Mask = None, unit: Unit = (0.0, 1.0)
    ) -> Decision:
        """Choose an arm for each row of means and bonuses (B, K).

        ``available`` (B, K) has at least one arm per row. ``unit`` is the zero point and the unit of rewards, in which
        ties are measured. Nothing is drawn if every row's best arm is certain.
        """
        if len(mean) <= _FEW:
            chosen = self.choose_rows(mean, bonus, draws, available=available, unit=unit)
            arms, propensities = (np.array(part) for part in zip(*chosen, strict=True))
            return Decision(arms, propensities, mean, bonus)
        scores = self._scores(mean, bonus, draws)
        arms, propensities = _choose_batch(scores, available, self.epsilon, draws, unit)
        return Decision(arms, self.propensities(arms, propensities, mean, bonus, available), mean, bonus)

    def choose_rows(
        self,
        mean: FloatArray,
        bonus: FloatArray,
        draws: UniformDraws,
        *,
        available: Mask = None,
        unit: Unit = (0.0, 1.0),
    ) -> list[tuple[int, float]]:
        """Choose arms for a few rows; return a list of arms and propensities."""
        scores = self._scores(mean, bonus, draws)
        n, n_arms = scores.shape
        every, epsilon, drawn = range(n_arms), self.epsilon, None
        chosen: list[tuple[int, float]] = []
        for row, values in enumerate(scores.tolist()):
            among: Sequence[int] = every if available is None else available[row].nonzero()[0].tolist()
            tied = tied_arms(values, among, *unit)
            if epsilon == 0.0 and len(tied) == 1:
                chosen.append((tied[0], 1.0))
                continue
            if drawn is None:
                drawn = draws(n, 2).tolist()
            chosen.append(drawn_arm(among, tied, epsilon, *drawn[row]))
        if self.rule == "thompson":
            arms = np.array([arm for arm, _ in chosen], np.int64)
            exact = self.propensities(arms, np.empty(n), mean, bonus, available)
            return list(zip(arms.tolist(), exact.tolist(), strict=True))
        return chosen

    def _scores(self, mean: FloatArray, bonus: FloatArray, draws: UniformDraws) -> FloatArray:
        """Return the scores by which arms are compared, (B, K)."""
        if self.rule == "thompson":
            return mean + self.multiplier(len(mean), mean.shape[1], draws) * bonus
        return mean + self.alpha * bonus if self.rule == "ucb" and self.alpha else mean

    def propensities(
        self, arms: IntArray, propensities: FloatArray, mean: FloatArray, bonus: FloatArray, available: Mask
    ) -> FloatArray:
        """Return the given propensities (B,); for "thompson", the probability that the arm's draw was the largest."""
        if self.rule != "thompson":
            return propensities
        mask = np.ones(mean.shape, np.bool_) if available is None else available
        best = probability_of_best(mean, self.alpha * bonus, mask, arms)
        return self.epsilon / mask.sum(axis=1) + (1.0 - self.epsilon) * best

    def probabilities(
        self, mean: FloatArray, bonus: FloatArray, *, available: Mask = None, unit: Unit = (0.0, 1.0)
    ) -> FloatArray:
        """Return the probability with which ``decide`` chooses each arm, (B, K)."""
        mask = np.ones(mean.shape, np.bool_) if available is None else available
        if self.rule == "thompson":
            best = np.empty_like(mean)
            for arm in range(mean.shape[1]):
                best[:, arm] = probability_of_best(mean, self.alpha * bonus, mask, np.full(len(mean), arm))
            best = np.where(mask, best, 0.0)
            best /= best.sum(axis=1, keepdims=True)  # quadrature leaves an error of about 1e-9
        else:
            tied = _tied(mean + self.optimism * bonus, mask, unit)
            best = np.ascontiguousarray((tied / tied.sum(axis=0)).T)
        return (1.0 - self.epsilon) * best + self.epsilon * mask / mask.sum(axis=1, keepdims=True)


def _choose_batch(
    scores: FloatArray, available: Mask, epsilon: float, draws: UniformDraws, unit: Unit
) -> tuple[IntArray, FloatArray]:
    """Return the arms of many rounds (B,), and their probabilities under ties and epsilon (B,)."""
    tied = _tied(scores, available, unit)
    n_tied = tied.sum(axis=0)
    if not n_tied.all():
        raise ValueError("no arm is available, or a score is NaN")
    if epsilon == 0.0 and n_tied.max() == 1:
        return tied.argmax(axis=0), np.ones(len(scores))
    mask = np.ones(tied.shape, np.bool_) if available is None else available.T
    n_available = mask.sum(axis=0)
    coin, pick = draws(len(scores), 2).T
    explored = coin < epsilon
    wanted = (pick * np.where(explored, n_available, n_tied)).astype(np.int64)
    arms: IntArray = (np.where(explored, mask, tied).cumsum(axis=0) > wanted).argmax(axis=0)
    return arms, epsilon / n_available + tied[arms, np.arange(len(arms))] * (1.0 - epsilon) / n_tied


def _tied(scores: FloatArray, available: Mask, unit: Unit) -> BoolArray:
    """Return which available arms are tied for the best, (K, B); sums over few arms are then sums of long rows."""
    columns = np.array(scores.T, order="C")
    if available is not None:
        columns[~available.T] = -np.inf
    best = columns.max(axis=0)
    tied: BoolArray = columns >= best - TIE * (unit[1] + np.abs(best - unit[0]))
    return tied if available is None else tied & available.T


@dataclass(frozen=True, slots=True)
class Decision:
    """Chosen arms (B,), their probabilities (B,), and the means and bonuses (B, K) at the time of the choice.

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


def join_decisions(parts: Sequence[AnyDecision]) -> AnyDecision:
    """Return the rounds of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    kind = type(parts[0])
    return kind(*[np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(kind)])
