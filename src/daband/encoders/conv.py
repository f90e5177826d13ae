"""``conv``: two 5x5 convolutions for small images; their pooled maps are the wide features that alignment works on."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from daband.encoders.contract import Features, encoders
from daband.encoders.im2col import im2col_conv2d, im2col_is_faster
from daband.encoders.normalisation import DomainNorm
from daband.errors import InvalidInput

__all__ = ["PIXELS", "ConvFeatures", "normalised_pixels"]

PIXELS = ("unit", "symmetric", "imagenet")
"""How pixels in [0, 1] can be normalised."""
_IMAGENET_MEAN, _IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_SMALLEST_SIDE = 16
_RUNS_PER_CONVOLUTION = 5
_ENOUGH_CHANNELS = 8


@encoders.register("conv")
class ConvFeatures(Features):
    """Convolution, norm, ReLU and 2x2 pooling, once per entry of ``channels``, over images (channels, height, width).

    ``normalise=False`` leaves out the batch norms; ``statistics`` says by what they normalise the target
    (``DomainNorm``). ``pixels`` says how pixels are normalised: "unit" leaves them in
    [0, 1], "symmetric" maps them to [-1, 1], "imagenet" subtracts ImageNet's mean and divides by its deviation, channel
    by channel. ``normalise_image`` subtracts each image's own mean and divides by its spread, which takes brightness
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
    ) -> None:
        super().__init__()
        if len(context_shape) != 3 or min(context_shape[1:]) < _SMALLEST_SIDE:
            raise InvalidInput(
                f"encoder 'conv' needs images (channels, height, width) of at least {_SMALLEST_SIDE} pixels a side, "
                f"got contexts of shape {context_shape}; use encoder='mlp', which takes contexts of any shape"
            )
        if pixels not in PIXELS:
            raise InvalidInput(f"pixels must be one of {', '.join(PIXELS)}, got {pixels!r}")
        if pixels == "imagenet" and context_shape[0] != len(_IMAGENET_MEAN):
            raise InvalidInput(
                f"pixels='imagenet' needs images of three channels, got contexts of shape {context_shape}"
            )
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
            self.norms.append(DomainNorm(channels=outputs, statistics=statistics) if normalise else nn.Identity())
            inputs, height, width = outputs, (height - 4) // 2, (width - 4) // 2
            if min(height, width) < 1:
                raise InvalidInput(f"images of shape {context_shape} are too small for {len(channels)} convolutions")
        self.pools = max(height, width) > pooled_side
        if self.pools:
            height, width = min(height, pooled_side), min(width, pooled_side)
        self.map_shape = (height, width)
        self.width = inputs * height * width

    def forward(self, contexts: torch.Tensor, *, n_source: int, runs: int = 1) -> torch.Tensor:
        maps = normalised_pixels(contexts, self.pixels)
        if self.normalise_image:
            dims = (-3, -2, -1)
            mean = maps.mean(dim=dims, keepdim=True)
            spread = maps.std(dim=dims, keepdim=True, correction=0)
            # A floor on the spread keeps an empty image empty instead of blowing up its noise.
            maps = (maps - mean) / (spread + 0.1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            assert isinstance(layer, nn.Conv2d)
            weight, shift = layer.weight, layer.bias
            # Where all rows are of one domain, whose statistics are fixed, the norm is a part of the convolution.
            folds = runs == 1 and not self.training and n_source in (0, len(maps))
            if folds and isinstance(norm, DomainNorm):
                scale, shift = norm.folded(0 if n_source else 1)
                weight = weight * scale.view(-1, 1, 1, 1)
            maps = _convolved(maps, weight, shift, runs)
            if not folds and isinstance(norm, DomainNorm):
                maps = norm(maps, n_source=n_source)
            # The largest of four, cut at zero, is the largest of four that were cut at zero, and a quarter of the work.
            maps = functional.relu(functional.max_pool2d(maps, 2), inplace=True)
        if self.pools:
            maps = functional.adaptive_avg_pool2d(maps, self.map_shape)
        return maps.flatten(1)


def normalised_pixels(images: torch.Tensor, how: str) -> torch.Tensor:
    """Images (..., channels, height, width) in [0, 1], normalised as ``PIXELS`` names it; same shape out as in."""
    if how == "symmetric":
        return 2 * images - 1
    if how == "imagenet":
        # Channel by channel with plain numbers: a tensor of them would be sent to the device in every step.
        moments = zip(images.unbind(-3), _IMAGENET_MEAN, _IMAGENET_DEVIATION, strict=True)
        return torch.stack([(channel - mean) / deviation for channel, mean, deviation in moments], dim=-3)
    return images


def _convolved(maps: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, runs: int) -> torch.Tensor:
    """Convolution of maps (B, runs * inputs, H, W), or images (B, runs, inputs, H, W), each run by its own weights."""
    apart = maps if maps.ndim == 5 else maps.view(len(maps), runs, weight.shape[1], *maps.shape[2:])
    if im2col_is_faster(apart, weight):
        return im2col_conv2d(apart, weight, bias)
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
        own = apart[:, start : start + at_once].flatten(1, 2).contiguous(memory_format=torch.channels_last)
        theirs = weights[start : start + at_once]
        pieces.append(functional.conv2d(own, theirs.flatten(0, 1), groups=len(theirs)))
    out = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
    if more_out:
        out = out.view(len(out), runs, -1, *out.shape[2:])[:, :, :outputs].flatten(1, 2)
    return out if bias is None else out + bias.view(1, -1, 1, 1)
