"""P, the predicted reward: what the policy promises itself in the target, and where it was wrong in the source.

As the paper writes it, at weight 1, this term collapses the target: the cheapest way to lower a predicted reward is to
turn target features away from every arm. The weights of the presets are small for that reason.
"""

from __future__ import annotations

import torch

from daband.objectives.contract import Batch, Term, terms

__all__ = ["PredictedReward", "predicted_reward"]


def predicted_reward(
    predicted: torch.Tensor,
    arm: torch.Tensor,
    reward: torch.Tensor,
    *,
    target_predicted: torch.Tensor,
    target_width: torch.Tensor,
    feedback: str,
) -> torch.Tensor:
    """Mean ``|predicted|`` of the arm the policy would choose in the target, plus the source's share.

    The source's share is that of the pulled arm where it was not the best: ``reward < 1`` where one arm is right, the
    shortfall ``1 - reward`` otherwise. ``target_width`` (T, K) is the scaled width by which the target's arm is chosen.
    """
    chosen = predicted.gather(1, arm[:, None]).squeeze(1)
    wrong = (reward < 1).to(reward.dtype) if feedback == "one_hot" else 1 - reward
    source = (wrong * chosen.abs()).mean()
    if len(target_predicted) == 0:
        return source
    best = (target_predicted.detach() + target_width).argmax(dim=1)
    return target_predicted.gather(1, best[:, None]).abs().mean() + source


@terms.register("predicted_reward")
class PredictedReward(Term):
    """P of the bound."""

    needs_target = True
    needs_width = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return predicted_reward(
            batch.predicted,
            batch.arm,
            batch.reward,
            target_predicted=batch.target_predicted,
            target_width=batch.target_width,
            feedback=self.shape.feedback,
        )
