"""CORAL: the domains' features should have the same covariance (Sun and Saenko, 2016)."""

from __future__ import annotations

import torch

from daband.objectives.contract import Batch, Term, terms

__all__ = ["Coral", "coral"]


def coral(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Squared Frobenius distance of the covariances of (B, w) and (T, w), over ``4 w^2``; 0 for fewer than two rows."""
    if min(len(source), len(target)) < 2:
        return (source.sum() + target.sum()) * 0.0
    gap = _covariance(source) - _covariance(target)
    return (gap * gap).sum() / (4 * source.shape[1] ** 2)


def _covariance(features: torch.Tensor) -> torch.Tensor:
    centred = features - features.mean(dim=0, keepdim=True)
    return centred.T @ centred / (len(features) - 1)


@terms.register("coral")
class Coral(Term):
    """CORAL on the alignment."""

    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return coral(batch.alignment, batch.target_alignment)
