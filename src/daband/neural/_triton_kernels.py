"""Provide Triton kernels for NVIDIA GPUs, for operations in which torch passes many times over large tensors.

``norm_pool_relu`` is batch norm by domain, 2x2 max pooling and ReLU. Between a convolution and the pooled maps, torch
reads and writes the large maps about fifteen times a step. These kernels read them four times and write them once.
``patches`` cuts images into patches for a convolution as a product. ``adam`` takes the optimiser's step for all stacked
runs together. Sums have a fixed order. Triton comes with torch's builds for NVIDIA GPUs; other builds never import this
file.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-warn-return-any

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

#: The number of pieces in which the rows of a domain are summed; a power of two.
_PIECES = 64
#: The number of rows that a program processes.
_TILE_ROWS = 32
#: The number of rows that a program reads at once for sums. More rows hide the latency of memory.
_SUM_ROWS = 128
#: The number of channels that a program processes.
_TILE_CHANNELS = 64
#: The number of parameters that a program of Adam processes.
_BLOCK_NUMBERS = 1024
_KERNEL_OPTIONS = {"pieces": _PIECES, "rows": _TILE_ROWS, "wide": _TILE_CHANNELS}
_SUM_KERNEL_OPTIONS = {**_KERNEL_OPTIONS, "rows": _SUM_ROWS, "num_warps": 8}


@triton.jit
def _moments(x, partial, n_rows, channels, per_piece, pieces: tl.constexpr, rows: tl.constexpr, wide: tl.constexpr):
    """Compute mean and sum of squared differences of each piece of a domain's rows: partial (domains, 2, pieces, C)."""
    piece, domain = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    inside = column < channels
    first = piece * per_piece
    last = tl.minimum(first + per_piece, n_rows)
    total = tl.zeros([wide], tl.float32)
    squares = tl.zeros([wide], tl.float32)
    for start in range(first, last, rows):
        row = start + tl.arange(0, rows)
        mask = (row < last)[:, None] & inside[None, :]
        offset = (domain * n_rows + row).to(tl.int64)[:, None] * channels + column[None, :]
        value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(value, axis=0)
        squares += tl.sum(value * value, axis=0)
    count = tl.maximum(last - first, 1).to(tl.float32)
    mean = total / count
    offset = partial + (domain * 2 * pieces + piece) * channels + column
    tl.store(offset, mean, mask=inside)
    tl.store(offset + pieces * channels, tl.maximum(squares - total * mean, 0.0), mask=inside)


