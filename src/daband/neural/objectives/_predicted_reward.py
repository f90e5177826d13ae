"""P, the predicted reward: the size of predictions in the target, and in the source if the policy was wrong.

The paper's L_reg does not specify which arm's prediction counts in the target. ``predicted_reward`` takes the arm of
the source round, the only one that Algorithm 1 computes. ``predicted_reward_target_choice`` takes the arm that the
policy would choose in the target, as in the definition of the estimated best arm and in the proof. It may collapse,
because turning target features away from every arm is the easiest way to lower the largest predicted reward.
"""

from __future__ import annotations

import torch

from daband.neural.objectives._term import Batch, Term, terms


def source_part(predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor, *, feedback: str) -> torch.Tensor:
    """Return the mean ``|predicted|`` of the played arm if it was not the best one.

    That is ``reward < 1`` if one arm has reward 1 ("one_hot"), and the shortfall ``1 - reward`` otherwise.
    """
    chosen = predicted.gather(1, arm[:, None]).squeeze(1)
    wrong = (reward < 1).to(reward.dtype) if feedback == "one_hot" else (1 - reward).clamp(min=0)
    return (wrong * chosen.abs()).mean()


@terms.register("predicted_reward")
class PredictedReward(Term):
    """P of the bound: mean ``|predicted|`` of one arm in the target, plus the source part."""

    needs_target = True

    def target_arm(self, batch: Batch) -> torch.Tensor:
        """Return the arms whose predictions count in the target: the arms of the source rounds."""
        return batch.arm

    def forward(self, batch: Batch) -> torch.Tensor:
        source = source_part(batch.predicted, batch.arm, batch.reward, feedback=self.shape.feedback)
        arm = self.target_arm(batch)
        pairs = min(len(batch.target_predicted), len(arm))
        if pairs == 0:
            return source
        return batch.target_predicted[:pairs].gather(1, arm[:pairs, None]).abs().mean() + source


@terms.register("predicted_reward_target_choice")
class PredictedRewardTargetChoice(PredictedReward):
    """P with the arm that the policy would choose in the target, by its predictions and bonuses."""

    needs_width = True

    def target_arm(self, batch: Batch) -> torch.Tensor:
        return (batch.target_predicted.detach() + batch.target_width).argmax(dim=1)
