"""Define batch normalisation with statistics for each domain.

Domains may differ in the mean and the standard deviation of every layer's output, so that common
statistics normalise none of them well. In training, each domain is normalised by the statistics of
its rows in the batch. Otherwise running statistics are used, so that the features of a context do
not depend on the other contexts of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from daband.base._arguments import check_one_of
from daband.features._domain_names import DomainNames

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

    Args:
        n_channels: the number of channels.
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
        self.statistics: str = check_one_of("statistics", statistics, STATISTICS)
        domains = DomainNames() if domains is None else domains
        self.n_channels = n_channels
        self.n_sources = domains.first_target
        self.weight = nn.Parameter(torch.ones(n_channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(n_channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(len(domains), n_channels))
        self.register_buffer("running_variance", torch.ones(len(domains), n_channels))
        self.register_buffer("batches_seen", torch.zeros(len(domains)))

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
                self.batches_seen[domain].add_(1)
                mean = self.running_mean[domain]
                variance = self.running_variance[domain]
                outputs.append(self._normalise(rows, mean, variance, uses_batch_statistics=True))
            elif len(rows):
                outputs.append(self._normalise(rows, *self._get_running_statistics(domain)))
        if not outputs:
            return features
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def compute_affine(self, domain: int) -> tuple[Tensor, Tensor]:
        """Return the scale and shift (channels,) by which this layer normalises a domain outside of
        training.

        A linear layer before this one can include both.
        """
        mean, variance = self._get_running_statistics(domain)
        scale = torch.rsqrt(variance + self.epsilon)
        if self.weight is None or self.bias is None:
            return scale, -mean * scale
        return scale * self.weight, self.bias - mean * scale * self.weight

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
            squares = (means[: self.n_sources] - mean).square()
            variance = (variances[: self.n_sources] + squares).mean(dim=0)
        # Select by arithmetic instead of a branch on a tensor, so that a step can be recorded as a
        # CUDA graph.
        has_own = (self.batches_seen[domain] > 0).to(mean.dtype)
        own_mean = torch.lerp(mean, means[domain], has_own)
        return own_mean, torch.lerp(variance, variances[domain], has_own)
