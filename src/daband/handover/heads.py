"""From features to predicted rewards and widths, and from these to an arm: the part that every deployed policy has.

The arithmetic is that of ``daband.linear.RidgeHead``, with what a single row needs kept to a few calls of numpy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband.linear.draws_numpy import uniforms
from daband.linear.kernels_numpy import TIE, choose_batch

__all__ = ["AveragedHead", "Choice", "EvenHead", "LinearHead"]

_RESOLUTION = 2.0**-53


class LinearHead:
    """Ridge regressions: theta (heads, d) and the inverse of A (heads, d, d), one head per arm, or one for all arms."""

    def __init__(self, theta: FloatArray, inverse: FloatArray, *, shared: bool) -> None:
        heads, self.dimension = theta.shape
        if inverse.shape != (heads, self.dimension, self.dimension) or (shared and heads != 1):
            raise ValueError(f"theta has shape {theta.shape}, inverse {inverse.shape}")
        self._shared = shared
        self._theta = np.ascontiguousarray(theta, np.float64)
        self._inverse = np.ascontiguousarray(inverse, np.float64)
        self._heads = heads
        # One product serves all heads and both questions.
        self._both = np.concatenate([self._inverse.reshape(-1, self.dimension), self._theta])

    def one(self, features: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and width (K,) of one row of features (d,), or (K, d) for shared arms."""
        if self._shared:
            mean, width = self.many(features[None])
            return mean[0], width[0]
        products = self._both @ features
        cut = self._heads * self.dimension
        variance = products[:cut].reshape(self._heads, self.dimension) @ features
        return products[cut:], np.sqrt(np.maximum(variance, 0.0))

    def many(self, features: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means and widths (n, K) of features (n, d), or (n, K, d) for shared arms."""
        flat = features.reshape(-1, self.dimension)
        variance = np.empty((len(flat), self._heads))
        for head in range(self._heads):
            variance[:, head] = np.einsum("nd,nd->n", flat @ self._inverse[head], flat)
        mean, width = flat @ self._theta.T, np.sqrt(np.maximum(variance, 0.0))
        if self._shared:
            mean, width = mean.reshape(features.shape[:2]), width.reshape(features.shape[:2])
        return mean, width


class AveragedHead:
    """The weighted mean of two heads, as ``daband.linear.HeadMixture`` has it.

    A row of features is that of the first head and, behind it, that of the second, whose predictions have the share
    ``weight``; ``width_shares`` are those of both widths.
    """

    def __init__(
        self, first: LinearHead, second: LinearHead, *, weight: float, width_shares: tuple[float, float]
    ) -> None:
        self._first, self._second = first, second
        self._weight = weight
        self._width_shares = width_shares
        self._cut = first.dimension

    def one(self, features: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and width (K,) of one row."""
        return self._averaged(self._first.one(features[..., : self._cut]), self._second.one(features[..., self._cut :]))

    def many(self, features: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means and widths (n, K)."""
        return self._averaged(
            self._first.many(features[..., : self._cut]), self._second.many(features[..., self._cut :])
        )

    def _averaged(
        self, one: tuple[FloatArray, FloatArray], other: tuple[FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        first, second = self._width_shares
        mean = (1.0 - self._weight) * one[0] + self._weight * other[0]
        return mean, first * one[1] + second * other[1]


class EvenHead:
    """No regression: the middle of the reward range for every arm, with half of it as width."""

    def __init__(self, n_arms: int) -> None:
        self._n_arms = n_arms

    def one(self, features: AnyArray) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002
        """Mean and width (K,)."""
        return np.full(self._n_arms, 0.5), np.full(self._n_arms, 0.5)

    def many(self, features: AnyArray) -> tuple[FloatArray, FloatArray]:
        """Means and widths (n, K)."""
        shape = (len(features), self._n_arms)
        return np.full(shape, 0.5), np.full(shape, 0.5)


@dataclass(frozen=True)
class Choice:
    """How arms are chosen: "ucb", "greedy", "thompson" or "even", as the policy was exported.

    Random draws depend on ``key`` and the number of a round where one is given: then they are those of the policy that
    was exported. Without a number they come from the operating system, so that processes which serve one file side by
    side explore independently.
    """

    rule: str
    alpha: float
    epsilon: float
    key: np.uint64

    @property
    def multiplier(self) -> float:
        """How much of the width is part of a score, exploration by chance aside."""
        return self.alpha if self.rule == "ucb" else 0.0

    def one(
        self, mean: FloatArray, width: FloatArray, open_arms: list[int] | None, number: int | None
    ) -> tuple[int, float]:
        """The arm of one round, mean and width (K,), and its probability; ``open_arms`` may be chosen, all by None."""
        if self.rule in ("thompson", "even"):
            mask = np.ones((1, len(mean)), np.bool_)
            if open_arms is not None:
                mask[0] = False
                mask[0, open_arms] = True
            arms, chances = self.many(mean[None], width[None], mask, number)
            return int(arms[0]), float(chances[0])
        alpha = self.multiplier
        scores = (mean + alpha * width).tolist() if alpha else mean.tolist()
        among = range(len(scores)) if open_arms is None else open_arms
        best = max(scores) if open_arms is None else max([scores[arm] for arm in open_arms])
        least = best - TIE * (1.0 + abs(best))
        tied = [arm for arm in among if scores[arm] >= least]
        epsilon = self.epsilon
        if epsilon == 0.0 and len(tied) == 1:
            return tied[0], 1.0
        coin, pick = _fresh() if number is None else uniforms(self.key, number, 1, 2)[0]
        chosen = among if coin < epsilon else tied
        arm = chosen[int(pick * len(chosen))]
        return arm, epsilon / len(among) + ((1.0 - epsilon) / len(tied) if arm in tied else 0.0)

    def many(
        self, mean: FloatArray, width: FloatArray, available: BoolArray | None, number: int | None
    ) -> tuple[IntArray, FloatArray]:
        """The arms (n,) of rounds with means and widths (n, K), and their probabilities; ``number`` is the first's."""
        n, n_arms = mean.shape
        mask = np.ones((n, n_arms), np.bool_) if available is None else available
        slots = 2 + (2 * n_arms if self.rule == "thompson" else 0)
        key, first = (self.key, number) if number is not None else (_fresh_key(), 0)
        draws = uniforms(key, first, n, slots)
        arms, chances = np.empty(n, np.int64), np.empty(n)
        if self.rule == "even":
            count = mask.sum(axis=1)
            arms[:] = (np.cumsum(mask, axis=1) > (draws[:, 1] * count).astype(np.int64)[:, None]).argmax(axis=1)
            return arms, 1.0 / count
        multiplier = np.full((n, n_arms), self.multiplier)
        if self.rule == "thompson":
            from daband.linear.thompson import gaussians, probability_of_best

            multiplier = self.alpha * gaussians(draws[:, 2:])
        choose_batch(mean, width * width, multiplier, mask, self.epsilon, draws[:, :2], arms, chances)
        if self.rule == "thompson":
            best = probability_of_best(mean, self.alpha * width, mask, arms)
            chances = self.epsilon / mask.sum(axis=1) + (1.0 - self.epsilon) * best
        return arms, chances


def _fresh() -> tuple[float, float]:
    """Two uniform numbers in [0, 1) of the operating system: no state that threads or forked processes would share."""
    drawn = os.urandom(16)
    first, second = int.from_bytes(drawn[:8], "little"), int.from_bytes(drawn[8:], "little")
    return (first >> 11) * _RESOLUTION, (second >> 11) * _RESOLUTION


def _fresh_key() -> np.uint64:
    return np.uint64(int.from_bytes(os.urandom(8), "little"))
