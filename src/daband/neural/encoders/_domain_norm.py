"""Batch normalisation that knows which domain a row comes from.

Domains may differ in the mean and the standard deviation of every layer, and one estimate for all of them then
normalises none well. So there are statistics for each domain: while training those of its part of the batch, and
otherwise running ones, so that a batch gives the same as its singles and a policy that chooses for one context at a
time acts as it was trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional

from daband._arguments import one_of
from daband._domain_names import DomainNames
from daband.errors import InvalidInput

_FIRST_WITH_BFLOAT16 = 8
"""NVIDIA's compute capability (Ampere)."""


def triton_kernels(device: torch.device) -> ModuleType | None:
    """``daband.neural._triton_kernels`` for the current GPU where Triton is installed, as beside torch for NVIDIA GPUs.

    Triton starts kernels on the current device alone: another one uses torch's operations.
    """
    if not has_bfloat16(device) or device.index not in (None, torch.cuda.current_device()):
        return None
    return _module()


def has_bfloat16(device: torch.device) -> bool:
    """Whether it is a GPU that calculates with bfloat16, and for which Triton compiles what we write."""
    return device.type == "cuda" and _capability(device.index) >= _FIRST_WITH_BFLOAT16


@cache
def _capability(index: int | None) -> int:
    return torch.cuda.get_device_capability(index)[0]


@cache
def _module() -> ModuleType | None:
    return import_module("daband.neural._triton_kernels") if find_spec("triton") else None


STATISTICS = ("own", "source", "gated")


