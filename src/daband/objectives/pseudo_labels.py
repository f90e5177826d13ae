"""Pseudo-labels: where the EMA encoder is confident about a target context, the encoder should agree.

The copy sees the context as it is and the encoder sees it augmented (shifted, brighter), so agreement teaches something
even where the label was right already. Unsure contexts are left out, or early mistakes would teach themselves.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from daband.objectives.contract import Batch, Term, terms

__all__ = ["PseudoLabels", "pseudo_label_loss"]

_CONFIDENCE = 0.95


def pseudo_label_loss(
    target_predicted: torch.Tensor, teacher: torch.Tensor, *, scale: float, confidence: float = _CONFIDENCE
) -> torch.Tensor:
    """Cross-entropy of predictions (T, K) against the teacher's arm where its probability exceeds ``confidence``.

    The mean runs over all T contexts: when few are sure, the term is small.
    """
    probability, arm = torch.softmax(scale * teacher.detach(), dim=1).max(dim=1)
    sure = (probability > confidence).to(target_predicted.dtype)
    return (sure * functional.cross_entropy(scale * target_predicted, arm, reduction="none")).mean()


@terms.register("pseudo_labels")
class PseudoLabels(Term):
    """Agreement with the EMA encoder on the target."""

    needs_target = True
    needs_teacher = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return pseudo_label_loss(batch.target_predicted, batch.target_teacher, scale=self.shape.scale)
