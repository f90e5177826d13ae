"""Define batch normalisation with statistics for each domain.

Domains may differ in the mean and the standard deviation of every layer's output, so that common
statistics normalise none of them well. In training, each domain is normalised by the statistics of
its rows in the batch. Otherwise running statistics are used, so that the features of a context do
not depend on the other contexts of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional

from daband._arguments import check_one_of
from daband._domain_names import DomainNames
from daband.errors import InvalidInput

#: The minimum major compute capability of NVIDIA GPUs with bfloat16 (Ampere).
_MIN_BFLOAT16_CAPABILITY = 8


def get_triton_kernels(device: torch.device) -> ModuleType | None:
    """Return the module ``daband.neural._triton_kernels`` if its kernels can run on the device,
    else None.

    They need Triton, which comes with torch for NVIDIA GPUs, and a GPU with bfloat16. The device
    must be torch's current CUDA device, because Triton starts kernels only there.
    """
    if not has_bfloat16(device) or device.index not in (None, torch.cuda.current_device()):
        return None
    return _import_kernels()


def has_bfloat16(device: torch.device) -> bool:
    """Return True if the device is a GPU that supports bfloat16."""
    return device.type == "cuda" and _get_capability(device.index) >= _MIN_BFLOAT16_CAPABILITY


@cache
def _get_capability(index: int | None) -> int:
    """Return the major compute capability of a GPU."""
    return torch.cuda.get_device_capability(index)[0]


@cache
def _import_kernels() -> ModuleType | None:
    """Import and return the module of Triton kernels; None if Triton is not installed."""
    return import_module("daband.neural._triton_kernels") if find_spec("triton") else None


#: The allowed values of ``statistics``.
STATISTICS = ("own", "source")


class DomainNorm(nn.Module):
    """Batch norm of features (B, C) or maps (B, C, H, W), with running statistics for each domain.

    All domains share the learned scale and shift, which keeps their features comparable. A domain
    without training batches uses the statistics of the sources, so that a policy without any target
    context can act in the target.

    With ``statistics="own"``, each domain is normalised by its own statistics. With
    ``statistics="source"``, every domain is normalised by the statistics of all sources. This keeps
    differences between domains that matter for rewards. For example, if the patients of one domain
    are older, subtracting each domain's mean would hide their age.

    Stacked runs are normalised together. Parameters and buffers, which
    ``torch.func.functional_call`` passes, then have ``runs * channels`` channels, and
    ``batches_seen`` has a column per run. The channels of each run are normalised as in a single
    run.

    Args:
        n_channels: the number of channels of one run.
        domains: the names of the domains; by default one source and one target.
        affine: learn a scale and a shift of each channel.
        statistics: "own" or "source".
    """

    #: The running mean of each domain and channel, (domains, channels).
    running_mean: Tensor
    #: The running variance of each domain and channel, (domains, channels).
    running_variance: Tensor
    #: The number of training batches of each domain, (domains,).
    batches_seen: Tensor
    #: The weight of a new batch in the running statistics.
    momentum = 0.1
    #: A small number that is added to variances, so that no division is by 0.
    epsilon = 1e-5

    def __init__(
        self,
        *,
        n_channels: int,
        domains: DomainNames | None = None,
        affine: bool = True,
        statistics: str = "own",
    ) -> None:
        super().__init__()
        if n_channels < 1:
            raise InvalidInput(f"n_channels must be at least 1, got {n_channels}")
        self.statistics: str = check_one_of("statistics", statistics, STATISTICS)
        domains = DomainNames() if domains is None else domains
        self.n_channels = n_channels
        self.n_sources = domains.first_target
        self.weight = nn.Parameter(torch.ones(n_channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(n_channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(len(domains), n_channels))
        self.register_buffer("running_variance", torch.ones(len(domains), n_channels))
        self.register_buffer("batches_seen", torch.zeros(len(domains)))
        #: For a network that never changes, the results of ``compute_affine`` by domain, computed
        #: at first use. Otherwise None.
        self.frozen_affine: dict[int, tuple[Tensor, Tensor]] | None = None

    def forward(self, features: Tensor, *, rows_per_domain: Sequence[int]) -> Tensor:
        """Return normalised features of the same shape.

        Rows are sorted by domain, and ``rows_per_domain[i]`` rows come from domain i.
        """
        row_counts = list(rows_per_domain)
        # all sources are one domain, and the other domains use its statistics
        if self.statistics == "source":
            row_counts = [sum(row_counts[: self.n_sources]), sum(row_counts[self.n_sources :])]
        present_domains = [domain for domain, n_rows in enumerate(row_counts) if n_rows]
        # torch.split would fix the number of rows of a network that is exported to ONNX.
        if not self.training and len(present_domains) == 1:
            return self._normalise(features, *self._get_running_statistics(present_domains[0]))
        # The gradient of torch.split is one concatenation. The gradient of each slice would be a
        # tensor of full size.
        outputs = []
        for domain, rows in enumerate(torch.split(features, row_counts)):
            uses_batch_statistics = self.training and (domain == 0 or self.statistics == "own")
            # A single value per channel has no standard deviation, so that running statistics are
            # used.
            if uses_batch_statistics and len(rows) * math.prod(rows.shape[2:]) > 1:
                self.batches_seen.data[domain].add_(1)
                mean = self.running_mean[domain]
                variance = self.running_variance[domain]
                outputs.append(self._normalise(rows, mean, variance, uses_batch_statistics=True))
            elif len(rows):
                outputs.append(self._normalise(rows, *self._get_running_statistics(domain)))
        if not outputs:
            return features
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def pool_relu(self, maps: Tensor, *, rows_per_domain: Sequence[int]) -> Tensor:
        """Apply ``forward``, 2x2 max pooling and ReLU to maps (B, C, H, W).

        On a GPU they are fused if possible.
        """
        kernels = (
            get_triton_kernels(maps.device) if maps.shape[2] % 2 == maps.shape[3] % 2 == 0 else None
        )
        if kernels is not None and self._can_fuse(rows_per_domain):
            self.batches_seen.data[: len(rows_per_domain)].add_(1)
            parameters = self.weight, self.bias, self.running_mean.data, self.running_variance.data
            settings = {
                "n_domains": len(rows_per_domain),
                "momentum": self.momentum,
                "epsilon": self.epsilon,
            }
            return kernels.norm_pool_relu(maps, *parameters, **settings)
        present_domains = [domain for domain, n_rows in enumerate(rows_per_domain) if n_rows]
        if (
            kernels is not None
            and not self.training
            and len(present_domains) == 1
            and not torch.is_grad_enabled()
        ):
            return kernels.affine_pool_relu(maps, *self.compute_affine(present_domains[0]))
        return pool_relu(self(maps, rows_per_domain=rows_per_domain))

    def _can_fuse(self, rows_per_domain: Sequence[int]) -> bool:
        """Return True if the fused kernels for training can be used.

        They need own statistics, and the same number of rows of every domain.
        """
        has_fused_form = self.training and self.statistics == "own" and self.weight is not None
        return has_fused_form and len(set(rows_per_domain)) == 1 and rows_per_domain[0] > 0

    def compute_affine(self, domain: int) -> tuple[Tensor, Tensor]:
        """Return the scale and shift (channels,) by which this layer normalises a domain outside of
        training.

        A linear layer before this one can include both, which saves a pass over its output.
        """
        if self.frozen_affine is not None and domain in self.frozen_affine:
            return self.frozen_affine[domain]
        mean, variance = self._get_running_statistics(domain)
        scale = torch.rsqrt(variance + self.epsilon)
        scale_and_shift = scale, -mean * scale
        if self.weight is not None and self.bias is not None:
            scale_and_shift = scale * self.weight, self.bias - mean * scale * self.weight
        if self.frozen_affine is not None:
            self.frozen_affine[domain] = scale_and_shift
        return scale_and_shift

    def _normalise(
        self, rows: Tensor, mean: Tensor, variance: Tensor, uses_batch_statistics: bool = False
    ) -> Tensor:
        """Return the rows of one domain, normalised.

        With ``uses_batch_statistics`` they are normalised by their own statistics, and the running
        ``mean`` and ``variance`` are updated in place. Otherwise ``mean`` and ``variance`` are
        used.
        """
        return functional.batch_norm(
            rows,
            mean,
            variance,
            self.weight,
            self.bias,
            uses_batch_statistics,
            self.momentum,
            self.epsilon,
        )

    def _get_running_statistics(self, domain: int) -> tuple[Tensor, Tensor]:
        """Return the mean and variance (C,) by which a domain is normalised outside of training."""
        means = self.running_mean
        variances = self.running_variance
        mean = means[0]
        variance = variances[0]
        if self.statistics == "source" or (domain == 0 and self.n_sources == 1):
            return mean, variance
        if self.n_sources > 1:  # the statistics of a mixture of all sources with equal weights
            mean = means[: self.n_sources].mean(dim=0)
            variance = (
                variances[: self.n_sources] + (means[: self.n_sources] - mean).square()
            ).mean(dim=0)
        # Select by arithmetic instead of a branch on a tensor, so that a step can be recorded as a
        # CUDA graph.
        has_own_statistics = self._repeat_per_channel(
            (self.batches_seen[domain] > 0).to(mean.dtype)
        )
        own_mean = means[domain]
        own_variance = variances[domain]
        return torch.lerp(mean, own_mean, has_own_statistics), torch.lerp(
            variance, own_variance, has_own_statistics
        )

    def _repeat_per_channel(self, values: Tensor) -> Tensor:
        """Return values (runs,) repeated for each channel, (runs * channels,); a single value is
        returned unchanged.
        """
        return (
            values
            if values.numel() == 1
            else values.reshape(-1, 1).expand(-1, self.n_channels).reshape(-1)
        )

    def extra_repr(self) -> str:
        return f"n_channels={self.n_channels}, statistics={self.statistics!r}"


def pool_relu(maps: Tensor) -> Tensor:
    """Return maps (B, C, H, W) after 2x2 max pooling and ReLU.

    ReLU is last, because pooled maps are smaller.
    """
    return functional.relu(functional.max_pool2d(maps, 2), inplace=True)
