"""Distances between the features of the sources and those of the targets, without a discriminator: MMD and CORAL."""

from __future__ import annotations

import torch

from daband.neural.objectives._term import Batch, Term, terms

_BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def mmd(source: torch.Tensor, target: torch.Tensor, *, bandwidth: torch.Tensor | None = None) -> torch.Tensor:
    """Squared maximum mean discrepancy of (B, w) and (T, w), the biased estimate, which is never negative.

    It compares the means under a mixture of Gaussian kernels, whose widths are multiples of ``bandwidth``, by default
    the mean squared distance, a constant for the gradient. One domain alone is at no distance: 0.
    """
    both = torch.cat([source, target])
    if min(len(source), len(target)) == 0:
        return both.sum() * 0.0
    squares = (both * both).sum(dim=1)
    distances = (squares[:, None] + squares[None, :] - 2 * both @ both.T).clamp(min=0)
    typical = distances.detach().mean().clamp(min=1e-12) if bandwidth is None else bandwidth
    kernel = torch.stack([torch.exp(-distances / (typical * width)) for width in _BANDWIDTHS]).mean(dim=0)
    n = len(source)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


@terms.register("mmd")
class Mmd(Term):
    """MMD on the alignment."""

    needs_target = True
    holds_constants = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return mmd(batch.alignment, batch.target_alignment)


def coral(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """CORAL (Sun and Saenko, 2016): the squared distance of the covariances of (B, w) and (T, w), over ``4 w^2``.

    It is 0 for fewer than two rows.
    """
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
