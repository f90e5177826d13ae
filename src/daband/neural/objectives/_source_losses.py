"""Losses of predicted rewards against observed ones: the source regret, and R, the regression error.

Only the played arm's reward is observed. Where exactly one arm is right and rewards are noise-free, a reward of 1 also
says that every other arm pays 0; the loss then runs over all arms of such rounds. Which rule holds is a setting.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from daband.neural.objectives._term import Batch, Term, WithGradient, terms


def known_rewards(arm: torch.Tensor, reward: torch.Tensor, *, n_arms: int, feedback: str) -> tuple[torch.Tensor, ...]:
    """Which arms' rewards are known, (B, K) of 0 and 1, and those rewards, (B, K), 0 where unknown."""
    chosen = (arm[:, None] == torch.arange(n_arms, device=arm.device)).to(reward.dtype)
    known = chosen
    if feedback == "one_hot":
        known = torch.where(reward[:, None] >= 1, torch.ones_like(chosen), chosen)
    return known, chosen * reward[:, None]


def squared_regret(predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor, *, feedback: str) -> torch.Tensor:
    """The paper's loss: squared errors summed over the arms of known reward (B, K), mean over rounds."""
    known, rewards = known_rewards(arm, reward, n_arms=predicted.shape[1], feedback=feedback)
    return (known * (predicted - rewards) ** 2).sum(dim=1).mean()


class _OneCorrectArm(WithGradient):
    """Minus the logarithm of the probability of what a reward leaves possible: the played arm, or any but that.

    The gradient by the logits is the softmax over all arms less that over the possible ones; nothing is cut off where
    the policy is sure of a wrong arm.
    """

    @staticmethod
    def forward(
        predicted: torch.Tensor, scale: float, arm: torch.Tensor, reward: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = scale * predicted
        played = arm[:, None] == torch.arange(logits.shape[1], device=arm.device)
        impossible = played != (reward >= 1)[:, None]
        among_all = functional.log_softmax(logits, dim=1)
        among_possible = functional.log_softmax(logits.masked_fill(impossible, -torch.inf), dim=1)
        # At a possible arm the two differ by what is asked for, at any other by minus infinity.
        surprise = (among_possible - among_all).amax(dim=1)
        return surprise.mean(), among_all.exp() - among_possible.exp()


def cross_entropy_regret(
    predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor, *, feedback: str, scale: float
) -> torch.Tensor:
    """Cross-entropy of the known rewards, mean over rounds.

    With one correct arm the predictions are logits of a softmax over arms: a reward of 1 asks for the probability of
    the played arm, a reward of 0 for that of all others together. Otherwise the played arm alone is a Bernoulli
    variable, whose logit is 0 at a predicted reward of one half.
    """
    if feedback == "one_hot":
        if predicted.shape[1] == 1:  # the one arm is the right one, whatever is predicted
            return predicted.sum() * 0.0
        return _OneCorrectArm.apply(predicted, scale, arm, reward)[0]  # type: ignore[no-untyped-call]
    chosen = predicted.gather(1, arm[:, None]).squeeze(1)
    # Beyond [0, 1], where an estimated range of rewards may lead, the loss would have no lower bound.
    return functional.binary_cross_entropy_with_logits(scale * (chosen - 0.5), reward.clamp(0, 1))


@terms.register("source_squared")
class SourceSquared(Term):
    """Squared error over the arms of known reward."""

    def forward(self, batch: Batch) -> torch.Tensor:
        return squared_regret(batch.predicted, batch.arm, batch.reward, feedback=self.shape.feedback)


@terms.register("source_cross_entropy")
class SourceCrossEntropy(Term):
    """Cross-entropy over the arms of known reward."""

    concurrent_feedback = frozenset({"one_hot"})

    def forward(self, batch: Batch) -> torch.Tensor:
        feedback, scale = self.shape.feedback, self.shape.scale
        return cross_entropy_regret(batch.predicted, batch.arm, batch.reward, feedback=feedback, scale=scale)


def regression_error(predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
    """Mean over rounds of ``|reward - predicted[arm]|``; predicted (B, K), arm and reward (B,)."""
    chosen = predicted.gather(1, arm[:, None]).squeeze(1)
    return (reward - chosen).abs().mean()


@terms.register("regression_error")
class RegressionError(Term):
    """R of the bound.

    It is gated as alignment is: an absolute error asks for the number in the middle of all rewards, which is 0
    as long as most rounds pay nothing, and an encoder that has learned that has no latent left to tell arms apart.
    """

    gated = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return regression_error(batch.predicted, batch.arm, batch.reward)
