"""P, the predicted reward: how large predictions are in the target, and in the source where the policy was wrong.

The paper's L_reg has one action, the one of the source round, in both of its parts. So the target context of a round is
predicted for the arm that was played in the source. ``predicted_reward_own_choice`` takes the arm that the policy
itself would choose in the target: a reading that collapses the target, because the cheapest way to lower the largest of
all predicted rewards is to turn target features away from every arm.
"""

from __future__ import annotations

import torch

from daband.objectives.contract import Batch, Term, terms

__all__ = ["PredictedReward", "PredictedRewardOwnChoice", "source_part"]


def source_part(predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor, *, feedback: str) -> torch.Tensor:
    """Mean ``|predicted|`` of the played arm where it was not the best one.

    That is ``reward < 1`` where one arm pays 1 ("one_hot"), and the shortfall ``1 - reward`` otherwise.
    """
    chosen = predicted.gather(1, arm[:, None]).squeeze(1)
    wrong = (reward < 1).to(reward.dtype) if feedback == "one_hot" else 1 - reward
    return (wrong * chosen.abs()).mean()


@terms.register("predicted_reward")
class PredictedReward(Term):
    """P of the bound: ``|predicted|`` of the source's arm in the target, plus the source's part."""

    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        source = source_part(batch.predicted, batch.arm, batch.reward, feedback=self.shape.feedback)
        pairs = min(len(batch.target_predicted), len(batch.arm))
        if pairs == 0:
            return source
        return batch.target_predicted[:pairs].gather(1, batch.arm[:pairs, None]).abs().mean() + source


@terms.register("predicted_reward_own_choice")
class PredictedRewardOwnChoice(Term):
    """P with the arm that the policy would choose in the target, by its predictions and widths."""

    needs_target = True
    needs_width = True

    def forward(self, batch: Batch) -> torch.Tensor:
        source = source_part(batch.predicted, batch.arm, batch.reward, feedback=self.shape.feedback)
        if len(batch.target_predicted) == 0:
            return source
        best = (batch.target_predicted.detach() + batch.target_width).argmax(dim=1)
        return batch.target_predicted.gather(1, best[:, None]).abs().mean() + source
