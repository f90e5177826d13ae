"""Define the losses between predicted and observed source rewards: the source regret, and R, a term
of the bound.

Only the played arm's reward is observed. If exactly one arm is correct and rewards have no noise
("one_hot" feedback), a reward of 1 also implies that every other arm has reward 0. A round of such
a problem whose reward is neither 0 nor 1, such as the mean of two answers, is informative about the
played arm only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from daband.neural.objectives._term import Batch, LossWithGradient, Term, TermSettings, terms


def select_played_predictions(predictions: Tensor, arms: Tensor) -> Tensor:
    """Return the predicted rewards (B,) of the played arms (B,), from the predictions (B, K) for
    all arms.
    """
    return predictions.gather(1, arms[:, None]).squeeze(1)


def find_known_rewards(
    arms: Tensor, rewards: Tensor, *, n_arms: int, feedback: str
) -> tuple[Tensor, ...]:
    """Return a mask (B, K) of the arms whose reward is known, and the rewards (B, K), with 0 for
    unknown rewards.

    ``arms`` and ``rewards`` (B,) are the played arms and their rewards.
    """
    is_played = (arms[:, None] == torch.arange(n_arms, device=arms.device)).to(rewards.dtype)
    is_known = is_played
    if feedback == "one_hot":
        is_known = torch.where(rewards[:, None] == 1, torch.ones_like(is_played), is_played)
    return is_known, is_played * rewards[:, None]


def compute_squared_loss(
    predictions: Tensor, arms: Tensor, rewards: Tensor, *, feedback: str
) -> Tensor:
    """Return the paper's loss: squared errors, summed over the arms with a known reward, and
    averaged over rounds.
    """
    is_known, known_rewards = find_known_rewards(
        arms, rewards, n_arms=predictions.shape[1], feedback=feedback
    )
    return (is_known * (predictions - known_rewards) ** 2).sum(dim=1).mean()


class _OneCorrectArmLoss(LossWithGradient):
    """The mean cross-entropy between the reward and the predicted probability that the played arm
    is correct.

    Let p be the softmax over all arms, and q the softmax over all arms except the played one. The
    gradient with respect to the logits is p minus target probabilities: the reward for the played
    arm, and ``(1 - reward) * q`` for the other arms. Logarithms of 0 do not occur, even if the
    policy is certain of a wrong arm.
    """

    @staticmethod
    def forward(
        predictions: Tensor, scale: float, arms: Tensor, rewards: Tensor
    ) -> tuple[Tensor, Tensor]:
        log_p = functional.log_softmax(scale * predictions, dim=1)
        is_played = arms[:, None] == torch.arange(log_p.shape[1], device=arms.device)
        other_log_p = log_p.masked_fill(is_played, -torch.inf)
        reward = rewards.clamp(0, 1)[:, None]
        played_log_p = log_p.gather(1, arms[:, None])
        # The log of the probability that any other arm is correct.
        log_p_any_other = other_log_p.logsumexp(dim=1, keepdim=True)
        loss = -torch.lerp(log_p_any_other, played_log_p, reward).mean()
        return loss, log_p.exp() - torch.where(
            is_played, reward, (1 - reward) * (other_log_p - log_p_any_other).exp()
        )


def compute_cross_entropy_loss(
    predictions: Tensor, arms: Tensor, rewards: Tensor, *, feedback: str, scale: float
) -> Tensor:
    """Return the cross-entropy of the known rewards, averaged over rounds.

    Args:
        predictions: (B, K), the predicted reward of every arm.
        arms: (B,), the played arms.
        rewards: (B,), their rewards, clipped to [0, 1].
        feedback: "one_hot" if exactly one arm is correct. Predictions times ``scale`` are then the
            logits of a softmax over arms. A reward of 1 uses the probability of the played arm, and
            a reward of 0 the probability of all other arms together. With "bandit", the reward is a
            Bernoulli variable, whose logit is 0 at a predicted reward of one half.
        scale: the factor between predicted rewards and logits.
    """
    if feedback == "one_hot":
        if predictions.shape[1] == 1:  # the only arm is always correct
            return predictions.sum() * 0.0
        return _OneCorrectArmLoss.apply(predictions, scale, arms, rewards)[0]  # type: ignore[no-untyped-call]
    logits = scale * (select_played_predictions(predictions, arms) - 0.5)
    return functional.binary_cross_entropy_with_logits(logits, rewards.clamp(0, 1))


@terms.register("source_squared")
class SourceSquared(Term):
    """The source regret as the squared error of the known rewards."""

    def forward(self, batch: Batch) -> Tensor:
        return compute_squared_loss(
            batch.predictions, batch.arms, batch.rewards, feedback=self.settings.feedback
        )


@terms.register("source_cross_entropy")
class SourceCrossEntropy(Term):
    """The source regret as the cross-entropy of the known rewards, or as squared error if rewards
    are standardised.
    """

    concurrent_feedback = frozenset({"one_hot"})

    def forward(self, batch: Batch) -> Tensor:
        settings: TermSettings = self.settings
        rounds = (batch.predictions, batch.arms, batch.rewards)
        if settings.standardise_rewards:
            return compute_squared_loss(*rounds, feedback="bandit")
        return compute_cross_entropy_loss(*rounds, feedback=settings.feedback, scale=settings.scale)


@terms.register("regression_error")
class RegressionError(Term):
    """R of the bound: the mean over rounds of ``|reward - prediction|``.

    Its weight is gated by the policy's skill in the source, as for target terms
    (``_skill_gate.py``). The median of all rewards minimises an absolute error. As long as most
    rewards are 0, the median is 0, and an encoder that predicts 0 for every arm cannot distinguish
    arms.
    """

    is_gated = True

    def forward(self, batch: Batch) -> Tensor:
        return (
            (batch.rewards - select_played_predictions(batch.predictions, batch.arms)).abs().mean()
        )
