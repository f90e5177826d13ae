"""Prior trust: how much statistics of the source count once rewards arrive in the target.

Statistics of the source are a prior for the target. Where the hand-over was good they are worth as many rounds as they
rest on; where it was bad, as many rounds have to be played before the target's rewards outweigh them. Warm-start
bandits (Zhang et al. 2019; Oetomo et al. 2023) therefore discount them, and choose the discount by what is observed.

Here several regressions run beside each other. All learn every target round; they differ in the discount g of the
source: A = ridge I + g Z_s'Z_s + Z_t'Z_t. Each predicts the reward of every round before it learns it, and the one with
the smallest sum of squared errors so far acts. Full trust acts at first, and another takes its place only when it is
ahead by ``MARGIN``.
"""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray, restored_array
from daband.linear.primal import PrimalRidge

__all__ = ["DISCOUNTS", "MARGIN", "PriorTrust"]

DISCOUNTS = (1.0, 0.1, 0.01, 0.0)
"""From full trust in the source to none."""
MARGIN = 1.0
"""By how much the acting regression's squared errors must exceed another's before that takes over: rewards lie in
[0, 1], so these are a few rounds in which it was certain and wrong. Without a margin luck would decide at first."""


class PriorTrust:
    """Regressions with different discounts of ``prior``, and which of them acts.

    Args:
        prior: the source's statistics; not changed.
        discounts: how much of them each regression starts with, full trust first.
        margin: see ``MARGIN``.
    """

    def __init__(self, prior: PrimalRidge, discounts: tuple[float, ...] = DISCOUNTS, margin: float = MARGIN) -> None:
        self.discounts = discounts
        self.margin = margin
        self.candidates = [prior.discounted(discount) for discount in discounts]
        self.losses: FloatArray = np.zeros(len(discounts))
        """The sum of squared errors of each, of predictions before learning."""
        self.acting = 0
        """Which of them acts."""

    @property
    def statistics(self) -> PrimalRidge:
        """What decisions rest on now."""
        return self.candidates[self.acting]

    @property
    def discount(self) -> float:
        """How much of the source counts now."""
        return self.discounts[self.acting]

    def update(self, contexts: AnyArray, heads: IntArray, rewards: FloatArray) -> None:
        """Learn rounds (B, d) one after the other: predict, compare, learn."""
        for z, head, reward in zip(np.asarray(contexts, np.float64), heads, rewards, strict=True):
            for place, candidate in enumerate(self.candidates):
                self.losses[place] += (float(z @ candidate.theta[head]) - reward) ** 2
                candidate.update(z[None], np.array([head]), np.array([reward]))
            best = int(np.argmin(self.losses))
            if self.losses[best] + self.margin < self.losses[self.acting]:
                self.acting = best

    def refit(self, prior: PrimalRidge, target: PrimalRidge) -> None:
        """Start anew from statistics of the source and of the target's rounds alone; errors so far still count."""
        self.candidates = [prior.discounted(discount, plus=target) for discount in self.discounts]

    def add_heads(self, n: int) -> None:
        """Append ``n`` heads without rounds."""
        for candidate in self.candidates:
            candidate.add_heads(n)

    def state(self, *, rounds: bool = True) -> dict[str, AnyArray]:
        """Everything needed to go on to the last bit; without ``rounds``, no context of a single round is in it."""
        arrays: dict[str, AnyArray] = {
            "discounts": np.array(self.discounts),
            "losses": self.losses,
            "acting": np.array([self.acting], np.int64),
            "margin": np.array([self.margin]),
        }
        for place, candidate in enumerate(self.candidates):
            arrays |= {f"{place}.{name}": array for name, array in candidate.state(rounds=rounds).items()}
        return arrays

    @classmethod
    def restored(cls, state: dict[str, AnyArray], like: PrimalRidge) -> PriorTrust:
        """What ``state`` returned; ``like`` has the sizes and the ridge."""
        discounts = tuple(float(discount) for discount in state["discounts"])
        trust = cls(PrimalRidge(like.n_heads, like.dim, like.ridge), discounts, float(state["margin"][0]))
        trust.losses = restored_array(state, "losses", trust.losses)
        trust.acting = int(state["acting"][0])
        if not 0 <= trust.acting < len(discounts):
            raise ValueError(f"acting must lie in 0..{len(discounts) - 1}")
        for place, candidate in enumerate(trust.candidates):
            prefix = f"{place}."
            own = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
            candidate.restore(own)
        return trust
