"""``conv``: two 5x5 convolutions for small images; their pooled maps are the wide features that alignment works on."""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from daband._arguments import one_of
from daband._domain_names import DomainNames
from daband._image_layout import IMAGENET_DEVIATION, IMAGENET_MEAN
from daband.errors import InvalidInput
from daband.linear._toom_cook import TILE, tile_sums, toom_cook
from daband.neural.encoders._domain_norm import DomainNorm, pool_relu, triton_kernels
from daband.neural.encoders._encoder import Features, encoders

PIXELS = ("unit", "symmetric", "imagenet")
"""How pixels in [0, 1] can be normalised."""

_SMALLEST_SIDE = 16
_RUNS_PER_CONVOLUTION = 5
_ENOUGH_CHANNELS = 8

_ROW_BYTES = 16
"""Products are fastest over rows that begin where 16 bytes do."""
_MOST_COLUMNS = 128
_MOST_NUMBERS = 1 << 27
_ARM = platform.machine() in ("aarch64", "arm64")
_MOST_NUMBERS_ON_ARM = 1 << 25


@encoders.register("conv")
class ConvFeatures(Features):
    """Convolution, norm, ReLU and 2x2 pooling, once per entry of ``channels``, over images (channels, height, width).

    ``normalise=False`` leaves out the batch norms; ``statistics`` says by what they normalise a domain
    (``DomainNorm``). ``pixels`` says how pixels are normalised: "unit" leaves them in
    [0, 1], "symmetric" maps them to [-1, 1], "imagenet" subtracts ImageNet's mean and divides by its deviation, channel
    by channel. ``normalise_image`` subtracts each image's own mean and divides by its deviation, which takes brightness
    and contrast out before anything is learned.
    ``pooled_side`` caps the side of the last map by average pooling, so that larger images keep alignment features
    of sane width.
    """

    stackable = True

    def __init__(
        self,
        *,
        context_shape: tuple[int, ...],
        channels: tuple[int, ...] = (64, 48),
        normalise: bool = True,
        statistics: str = "own",
        pixels: str = "unit",
        normalise_image: bool = False,
        pooled_side: int = 8,
        domains: DomainNames | None = None,
    ) -> None:
        super().__init__()
        if len(context_shape) != 3 or min(context_shape[1:]) < _SMALLEST_SIDE:
            raise InvalidInput(
                f"encoder 'conv' needs images (channels, height, width) of at least {_SMALLEST_SIDE} pixels a side, "
                f"got contexts of shape {context_shape}; use encoder='mlp', which takes contexts of any shape"
            )
        one_of("pixels", pixels, PIXELS)
        if pixels == "imagenet" and context_shape[0] != len(IMAGENET_MEAN):
            raise InvalidInput(f"pixels='imagenet' needs images of three channels, got contexts of {context_shape}")
        if not channels or min(channels) < 1:
            raise InvalidInput(f"channels must be positive, got {channels}")
        self.context_shape = tuple(context_shape)
        self.pixels = pixels
        self.normalise_image = normalise_image
        self.pooled_side = pooled_side
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        inputs, height, width = context_shape
        for outputs in channels:
            # The norm that follows has a shift of its own; without it the convolution needs one.
            self.layers.append(nn.Conv2d(inputs, outputs, kernel_size=5, bias=not normalise))
            norm = DomainNorm(channels=outputs, domains=domains, statistics=statistics)
            self.norms.append(norm if normalise else nn.Identity())
            inputs, height, width = outputs, (height - 4) // 2, (width - 4) // 2
            if min(height, width) < 1:
                raise InvalidInput(f"images of shape {context_shape} are too small for {len(channels)} convolutions")
        self.pools = max(height, width) > pooled_side
        if self.pools:
            height, width = min(height, pooled_side), min(width, pooled_side)
        self.map_shape = (height, width)
        self.width = inputs * height * width

    def forward(self, contexts: torch.Tensor, *, domain_rows: Sequence[int], runs: int = 1) -> torch.Tensor:
        maps = normalised_pixels(contexts, self.pixels)
        if self.normalise_image:
            dims = (-3, -2, -1)
            mean = maps.mean(dim=dims, keepdim=True)
            deviation = maps.std(dim=dims, keepdim=True, correction=0)
            # A floor on the deviation keeps an empty image empty instead of blowing up its noise.
            maps = (maps - mean) / (deviation + 0.1)
        present = [domain for domain, rows in enumerate(domain_rows) if rows]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            assert isinstance(layer, nn.Conv2d)
            weight, shift = layer.weight, layer.bias
            # Where all rows are of one domain, whose statistics are fixed, the norm is a part of the convolution.
            folds = runs == 1 and not self.training and len(present) == 1 and triton_kernels(maps.device) is None
            if folds and isinstance(norm, DomainNorm):
                scale, shift = norm.folded(present[0])
                weight = weight * scale.view(-1, 1, 1, 1)
            maps = _convolved(maps, weight, shift, runs)
            if folds or not isinstance(norm, DomainNorm):
                maps = pool_relu(maps)
            else:
                maps = norm.pool_relu(maps, domain_rows=domain_rows)
        if self.pools:
            maps = functional.adaptive_avg_pool2d(maps, self.map_shape)
        return maps.flatten(1).to(contexts.dtype)


