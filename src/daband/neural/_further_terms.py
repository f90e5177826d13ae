"""Define further terms of the objective, which are not in the paper.

The default recipes use them instead of, or in addition to, the terms of ``daband.py``:

**The cross-entropy** of the known rewards replaces the squared error of the source regret.

**Diversity** prevents the policy from choosing one arm for all target contexts. It compares the
mean prediction with assumed frequencies of arms.

**Pseudo-labels** are the EMA encoder's predictions for contexts without augmentation. The encoder
learns to predict them for the augmented contexts. Only confident predictions are used, so that
early mistakes are not learned. Without a correction, self-training may label all contexts of one
arm as another arm. Logits are therefore corrected by the log ratio of each arm's assumed and
predicted frequency, as in AdaMatch (Berthelot et al., 2022).

The assumed frequencies are equal for diversity, and those of the source for pseudo-labels. With
``shift="labels"`` they are the predicted ones, within a factor
(``LearningSettings.max_frequency_ratio``).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from daband.neural._term import Batch, Term, terms
from daband.neural.daband import select_arms, source_regret

#: The minimum probability that the EMA encoder must predict for a pseudo-label.
_MIN_CONFIDENCE = 0.95


def reward_cross_entropy(
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
    rewards = rewards.clamp(0, 1)
    if feedback != "one_hot":
        logits = scale * (select_arms(predictions, arms) - 0.5)
        return functional.binary_cross_entropy_with_logits(logits, rewards)
    if predictions.shape[1] == 1:  # the only arm is always correct
        return predictions.sum() * 0.0
    log_probabilities = functional.log_softmax(scale * predictions, dim=1)
    is_played = arms[:, None] == torch.arange(predictions.shape[1], device=arms.device)
    # no logarithm of 0 occurs, even if the policy is certain of a wrong arm
    log_any_other = log_probabilities.masked_fill(is_played, -torch.inf).logsumexp(dim=1)
    return -torch.lerp(log_any_other, select_arms(log_probabilities, arms), rewards).mean()


@terms.register("source_cross_entropy")
class SourceCrossEntropy(Term):
    """The source regret as ``reward_cross_entropy``, or as squared error if rewards are
    standardised.
    """

    def forward(self, batch: Batch) -> Tensor:
        settings = self.settings
        rounds = (batch.predictions, batch.arms, batch.rewards)
        if settings.standardise_rewards:
            return source_regret(*rounds, feedback="bandit")
        return reward_cross_entropy(*rounds, feedback=settings.feedback, scale=settings.scale)


def diversity_loss(predictions: Tensor, arm_frequencies: Tensor, *, scale: float) -> Tensor:
    """Return the Kullback-Leibler divergence of the mean softmax of predictions (T, K) from the
    frequencies of arms (K,).

    Logits are ``scale`` times the predictions.
    """
    mean = torch.softmax(scale * predictions, dim=1).mean(dim=0)
    # finite at a probability of 0
    return mean @ (mean.clamp(min=1e-12).log() - arm_frequencies.log())


@terms.register("target_diversity")
class TargetDiversity(Term):
    """The divergence of the mean target prediction from the assumed frequencies of arms."""

    needs_target = True

    def forward(self, batch: Batch) -> Tensor:
        return diversity_loss(
            batch.target_predictions, batch.arm_frequencies, scale=self.settings.scale
        )


def pseudo_label_loss(predictions: Tensor, teacher_predictions: Tensor, *, scale: float) -> Tensor:
    """Return the cross-entropy of predictions (T, K) against the arms with the highest teacher
    predictions (T, K).

    The teacher is the EMA encoder. A context counts only if the softmax probability of its
    predicted arm is above 0.95. The mean is over all T contexts, so the loss is small if few
    contexts count.
    """
    probabilities = torch.softmax(scale * teacher_predictions.detach(), dim=1)
    confidences, pseudo_labels = probabilities.max(dim=1)
    losses = functional.cross_entropy(scale * predictions, pseudo_labels, reduction="none")
    return ((confidences > _MIN_CONFIDENCE) * losses).mean()


@terms.register("pseudo_labels")
class PseudoLabels(Term):
    """The cross-entropy of target predictions against confident predictions of the EMA encoder."""

    needs_target = True
    needs_teacher = True

    def forward(self, batch: Batch) -> Tensor:
        return pseudo_label_loss(
            batch.target_predictions, batch.teacher_predictions, scale=self.settings.scale
        )
