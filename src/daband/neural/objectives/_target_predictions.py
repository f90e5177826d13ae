"""Define the terms on target predictions: predicted reward, diversity and pseudo-labels.

**P**, the predicted reward of the bound, is the mean absolute prediction in the target, plus the
mean absolute prediction in source rounds in which the policy was wrong. The paper's L_reg does not
specify which arm's prediction counts in the target. ``predicted_reward`` uses the arm of the source
round, the only arm that Algorithm 1 computes. ``predicted_reward_target_choice`` uses the arm that
the policy would choose in the target, as the paper's proof does. It may collapse: the easiest way
to lower the largest predicted reward is to make target features orthogonal to the coefficients of
every arm.

**Diversity** prevents the policy from choosing one arm for all contexts. It assumes that every arm
is the best one equally often. If the target is imbalanced, ``shift="labels"`` removes the term.

**Pseudo-labels** are the EMA encoder's predictions for contexts without augmentation. The encoder
learns to predict them for the augmented contexts. Only confident predictions are used, so that
early mistakes are not learned. Without a correction, self-training may label all contexts of one
arm as another arm. With ``match_arm_frequencies``, logits are corrected by the log ratio of each
arm's frequencies in the source and in the target, as in AdaMatch (Berthelot et al., 2022).
``shift="labels"`` removes the correction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from daband.neural.objectives._term import FEEDBACKS, Batch, LossWithGradient, Term, terms

#: The minimum probability that the EMA encoder must predict for a pseudo-label.
_MIN_CONFIDENCE = 0.95


def compute_source_penalty(
    predictions: Tensor, arms: Tensor, rewards: Tensor, *, feedback: str
) -> Tensor:
    """Return the mean over rounds of ``|prediction|`` for the played arm, weighted by how wrong
    that arm was.

    The weight of a round is ``1 - reward``. With "one_hot" feedback it is 1 for every reward below
    1.

    Args:
        predictions: (B, K), the predicted reward of every arm.
        arms: (B,), the played arms.
        rewards: (B,), their rewards.
        feedback: "one_hot" or "bandit".
    """
    played_predictions = predictions.gather(1, arms[:, None]).squeeze(1)
    round_weights = (
        (rewards < 1).to(rewards.dtype) if feedback == "one_hot" else (1 - rewards).clamp(min=0)
    )
    return (round_weights * played_predictions.abs()).mean()


@terms.register("predicted_reward")
class PredictedReward(Term):
    """P of the bound: the mean ``|prediction|`` of one arm per target context, plus
    ``compute_source_penalty``.
    """

    needs_target = True

    def select_target_arms(self, batch: Batch) -> Tensor:
        """Return the arms whose predictions count in the target: the arms of the source rounds."""
        return batch.arms

    def forward(self, batch: Batch) -> Tensor:
        penalty = compute_source_penalty(
            batch.predictions, batch.arms, batch.rewards, feedback=self.settings.feedback
        )
        target_arms = self.select_target_arms(batch)
        n_pairs = min(len(batch.target_predictions), len(target_arms))
        if n_pairs == 0:
            return penalty
        return (
            batch.target_predictions[:n_pairs].gather(1, target_arms[:n_pairs, None]).abs().mean()
            + penalty
        )


@terms.register("predicted_reward_target_choice")
class PredictedRewardTargetChoice(PredictedReward):
    """P with the arm that the policy would choose in the target, by its predictions and bonuses."""

    needs_bonus = True

    def select_target_arms(self, batch: Batch) -> Tensor:
        return (batch.target_predictions.detach() + batch.target_bonuses).argmax(dim=1)


class _UniformDivergenceLoss(LossWithGradient):
    """The Kullback-Leibler divergence of the mean softmax over rows from the uniform
    distribution.
    """

    @staticmethod
    def forward(predictions: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        probabilities = torch.softmax(scale * predictions, dim=1)
        mean = probabilities.mean(dim=0)
        # finite at a probability of 0
        log_ratio = mean.clamp(min=1e-12).log() + math.log(predictions.shape[1])
        return mean @ log_ratio, probabilities * (log_ratio - (probabilities @ log_ratio)[:, None])


def compute_diversity_loss(predictions: Tensor, *, scale: float) -> Tensor:
    """Return ``ln K`` minus the entropy of the mean softmax of predictions (T, K); 0 if all arms
    are equally frequent.

    Logits are ``scale`` times the predictions.
    """
    return _UniformDivergenceLoss.apply(predictions, scale)[0]  # type: ignore[no-untyped-call]


@terms.register("target_diversity")
class TargetDiversity(Term):
    """The divergence of the mean target prediction from the uniform distribution over arms."""

    concurrent_feedback = frozenset(FEEDBACKS)
    needs_target = True

    def forward(self, batch: Batch) -> Tensor:
        return compute_diversity_loss(batch.target_predictions, scale=self.settings.scale)


def compute_pseudo_label_loss(
    predictions: Tensor, teacher_predictions: Tensor, *, scale: float
) -> Tensor:
    """Return the cross-entropy of predictions (T, K) against the arms with the highest teacher
    predictions (T, K).

    The teacher is the EMA encoder. A context counts only if the softmax probability of its
    predicted arm is above 0.95. The mean is over all T contexts, so the loss is small if few
    contexts count.
    """
    confidences, pseudo_labels = torch.softmax(scale * teacher_predictions.detach(), dim=1).max(
        dim=1
    )
    is_confident = (confidences > _MIN_CONFIDENCE).to(predictions.dtype)
    return (
        is_confident
        * functional.cross_entropy(scale * predictions, pseudo_labels, reduction="none")
    ).mean()


@terms.register("pseudo_labels")
class PseudoLabels(Term):
    """The cross-entropy of target predictions against confident predictions of the EMA encoder."""

    needs_target = True
    needs_teacher = True

    def forward(self, batch: Batch) -> Tensor:
        return compute_pseudo_label_loss(
            batch.target_predictions, batch.teacher_predictions, scale=self.settings.scale
        )
