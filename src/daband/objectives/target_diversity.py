"""Target diversity: the arms chosen over many target contexts should differ; a guard against all going to one arm."""

from __future__ import annotations

import math

import torch

from daband.objectives.contract import Batch, Term, terms

__all__ = ["TargetDiversity", "target_diversity"]


def target_diversity(target_predicted: torch.Tensor, *, scale: float) -> torch.Tensor:
    """How far the mean prediction over (T, K) contexts is from even: ``ln K`` minus its entropy, 0 when even."""
    mean = torch.softmax(scale * target_predicted, dim=1).mean(dim=0)
    # xlogy is 0 where the probability is 0, with a finite gradient once the probability is kept off zero.
    entropy = -torch.xlogy(mean, mean.clamp(min=1e-12)).sum()
    return math.log(target_predicted.shape[1]) - entropy


@terms.register("target_diversity")
class TargetDiversity(Term):
    """How uneven the target's predictions are on average."""

    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return target_diversity(batch.target_predicted, scale=self.shape.scale)
