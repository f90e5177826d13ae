"""Minimum class confusion: no two arms should be predicted together on the target (Jin et al., 2020)."""

from __future__ import annotations

import torch

from daband.objectives.contract import Batch, Term, terms
from daband.objectives.target_entropy import row_entropy

__all__ = ["ClassConfusion", "class_confusion"]

_TEMPERATURE = 2.5


def class_confusion(target_predicted: torch.Tensor, *, scale: float, temperature: float = _TEMPERATURE) -> torch.Tensor:
    """The off-diagonal mass of the arms' confusion over (T, K) contexts, per arm; confident rows count more."""
    logits = scale * target_predicted / temperature
    probabilities = torch.softmax(logits, dim=1)
    certainty = 1 + torch.exp(-row_entropy(logits))
    certainty = certainty / certainty.sum() * len(probabilities)
    confusion = (probabilities * certainty[:, None]).T @ probabilities
    confusion = confusion / confusion.sum(dim=1, keepdim=True).clamp(min=1e-12)
    return (confusion.sum() - confusion.diagonal().sum()) / probabilities.shape[1]


@terms.register("class_confusion")
class ClassConfusion(Term):
    """Class confusion of the target's predictions."""

    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return class_confusion(batch.target_predicted, scale=self.shape.scale)
