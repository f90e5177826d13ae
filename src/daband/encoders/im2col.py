"""A convolution as a matrix product (im2col), which is faster for a network's first layer on a GPU.

With three channels a library's kernels convert what they are given before they begin, and are slow on the way back: a
product of all patches with the weights saves a fifth to a third of the layer's time. The images themselves need no
gradient, which is the part that would be expensive this way. Biases are weights of a column of ones, so that adding
them costs nothing in either direction.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

__all__ = ["fits_patches", "im2col_conv2d", "im2col_is_faster"]

_NUMBERS_IN_16_BYTES = 4
"""Products are fastest over rows that begin where 16 bytes do."""
_MOST_COLUMNS = 128
_MOST_NUMBERS = 1 << 27


def im2col_is_faster(images: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a convolution of images (B, runs, C, H, W) is faster so: on a GPU, of few channels, not too many."""
    return images.is_cuda and fits_patches(images, weight)


def fits_patches(images: torch.Tensor, weight: torch.Tensor) -> bool:
    """The conditions of ``im2col_is_faster`` other than the device; only a weight gradient makes it faster."""
    if images.requires_grad or not (weight.requires_grad and torch.is_grad_enabled()):
        return False
    patch = weight[0].numel()
    positions = (images.shape[-2] - weight.shape[-2] + 1) * (images.shape[-1] - weight.shape[-1] + 1)
    return patch < _MOST_COLUMNS and images.shape[0] * images.shape[1] * positions * (patch + 1) <= _MOST_NUMBERS


def im2col_conv2d(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Images (B, runs, C, H, W), each run's with its own of weights (runs * K, C, h, w): (B, runs * K, H', W')."""
    runs, (height, width) = images.shape[1], weight.shape[2:]
    flat = weight.permute(0, 2, 3, 1).reshape(len(weight), -1)  # as they lie in memory
    fill = -(flat.shape[1] + (bias is not None)) % _NUMBERS_IN_16_BYTES
    if bias is not None:
        flat = torch.cat([flat, bias[:, None]], dim=1)
    if fill:
        flat = functional.pad(flat, (0, fill))
    patches = _patches(images, height, width, columns=flat.shape[1])
    maps: torch.Tensor = _Products.apply(patches, flat.view(runs, -1, flat.shape[1]))  # type: ignore[no-untyped-call]
    return maps


def _patches(images: torch.Tensor, height: int, width: int, *, columns: int) -> torch.Tensor:
    """Every patch of every image as a row (runs, B, H', W', columns); what is left of a row are ones."""
    cut = images.unfold(3, height, 1).unfold(4, width, 1).permute(1, 0, 3, 4, 5, 6, 2)
    patch = cut.shape[4:]
    rows = torch.empty(*cut.shape[:4], columns, dtype=images.dtype, device=images.device)
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
        own = [
            torch.bmm(gradient[:, :, run].transpose(1, 2), rows[run].view(images, -1, columns)).sum(dim=0)
            for run in range(runs)
        ]
        return None, torch.stack(own)
