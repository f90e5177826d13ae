"""Define losses of predicted against observed rewards: the source regret, and R, the regression error.

Only the played arm's reward is observed. If exactly one arm is right and rewards have no noise ("one_hot" feedback), a
reward of 1 also implies that every other arm has reward 0. Rounds of such a problem whose reward is neither 0 nor 1,
such as the mean of two answers, are informative about the played arm only.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from daband.neural.objectives._term import Batch, Term, TermShape, WithGradient, terms


def played_predictions(predicted: torch.Tensor, arm: torch.Tensor) -> torch.Tensor:
    """Return the predictions (B,) of the played arms."""
    return predicted.gather(1, arm[:, None]).squeeze(1)


def known_rewards(arm: torch.Tensor, reward: torch.Tensor, *, n_arms: int, feedback: str) -> tuple[torch.Tensor, ...]:
    """Return a mask (B, K) of the arms whose reward is known, and the rewards (B, K), which are 0 if unknown."""
    is_played = (arm[:, None] == torch.arange(n_arms, device=arm.device)).to(reward.dtype)
    is_known = is_played
    if feedback == "one_hot":
        is_known = torch.where(reward[:, None] == 1, torch.ones_like(is_played), is_played)
    return is_known, is_played * reward[:, None]


def squared_regret(predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor, *, feedback: str) -> torch.Tensor:
    """Return the paper's loss: squared errors, summed over the arms with a known reward, and averaged over rounds."""
    is_known, rewards = known_rewards(arm, reward, n_arms=predicted.shape[1], feedback=feedback)
    return (is_known * (predicted - rewards) ** 2).sum(dim=1).mean()


class _OneCorrectArm(WithGradient):
    """Cross-entropy of the event that the played arm is the right one, with probability ``reward``.

    Its gradient with respect to the logits is the softmax over all arms minus a target. The target is ``reward`` at the
    played arm, and ``1 - reward`` times the softmax over the other arms at these. Logarithms of 0 do not occur, even if
    the policy is sure of a wrong arm.
    """

    @staticmethod
    def forward(
        predicted: torch.Tensor, scale: float, arm: torch.Tensor, reward: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logs = functional.log_softmax(scale * predicted, dim=1)
        is_played = arm[:, None] == torch.arange(logs.shape[1], device=arm.device)
        others = logs.masked_fill(is_played, -torch.inf)
        target, played_log = reward.clamp(0, 1)[:, None], logs.gather(1, arm[:, None])
        others_log = others.logsumexp(dim=1, keepdim=True)
        loss = -torch.lerp(others_log, played_log, target).mean()
        return loss, logs.exp() - torch.where(is_played, target, (1 - target) * (others - others_log).exp())


def cross_entropy_regret(
    predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor, *, feedback: str, scale: float
) -> torch.Tensor:
    """Return the cross-entropy of the known rewards, averaged over rounds.

    With one correct arm the predictions are logits of a softmax over arms. A reward of 1 uses the probability of
    the played arm, a reward of 0 the probability of all others together. Otherwise the played arm is a Bernoulli
    variable, whose logit is 0 at a predicted reward of one half.
    """
    if feedback == "one_hot":
        if predicted.shape[1] == 1:  # the only arm is always the right one
            return predicted.sum() * 0.0
        return _OneCorrectArm.apply(predicted, scale, arm, reward)[0]  # type: ignore[no-untyped-call]
    logits = scale * (played_predictions(predicted, arm) - 0.5)
    return functional.binary_cross_entropy_with_logits(logits, reward.clamp(0, 1))


@terms.register("source_squared")
class SourceSquared(Term):
    """The source regret: squared errors of the arms whose reward is known."""

    def forward(self, batch: Batch) -> torch.Tensor:
        return squared_regret(batch.predicted, batch.arm, batch.reward, feedback=self.shape.feedback)


@terms.register("source_cross_entropy")
class SourceCrossEntropy(Term):
    """The source regret: cross-entropy of the known rewards, or squared error if rewards are standardised."""

    concurrent_feedback = frozenset({"one_hot"})

    def forward(self, batch: Batch) -> torch.Tensor:
        shape: TermShape = self.shape
        rounds = (batch.predicted, batch.arm, batch.reward)
        if shape.standardised:
            return squared_regret(*rounds, feedback="bandit")
        return cross_entropy_regret(*rounds, feedback=shape.feedback, scale=shape.scale)


@terms.register("regression_error")
class RegressionError(Term):
    """R of the bound: mean over rounds of ``|reward - predicted|``.

    It is gated like the target terms. An absolute error is minimised by the median of all rewards, which is 0 as long
    as most rounds have no reward, and an encoder that predicts the median cannot distinguish arms.
    """

    gated = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return (batch.reward - played_predictions(batch.predicted, batch.arm)).abs().mean()
