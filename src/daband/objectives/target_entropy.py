"""Target entropy: the policy should be sure of its choice in the target; a boundary then avoids dense regions."""

from __future__ import annotations

import torch

from daband.objectives.contract import Batch, Term, terms

__all__ = ["TargetEntropy", "row_entropy", "target_entropy"]


def row_entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy (B,) of the softmax of each row of (B, K)."""
    log_probabilities = torch.log_softmax(logits, dim=1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


def target_entropy(target_predicted: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Mean entropy of the softmax over arms of ``scale`` times the predicted rewards (T, K)."""
    return row_entropy(scale * target_predicted).mean()


@terms.register("target_entropy")
class TargetEntropy(Term):
    """Mean entropy of the target's predictions."""

    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return target_entropy(batch.target_predicted, scale=self.shape.scale)
