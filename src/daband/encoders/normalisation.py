"""Batch normalisation that knows which domain a row comes from.

Source and target have different means and spreads in every layer, and mixing them in one estimate is what makes a
network normalise neither well. So each domain is normalised by its own statistics: while training by those of its part
of the batch, and otherwise by running statistics, so that a batch gives the same as its singles and a policy that
chooses for one context at a time acts as it was trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

from daband.errors import InvalidInput

__all__ = ["DOMAINS", "DomainNorm", "domain_index", "frozen_statistics"]

DOMAINS = ("source", "target")


def domain_index(domain: str) -> int:
    """The row of ``DOMAINS`` that holds this domain's statistics."""
    if domain not in DOMAINS:
        raise InvalidInput(f"domain must be one of {', '.join(DOMAINS)}, got {domain!r}")
    return DOMAINS.index(domain)


class DomainNorm(nn.Module):
    """Batch norm over channel 1 of (B, C) or (B, C, H, W), with running statistics for each domain.

    Scale and shift are shared by the domains: the statistics are what differs, and a shared affine map keeps the
    features comparable. A domain that was never trained on borrows the statistics of the source, so a policy without
    any target context still acts in the target.

    ``per_domain=False`` normalises both domains by the statistics of the source. That keeps a difference between the
    domains that means something: where one domain's patients need more, taking the mean out takes that out as well.
    """

    running_mean: torch.Tensor
    running_variance: torch.Tensor
    batches_seen: torch.Tensor

    def __init__(
        self,
        *,
        channels: int,
        affine: bool = True,
        per_domain: bool = True,
        momentum: float = 0.1,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        if channels < 1:
            raise InvalidInput(f"channels must be at least 1, got {channels}")
        if not 0.0 < momentum <= 1.0:
            raise InvalidInput(f"momentum must lie in (0, 1], got {momentum}")
        self.channels = channels
        self.per_domain = per_domain
        self.momentum = momentum
        self.epsilon = epsilon
        self.update_statistics = True
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(len(DOMAINS), channels))
        self.register_buffer("running_variance", torch.ones(len(DOMAINS), channels))
        self.register_buffer("batches_seen", torch.zeros(len(DOMAINS), dtype=torch.int64))

    def forward(self, features: torch.Tensor, *, n_source: int) -> torch.Tensor:
        """Normalise rows ``[:n_source]`` as source and the rest as target; same shape out as in."""
        if not self.per_domain:
            return self._by_source(features, n_source)
        parts = []
        if n_source:
            parts.append(self._normalise(features[:n_source], 0))
        if n_source < len(features):
            parts.append(self._normalise(features[n_source:], 1))
        if not parts:
            return features
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _normalise(self, features: torch.Tensor, domain: int) -> torch.Tensor:
        # One value per channel has no spread to estimate; the running statistics are the honest answer then.
        enough = features.numel() // self.channels > 1
        if self.training and enough:
            return self._by_batch(features, domain)
        return self._fixed(features, domain)

    def _fixed(self, features: torch.Tensor, domain: int) -> torch.Tensor:
        # Chosen by arithmetic, not by a branch on a tensor, so that a captured step never waits for the device.
        own = (self.batches_seen[domain] > 0).to(features.dtype)
        mean = own * self.running_mean[domain] + (1 - own) * self.running_mean[0]
        variance = own * self.running_variance[domain] + (1 - own) * self.running_variance[0]
        return functional.batch_norm(features, mean, variance, self.weight, self.bias, False, 0.0, self.epsilon)

    def _by_source(self, features: torch.Tensor, n_source: int) -> torch.Tensor:
        """Everything by the statistics of the source; by its own where a batch has no source in it."""
        own = features[:n_source] if n_source else features
        if not self.training or own.numel() // self.channels <= 1:
            return self._fixed(features, 0)
        dims = [0, *range(2, features.ndim)]
        variance, mean = torch.var_mean(own, dim=dims, correction=0)
        if self.update_statistics and n_source:
            count = own.numel() // self.channels
            with torch.no_grad():
                self.running_mean[0].lerp_(mean, self.momentum)
                self.running_variance[0].lerp_(variance * (count / (count - 1)), self.momentum)
                self.batches_seen[0] += 1
        shape = (1, -1, *[1] * (features.ndim - 2))
        out = (features - mean.view(shape)) * torch.rsqrt(variance + self.epsilon).view(shape)
        if self.weight is not None and self.bias is not None:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out

    def _by_batch(self, features: torch.Tensor, domain: int) -> torch.Tensor:
        mean: torch.Tensor | None = None
        variance: torch.Tensor | None = None
        if self.update_statistics:
            mean, variance = self.running_mean[domain], self.running_variance[domain]
            self.batches_seen[domain] += 1
        return functional.batch_norm(
            features, mean, variance, self.weight, self.bias, True, self.momentum, self.epsilon
        )

    def extra_repr(self) -> str:
        return f"channels={self.channels}, momentum={self.momentum}"


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Within this block a training forward leaves every running statistic of ``network`` as it is."""
    norms = [module for module in network.modules() if isinstance(module, DomainNorm)]
    before = [norm.update_statistics for norm in norms]
    try:
        for norm in norms:
            norm.update_statistics = False
        yield
    finally:
        for norm, updates in zip(norms, before, strict=True):
            norm.update_statistics = updates
