"""Two heads on different features of the same contexts, whose predicted rewards and widths are averaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daband.arrays import AnyArray, BoolArray, FloatArray
from daband.linear.exploration import Decision
from daband.linear.head import RidgeHead
from daband.linear.scoring import mixed_scores

__all__ = ["AveragedHeads"]


@dataclass(frozen=True)
class AveragedHeads:
    """Decides by the weighted mean of what two heads predict; ``second`` has the share ``weight``.

    The error of a mean is at most the mean of the errors: so the same mean of both widths is a width of it. Each head's
    width counts by its own ``alpha``. Rule, epsilon and draws are those of ``first``. A row of features is that of the
    first head and, behind it, that of the second. Threads: as ``RidgeHead``.
    """

    first: RidgeHead
    second: RidgeHead
    weight: float

    @property
    def n_arms(self) -> int:
        """How many arms there are."""
        return self.first.n_arms

    def decide(
        self, features: AnyArray, *, first_round: int, available: BoolArray | None = None, rule: str | None = None
    ) -> Decision:
        """Choose an arm for each row, with the statistics as they are."""
        mean, variance = self.score(features)
        return self.first.choose(mean, variance, first_round=first_round, available=available, rule=rule)

    def play(
        self, features: AnyArray, rewards: FloatArray, *, first_round: int, available: BoolArray | None = None
    ) -> Decision:
        """Decide and learn round by round; ``rewards`` (B, K) holds the reward of every arm."""
        parts = []
        for row in range(len(rewards)):
            one = slice(row, row + 1)
            mask = None if available is None else available[one]
            decision = self.decide(features[one], first_round=first_round + row, available=mask)
            for head, own in zip((self.first, self.second), self._split(features[one]), strict=True):
                head.learn(own, decision.arm, rewards[one, decision.arm[0]])
            parts.append(decision)
        return Decision(
            np.concatenate([part.arm for part in parts]),
            np.concatenate([part.propensity for part in parts]),
            np.concatenate([part.mean for part in parts]),
            np.concatenate([part.width for part in parts]),
        )

    def probabilities(
        self, features: AnyArray, *, available: BoolArray | None = None, rule: str | None = None
    ) -> FloatArray:
        """The probability with which ``decide`` chooses each arm, (B, K)."""
        mean, variance = self.score(features)
        return self.first.probabilities_at(mean, variance, available=available, rule=rule)

    def score(self, features: AnyArray) -> tuple[FloatArray, FloatArray]:
        """Predicted rewards and squared widths, (B, K) each."""
        both = [
            (mean, np.sqrt(variance))
            for mean, variance in (
                head.score(part) for head, part in zip((self.first, self.second), self._split(features), strict=True)
            )
        ]
        mean, width = mixed_scores(both, (1.0 - self.weight, self.weight), self.shares)
        return mean, width * width

    @property
    def shares(self) -> tuple[float, float]:
        """What each head's width counts, in units of the first one's alpha."""
        alpha = self.first.exploration.alpha
        ratio = self.second.exploration.alpha / alpha if alpha > 0 else 1.0
        return 1.0 - self.weight, self.weight * ratio

    def with_arms(self, n_arms: int) -> AveragedHeads:
        """The same heads for another number of shared arms."""
        return AveragedHeads(self.first.with_arms(n_arms), self.second.with_arms(n_arms), self.weight)

    def _split(self, features: AnyArray) -> tuple[AnyArray, AnyArray]:
        return features[..., : self.first.dim], features[..., self.first.dim :]