@triton.jit
def _norm_pool(
    x, partial, weight, bias, out, max_index, max_value, moments, running_mean, running_variance, row_stride,
    n_rows, channels, per_piece, pooled_rows, height, width, momentum, epsilon,
    pieces: tl.constexpr, rows: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Normalise, max-pool and apply ReLU; store the index of the maximum (4: none), mean and 1 / standard deviation."""
    tile, domain = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    inside = column < channels
    piece = tl.arange(0, pieces)
    count = tl.maximum(tl.minimum(per_piece, n_rows - piece * per_piece), 0).to(tl.float32)[:, None]
    at = partial + (domain * 2 * pieces + piece)[:, None] * channels + column[None, :]
    piece_mean = tl.load(at, mask=inside[None, :], other=0.0)
    piece_squares = tl.load(at + pieces * channels, mask=inside[None, :], other=0.0)
    mean = tl.sum(count * piece_mean, axis=0) / n_rows
    difference = piece_mean - mean[None, :]
    variance = tl.sum(tl.where(count > 0, piece_squares, 0.0) + count * difference * difference, axis=0) / n_rows
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    if tile == 0:
        tl.store(moments + (domain * 2) * channels + column, mean, mask=inside)
        tl.store(moments + (domain * 2 + 1) * channels + column, inverse, mask=inside)
        offset = domain * row_stride + column
        old_mean = tl.load(running_mean + offset, mask=inside)
        old_variance = tl.load(running_variance + offset, mask=inside)
        unbiased = variance * (n_rows / (n_rows - 1.0))
        tl.store(running_mean + offset, old_mean + momentum * (mean - old_mean), mask=inside)
        tl.store(running_variance + offset, old_variance + momentum * (unbiased - old_variance), mask=inside)
    scale = tl.load(weight + column, mask=inside, other=0.0) * inverse
    shift = tl.load(bias + column, mask=inside, other=0.0) - mean * scale
    row = tile * rows + tl.arange(0, rows)
    mask = (row < pooled_rows)[:, None] & inside[None, :]
    pooled_row = domain * pooled_rows + row
    half = width // 2
    image, rest = pooled_row // (half * (height // 2)), pooled_row % (half * (height // 2))
    corner = ((image * height + 2 * (rest // half)) * width + 2 * (rest % half)).to(tl.int64)
    start = x + corner[:, None] * channels + column[None, :]
    raw = tl.load(start, mask=mask, other=0.0)
    best = raw.to(tl.float32) * scale + shift
    best_index = tl.zeros([rows, wide], tl.int32)
    for other in tl.static_range(1, 4):
        step = ((other // 2) * width + other % 2) * channels
        candidate = tl.load(start + step, mask=mask, other=0.0)
        value = candidate.to(tl.float32) * scale + shift
        best_index = tl.where(value > best, other, best_index)
        raw = tl.where(value > best, candidate, raw)
        best = tl.maximum(value, best)
    best_index = tl.where(best > 0, best_index, 4)
    offset = pooled_row.to(tl.int64)[:, None] * channels + column[None, :]
    tl.store(out + offset, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=mask)
    tl.store(max_index + offset, best_index.to(tl.int8), mask=mask)
    tl.store(max_value + offset, raw, mask=mask)


@triton.jit
def _gradient_sums(
    max_value, gradient, max_index, moments, partial, channels, per_piece, pooled_rows,
    pieces: tl.constexpr, rows: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Sum the gradient, and the gradient times the normalised value: partial (domains, pieces, 2, C)."""
    piece, domain = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    inside = column < channels
    mean = tl.load(moments + (domain * 2) * channels + column, mask=inside, other=0.0)
    inverse = tl.load(moments + (domain * 2 + 1) * channels + column, mask=inside, other=0.0)
    first = piece * per_piece
    last = tl.minimum(first + per_piece, pooled_rows)
    total = tl.zeros([wide], tl.float32)
    product = tl.zeros([wide], tl.float32)
    for start in range(first, last, rows):
        row = start + tl.arange(0, rows)
        mask = (row < last)[:, None] & inside[None, :]
        pooled_row = domain * pooled_rows + row
        offset = pooled_row.to(tl.int64)[:, None] * channels + column[None, :]
        best_index = tl.load(max_index + offset, mask=mask, other=4).to(tl.int32)
        mask = mask & (best_index < 4)
        value = tl.load(max_value + offset, mask=mask, other=0.0)
        row_gradient = tl.load(gradient + offset, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(row_gradient, axis=0)
        product += tl.sum(row_gradient * (value.to(tl.float32) - mean) * inverse, axis=0)
    offset = partial + ((domain * pieces + piece) * 2) * channels + column
    tl.store(offset, total, mask=inside)
    tl.store(offset + channels, product, mask=inside)


@triton.jit
def _map_gradient(
    x, gradient, max_index, moments, partial, weight, out, n_rows, channels, pooled_rows, height, width,
    pieces: tl.constexpr, rows: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Compute the gradient with respect to the maps."""
    tile, domain = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    inside = column < channels
    at = partial + ((domain * pieces + tl.arange(0, pieces)) * 2)[:, None] * channels + column[None, :]
    total = tl.sum(tl.load(at, mask=inside[None, :], other=0.0), axis=0) / n_rows
    product = tl.sum(tl.load(at + channels, mask=inside[None, :], other=0.0), axis=0) / n_rows
    mean = tl.load(moments + (domain * 2) * channels + column, mask=inside, other=0.0)
    inverse = tl.load(moments + (domain * 2 + 1) * channels + column, mask=inside, other=0.0)
    scale = tl.load(weight + column, mask=inside, other=0.0) * inverse
    row = tile * rows + tl.arange(0, rows)
    mask = (row < pooled_rows)[:, None] & inside[None, :]
    pooled_row = domain * pooled_rows + row
    half = width // 2
    image, rest = pooled_row // (half * (height // 2)), pooled_row % (half * (height // 2))
    corner = ((image * height + 2 * (rest // half)) * width + 2 * (rest % half)).to(tl.int64)
    offset = pooled_row.to(tl.int64)[:, None] * channels + column[None, :]
    row_gradient = tl.load(gradient + offset, mask=mask, other=0.0).to(tl.float32)
    best_index = tl.load(max_index + offset, mask=mask, other=4).to(tl.int32)
    start = corner[:, None] * channels + column[None, :]
    for corner_index in tl.static_range(4):
        step = ((corner_index // 2) * width + corner_index % 2) * channels
        value = tl.load(x + start + step, mask=mask, other=0.0).to(tl.float32)
        normalised = (value - mean) * inverse
        own_gradient = tl.where(best_index == corner_index, row_gradient, 0.0)
        result = scale * (own_gradient - total - normalised * product)
        tl.store(out + start + step, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _affine_pool(
    x, scale, shift, out, channels, pooled_rows, height, width, rows: tl.constexpr, wide: tl.constexpr
):  # fmt: skip
    """Scale and shift, take the max_value of four, and apply ReLU."""
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    inside = column < channels
    factor = tl.load(scale + column, mask=inside, other=0.0)
    offset_of_channel = tl.load(shift + column, mask=inside, other=0.0)
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    mask = (row < pooled_rows)[:, None] & inside[None, :]
    half = width // 2
    image, rest = row // (half * (height // 2)), row % (half * (height // 2))
    corner = ((image * height + 2 * (rest // half)) * width + 2 * (rest % half)).to(tl.int64)
    start = x + corner[:, None] * channels + column[None, :]
    best = tl.load(start, mask=mask, other=0.0).to(tl.float32) * factor + offset_of_channel
    for other in tl.static_range(1, 4):
        step = ((other // 2) * width + other % 2) * channels
        best = tl.maximum(tl.load(start + step, mask=mask, other=0.0).to(tl.float32) * factor + offset_of_channel, best)
    offset = row.to(tl.int64)[:, None] * channels + column[None, :]
    tl.store(out + offset, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _patches(
    images, out, of_image, of_run, of_channel, of_row, of_column, n_rows, n_images, channels, height, width, out_height,
    out_width, columns, rows: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Write rows (runs, B, H', W') of patches (C, h, w), followed by ones up to ``columns``."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, wide)
    x, rest = row % out_width, row // out_width
    y, rest = rest % out_height, rest // out_height
    image, run = rest % n_images, rest // n_images
    channel, pixel = column // (height * width), column % (height * width)  # neighbours are adjacent in memory
    start = run.to(tl.int64) * of_run + image.to(tl.int64) * of_image + y * of_row + x * of_column
    offset = channel * of_channel + (pixel // width) * of_row + (pixel % width) * of_column
    used = (row < n_rows)[:, None] & (channel < channels)[None, :]
    value = tl.load(images + start[:, None] + offset[None, :], mask=used, other=1.0)
    there = (row < n_rows)[:, None] & (column < columns)[None, :]
    to = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + to, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def _adam(
    parameters, gradient, mean, square, taken, bad, numbers, learning_rate, log_beta1, log_beta2, epsilon,
    size: tl.constexpr,
):  # fmt: skip
    """Take a step of Adam for a block of one run's parameters; see ``adam``."""
    run = tl.program_id(1)
    offset = tl.program_id(0) * size + tl.arange(0, size)
    rests = tl.load(bad + run) + tl.zeros([size], tl.float32)
    mask = (offset < numbers) & (rests < 0.5)
    offset = offset + run.to(tl.int64) * numbers
    step = tl.load(taken + run) + 1.0
    beta1, beta2 = tl.exp(log_beta1), tl.exp(log_beta2)
    given = tl.load(gradient + offset, mask=mask, other=0.0)
    first = tl.load(mean + offset, mask=mask, other=0.0)
    second = tl.load(square + offset, mask=mask, other=0.0)
    first = first + (1 - beta1) * (given - first)
    second = beta2 * second + (1 - beta2) * given * given
    size_of_step = learning_rate / (1 - tl.exp(step * log_beta1))
    deviation = tl.sqrt(second) / tl.sqrt(1 - tl.exp(step * log_beta2)) + epsilon
    tl.store(mean + offset, first, mask=mask)
    tl.store(square + offset, second, mask=mask)
    before = tl.load(parameters + offset, mask=mask, other=0.0)
    tl.store(parameters + offset, before - size_of_step * first / deviation, mask=mask)


class _NormPoolReLU(torch.autograd.Function):
    """Batch norm by domain, max pooling and ReLU with an explicit gradient; see ``norm_pool_relu``."""

    @staticmethod
    def forward(
        ctx: Any, maps, weight, bias, running_mean, running_variance, domains, momentum, epsilon
    ) -> torch.Tensor:
        images, channels, height, width = maps.shape
        x = maps.permute(0, 2, 3, 1).contiguous()
        n_rows, pooled_rows = images * height * width // domains, images * height * width // (4 * domains)
        across = -(-channels // _TILE_CHANNELS)
        tiles = -(-pooled_rows // _TILE_ROWS)
        partial = x.new_empty(domains, 2, _PIECES, channels, dtype=torch.float32)
        moments = x.new_empty(domains, 2, channels, dtype=torch.float32)
        out = x.new_empty(images, height // 2, width // 2, channels)
        which, max_value = torch.empty(out.shape, dtype=torch.int8, device=x.device), torch.empty_like(out)
        per_piece = -(-n_rows // _PIECES)
        _moments[(_PIECES, across, domains)](x, partial, n_rows, channels, per_piece, **_SUM_KERNEL_OPTIONS)
        given, made = (x, partial, weight, bias), (out, which, max_value, moments)
        running = (running_mean, running_variance, running_mean.stride(0))
        sizes = (n_rows, channels, per_piece, pooled_rows, height, width)
        _norm_pool[(tiles, across, domains)](*given, *made, *running, *sizes, momentum, epsilon, **_KERNEL_OPTIONS)
        ctx.save_for_backward(x, which, max_value, moments, weight)
        ctx.domains = domains
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, which, max_value, moments, weight = ctx.saved_tensors
        images, height, width, channels = x.shape
        domains = ctx.domains
        gradient = gradients[0].permute(0, 2, 3, 1).contiguous()
        n_rows, pooled_rows = images * height * width // domains, images * height * width // (4 * domains)
        across = -(-channels // _TILE_CHANNELS)
        partial = x.new_empty(domains, _PIECES, 2, channels, dtype=torch.float32)
        out = torch.empty_like(x)
        sums = (which, moments, partial)
        sizes = (pooled_rows, height, width)
        per_piece = -(-pooled_rows // _PIECES)
        of_pieces = (_PIECES, across, domains)
        _gradient_sums[of_pieces](max_value, gradient, *sums, channels, per_piece, pooled_rows, **_SUM_KERNEL_OPTIONS)
        tiles = (-(-pooled_rows // _TILE_ROWS), across, domains)
        _map_gradient[tiles](x, gradient, *sums, weight, out, n_rows, channels, *sizes, **_KERNEL_OPTIONS)
        of_bias, of_weight = partial.sum(dim=(0, 1)).unbind()
        return out.permute(0, 3, 1, 2), of_weight, of_bias, None, None, None, None, None


def norm_pool_relu(
    maps: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_variance: torch.Tensor,
    *,
    domains: int,
    momentum: float,
    epsilon: float,
) -> torch.Tensor:
    """Normalise, pool and apply ReLU to maps (B, C, H, W) with H and W even: (B, C, H / 2, W / 2).

    There are B / ``domains`` rows of each domain, which is normalised by its own rows. The running statistics
    (domains or more, C) are updated.
    """
    return _NormPoolReLU.apply(maps, weight, bias, running_mean, running_variance, domains, momentum, epsilon)


def affine_pool_relu(maps: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Multiply maps (B, C, H, W), H and W even, by ``scale`` (C,), add ``shift``, pool, apply ReLU; no gradient."""
    images, channels, height, width = maps.shape
    x = maps.permute(0, 2, 3, 1).contiguous()
    out = x.new_empty(images, height // 2, width // 2, channels)
    pooled_rows = images * (height // 2) * (width // 2)
    grid = (-(-pooled_rows // _TILE_ROWS), -(-channels // _TILE_CHANNELS))
    _affine_pool[grid](x, scale, shift, out, channels, pooled_rows, height, width, rows=_TILE_ROWS, wide=_TILE_CHANNELS)
    return out.permute(0, 3, 1, 2)


def patches(images: torch.Tensor, height: int, width: int, *, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return every patch of images (B, runs, C, H, W) as a row (runs, B, H', W', columns), filled up with ones."""
    n_images, runs, channels = images.shape[:3]
    sides = (images.shape[3] - height + 1, images.shape[4] - width + 1)
    rows = torch.empty(runs, n_images, *sides, columns, dtype=dtype, device=images.device)
    n_rows = rows.numel() // columns
    wide = 1 << (columns - 1).bit_length()
    sizes = (n_rows, n_images, channels, height, width, *sides, columns)
    _patches[(-(-n_rows // _TILE_ROWS),)](images, rows, *images.stride(), *sizes, rows=_TILE_ROWS, wide=wide)
    return rows


def adam(
    parameters: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    taken: torch.Tensor,
    bad: torch.Tensor,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Take a step of Adam for rows (runs, n) in place, except rows with ``bad`` 1; ``taken`` (runs,) counts steps."""
    runs, numbers = parameters.shape
    logs = [math.log(beta) for beta in betas]
    tensors = (parameters, gradient, mean, square, taken, bad)
    settings = (numbers, learning_rate, *logs, epsilon)
    _adam[(-(-numbers // _BLOCK_NUMBERS), runs)](*tensors, *settings, size=_BLOCK_NUMBERS)
    taken.add_(1 - bad)
