"""The target-regret bound as numbers: its observable terms while training, and the exact ones for small classes.

    R_T <= R_S + 2 eps_S + N d + predicted rewards + C + psi

While training, only what can be seen is computed: the divergence is the discriminator's, ``2 max_a width`` stands in
for kappa (whose best arm is unknown), and psi is left out: it needs target rewards, which the evaluator alone has.
A bound above N says nothing about the regret of N rounds; whether it does is a field, not a warning, because a
confident and right policy has predicted rewards near N.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from daband.arrays import BoolArray, FloatArray, IntArray
from daband.errors import InvalidInput

__all__ = [
    "BoundTerms",
    "LiveBound",
    "Seen",
    "best_joint_error",
    "discriminator_divergence",
    "hypothesis_divergence",
    "observable_bound",
]


_SUMMED = (
    "source_regret",
    "regression_error",
    "divergence",
    "predicted_reward_target",
    "predicted_reward_source",
    "exploration",
)


@dataclass(frozen=True)
class Seen:
    """Decisions on some contexts: chosen arms (B,), predicted rewards and widths (B, K)."""

    arm: IntArray
    mean: FloatArray
    width: FloatArray

    def chosen_mean(self) -> FloatArray:
        """The predicted reward of each chosen arm, (B,)."""
        chosen: FloatArray = self.mean[np.arange(len(self.arm)), self.arm]
        return chosen

    def largest_width(self) -> FloatArray:
        """The largest width over arms, (B,)."""
        largest: FloatArray = self.width.max(axis=1)
        return largest


@dataclass(frozen=True)
class BoundTerms:
    """Every term over ``rounds`` rounds, as the theorem has it."""

    rounds: int
    source_regret: float
    """R_S; NaN where it is not known."""
    regression_error: float
    """2 eps_S."""
    divergence: float
    """N d."""
    predicted_reward_target: float
    predicted_reward_source: float
    exploration: float
    """C, with 2 max_a width in place of kappa."""
    psi: float | None = None
    """The least joint error; known to the evaluator alone."""

    @property
    def total(self) -> float:
        """The sum of all terms that are known."""
        parts = [
            self.source_regret,
            self.regression_error,
            self.divergence,
            self.predicted_reward_target,
            self.predicted_reward_source,
            self.exploration,
            self.psi or 0.0,
        ]
        return math.fsum(part for part in parts if not math.isnan(part))

    @property
    def informative(self) -> bool:
        """Whether the bound is below what any policy has: a regret of ``rounds``."""
        return self.total < self.rounds

    def as_dict(self) -> dict[str, float | bool | None]:
        """All fields, the total and whether it says anything."""
        return {**asdict(self), "total": self.total, "informative": self.informative}


def observable_bound(
    *,
    source: Seen,
    reward: FloatArray,
    wrong: BoolArray | FloatArray,
    target: Seen,
    alpha: float,
    divergence: float,
    source_regret: float = math.nan,
) -> BoundTerms:
    """The terms over the N source rounds given, rewards in [0, 1].

    Args:
        source: the decisions in the source.
        reward: what they paid, (N,).
        wrong: whether each was not the best: ``reward < 1`` where one arm is right, else the shortfall ``1 - reward``.
        target: decisions on any number of target contexts; their sums are scaled to N rounds.
        alpha: the exploration weight.
        divergence: d, e.g. from ``discriminator_divergence``.
        source_regret: the sum of expected regrets, where it is known.
    """
    n, m = len(source.arm), len(target.arm)
    if n == 0 or m == 0:
        raise InvalidInput("the bound needs at least one source round and one target context")
    if reward.shape != (n,) or np.shape(wrong) != (n,):
        raise InvalidInput(f"reward and wrong must have shape ({n},), got {reward.shape} and {np.shape(wrong)}")
    share = np.asarray(wrong, np.float64)
    chosen = source.chosen_mean()
    scale = n / m
    exploration = scale * float(2 * target.largest_width().sum()) + float(share @ (2 * source.largest_width()))
    return BoundTerms(
        rounds=n,
        source_regret=float(source_regret),
        regression_error=2 * float(np.abs(reward - chosen).sum()),
        divergence=n * float(divergence),
        predicted_reward_target=scale * float(np.abs(target.chosen_mean()).sum()),
        predicted_reward_source=float(share @ np.abs(chosen)),
        exploration=alpha * exploration,
    )


class LiveBound:
    """The observable terms, added up episode by episode, as the fields ``bound_*`` of a training record."""

    def __init__(self, *, alpha: float, last_record: Mapping[str, float] | None = None) -> None:
        self.alpha = alpha
        # A resumed run goes on from what its last record says.
        self._sums = {name: float((last_record or {}).get(f"bound_{name}", 0.0)) for name in ("rounds", *_SUMMED)}

    def add(
        self, *, source: Seen, reward: FloatArray, regret: FloatArray, target: Seen, accuracy: float | None
    ) -> dict[str, float]:
        """Add an episode and return the sums so far.

        Source decisions come with rewards in [0, 1] and regrets, both (N,); the discriminator's accuracy where there is
        one.
        """
        terms = observable_bound(
            source=source,
            reward=reward,
            wrong=1.0 - reward,
            target=target,
            alpha=self.alpha,
            divergence=0.0 if accuracy is None else discriminator_divergence(accuracy),
            source_regret=float(regret.sum()),
        )
        for name in self._sums:
            value = float(getattr(terms, name))
            self._sums[name] += 0.0 if math.isnan(value) else value
        total = math.fsum(self._sums[name] for name in _SUMMED)
        sums = {f"bound_{name}": value for name, value in self._sums.items()}
        return {**sums, "bound_total": total, "bound_informative": float(total < self._sums["rounds"])}


def discriminator_divergence(accuracy: float) -> float:
    """The divergence that a discriminator of this balanced accuracy shows: 0 at chance, 2 when it is never wrong."""
    if not 0.0 <= accuracy <= 1.0:
        raise InvalidInput(f"accuracy must lie in [0, 1], got {accuracy}")
    return max(0.0, 2.0 * (2.0 * accuracy - 1.0))


def hypothesis_divergence(source: FloatArray, target: FloatArray) -> float:
    """The divergence d of the paper over a finite class, exactly, from predictions (H, n) and (H, m) in the domains.

    Twice the largest difference, over pairs of hypotheses, between how far they are apart in the two domains.
    """
    if len(source) != len(target) or len(source) == 0:
        raise InvalidInput(f"both domains need predictions of the same hypotheses, got {len(source)} and {len(target)}")
    largest = 0.0
    for h in range(len(source)):  # row by row: the pairs of a large class would not fit in memory at once
        apart = np.abs(source - source[h]).mean(axis=1) - np.abs(target - target[h]).mean(axis=1)
        largest = max(largest, float(np.abs(apart).max()))
    return 2 * largest


def best_joint_error(
    source: FloatArray, source_truth: FloatArray, target: FloatArray, target_truth: FloatArray, *, rounds: int
) -> float:
    """The psi of a finite class: the least sum of source and target error over ``rounds`` rounds.

    Predictions are (H, n) and (H, m), the truth (n,) and (m,).
    """
    errors = np.abs(source - source_truth).mean(axis=1) + np.abs(target - target_truth).mean(axis=1)
    return rounds * float(errors.min())
