"""Define the terms on target predictions: predicted reward, diversity and pseudo-labels.

P, the predicted reward, is the size of predictions in the target, and in the source if the policy was wrong. The
paper's L_reg does not specify which arm's prediction counts in the target. ``predicted_reward`` takes the arm of the
source round, the only one that Algorithm 1 computes. ``predicted_reward_target_choice`` takes the arm that the policy
would choose in the target, as in the definition of the estimated best arm and in the proof. It may collapse, because
turning target features away from every arm is the easiest way to lower the largest predicted reward.

Diversity prevents one arm from being chosen for all contexts. It assumes that all arms are the best one equally often.
If the target is imbalanced, ``shift="labels"`` removes the term.

Pseudo-labels are the predictions of the EMA encoder for contexts without augmentation, if it is sure. The encoder
learns them for the augmented contexts. Other contexts are ignored, so that early mistakes are not learned. Without a
correction, self-training may label all contexts of one arm as another arm. With ``match_arm_frequencies``, logits are
corrected by the log ratio of each arm's frequencies in the source and in the target, as in AdaMatch (Berthelot et al.,
2022). ``shift="labels"`` removes the correction.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from daband.neural.objectives._term import FEEDBACKS, Batch, Term, WithGradient, terms

#: The smallest probability with which the teacher gives a pseudo-label.
_MIN_CONFIDENCE = 0.95


def source_penalty(predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor, *, feedback: str) -> torch.Tensor:
    """Return the mean ``|predicted|`` of the played arm if it was not the best one.

    With "one_hot" feedback, rounds with ``reward < 1`` count. Otherwise rounds are weighted by ``1 - reward``.
    """
    played_predictions = predicted.gather(1, arm[:, None]).squeeze(1)
    shortfalls = (reward < 1).to(reward.dtype) if feedback == "one_hot" else (1 - reward).clamp(min=0)
    return (shortfalls * played_predictions.abs()).mean()


@terms.register("predicted_reward")
class PredictedReward(Term):
    """P of the bound: the mean ``|predicted|`` of one arm in the target, plus ``source_penalty``."""

    needs_target = True

    def target_arm(self, batch: Batch) -> torch.Tensor:
        """Return the arms whose predictions count in the target: the arms of the source rounds."""
        return batch.arm

    def forward(self, batch: Batch) -> torch.Tensor:
        source = source_penalty(batch.predicted, batch.arm, batch.reward, feedback=self.shape.feedback)
        arm = self.target_arm(batch)
        n_pairs = min(len(batch.target_predicted), len(arm))
        if n_pairs == 0:
            return source
        return batch.target_predicted[:n_pairs].gather(1, arm[:n_pairs, None]).abs().mean() + source


@terms.register("predicted_reward_target_choice")
class PredictedRewardTargetChoice(PredictedReward):
    """P with the arm that the policy would choose in the target, by its predictions and bonuses."""

    needs_bonus = True

    def target_arm(self, batch: Batch) -> torch.Tensor:
        return (batch.target_predicted.detach() + batch.target_bonus).argmax(dim=1)


class _Divergence(WithGradient):
    """The Kullback-Leibler divergence of the mean softmax from the uniform distribution."""

    @staticmethod
    def forward(predicted: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = torch.softmax(scale * predicted, dim=1)
        mean = probabilities.mean(dim=0)
        ratio = mean.clamp(min=1e-12).log() + math.log(predicted.shape[1])  # finite at a probability of 0
        return mean @ ratio, probabilities * (ratio - (probabilities @ ratio)[:, None])


def target_diversity(target_predicted: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Return ``ln K`` minus the entropy of the mean prediction over (T, K) contexts."""
    return _Divergence.apply(target_predicted, scale)[0]  # type: ignore[no-untyped-call]


@terms.register("target_diversity")
class TargetDiversity(Term):
    """The divergence of the mean target prediction from equally frequent arms."""

    concurrent_feedback = frozenset(FEEDBACKS)
    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return target_diversity(batch.target_predicted, scale=self.shape.scale)


def pseudo_label_loss(target_predicted: torch.Tensor, teacher: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Return the cross-entropy of predictions (T, K) against the teacher's arm if its probability is above 0.95.

    The mean is over all T contexts, so the term is small if few predictions are sure.
    """
    probability, arm = torch.softmax(scale * teacher.detach(), dim=1).max(dim=1)
    is_sure = (probability > _MIN_CONFIDENCE).to(target_predicted.dtype)
    return (is_sure * functional.cross_entropy(scale * target_predicted, arm, reduction="none")).mean()


@terms.register("pseudo_labels")
class PseudoLabels(Term):
    """The disagreement with the EMA encoder's confident predictions on the target."""

    needs_target = True
    needs_teacher = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return pseudo_label_loss(batch.target_predicted, batch.target_teacher, scale=self.shape.scale)