def normalised_pixels(images: torch.Tensor, how: str) -> torch.Tensor:
    """Images (..., channels, height, width) in [0, 1], normalised as ``PIXELS`` names it; same shape out as in."""
    if how == "symmetric":
        return 2 * images - 1
    if how == "imagenet":
        # Channel by channel with plain numbers: a tensor of them would be sent to the device in every step.
        moments = zip(images.unbind(-3), IMAGENET_MEAN, IMAGENET_DEVIATION, strict=True)
        return torch.stack([(channel - mean) / deviation for channel, mean, deviation in moments], dim=-3)
    return images


def _convolved(maps: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, runs: int) -> torch.Tensor:
    """Convolution of maps (B, runs * inputs, H, W), or images (B, runs, inputs, H, W), each run by its own weights."""
    apart = maps if maps.ndim == 5 else maps.view(len(maps), runs, weight.shape[1], *maps.shape[2:])
    if im2col_is_faster(apart, weight):
        return im2col_conv2d(apart, weight, bias)
    if _ARM and maps.device.type == "cpu":
        biases = [None] * runs if bias is None else bias.chunk(runs)
        parts = zip(apart.unbind(1), weight.chunk(runs), biases, strict=True)
        own_maps = [_arm_conv2d(*part) for part in parts]
        return own_maps[0] if runs == 1 else torch.cat(own_maps, dim=1)
    if runs == 1:
        return functional.conv2d(maps, weight, bias)
    inputs, outputs = weight.shape[1], len(weight) // runs
    # Grouped kernels are slow with few channels a group, and with many groups on the way back.
    at_once = _RUNS_PER_CONVOLUTION if inputs >= _ENOUGH_CHANNELS else 1
    # Kernels for the channels-last layout read four channels at once, and a group's must begin where such four do.
    more_in, more_out = (-inputs % 4, -outputs % 4) if at_once > 1 else (0, 0)
    weights = weight.view(runs, outputs, *weight.shape[1:])
    if more_in:
        apart = functional.pad(apart, (0, 0, 0, 0, 0, more_in))
    if more_in or more_out:
        weights = functional.pad(weights, (0, 0, 0, 0, 0, more_in, 0, more_out))
    pieces = []
    for start in range(0, runs, at_once):
        some_maps = apart[:, start : start + at_once].flatten(1, 2).contiguous(memory_format=torch.channels_last)
        some_weights = weights[start : start + at_once]
        pieces.append(_grouped_conv2d(some_maps, some_weights.flatten(0, 1), groups=len(some_weights)))
    out = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
    if more_out:
        out = out.view(len(out), runs, -1, *out.shape[2:])[:, :, :outputs].flatten(1, 2)
    return out if bias is None else out + bias.view(1, -1, 1, 1)


def _arm_conv2d(maps: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``conv2d`` on an ARM processor, where libraries are slow on the way back and with the channels first."""
    patch, positions = weight[0].numel(), (maps.shape[2] - weight.shape[2] + 1) * (maps.shape[3] - weight.shape[3] + 1)
    trains = torch.is_grad_enabled() and weight.requires_grad
    if trains and len(maps) * positions * patch <= _MOST_NUMBERS_ON_ARM:
        if not maps.requires_grad:
            return product_conv2d(maps, weight, bias)
        return ToomCookConvolution.apply(maps, weight, bias)  # type: ignore[no-untyped-call]
    last = torch.channels_last
    return functional.conv2d(maps.contiguous(memory_format=last), weight.contiguous(memory_format=last), bias)


def product_conv2d(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``conv2d`` of images that need no gradient as one product, with the channels last in memory.

    Patches are rows (B, H', W', h, w, C): of a patch, w x C numbers lie side by side in the images as well.
    """
    height, width = weight.shape[2:]
    last = images.permute(0, 2, 3, 1).contiguous()
    patches = last.unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)
    rows, kernels = patches.reshape(-1, weight[0].numel()), weight.permute(0, 2, 3, 1).flatten(1)
    return functional.linear(rows, kernels, bias).view(*patches.shape[:3], len(weight)).permute(0, 3, 1, 2)


