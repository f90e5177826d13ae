"""Define the network ``conv``: two 5x5 convolutions for small images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from daband.base._arguments import check_one_of
from daband.errors import InvalidInput
from daband.features._domain_names import DomainNames
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import FeatureNetwork, encoders

#: The allowed values of the argument ``pixels``.
PIXEL_RULES = ("unit", "symmetric")

#: The minimum length of an image's shorter side, in pixels.
_MIN_SIDE_PIXELS = 16
#: The maximum length of each side of the last map after pooling, in pixels.
_MAX_MAP_SIDE_PIXELS = 8


@encoders.register("conv")
class ConvFeatures(FeatureNetwork):
    """Blocks of convolution, batch norm, ReLU and 2x2 max pooling for images (channels, height,
    width).

    Average pooling limits the side of the last map to 8, so that larger images do not have too many
    features.

    Args:
        context_shape: (channels, height, width), with sides of at least 16 pixels.
        channels: the number of output channels of each block.
        normalise: apply a batch norm in each block.
        statistics: the statistics of all norms, "own" or "source" (``DomainNorm``).
        pixels: "unit" leaves pixels in [0, 1], "symmetric" maps them to [-1, 1].
        domains: the names of the domains.
    """

    def __init__(
        self,
        *,
        context_shape: tuple[int, ...],
        channels: tuple[int, ...] = (64, 48),
        normalise: bool = True,
        statistics: str = "own",
        pixels: str = "unit",
        domains: DomainNames | None = None,
    ) -> None:
        super().__init__()
        if len(context_shape) != 3 or min(context_shape[1:]) < _MIN_SIDE_PIXELS:
            raise InvalidInput(
                "encoder 'conv' needs images (channels, height, width) of at least"
                f" {_MIN_SIDE_PIXELS} pixels a side, got contexts of shape {context_shape}; use"
                " encoder='mlp', which takes contexts of any shape"
            )
        check_one_of("pixels", pixels, PIXEL_RULES)
        if not channels or min(channels) < 1:
            raise InvalidInput(f"channels must be positive, got {channels}")
        self.context_shape = tuple(context_shape)
        self.row_means: Tensor
        self.column_means: Tensor
        self.pixels = pixels
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        n_inputs, map_height, map_width = context_shape
        for n_outputs in channels:
            # The norm after the convolution has a bias. Without a norm, the convolution needs one.
            self.layers.append(nn.Conv2d(n_inputs, n_outputs, kernel_size=5, bias=not normalise))
            norm = DomainNorm(n_channels=n_outputs, domains=domains, statistics=statistics)
            self.norms.append(norm if normalise else nn.Identity())
            n_inputs = n_outputs
            map_height = (map_height - 4) // 2
            map_width = (map_width - 4) // 2
            if min(map_height, map_width) < 1:
                raise InvalidInput(
                    f"images of shape {context_shape} are too small for {len(channels)}"
                    " convolutions"
                )
        self.has_average_pool = max(map_height, map_width) > _MAX_MAP_SIDE_PIXELS
        self.map_shape = (
            min(map_height, _MAX_MAP_SIDE_PIXELS),
            min(map_width, _MAX_MAP_SIDE_PIXELS),
        )
        # (8, height) and (width, 8): they average maps that are larger than 8 pixels a side
        row_means = _build_means(map_height, self.map_shape[0])
        column_means = _build_means(map_width, self.map_shape[1]).T
        self.register_buffer("row_means", row_means, persistent=False)
        self.register_buffer("column_means", column_means, persistent=False)
        self.width = channels[-1] * math.prod(self.map_shape)

    def forward(self, contexts: Tensor, *, rows_per_domain: Sequence[int]) -> Tensor:
        maps = 2 * contexts - 1 if self.pixels == "symmetric" else contexts
        for layer, norm in zip(self.layers, self.norms, strict=True):
            maps = layer(maps)
            if isinstance(norm, DomainNorm):
                maps = norm(maps, rows_per_domain=rows_per_domain)
            # ReLU is last, because pooled maps are smaller
            maps = functional.relu(functional.max_pool2d(maps, 2))
        if self.has_average_pool:
            # ONNX has no adaptive_avg_pool2d
            maps = self.row_means @ maps.to(self.row_means.dtype) @ self.column_means
        return maps.flatten(1).to(contexts.dtype)


def _build_means(length: int, n_means: int) -> Tensor:
    """Return the matrix (n_means, length) of adaptive average pooling: row i averages range i."""
    means = torch.zeros(n_means, length)
    for index in range(n_means):
        start = index * length // n_means
        stop = -(-(index + 1) * length // n_means)
        means[index, start:stop] = 1 / (stop - start)
    return means
