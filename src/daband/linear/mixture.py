"""Several ridge heads on different features of the same contexts, whose predicted rewards and widths are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daband.arrays import AnyArray, BoolArray, FloatArray
from daband.linear.exploration import Decision
from daband.linear.head import RidgeHead
from daband.linear.scoring import mixed_scores

__all__ = ["EpisodeScores", "HeadMixture"]


class EpisodeScores:
    """Predicted rewards and squared widths, (B, K) each, of rounds under a head, while the rounds before are learned.

    The features of all rounds are known beforehand. So their covariances under each regression are a few matrix
    products, and every round that is learned corrects those to come by a rank-one update; the head itself learns all of
    them at the end. For heads of disjoint arms without prior trust.
    """

    def __init__(self, head: RidgeHead, features: AnyArray) -> None:
        products, contexts, direct = head.statistics.products(features)
        self.mean, self.variance = head.statistics.score_products(products, contexts, direct)
        self._covariance = products if direct else np.matmul(products, contexts.T)

    def learn(self, row: int, arm: int, reward: float) -> None:
        """Correct the rows behind ``row``, in which this arm was played."""
        rest = slice(row + 1, None)
        covariance = self._covariance[arm]
        column = covariance[row, rest].copy()
        gain = column / (1.0 + covariance[row, row])
        self.mean[rest, arm] += gain * (reward - self.mean[row, arm])
        covariance[rest, rest] -= gain[:, None] * column
        self.variance[rest, arm] = np.maximum(covariance.diagonal()[rest], 0.0)


@dataclass(frozen=True)
class HeadMixture:
    """Decides by the weighted mean of what several heads predict.

    The error of a mean is at most the mean of the errors: so the same mean of the widths is a width of it. Each head's
    width counts by its own ``alpha``. Rule, epsilon and draws are those of the first head. Features are a list with the
    array of each head. Threads: as ``RidgeHead``.
    """

    heads: tuple[RidgeHead, ...]
    shares: tuple[float, ...]

    @property
    def n_arms(self) -> int:
        """How many arms there are."""
        return self.heads[0].n_arms

    def decide(
        self,
        features: Sequence[AnyArray],
        *,
        first_round: int,
        available: BoolArray | None = None,
        rule: str | None = None,
    ) -> Decision:
        """Choose an arm for each row, with the statistics as they are."""
        if len(self.heads) == 1:
            return self.heads[0].decide(features[0], first_round=first_round, available=available, rule=rule)
        mean, variance = self.score(features)
        return self.heads[0].choose(mean, variance, first_round=first_round, available=available, rule=rule)

    def probabilities(
        self, features: Sequence[AnyArray], *, available: BoolArray | None = None, rule: str | None = None
    ) -> FloatArray:
        """The probability with which ``decide`` chooses each arm, (B, K)."""
        mean, variance = self.score(features)
        return self.heads[0].probabilities_at(mean, variance, available=available, rule=rule)

    def score(self, features: Sequence[AnyArray]) -> tuple[FloatArray, FloatArray]:
        """Predicted rewards and squared widths, (B, K) each."""
        return self.mix([head.score(part) for head, part in zip(self.heads, features, strict=True)])

    def mix(self, scores: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
        """Predicted rewards and squared widths from those of each head."""
        if len(scores) == 1:
            return scores[0]
        both = [(mean, np.sqrt(variance)) for mean, variance in scores]
        mean, width = mixed_scores(both, self.shares, self.width_shares)
        return mean, width * width

    @property
    def width_shares(self) -> tuple[float, ...]:
        """What each head's width counts, in units of the first one's alpha.

        That of a wide head beside another is left out: its alpha and its ridge leave next to nothing of it, and in an
        exported file it would take the square of its features for every arm.
        """
        alpha = self.heads[0].exploration.alpha
        ratios = [head.exploration.alpha / alpha if alpha > 0 else 1.0 for head in self.heads]
        wide = [head.is_wide and head is not self.heads[0] for head in self.heads]
        parts = zip(self.shares, ratios, wide, strict=True)
        return tuple(0.0 if left_out else share * ratio for share, ratio, left_out in parts)

    def with_arms(self, n_arms: int) -> HeadMixture:
        """The same heads for another number of shared arms."""
        return HeadMixture(
            tuple(head.with_arms(n_arms) if head.arms == "shared" else head for head in self.heads), self.shares
        )