@functools.lru_cache(maxsize=16)
def _toom_cook_sums(side: int, height: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    behind, values, _ = toom_cook(side)
    before = tile_sums(side, height)
    return torch.tensor(before, dtype=dtype), torch.tensor(values, dtype=dtype), torch.tensor(behind, dtype=dtype)


class ToomCookConvolution(torch.autograd.Function):
    """``conv2d`` by ``linear.toom_cook``, with two fifths of the multiplications in each direction for 5 x 5.

    Rows are (point, tile, image, column), and every point has its products: one of a batch in each direction.
    """

    @staticmethod
    def forward(ctx: Any, maps: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        (batch, channels, height, width), (kernels, _, side, across) = maps.shape, weight.shape
        rows, columns = height - side + 1, width - across + 1
        before, values, behind = _toom_cook_sums(side, height, maps.dtype)
        points, tiles = len(values), len(before) // len(values)
        last = maps.permute(2, 0, 3, 1).reshape(height, batch * width * channels)
        strips = (before @ last).view(points * tiles, batch, width, channels)
        patches = maps.new_empty(points, tiles * batch * columns, across * channels)
        cut = strips.unfold(2, across, 1).permute(0, 1, 2, 4, 3)
        patches.view(cut.shape).copy_(cut)
        kernel = (values @ weight.permute(2, 3, 1, 0).reshape(side, -1)).view(points, -1, kernels)
        products = torch.bmm(patches, kernel).view(points, tiles * batch * columns * kernels)
        out = (behind @ products).view(TILE, tiles, batch, columns, kernels).permute(2, 1, 0, 3, 4)
        out = out.reshape(batch, tiles * TILE, columns, kernels)[:, :rows].contiguous()
        if bias is not None:
            out += bias
        ctx.save_for_backward(patches, kernel)
        ctx.maps, ctx.weight = maps.shape, weight.shape
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        patches, kernel = ctx.saved_tensors
        (batch, channels, height, width), (kernels, _, side, across) = ctx.maps, ctx.weight
        before, values, behind = _toom_cook_sums(side, height, patches.dtype)
        points, tiles = len(values), len(before) // len(values)
        gradient = gradients[0].permute(0, 2, 3, 1)
        by_bias = gradient.sum((0, 1, 2)) if ctx.needs_input_grad[2] else None
        columns, more = gradient.shape[2], tiles * TILE - gradient.shape[1]
        if more:
            gradient = functional.pad(gradient, (0, 0, 0, 0, 0, more))
        four = gradient.unflatten(1, (tiles, TILE)).permute(2, 1, 0, 3, 4)  # type: ignore[no-untyped-call]
        by_product = behind.T @ four.reshape(TILE, tiles * batch * columns * kernels)
        by_product = by_product.view(points, tiles * batch * columns, kernels)
        by_kernel = torch.bmm(patches.transpose(1, 2), by_product).view(points, across * channels * kernels)
        by_weight = (values.T @ by_kernel).view(side, across, channels, kernels).permute(3, 2, 0, 1)
        if not ctx.needs_input_grad[0]:
            return None, by_weight, by_bias
        by_patch = torch.bmm(by_product, kernel.transpose(1, 2)).view(len(before), batch, columns, across, channels)
        by_strip = patches.new_zeros(len(before), batch, width, channels)
        for x in range(across):
            by_strip[:, :, x : x + columns].add_(by_patch[:, :, :, x])
        by_maps = (before.T @ by_strip.view(len(before), -1)).view(height, batch, width, channels)
        return by_maps.transpose(0, 1).contiguous().permute(0, 3, 1, 2), by_weight, by_bias


def _grouped_conv2d(maps: torch.Tensor, weight: torch.Tensor, *, groups: int) -> torch.Tensor:
    """A convolution of groups, in training with a way back that is fast on a GPU."""
    if not (maps.is_cuda and maps.requires_grad):
        return functional.conv2d(maps, weight, groups=groups)
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else maps.dtype
    return GroupedConvolution.apply(maps.to(kind), weight.to(kind), groups)  # type: ignore[no-untyped-call]


class GroupedConvolution(torch.autograd.Function):
    """``conv2d`` of groups whose gradient by the maps is a convolution as well, with the weights turned.

    A library's own way back runs group by group and converts layouts: six times as long on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, maps: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.groups = groups
        return functional.conv2d(maps, weight, groups=groups)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        maps, weight = ctx.saved_tensors
        groups, (inputs, height, width) = ctx.groups, weight.shape[1:]
        gradient = gradients[0]
        turned = weight.view(groups, -1, inputs, height, width).flip(3, 4).transpose(1, 2).flatten(0, 1)
        turned = turned.contiguous(memory_format=torch.channels_last)
        by_maps = functional.conv2d(gradient, turned, padding=(height - 1, width - 1), groups=groups)
        _, by_weight, _ = torch.ops.aten.convolution_backward(
            gradient, maps, weight, None, (1, 1), (0, 0), (1, 1), False, (0, 0), groups, (False, True, False)
        )
        return by_maps, by_weight, None


# A convolution as a matrix product (im2col). With three channels a library's kernels convert what they are given before
# they begin, and are slow on the way back: a product of all patches with the weights saves a fifth to a third of the
# layer's time on a GPU. The images need no gradient, which is the part that would be expensive this way. Biases are
# weights of a column of ones, so that adding them costs nothing in either direction.


def im2col_is_faster(images: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a convolution of images (B, runs, C, H, W) is faster so: on a GPU, of few channels, not too many."""
    if not images.is_cuda or not fits_patches(images, weight):
        return False
    return (weight.requires_grad and torch.is_grad_enabled()) or triton_kernels(images.device) is not None


def fits_patches(images: torch.Tensor, weight: torch.Tensor) -> bool:
    """The conditions of ``im2col_is_faster`` other than the device; of fewer images without a weight gradient."""
    if images.requires_grad:
        return False
    patch = weight[0].numel()
    positions = (images.shape[-2] - weight.shape[-2] + 1) * (images.shape[-1] - weight.shape[-1] + 1)
    most = _MOST_NUMBERS if weight.requires_grad and torch.is_grad_enabled() else _MOST_NUMBERS // 8
    return patch < _MOST_COLUMNS and images.shape[0] * images.shape[1] * positions * (patch + 1) <= most


def im2col_conv2d(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Images (B, runs, C, H, W), each run's with its own of weights (runs * K, C, h, w): (B, runs * K, H', W')."""
    runs, (height, width) = images.shape[1], weight.shape[2:]
    flat = weight.flatten(1)
    kind = images.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else images.dtype
    fill = -(flat.shape[1] + (bias is not None)) % (_ROW_BYTES // dtype.itemsize)
    if bias is not None:
        flat = torch.cat([flat, bias[:, None]], dim=1)
    if fill:
        flat = functional.pad(flat, (0, fill))
    patches = _patches(images, height, width, columns=flat.shape[1], dtype=dtype)
    weights = flat.view(runs, -1, flat.shape[1]).to(dtype)
    return _Products.apply(patches, weights)  # type: ignore[no-untyped-call]


def _patches(images: torch.Tensor, height: int, width: int, *, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Every patch of every image as a row (runs, B, H', W', columns); what is left of a row are ones."""
    kernels = triton_kernels(images.device)
    if kernels is not None:
        return kernels.patches(images, height, width, columns=columns, dtype=dtype)
    cut = images.unfold(3, height, 1).unfold(4, width, 1).permute(1, 0, 3, 4, 2, 5, 6)
    patch = cut.shape[4:]
    rows = torch.empty(*cut.shape[:4], columns, dtype=dtype, device=images.device)
    rows[..., : patch.numel()].view(cut.shape).copy_(cut)
    rows[..., patch.numel() :].fill_(1.0)
    return rows


class _Products(torch.autograd.Function):
    """Rows (runs, B, H', W', columns) by weights (runs, K, columns): (B, runs * K, H', W'), the channels last."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.channels = weights.shape[1]
        runs, images, height, width, columns = rows.shape
        maps = rows.new_empty(images * height * width, runs, weights.shape[1])
        for run in range(runs):
            torch.mm(rows[run].view(-1, columns), weights[run].T, out=maps[:, run])
        return maps.view(images, height, width, -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        (rows,) = ctx.saved_tensors
        runs, images, _, _, columns = rows.shape
        gradient = gradients[0].permute(0, 2, 3, 1).reshape(images, -1, runs, ctx.channels)
        # A product for each image and their sum: one long product of so few numbers would leave the device idle.
        by_run = [
            torch.bmm(gradient[:, :, run].transpose(1, 2), rows[run].view(images, -1, columns)).sum(dim=0)
            for run in range(runs)
        ]
        return None, torch.stack(by_run)
