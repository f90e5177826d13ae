"""Batch normalisation that knows which domain a row comes from.

Source and target have different means and spreads in every layer, and mixing them in one estimate is what makes a
network normalise neither well. So each domain is normalised by its own statistics: while training by those of its part
of the batch, and otherwise by running statistics, so that a batch gives the same as its singles and a policy that
chooses for one context at a time acts as it was trained.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from daband.errors import InvalidInput

__all__ = ["DOMAINS", "DomainNorm"]

DOMAINS = ("source", "target")
STATISTICS = ("own", "source", "gated")


class DomainNorm(nn.Module):
    """Batch norm over channel 1 of (B, C) or (B, C, H, W), with running statistics for each domain.

    Scale and shift are shared by the domains: the statistics are what differs, and a shared affine map keeps the
    features comparable. A domain that was never trained on borrows the statistics of the source, so a policy without
    any target context still acts in the target.

    ``statistics`` says by what the target is normalised: "own"; "source", which keeps a difference between the domains
    that means something (where one domain's patients need more, taking the mean out takes that out as well); or
    "gated", which moves from the source's to its own as ``gate``, a buffer that training sets, goes from 0 to 1.

    Stacked runs are normalised at once: given parameters and buffers for ``runs * channels`` channels (by
    ``torch.func.functional_call``), with one ``gate`` and one column of ``batches_seen`` a run, each run's channels
    are treated as its own norm would treat them.
    """

    running_mean: torch.Tensor
    running_variance: torch.Tensor
    batches_seen: torch.Tensor
    gate: torch.Tensor

    def __init__(
        self,
        *,
        channels: int,
        affine: bool = True,
        statistics: str = "own",
        momentum: float = 0.1,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        if channels < 1:
            raise InvalidInput(f"channels must be at least 1, got {channels}")
        if not 0.0 < momentum <= 1.0:
            raise InvalidInput(f"momentum must lie in (0, 1], got {momentum}")
        if statistics not in STATISTICS:
            raise InvalidInput(f"statistics must be one of {', '.join(STATISTICS)}, got {statistics!r}")
        self.channels = channels
        self.statistics = statistics
        self.momentum = momentum
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(len(DOMAINS), channels))
        self.register_buffer("running_variance", torch.ones(len(DOMAINS), channels))
        self.register_buffer("batches_seen", torch.zeros(len(DOMAINS)))
        self.register_buffer("gate", torch.ones(()) if statistics == "own" else torch.zeros(()))

    def forward(self, features: torch.Tensor, *, n_source: int) -> torch.Tensor:
        """Normalise rows ``[:n_source]`` as source and the rest as target; same shape out as in."""
        # Split, not sliced: the gradient of a slice is a full-size tensor of zeros, that of a split one concatenation.
        source, target = torch.split(features, [n_source, len(features) - n_source])
        # One value per channel has no spread to estimate; the running statistics are the honest answer then.
        by_batch = self.training and _values_per_channel(source) > 1
        parts = []
        if len(source):
            parts.append(self._by_batch(source, 0) if by_batch else self._fixed(source, 0))
        if len(target):
            if not (self.training and _values_per_channel(target) > 1):
                parts.append(self._fixed(target, 1))
            elif self.statistics == "own":
                parts.append(self._by_batch(target, 1))
            else:
                parts.append(self._blended(target, source if by_batch else None))
        if not parts:
            return features
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def folded(self, domain: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and shift (channels,) that do to a domain's rows what this layer does by its running statistics.

        A layer before it that is linear can take them in, which saves a pass over its output.
        """
        mean, variance = self._running(domain)
        scale = torch.rsqrt(variance + self.epsilon)
        if self.weight is None or self.bias is None:
            return scale, -mean * scale
        return scale * self.weight, self.bias - mean * scale * self.weight

    def _fixed(self, features: torch.Tensor, domain: int) -> torch.Tensor:
        mean, variance = self._running(domain)
        return functional.batch_norm(features, mean, variance, self.weight, self.bias, False, 0.0, self.epsilon)

    def _running(self, domain: int) -> tuple[torch.Tensor, torch.Tensor]:
        # Chosen by arithmetic, not by a branch on a tensor, so that a step can be recorded as a CUDA graph.
        own = (self.batches_seen[domain] > 0).to(self.gate.dtype)
        own = self._per_channel(own if domain == 0 else own * self.gate)
        mean = torch.lerp(self.running_mean[0], self.running_mean[domain], own)
        return mean, torch.lerp(self.running_variance[0], self.running_variance[domain], own)

    def _per_channel(self, value: torch.Tensor) -> torch.Tensor:
        """A value a run, repeated for each of the run's channels; one run's value is left as it is."""
        return value if value.numel() == 1 else value.reshape(-1, 1).expand(-1, self.channels).reshape(-1)

    def _by_batch(self, features: torch.Tensor, domain: int) -> torch.Tensor:
        mean, variance = self.running_mean[domain], self.running_variance[domain]
        self.batches_seen.data[domain].add_(1)
        return functional.batch_norm(
            features, mean, variance, self.weight, self.bias, True, self.momentum, self.epsilon
        )

    def _blended(self, target: torch.Tensor, source: torch.Tensor | None) -> torch.Tensor:
        """Target rows by statistics between the source's and their own."""
        dims = [0, *range(2, target.ndim)]
        variance, mean = torch.var_mean(target, dim=dims, correction=0)
        count = _values_per_channel(target)
        with torch.no_grad():
            # By way of .data: the source's row was handed to batch_norm, which holds on to the whole buffer (and to
            # whatever shares its memory) and would take this change for one of its own. Neither is used again.
            self.running_mean.data[1].lerp_(mean, self.momentum)
            self.running_variance.data[1].lerp_(variance * (count / (count - 1)), self.momentum)
            self.batches_seen.data[1].add_(1)
        if source is None:
            source_mean, source_variance = self._running(0)
        else:
            source_variance, source_mean = torch.var_mean(source, dim=dims, correction=0)
        shape = (1, -1, *[1] * (target.ndim - 2))
        gate = self._per_channel(self.gate)
        mean = torch.lerp(source_mean, mean, gate).view(shape)
        spread = torch.rsqrt(torch.lerp(source_variance, variance, gate) + self.epsilon).view(shape)
        out = (target - mean) * spread
        if self.weight is not None and self.bias is not None:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out

    def extra_repr(self) -> str:
        return f"channels={self.channels}, statistics={self.statistics!r}, momentum={self.momentum}"


def _values_per_channel(features: torch.Tensor) -> int:
    return len(features) * math.prod(features.shape[2:])
