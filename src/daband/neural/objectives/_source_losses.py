"""Define the losses of predicted against observed rewards: the source regret, and R, the regression error of the bound.

Only the played arm's reward is observed. If exactly one arm is correct and rewards have no noise ("one_hot" feedback),
a reward of 1 also implies that every other arm has reward 0. A round of such a problem whose reward is neither 0 nor 1,
such as the mean of two answers, is informative about the played arm only.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from daband.neural.objectives._term import Batch, LossWithGradient, Term, TermShape, terms


def select_played(predicted: torch.Tensor, arm: torch.Tensor) -> torch.Tensor:
    """Return the predicted rewards (B,) of the played arms ``arm`` (B,), from ``predicted`` (B, K)."""
    return predicted.gather(1, arm[:, None]).squeeze(1)


def known_rewards(arm: torch.Tensor, reward: torch.Tensor, *, n_arms: int, feedback: str) -> tuple[torch.Tensor, ...]:
    """Return a mask (B, K) of the arms whose reward is known, and the rewards (B, K), with 0 for unknown rewards.

    ``arm`` and ``reward`` (B,) are the played arms and their rewards.
    """
    is_played = (arm[:, None] == torch.arange(n_arms, device=arm.device)).to(reward.dtype)
    is_known = is_played
    if feedback == "one_hot":
        is_known = torch.where(reward[:, None] == 1, torch.ones_like(is_played), is_played)
    return is_known, is_played * reward[:, None]


def squared_regret(predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor, *, feedback: str) -> torch.Tensor:
    """Return the paper's loss: squared errors, summed over the arms with a known reward, and averaged over rounds."""
    is_known, rewards = known_rewards(arm, reward, n_arms=predicted.shape[1], feedback=feedback)
    return (is_known * (predicted - rewards) ** 2).sum(dim=1).mean()


class _OneCorrectArmLoss(LossWithGradient):
    """The mean cross-entropy of the event that the played arm is the correct one, whose probability is ``reward``.

    Let p be the softmax over all arms, and q the softmax over all arms except the played one. The gradient with respect
    to the logits is p minus a target. The target is ``reward`` at the played arm, and ``(1 - reward) * q`` at the other
    arms. Logarithms of 0 do not occur, even if the policy is certain of a wrong arm.
    """

    @staticmethod
    def forward(
        predicted: torch.Tensor, scale: float, arm: torch.Tensor, reward: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_p = functional.log_softmax(scale * predicted, dim=1)
        is_played = arm[:, None] == torch.arange(log_p.shape[1], device=arm.device)
        other_log_p = log_p.masked_fill(is_played, -torch.inf)
        target, played_log_p = reward.clamp(0, 1)[:, None], log_p.gather(1, arm[:, None])
        log_sum_p = other_log_p.logsumexp(dim=1, keepdim=True)  # log of the probability that another arm is correct
        loss = -torch.lerp(log_sum_p, played_log_p, target).mean()
        return loss, log_p.exp() - torch.where(is_played, target, (1 - target) * (other_log_p - log_sum_p).exp())


def cross_entropy_regret(
    predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor, *, feedback: str, scale: float
) -> torch.Tensor:
    """Return the cross-entropy of the known rewards, averaged over rounds.

    Args:
        predicted: (B, K), the predicted reward of every arm.
        arm: (B,), the played arms.
        reward: (B,), their rewards, clipped to [0, 1].
        feedback: "one_hot" if exactly one arm is correct. Predictions times ``scale`` are then the logits of a softmax
            over arms. A reward of 1 uses the probability of the played arm, and a reward of 0 the probability of all
            other arms together. With "bandit", the reward is a Bernoulli variable, whose logit is 0 at a predicted
            reward of one half.
        scale: the factor between predicted rewards and logits.
    """
    if feedback == "one_hot":
        if predicted.shape[1] == 1:  # the only arm is always correct
            return predicted.sum() * 0.0
        return _OneCorrectArmLoss.apply(predicted, scale, arm, reward)[0]  # type: ignore[no-untyped-call]
    logits = scale * (select_played(predicted, arm) - 0.5)
    return functional.binary_cross_entropy_with_logits(logits, reward.clamp(0, 1))


@terms.register("source_squared")
class SourceSquared(Term):
    """The source regret as the squared error of the known rewards."""

    def forward(self, batch: Batch) -> torch.Tensor:
        return squared_regret(batch.predicted, batch.arm, batch.reward, feedback=self.shape.feedback)


@terms.register("source_cross_entropy")
class SourceCrossEntropy(Term):
    """The source regret as the cross-entropy of the known rewards, or as squared error if rewards are standardised."""

    concurrent_feedback = frozenset({"one_hot"})

    def forward(self, batch: Batch) -> torch.Tensor:
        shape: TermShape = self.shape
        rounds = (batch.predicted, batch.arm, batch.reward)
        if shape.standardised:
            return squared_regret(*rounds, feedback="bandit")
        return cross_entropy_regret(*rounds, feedback=shape.feedback, scale=shape.scale)


@terms.register("regression_error")
class RegressionError(Term):
    """R of the bound: the mean over rounds of ``|reward - predicted|``.

    It is gated like the target terms. The median of all rewards minimises an absolute error. As long as most rewards
    are 0, the median is 0, and an encoder that predicts 0 for every arm cannot distinguish arms.
    """

    gated = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return (batch.reward - select_played(batch.predicted, batch.arm)).abs().mean()
