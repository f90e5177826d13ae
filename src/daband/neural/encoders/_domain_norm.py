"""Define batch normalisation with statistics for each domain.

Domains may differ in the mean and the standard deviation of every layer, so common statistics normalise none of them
well. Training uses the statistics of a domain's part of the batch. Otherwise running statistics are used, so that a
context has the same features alone as in a batch.
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

from daband._arguments import check_one_of
from daband._domain_names import DomainNames
from daband.errors import InvalidInput

#: The smallest major compute capability of an NVIDIA GPU with bfloat16 (Ampere).
_MIN_BFLOAT16_CAPABILITY = 8


def triton_kernels(device: torch.device) -> ModuleType | None:
    """Return the module ``daband.neural._triton_kernels`` if it can be used on the device, else None.

    It needs Triton, which comes with torch for NVIDIA GPUs, and a GPU with bfloat16. The device must be the
    current one, because Triton starts kernels only there.
    """
    if not has_bfloat16(device) or device.index not in (None, torch.cuda.current_device()):
        return None
    return _triton_module()


def has_bfloat16(device: torch.device) -> bool:
    """Return True if the device is a GPU with bfloat16, for which daband has Triton kernels."""
    return device.type == "cuda" and _compute_capability(device.index) >= _MIN_BFLOAT16_CAPABILITY


@cache
def _compute_capability(index: int | None) -> int:
    """Return the major compute capability of a GPU."""
    return torch.cuda.get_device_capability(index)[0]


@cache
def _triton_module() -> ModuleType | None:
    """Return the module of Triton kernels, or None without Triton."""
    return import_module("daband.neural._triton_kernels") if find_spec("triton") else None


#: The allowed values of ``statistics``.
STATISTICS = ("own", "source")


class DomainNorm(nn.Module):
    """Batch norm of features (B, C) or maps (B, C, H, W), with running statistics for each domain.

    Scale and shift are shared by the domains, which keeps their features comparable. A domain that was never trained on
    uses the statistics of the sources, so that a policy without any target context can act in the target.

    With ``statistics="own"`` each domain is normalised by its own statistics. With ``statistics="source"`` every domain
    is normalised by the statistics of all sources. This keeps differences between domains that matter for rewards. For
    example, if patients of one domain are older, subtracting the mean of each domain would hide their age.

    Stacked runs are normalised together. Parameters and buffers then have ``runs * channels`` channels (by
    ``torch.func.functional_call``), and ``batches_seen`` has a column per run. The channels of each run are
    normalised as in a single run.
    """

    #: The running mean of each domain and channel, (domains, channels).
    running_mean: torch.Tensor
    #: The running variance of each domain and channel, (domains, channels).
    running_variance: torch.Tensor
    #: The number of training batches of each domain, (domains,).
    batches_seen: torch.Tensor
    #: The weight of a batch in the running statistics.
    momentum = 0.1
    #: The number that is added to variances.
    epsilon = 1e-5

    def __init__(
        self, *, channels: int, domains: DomainNames | None = None, affine: bool = True, statistics: str = "own"
    ) -> None:
        super().__init__()
        if channels < 1:
            raise InvalidInput(f"channels must be at least 1, got {channels}")
        self.statistics: str = check_one_of("statistics", statistics, STATISTICS)
        domains = DomainNames() if domains is None else domains
        self.channels = channels
        self.n_sources = domains.first_target
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(len(domains), channels))
        self.register_buffer("running_variance", torch.ones(len(domains), channels))
        self.register_buffer("batches_seen", torch.zeros(len(domains)))
        #: Scale and shift of each domain in a network that never changes, computed at first use.
        self.frozen: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None

    def forward(self, features: torch.Tensor, *, domain_rows: Sequence[int]) -> torch.Tensor:
        """Return normalised features of the same shape. Rows are sorted by domain, ``domain_rows[i]`` of domain i."""
        rows = list(domain_rows)
        if self.statistics == "source":  # all sources are one domain, and the other domains use its statistics
            rows = [sum(rows[: self.n_sources]), sum(rows[self.n_sources :])]
        present = [domain for domain, count in enumerate(rows) if count]
        if not self.training and len(present) == 1:  # a split would fix the number of rows in an export
            return self._normalise(features, *self._running_statistics(present[0]), False)
        # Not by slices: the gradient of each slice is a tensor of full size, the gradient of a split one concatenation.
        parts = []
        for domain, part in enumerate(torch.split(features, rows)):
            use_batch = self.training and (domain == 0 or self.statistics == "own")
            # One value per channel has no standard deviation; the running statistics are used then.
            if use_batch and len(part) * math.prod(part.shape[2:]) > 1:
                self.batches_seen.data[domain].add_(1)
                parts.append(self._normalise(part, self.running_mean[domain], self.running_variance[domain], True))
            elif len(part):
                parts.append(self._normalise(part, *self._running_statistics(domain), False))
        if not parts:
            return features
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def pool_relu(self, maps: torch.Tensor, *, domain_rows: Sequence[int]) -> torch.Tensor:
        """Apply ``forward`` to maps (B, C, H, W), then 2x2 max pooling and ReLU; fused on a GPU if possible."""
        kernels = triton_kernels(maps.device) if maps.shape[2] % 2 == maps.shape[3] % 2 == 0 else None
        if kernels is not None and self._can_fuse(domain_rows):
            self.batches_seen.data[: len(domain_rows)].add_(1)
            running = self.running_mean.data, self.running_variance.data
            settings = {"domains": len(domain_rows), "momentum": self.momentum, "epsilon": self.epsilon}
            return kernels.norm_pool_relu(maps, self.weight, self.bias, *running, **settings)
        present = [domain for domain, rows in enumerate(domain_rows) if rows]
        if kernels is not None and not self.training and len(present) == 1 and not torch.is_grad_enabled():
            return kernels.affine_pool_relu(maps, *self.folded(present[0]))
        return pool_relu(self(maps, domain_rows=domain_rows))

    def _can_fuse(self, domain_rows: Sequence[int]) -> bool:
        """Return True if the fused kernels can be used: in training, with own statistics and equal numbers of rows."""
        use_batch = self.training and self.statistics == "own" and self.weight is not None
        return use_batch and len(set(domain_rows)) == 1 and domain_rows[0] > 0

    def folded(self, domain: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and shift (channels,) that equal this layer with the running statistics of a domain.

        A linear layer before this one can include them, which saves a pass over its output.
        """
        if self.frozen is not None and domain in self.frozen:
            return self.frozen[domain]
        mean, variance = self._running_statistics(domain)
        scale = torch.rsqrt(variance + self.epsilon)
        scale_and_shift = scale, -mean * scale
        if self.weight is not None and self.bias is not None:
            scale_and_shift = scale * self.weight, self.bias - mean * scale * self.weight
        if self.frozen is not None:
            self.frozen[domain] = scale_and_shift
        return scale_and_shift

    def _normalise(
        self, part: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, use_batch: bool
    ) -> torch.Tensor:
        """Return the rows of one domain, normalised by their own statistics if ``use_batch``, else by those given."""
        settings = use_batch, self.momentum, self.epsilon
        return functional.batch_norm(part, mean, variance, self.weight, self.bias, *settings)

    def _running_statistics(self, domain: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the running mean and variance (C,) that a domain is normalised by."""
        means, variances = self.running_mean, self.running_variance
        mean, variance = means[0], variances[0]
        if self.statistics == "source" or (domain == 0 and self.n_sources == 1):
            return mean, variance
        if self.n_sources > 1:  # the statistics of a uniform mixture
            mean = means[: self.n_sources].mean(dim=0)
            variance = (variances[: self.n_sources] + (means[: self.n_sources] - mean).square()).mean(dim=0)
        # Selected by arithmetic, not by a branch on a tensor, so that a step can be recorded as a CUDA graph.
        has_own_statistics = self._repeat_per_channel((self.batches_seen[domain] > 0).to(mean.dtype))
        own_mean, own_variance = means[domain], variances[domain]
        return torch.lerp(mean, own_mean, has_own_statistics), torch.lerp(variance, own_variance, has_own_statistics)

    def _repeat_per_channel(self, value: torch.Tensor) -> torch.Tensor:
        """Return values (runs,) repeated for each channel, (runs * channels,); a single value is returned unchanged."""
        return value if value.numel() == 1 else value.reshape(-1, 1).expand(-1, self.channels).reshape(-1)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, statistics={self.statistics!r}"


def pool_relu(maps: torch.Tensor) -> torch.Tensor:
    """Return maps after 2x2 max pooling and ReLU. ReLU comes last, because pooled maps have a quarter of the size."""
    return functional.relu(functional.max_pool2d(maps, 2), inplace=True)
