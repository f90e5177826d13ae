"""Define the network ``conv``: two 5x5 convolutions for small images.

``ConvFeatures`` is the network. The functions after it compute its convolutions, for one run or for
stacked runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from daband._arguments import check_one_of
from daband._domain_names import DomainNames
from daband.errors import InvalidInput
from daband.neural.encoders._domain_norm import DomainNorm, get_triton_kernels, pool_relu
from daband.neural.encoders._encoder import FeatureNetwork, encoders

#: The allowed values of the argument ``pixels``.
PIXEL_RULES = ("unit", "symmetric")

#: The minimum length of an image's shorter side, in pixels.
_MIN_SIDE_PIXELS = 16
#: The maximum length of each side of the last map after pooling, in pixels.
_MAX_MAP_SIDE_PIXELS = 8
#: The maximum number of stacked runs in one grouped convolution.
_MAX_RUNS_PER_CONVOLUTION = 5
#: The minimum number of input channels for which one grouped convolution is faster than a
#: convolution per run.
_MIN_GROUP_CHANNELS = 8
#: Rows of matrices start at multiples of this number of bytes, so that products are fast.
_ROW_BYTES = 16
#: The maximum number of values in a patch for which a convolution is computed as a matrix product.
_MAX_PATCH_VALUES = 128
#: The maximum number of values in all patches together for which a convolution is computed as a
#: matrix product.
_MAX_IM2COL_VALUES = 1 << 27


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

    is_stackable = True

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
        self.width = channels[-1] * math.prod(self.map_shape)

    def forward(
        self, contexts: Tensor, *, rows_per_domain: Sequence[int], n_runs: int = 1
    ) -> Tensor:
        maps = 2 * contexts - 1 if self.pixels == "symmetric" else contexts
        present_domains = [domain for domain, n_rows in enumerate(rows_per_domain) if n_rows]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            assert isinstance(layer, nn.Conv2d)
            weight = layer.weight
            bias = layer.bias
            # If all rows come from one domain with fixed statistics, the norm can be included in
            # the convolution.
            has_kernels = get_triton_kernels(maps.device) is not None
            folds_norm = (
                n_runs == 1 and not self.training and len(present_domains) == 1 and not has_kernels
            )
            if folds_norm and isinstance(norm, DomainNorm):
                scale, bias = norm.compute_affine(present_domains[0])
                weight = weight * scale.view(-1, 1, 1, 1)
            maps = _convolve(maps, weight, bias, n_runs)
            if folds_norm or not isinstance(norm, DomainNorm):
                maps = pool_relu(maps)
            else:
                maps = norm.pool_relu(maps, rows_per_domain=rows_per_domain)
        if self.has_average_pool:
            maps = functional.adaptive_avg_pool2d(maps, self.map_shape)
        return maps.flatten(1).to(contexts.dtype)


def _convolve(maps: Tensor, weight: Tensor, bias: Tensor | None, n_runs: int) -> Tensor:
    """Return maps convolved with each run's weights, (B, runs * outputs, H', W').

    Args:
        maps: (B, runs * inputs, H, W), or images (B, runs, inputs, H, W).
        weight: (runs * outputs, inputs, h, w).
        bias: (runs * outputs,), or None.
        n_runs: the number of stacked runs.
    """
    maps_by_run = (
        maps if maps.ndim == 5 else maps.view(len(maps), n_runs, weight.shape[1], *maps.shape[2:])
    )
    if is_im2col_faster(maps_by_run, weight):
        return convolve_by_im2col(maps_by_run, weight, bias)
    if n_runs == 1:
        return functional.conv2d(maps, weight, bias)
    n_inputs = weight.shape[1]
    n_outputs = len(weight) // n_runs
    # Grouped kernels are slow with few channels per group. Their backward pass is slow with many
    # groups.
    runs_at_once = _MAX_RUNS_PER_CONVOLUTION if n_inputs >= _MIN_GROUP_CHANNELS else 1
    # Kernels for the channels-last layout read four channels at once, so groups start at multiples
    # of four.
    n_pad_inputs, n_pad_outputs = (-n_inputs % 4, -n_outputs % 4) if runs_at_once > 1 else (0, 0)
    weights_by_run = weight.view(n_runs, n_outputs, *weight.shape[1:])
    if n_pad_inputs:
        maps_by_run = functional.pad(maps_by_run, (0, 0, 0, 0, 0, n_pad_inputs))
    if n_pad_inputs or n_pad_outputs:
        weights_by_run = functional.pad(
            weights_by_run, (0, 0, 0, 0, 0, n_pad_inputs, 0, n_pad_outputs)
        )
    block_outputs = []
    for start in range(0, n_runs, runs_at_once):
        block_maps = maps_by_run[:, start : start + runs_at_once].flatten(1, 2)
        block_maps = block_maps.contiguous(memory_format=torch.channels_last)
        block_weights = weights_by_run[start : start + runs_at_once]
        block_outputs.append(
            _convolve_groups(block_maps, block_weights.flatten(0, 1), n_groups=len(block_weights))
        )
    outputs = block_outputs[0] if len(block_outputs) == 1 else torch.cat(block_outputs, dim=1)
    if n_pad_outputs:
        outputs = outputs.view(len(outputs), n_runs, -1, *outputs.shape[2:])[
            :, :, :n_outputs
        ].flatten(1, 2)
    return outputs if bias is None else outputs + bias.view(1, -1, 1, 1)


def _convolve_groups(maps: Tensor, weight: Tensor, *, n_groups: int) -> Tensor:
    """Return the grouped convolution of maps, on a GPU with the faster backward pass of
    ``GroupedConvolution``.
    """
    if not (maps.is_cuda and maps.requires_grad):
        return functional.conv2d(maps, weight, groups=n_groups)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else maps.dtype
    return GroupedConvolution.apply(maps.to(dtype), weight.to(dtype), n_groups)  # type: ignore[no-untyped-call]


class GroupedConvolution(torch.autograd.Function):
    """A grouped ``conv2d`` with a faster backward pass: the gradient of the maps is a convolution
    with flipped weights.

    PyTorch's own backward pass runs group by group and converts layouts, which takes six times as
    long on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, n_groups: int) -> Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.n_groups = n_groups
        return functional.conv2d(maps, weight, groups=n_groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        maps, weight = ctx.saved_tensors
        n_groups, (n_inputs, height, width) = ctx.n_groups, weight.shape[1:]
        gradient = gradients[0]
        flipped_weights = (
            weight.view(n_groups, -1, n_inputs, height, width)
            .flip(3, 4)
            .transpose(1, 2)
            .flatten(0, 1)
        )
        flipped_weights = flipped_weights.contiguous(memory_format=torch.channels_last)
        map_gradient = functional.conv2d(
            gradient, flipped_weights, padding=(height - 1, width - 1), groups=n_groups
        )
        _, weight_gradient, _ = torch.ops.aten.convolution_backward(
            gradient,
            maps,
            weight,
            None,
            (1, 1),
            (0, 0),
            (1, 1),
            False,
            (0, 0),
            n_groups,
            (False, True, False),
        )
        return map_gradient, weight_gradient, None


# The functions below compute a convolution as a matrix product (im2col). With three channels
# PyTorch's kernels first convert the layout and have a slow backward pass. A product of all patches
# with the weights saves a fifth to a third of the layer's time on a GPU. The gradient with respect
# to the images, which would be expensive, is not needed. Biases are the weights of a column of
# ones, so that adding them costs nothing. Further columns of ones, which only pad the rows, have
# the weight 0. In shapes, B images of C channels have the sides H and W, patches have the sides h
# and w, and each run has K output channels.


def is_im2col_faster(images: Tensor, weight: Tensor) -> bool:
    """Return True if im2col is faster for images (B, runs, C, H, W) and weights (runs * K, C, h,
    w).

    It is faster on a GPU for images with few channels, if all patches together are not too large.
    """
    if not images.is_cuda or images.requires_grad:
        return False
    is_training = weight.requires_grad and torch.is_grad_enabled()
    patch_size = weight[0].numel()
    n_positions = (images.shape[-2] - weight.shape[-2] + 1) * (
        images.shape[-1] - weight.shape[-1] + 1
    )
    max_values = _MAX_IM2COL_VALUES if is_training else _MAX_IM2COL_VALUES // 8
    n_patches = images.shape[0] * images.shape[1] * n_positions
    is_small = patch_size < _MAX_PATCH_VALUES and n_patches * (patch_size + 1) <= max_values
    return is_small and (is_training or get_triton_kernels(images.device) is not None)


def convolve_by_im2col(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return images (B, runs, C, H, W) convolved with each run's weights (runs * K, C, h, w): (B,
    runs * K, H', W').
    """
    n_runs, (height, width) = images.shape[1], weight.shape[2:]
    weight_rows = weight.flatten(1)
    device_type = images.device.type
    dtype = (
        torch.get_autocast_dtype(device_type)
        if torch.is_autocast_enabled(device_type)
        else images.dtype
    )
    n_pad_columns = -(weight_rows.shape[1] + (bias is not None)) % (_ROW_BYTES // dtype.itemsize)
    if bias is not None:
        weight_rows = torch.cat([weight_rows, bias[:, None]], dim=1)
    if n_pad_columns:
        weight_rows = functional.pad(weight_rows, (0, n_pad_columns))
    patches = _cut_patches(images, height, width, n_columns=weight_rows.shape[1], dtype=dtype)
    weights_by_run = weight_rows.view(n_runs, -1, weight_rows.shape[1]).to(dtype)
    return _PatchProducts.apply(patches, weights_by_run)  # type: ignore[no-untyped-call]


def _cut_patches(
    images: Tensor, height: int, width: int, *, n_columns: int, dtype: torch.dtype
) -> Tensor:
    """Return every patch (C, height, width) of images (B, runs, C, H, W) as a row, (runs, B, H',
    W', n_columns).

    Rows are padded with ones up to ``n_columns``.
    """
    kernels = get_triton_kernels(images.device)
    if kernels is not None:
        return kernels.cut_patches(images, height, width, n_columns=n_columns, dtype=dtype)
    windows = images.unfold(3, height, 1).unfold(4, width, 1).permute(1, 0, 3, 4, 2, 5, 6)
    patch_size = windows.shape[4:].numel()
    rows = torch.empty(*windows.shape[:4], n_columns, dtype=dtype, device=images.device)
    rows[..., :patch_size].view(windows.shape).copy_(windows)
    rows[..., patch_size:].fill_(1.0)
    return rows


class _PatchProducts(torch.autograd.Function):
    """Multiply patches (runs, B, H', W', n_columns), as rows, by weights (runs, K, n_columns).

    The product (B, runs * K, H', W') has the channels-last layout.
    """

    @staticmethod
    def forward(ctx: Any, patches: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(patches)
        ctx.n_channels = weights.shape[1]
        n_runs, n_images, height, width, n_columns = patches.shape
        maps = patches.new_empty(n_images * height * width, n_runs, weights.shape[1])
        for run in range(n_runs):
            torch.mm(patches[run].view(-1, n_columns), weights[run].T, out=maps[:, run])
        return maps.view(n_images, height, width, -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (patches,) = ctx.saved_tensors
        n_runs, n_images, _, _, n_columns = patches.shape
        gradient = gradients[0].permute(0, 2, 3, 1).reshape(n_images, -1, n_runs, ctx.n_channels)
        # Compute a product for each image, and then their sum: one long product with few outputs is
        # slow on a GPU.
        weight_gradients = [
            torch.bmm(
                gradient[:, :, run].transpose(1, 2), patches[run].view(n_images, -1, n_columns)
            ).sum(dim=0)
            for run in range(n_runs)
        ]
        return None, torch.stack(weight_gradients)
