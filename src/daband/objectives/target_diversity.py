"""Target diversity: arms should be chosen as often as they are expected to be best; a guard against one arm for all.

Without an estimate every arm is expected as often, which is wrong where the target is imbalanced;
``LearningSettings.prior`` says where the expectation comes from.
"""

from __future__ import annotations

import math

import torch

from daband.objectives.contract import Batch, Term, terms

__all__ = ["TargetDiversity", "target_diversity"]


def target_diversity(
    target_predicted: torch.Tensor, *, scale: float, prior: torch.Tensor | None = None
) -> torch.Tensor:
    """How far the mean prediction over (T, K) contexts is from ``prior`` (K,): its Kullback-Leibler divergence.

    Without a prior it is the distance from even: ``ln K`` minus the entropy of the mean prediction.
    """
    mean = torch.softmax(scale * target_predicted, dim=1).mean(dim=0)
    # xlogy is 0 where the probability is 0, with a finite gradient once the probability is kept off zero.
    entropy = -torch.xlogy(mean, mean.clamp(min=1e-12)).sum()
    if prior is None:
        return math.log(target_predicted.shape[1]) - entropy
    return -(mean * prior.to(mean.dtype).clamp(min=1e-6).log()).sum() - entropy


@terms.register("target_diversity")
class TargetDiversity(Term):
    """How far the target's predictions are, on average, from the arms' expected frequencies."""

    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return target_diversity(batch.target_predicted, scale=self.shape.scale, prior=batch.target_prior)