class DomainNorm(nn.Module):
    """Batch norm over channel 1 of (B, C) or (B, C, H, W), with running statistics for each of ``domains``.

    Scale and shift are shared by the domains: the statistics are what differs, and a shared affine map keeps the
    features comparable. A domain that was never trained on borrows the statistics of the sources, so a policy without
    any target context still acts in the target.

    ``statistics`` says by what a domain is normalised: "own"; "source", by those of all sources, which keeps a
    difference between the domains that means something (where one domain's patients need more, taking the mean out
    takes that out as well); or "gated", which moves from the sources' to its own as ``gate``, a buffer that training
    sets, goes from 0 to 1. With "source", the channels in ``own_channels`` (prices in another currency) are
    normalised by a domain's own statistics nevertheless.

    Stacked runs are normalised at once: given parameters and buffers for ``runs * channels`` channels (by
    ``torch.func.functional_call``), with one ``gate`` and one column of ``batches_seen`` a run, each run's channels
    are treated as its own norm would treat them.
    """

    running_mean: torch.Tensor
    running_variance: torch.Tensor
    batches_seen: torch.Tensor
    gate: torch.Tensor
    own: torch.Tensor

    def __init__(
        self,
        *,
        channels: int,
        domains: DomainNames | None = None,
        affine: bool = True,
        statistics: str = "own",
        own_channels: Sequence[int] = (),
        momentum: float = 0.1,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        if channels < 1:
            raise InvalidInput(f"channels must be at least 1, got {channels}")
        if not 0.0 < momentum <= 1.0:
            raise InvalidInput(f"momentum must lie in (0, 1], got {momentum}")
        one_of("statistics", statistics, STATISTICS)
        if own_channels and (statistics != "source" or not 0 <= min(own_channels) <= max(own_channels) < channels):
            raise InvalidInput(
                f"own_channels must lie in 0..{channels - 1} and go with statistics='source', got {tuple(own_channels)}"
            )
        domains = DomainNames() if domains is None else domains
        self.channels = channels
        self.n_sources = domains.first_target
        self.statistics = statistics
        self.momentum = momentum
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(len(domains), channels))
        self.register_buffer("running_variance", torch.ones(len(domains), channels))
        self.register_buffer("batches_seen", torch.zeros(len(domains)))
        self.register_buffer("gate", torch.ones(()) if statistics == "own" else torch.zeros(()))
        self.frozen: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None
        """In a network that never changes: scale and shift of each domain, once they were asked for."""
        self.by_channel = bool(own_channels)
        own = torch.tensor([float(channel in set(own_channels)) for channel in range(channels if own_channels else 0)])
        self.register_buffer("own", own, persistent=False)

    def forward(self, features: torch.Tensor, *, domain_rows: Sequence[int]) -> torch.Tensor:
        """Normalise the first ``domain_rows[0]`` rows as the first domain, and so on; same shape out as in."""
        # Split, not sliced: the gradient of a slice is a full-size tensor of zeros, that of a split one concatenation.
        rows = torch.split(features, list(domain_rows))
        sources = rows[: self.n_sources]
        parts = []
        for domain, part in enumerate(rows):
            # One value per channel has no deviation to estimate; the running statistics are the honest answer then.
            if not (self.training and _values_per_channel(part) > 1):
                parts += [self._fixed(part, domain)] if len(part) else []
            elif self.statistics == "own" or (domain == 0 and self.n_sources == 1):
                parts.append(self._by_batch(part, domain))
            else:
                parts.append(self._blended(part, domain, sources))
        if not parts:
            return features
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def pool_relu(self, maps: torch.Tensor, *, domain_rows: Sequence[int]) -> torch.Tensor:
        """``forward`` of maps (B, C, H, W), then 2x2 max pooling and ReLU; fused on a GPU where they can be."""
        kernels = triton_kernels(maps.device) if maps.shape[2] % 2 == maps.shape[3] % 2 == 0 else None
        if kernels is not None and self._fuses(domain_rows):
            self.batches_seen.data[: len(domain_rows)].add_(1)
            running = self.running_mean.data, self.running_variance.data
            rules = {"domains": len(domain_rows), "momentum": self.momentum, "epsilon": self.epsilon}
            return kernels.norm_pool_relu(maps, self.weight, self.bias, *running, **rules)
        present = [domain for domain, rows in enumerate(domain_rows) if rows]
        if kernels is not None and not self.training and len(present) == 1 and not torch.is_grad_enabled():
            return kernels.affine_pool_relu(maps, *self.folded(present[0]))
        return pool_relu(self(maps, domain_rows=domain_rows))

    def _fuses(self, domain_rows: Sequence[int]) -> bool:
        """Whether the kernels can normalise so: in training, by own statistics of domains of as many rows each."""
        by_batch = self.training and self.statistics == "own" and self.weight is not None
        return by_batch and len(set(domain_rows)) == 1 and domain_rows[0] > 0

    def folded(self, domain: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and shift (channels,) that do to a domain's rows what this layer does by its running statistics.

        A layer before it that is linear can take them in, which saves a pass over its output.
        """
        if self.frozen is not None and domain in self.frozen:
            return self.frozen[domain]
        mean, variance = self._running(domain)
        scale = torch.rsqrt(variance + self.epsilon)
        both = scale, -mean * scale
        if self.weight is not None and self.bias is not None:
            both = scale * self.weight, self.bias - mean * scale * self.weight
        if self.frozen is not None:
            self.frozen[domain] = both
        return both

    def _fixed(self, features: torch.Tensor, domain: int) -> torch.Tensor:
        mean, variance = self._running(domain)
        return functional.batch_norm(features, mean, variance, self.weight, self.bias, False, 0.0, self.epsilon)

    def _running(self, domain: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The running statistics that a domain is normalised by."""
        # Chosen by arithmetic, not by a branch on a tensor, so that a step can be recorded as a CUDA graph.
        seen = (self.batches_seen > 0).to(self.gate.dtype)
        only_source = domain == 0 and self.n_sources == 1
        share = self._per_channel(seen[domain]) if only_source else self._own_share(seen[domain])
        mean, variance = self._running_sources(seen[: self.n_sources])
        mixed = torch.lerp(mean, self.running_mean[domain], share)
        return mixed, torch.lerp(variance, self.running_variance[domain], share)

    def _running_sources(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The statistics of an even mixture of the sources that were trained on: ``seen`` (sources, ...)."""
        means, variances = self.running_mean[: self.n_sources], self.running_variance[: self.n_sources]
        if self.n_sources == 1:
            return means[0], variances[0]
        total = seen.sum(dim=0)
        shares = torch.stack([self._per_channel(share).expand_as(means[0]) for share in seen / total.clamp(min=1.0)])
        mean = (shares * means).sum(dim=0)
        variance = (shares * (variances + (means - mean).square())).sum(dim=0)
        return mean, variance + self._per_channel((total == 0).to(seen.dtype))  # 1 before the first batch

    def _own_share(self, seen: torch.Tensor | float) -> torch.Tensor:
        """How much of a domain's own statistics counts, per channel; ``seen`` is 0 where it has none."""
        if not self.by_channel:
            return self._per_channel(seen * self.gate)
        marked = self.own if self.gate.numel() == 1 else self.own.repeat(self.gate.numel())
        return marked * (self._per_channel(seen) if isinstance(seen, torch.Tensor) else seen)

    def _per_channel(self, value: torch.Tensor) -> torch.Tensor:
        """A value a run, repeated for each of the run's channels; one run's value is left as it is."""
        return value if value.numel() == 1 else value.reshape(-1, 1).expand(-1, self.channels).reshape(-1)

    def _by_batch(self, features: torch.Tensor, domain: int) -> torch.Tensor:
        self.batches_seen.data[domain].add_(1)
        running = self.running_mean[domain], self.running_variance[domain]
        return functional.batch_norm(features, *running, self.weight, self.bias, True, self.momentum, self.epsilon)

    def _blended(self, part: torch.Tensor, domain: int, sources: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows of a domain by statistics between those of all sources and their own."""
        dims = [0, *range(2, part.ndim)]
        full = part.to(self.running_mean.dtype)  # maps in half precision have statistics in full
        variance, mean = torch.var_mean(full, dim=dims, correction=0)
        count = _values_per_channel(part)
        with torch.no_grad():
            # By way of .data: the source's row was handed to batch_norm, which holds on to the whole buffer (and to
            # whatever shares its memory) and would take this change for one of its own. Neither is used again.
            self.running_mean.data[domain].lerp_(mean, self.momentum)
            self.running_variance.data[domain].lerp_(variance * (count / (count - 1)), self.momentum)
            self.batches_seen.data[domain].add_(1)
        if sum(map(_values_per_channel, sources)) > 1:
            pooled = sources[0] if len(sources) == 1 else torch.cat(list(sources))
            source_variance, source_mean = torch.var_mean(pooled.to(full.dtype), dim=dims, correction=0)
        else:
            source_mean, source_variance = self._running_sources((self.batches_seen[: self.n_sources] > 0).to(mean))
        shape = (1, -1, *[1] * (part.ndim - 2))
        gate = self._own_share(1.0)
        mean = torch.lerp(source_mean, mean, gate).view(shape)
        inverse_deviation = torch.rsqrt(torch.lerp(source_variance, variance, gate) + self.epsilon).view(shape)
        out = (full - mean) * inverse_deviation
        if self.weight is not None and self.bias is not None:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(part.dtype)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, statistics={self.statistics!r}, momentum={self.momentum}"


def pool_relu(maps: torch.Tensor) -> torch.Tensor:
    """2x2 max pooling and ReLU.

    The largest of four, cut at zero, is the largest of four that were cut at zero, and a quarter of the work.
    """
    return functional.relu(functional.max_pool2d(maps, 2), inplace=True)


def _values_per_channel(features: torch.Tensor) -> int:
    return len(features) * math.prod(features.shape[2:])
