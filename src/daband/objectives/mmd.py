"""Maximum mean discrepancy: the domains' features should have the same mean under a mixture of Gaussian kernels."""

from __future__ import annotations

import torch

from daband.objectives.contract import Batch, Term, terms

__all__ = ["Mmd", "mmd"]

_BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def mmd(source: torch.Tensor, target: torch.Tensor, *, bandwidth: torch.Tensor | None = None) -> torch.Tensor:
    """Squared maximum mean discrepancy of (B, w) and (T, w), the biased estimate, which is never negative.

    The kernels' widths are multiples of ``bandwidth``, by default the mean squared distance, a constant for the
    gradient. One domain alone is at no distance: 0.
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
