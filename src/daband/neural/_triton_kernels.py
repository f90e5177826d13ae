"""Provide Triton kernels for NVIDIA GPUs, for operations that would pass over large tensors many times in torch.

``norm_pool_relu`` computes batch norm by domain, 2x2 max pooling and ReLU. Between a convolution and the pooled maps,
torch reads and writes the large maps about fifteen times per step. These kernels read them four times and write them
once. ``affine_pool_relu`` does the same with fixed statistics, for inference. ``cut_patches`` cuts images into patches,
so that a convolution is a matrix product (im2col). ``adam`` updates the parameters of all stacked runs together. Sums
are computed in a fixed order, so that results are reproducible.

Triton comes with torch's builds for NVIDIA GPUs. With other builds this module is never imported. The kernels come
first, and the functions that start them at the end.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-warn-return-any

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

#: The number of pieces into which the rows of a domain are divided for sums; a power of two.
_N_PIECES = 64
#: The number of rows that one program (an instance of a kernel) processes.
_TILE_ROWS = 32
#: The number of rows that one program reads at once for sums. Many rows hide the latency of memory.
_SUM_ROWS = 128
#: The number of channels that one program processes.
_TILE_CHANNELS = 64
#: The number of parameters that one program of Adam processes.
_BLOCK_PARAMETERS = 1024
#: The options of kernels that process maps.
_KERNEL_OPTIONS = {"pieces": _N_PIECES, "block_rows": _TILE_ROWS, "block_columns": _TILE_CHANNELS}
#: The options of kernels that compute sums over maps.
_SUM_KERNEL_OPTIONS = {**_KERNEL_OPTIONS, "block_rows": _SUM_ROWS, "num_warps": 8}

# In the kernels, maps are matrices in channels-last order: a row is a pixel of an image, a column is a channel. The
# images of a domain are contiguous. ``maps`` is the input of batch norm. ``piece_stats`` has a statistic, such as
# a sum, for each piece of a domain's rows. Tensors are passed as pointers to their first element.


@triton.jit
def _compute_moments(
    maps, piece_stats, n_rows, channels, rows_per_piece,
    pieces: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr,
):  # fmt: skip
    """Compute the mean of each piece of a domain's rows, and the sum of squared differences from that mean.

    Both are written to ``piece_stats`` (domains, 2, pieces, C).
    """
    piece, domain = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < channels
    first_row = piece * rows_per_piece
    end_row = tl.minimum(first_row + rows_per_piece, n_rows)
    total = tl.zeros([block_columns], tl.float32)
    squares = tl.zeros([block_columns], tl.float32)
    for start in range(first_row, end_row, block_rows):
        row = start + tl.arange(0, block_rows)
        mask = (row < end_row)[:, None] & column_mask[None, :]
        offset = (domain * n_rows + row).to(tl.int64)[:, None] * channels + column[None, :]
        value = tl.load(maps + offset, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(value, axis=0)
        squares += tl.sum(value * value, axis=0)
    count = tl.maximum(end_row - first_row, 1).to(tl.float32)
    mean = total / count
    offset = piece_stats + (domain * 2 * pieces + piece) * channels + column
    tl.store(offset, mean, mask=column_mask)
    tl.store(offset + pieces * channels, tl.maximum(squares - total * mean, 0.0), mask=column_mask)


@triton.jit
def _norm_pool(
    maps, piece_stats, weight, bias, out, max_index, max_value, moments, running_mean, running_variance,
    row_stride, n_rows, channels, rows_per_piece, pooled_rows, height, width, momentum, epsilon,
    pieces: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr,
):  # fmt: skip
    """Normalise, max-pool and apply ReLU, and update the running statistics.

    The result is written to ``out``. ``max_index`` gets the index 0 to 3 of each maximum in its 2x2 window, or 4 if
    ReLU returns 0. ``max_value`` gets the maximum before normalisation. ``moments`` (domains, 2, C) gets the mean and
    1 / standard deviation.
    """
    tile, domain = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < channels
    piece = tl.arange(0, pieces)
    count = tl.maximum(tl.minimum(rows_per_piece, n_rows - piece * rows_per_piece), 0).to(tl.float32)[:, None]
    piece_offset = piece_stats + (domain * 2 * pieces + piece)[:, None] * channels + column[None, :]
    piece_mean = tl.load(piece_offset, mask=column_mask[None, :], other=0.0)
    piece_squares = tl.load(piece_offset + pieces * channels, mask=column_mask[None, :], other=0.0)
    mean = tl.sum(count * piece_mean, axis=0) / n_rows
    difference = piece_mean - mean[None, :]
    variance = tl.sum(tl.where(count > 0, piece_squares, 0.0) + count * difference * difference, axis=0) / n_rows
    inverse_deviation = 1.0 / tl.sqrt(variance + epsilon)
    if tile == 0:
        tl.store(moments + (domain * 2) * channels + column, mean, mask=column_mask)
        tl.store(moments + (domain * 2 + 1) * channels + column, inverse_deviation, mask=column_mask)
        offset = domain * row_stride + column
        old_mean = tl.load(running_mean + offset, mask=column_mask)
        old_variance = tl.load(running_variance + offset, mask=column_mask)
        unbiased = variance * (n_rows / (n_rows - 1.0))
        tl.store(running_mean + offset, old_mean + momentum * (mean - old_mean), mask=column_mask)
        tl.store(running_variance + offset, old_variance + momentum * (unbiased - old_variance), mask=column_mask)
    scale = tl.load(weight + column, mask=column_mask, other=0.0) * inverse_deviation
    shift = tl.load(bias + column, mask=column_mask, other=0.0) - mean * scale
    row = tile * block_rows + tl.arange(0, block_rows)
    mask = (row < pooled_rows)[:, None] & column_mask[None, :]
    pooled_row = domain * pooled_rows + row
    pooled_width = width // 2
    image, pixel = pooled_row // (pooled_width * (height // 2)), pooled_row % (pooled_width * (height // 2))
    top_left = ((image * height + 2 * (pixel // pooled_width)) * width + 2 * (pixel % pooled_width)).to(tl.int64)
    start = maps + top_left[:, None] * channels + column[None, :]
    best_raw = tl.load(start, mask=mask, other=0.0)
    best = best_raw.to(tl.float32) * scale + shift
    best_index = tl.zeros([block_rows, block_columns], tl.int32)
    for corner_index in tl.static_range(1, 4):
        corner_offset = ((corner_index // 2) * width + corner_index % 2) * channels
        candidate = tl.load(start + corner_offset, mask=mask, other=0.0)
        value = candidate.to(tl.float32) * scale + shift
        best_index = tl.where(value > best, corner_index, best_index)
        best_raw = tl.where(value > best, candidate, best_raw)
        best = tl.maximum(value, best)
    best_index = tl.where(best > 0, best_index, 4)
    offset = pooled_row.to(tl.int64)[:, None] * channels + column[None, :]
    tl.store(out + offset, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=mask)
    tl.store(max_index + offset, best_index.to(tl.int8), mask=mask)
    tl.store(max_value + offset, best_raw, mask=mask)


@triton.jit
def _sum_gradients(
    max_value, gradient, max_index, moments, piece_stats, channels, rows_per_piece, pooled_rows,
    pieces: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr,
):  # fmt: skip
    """Sum the gradient, and the gradient times the normalised value, of each piece of a domain's pooled rows.

    The sums are written to ``piece_stats`` (domains, pieces, 2, C).
    """
    piece, domain = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < channels
    mean = tl.load(moments + (domain * 2) * channels + column, mask=column_mask, other=0.0)
    inverse_deviation = tl.load(moments + (domain * 2 + 1) * channels + column, mask=column_mask, other=0.0)
    first_row = piece * rows_per_piece
    end_row = tl.minimum(first_row + rows_per_piece, pooled_rows)
    total = tl.zeros([block_columns], tl.float32)
    product = tl.zeros([block_columns], tl.float32)
    for start in range(first_row, end_row, block_rows):
        row = start + tl.arange(0, block_rows)
        mask = (row < end_row)[:, None] & column_mask[None, :]
        pooled_row = domain * pooled_rows + row
        offset = pooled_row.to(tl.int64)[:, None] * channels + column[None, :]
        best_index = tl.load(max_index + offset, mask=mask, other=4).to(tl.int32)
        mask = mask & (best_index < 4)
        value = tl.load(max_value + offset, mask=mask, other=0.0)
        row_gradient = tl.load(gradient + offset, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(row_gradient, axis=0)
        product += tl.sum(row_gradient * (value.to(tl.float32) - mean) * inverse_deviation, axis=0)
    offset = piece_stats + ((domain * pieces + piece) * 2) * channels + column
    tl.store(offset, total, mask=column_mask)
    tl.store(offset + channels, product, mask=column_mask)


@triton.jit
def _map_gradient(
    maps, gradient, max_index, moments, piece_stats, weight, out, n_rows, channels, pooled_rows, height, width,
    pieces: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr,
):  # fmt: skip
    """Compute the gradient with respect to ``maps``, from the sums of ``_sum_gradients``."""
    tile, domain = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < channels
    piece_offset = piece_stats + ((domain * pieces + tl.arange(0, pieces)) * 2)[:, None] * channels + column[None, :]
    total = tl.sum(tl.load(piece_offset, mask=column_mask[None, :], other=0.0), axis=0) / n_rows
    product = tl.sum(tl.load(piece_offset + channels, mask=column_mask[None, :], other=0.0), axis=0) / n_rows
    mean = tl.load(moments + (domain * 2) * channels + column, mask=column_mask, other=0.0)
    inverse_deviation = tl.load(moments + (domain * 2 + 1) * channels + column, mask=column_mask, other=0.0)
    scale = tl.load(weight + column, mask=column_mask, other=0.0) * inverse_deviation
    row = tile * block_rows + tl.arange(0, block_rows)
    mask = (row < pooled_rows)[:, None] & column_mask[None, :]
    pooled_row = domain * pooled_rows + row
    pooled_width = width // 2
    image, pixel = pooled_row // (pooled_width * (height // 2)), pooled_row % (pooled_width * (height // 2))
    top_left = ((image * height + 2 * (pixel // pooled_width)) * width + 2 * (pixel % pooled_width)).to(tl.int64)
    offset = pooled_row.to(tl.int64)[:, None] * channels + column[None, :]
    row_gradient = tl.load(gradient + offset, mask=mask, other=0.0).to(tl.float32)
    best_index = tl.load(max_index + offset, mask=mask, other=4).to(tl.int32)
    start = top_left[:, None] * channels + column[None, :]
    for corner_index in tl.static_range(4):
        corner_offset = ((corner_index // 2) * width + corner_index % 2) * channels
        value = tl.load(maps + start + corner_offset, mask=mask, other=0.0).to(tl.float32)
        normalised = (value - mean) * inverse_deviation
        corner_gradient = tl.where(best_index == corner_index, row_gradient, 0.0)
        result = scale * (corner_gradient - total - normalised * product)
        tl.store(out + start + corner_offset, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _affine_pool(
    maps, scale, shift, out, channels, pooled_rows, height, width, block_rows: tl.constexpr, block_columns: tl.constexpr
):  # fmt: skip
    """Scale and shift each channel, take the maximum of each 2x2 window, and apply ReLU."""
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < channels
    channel_scale = tl.load(scale + column, mask=column_mask, other=0.0)
    channel_shift = tl.load(shift + column, mask=column_mask, other=0.0)
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    mask = (row < pooled_rows)[:, None] & column_mask[None, :]
    pooled_width = width // 2
    image, pixel = row // (pooled_width * (height // 2)), row % (pooled_width * (height // 2))
    top_left = ((image * height + 2 * (pixel // pooled_width)) * width + 2 * (pixel % pooled_width)).to(tl.int64)
    start = maps + top_left[:, None] * channels + column[None, :]
    best = tl.load(start, mask=mask, other=0.0).to(tl.float32) * channel_scale + channel_shift
    for corner_index in tl.static_range(1, 4):
        corner_offset = ((corner_index // 2) * width + corner_index % 2) * channels
        best = tl.maximum(
            tl.load(start + corner_offset, mask=mask, other=0.0).to(tl.float32) * channel_scale + channel_shift, best
        )
    offset = row.to(tl.int64)[:, None] * channels + column[None, :]
    tl.store(out + offset, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _cut_patches(
    images, out, image_stride, run_stride, channel_stride, row_stride, column_stride, n_rows, n_images, channels,
    height, width, out_height, out_width, columns, block_rows: tl.constexpr, block_columns: tl.constexpr,
):  # fmt: skip
    """Write the patch (C, h, w) at each position (runs, B, H', W') as a row, padded with ones up to ``columns``."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    column = tl.arange(0, block_columns)
    left, remaining = row % out_width, row // out_width
    top, remaining = remaining % out_height, remaining // out_height
    image, run = remaining % n_images, remaining // n_images
    channel, pixel = column // (height * width), column % (height * width)  # neighbours are adjacent in memory
    start = run.to(tl.int64) * run_stride + image.to(tl.int64) * image_stride + top * row_stride + left * column_stride
    offset = channel * channel_stride + (pixel // width) * row_stride + (pixel % width) * column_stride
    image_mask = (row < n_rows)[:, None] & (channel < channels)[None, :]
    value = tl.load(images + start[:, None] + offset[None, :], mask=image_mask, other=1.0)
    out_mask = (row < n_rows)[:, None] & (column < columns)[None, :]
    out_offset = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + out_offset, value.to(out.dtype.element_ty), mask=out_mask)


@triton.jit
def _adam(
    parameters, gradient, mean, square, steps_taken, skip, n_parameters, learning_rate, log_beta1, log_beta2, epsilon,
    block_size: tl.constexpr,
):  # fmt: skip
    """Update a block of one run's parameters by one step of Adam; see ``adam``."""
    run = tl.program_id(1)
    offset = tl.program_id(0) * block_size + tl.arange(0, block_size)
    skipped = tl.load(skip + run) + tl.zeros([block_size], tl.float32)
    mask = (offset < n_parameters) & (skipped < 0.5)
    offset = offset + run.to(tl.int64) * n_parameters
    step = tl.load(steps_taken + run) + 1.0
    beta1, beta2 = tl.exp(log_beta1), tl.exp(log_beta2)
    gradient_value = tl.load(gradient + offset, mask=mask, other=0.0)
    new_mean = tl.load(mean + offset, mask=mask, other=0.0)
    new_square = tl.load(square + offset, mask=mask, other=0.0)
    new_mean = new_mean + (1 - beta1) * (gradient_value - new_mean)
    new_square = beta2 * new_square + (1 - beta2) * gradient_value * gradient_value
    step_size = learning_rate / (1 - tl.exp(step * log_beta1))
    denominator = tl.sqrt(new_square) / tl.sqrt(1 - tl.exp(step * log_beta2)) + epsilon
    tl.store(mean + offset, new_mean, mask=mask)
    tl.store(square + offset, new_square, mask=mask)
    old_parameters = tl.load(parameters + offset, mask=mask, other=0.0)
    tl.store(parameters + offset, old_parameters - step_size * new_mean / denominator, mask=mask)


class _NormPoolReLU(torch.autograd.Function):
    """Batch norm by domain, max pooling and ReLU with an explicit gradient; see ``norm_pool_relu``."""

    @staticmethod
    def forward(
        ctx: Any, maps, weight, bias, running_mean, running_variance, domains, momentum, epsilon
    ) -> torch.Tensor:
        n_images, channels, height, width = maps.shape
        pixels = maps.permute(0, 2, 3, 1).contiguous()
        n_rows, pooled_rows = n_images * height * width // domains, n_images * height * width // (4 * domains)
        column_blocks = -(-channels // _TILE_CHANNELS)
        row_blocks = -(-pooled_rows // _TILE_ROWS)
        piece_stats = pixels.new_empty(domains, 2, _N_PIECES, channels, dtype=torch.float32)
        moments = pixels.new_empty(domains, 2, channels, dtype=torch.float32)
        out = pixels.new_empty(n_images, height // 2, width // 2, channels)
        max_index, max_value = torch.empty(out.shape, dtype=torch.int8, device=pixels.device), torch.empty_like(out)
        rows_per_piece = -(-n_rows // _N_PIECES)
        _compute_moments[(_N_PIECES, column_blocks, domains)](
            pixels, piece_stats, n_rows, channels, rows_per_piece, **_SUM_KERNEL_OPTIONS
        )
        inputs, outputs = (pixels, piece_stats, weight, bias), (out, max_index, max_value, moments)
        running = (running_mean, running_variance, running_mean.stride(0))
        sizes = (n_rows, channels, rows_per_piece, pooled_rows, height, width)
        _norm_pool[(row_blocks, column_blocks, domains)](
            *inputs, *outputs, *running, *sizes, momentum, epsilon, **_KERNEL_OPTIONS
        )
        ctx.save_for_backward(pixels, max_index, max_value, moments, weight)
        ctx.domains = domains
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        pixels, max_index, max_value, moments, weight = ctx.saved_tensors
        n_images, height, width, channels = pixels.shape
        domains = ctx.domains
        gradient = gradients[0].permute(0, 2, 3, 1).contiguous()
        n_rows, pooled_rows = n_images * height * width // domains, n_images * height * width // (4 * domains)
        column_blocks = -(-channels // _TILE_CHANNELS)
        piece_stats = pixels.new_empty(domains, _N_PIECES, 2, channels, dtype=torch.float32)
        out = torch.empty_like(pixels)
        sums = (max_index, moments, piece_stats)
        sizes = (pooled_rows, height, width)
        rows_per_piece = -(-pooled_rows // _N_PIECES)
        sum_grid = (_N_PIECES, column_blocks, domains)
        _sum_gradients[sum_grid](
            max_value, gradient, *sums, channels, rows_per_piece, pooled_rows, **_SUM_KERNEL_OPTIONS
        )
        map_grid = (-(-pooled_rows // _TILE_ROWS), column_blocks, domains)
        _map_gradient[map_grid](pixels, gradient, *sums, weight, out, n_rows, channels, *sizes, **_KERNEL_OPTIONS)
        bias_gradient, weight_gradient = piece_stats.sum(dim=(0, 1)).unbind()
        return out.permute(0, 3, 1, 2), weight_gradient, bias_gradient, None, None, None, None, None


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
    """Return maps (B, C, H, W) after batch norm, 2x2 max pooling and ReLU: (B, C, H / 2, W / 2). H and W must be even.

    The batch has B / ``domains`` images of the first domain, followed by as many of the second, and so on. Each domain
    is normalised by its own statistics. The running statistics (domains, C) are updated in place. They may have more
    rows.
    """
    return _NormPoolReLU.apply(maps, weight, bias, running_mean, running_variance, domains, momentum, epsilon)


def affine_pool_relu(maps: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return maps (B, C, H, W) times ``scale`` (C,) plus ``shift`` (C,), after 2x2 max pooling and ReLU.

    H and W must be even. Gradients are not supported.
    """
    n_images, channels, height, width = maps.shape
    pixels = maps.permute(0, 2, 3, 1).contiguous()
    out = pixels.new_empty(n_images, height // 2, width // 2, channels)
    pooled_rows = n_images * (height // 2) * (width // 2)
    sizes = (channels, pooled_rows, height, width)
    grid = (-(-pooled_rows // _TILE_ROWS), -(-channels // _TILE_CHANNELS))
    _affine_pool[grid](pixels, scale, shift, out, *sizes, block_rows=_TILE_ROWS, block_columns=_TILE_CHANNELS)
    return out.permute(0, 3, 1, 2)


def cut_patches(images: torch.Tensor, height: int, width: int, *, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return every patch (C, height, width) of images (B, runs, C, H, W) as a row, (runs, B, H', W', columns).

    Rows are padded with ones up to ``columns``.
    """
    n_images, n_runs, channels = images.shape[:3]
    sides = (images.shape[3] - height + 1, images.shape[4] - width + 1)
    rows = torch.empty(n_runs, n_images, *sides, columns, dtype=dtype, device=images.device)
    n_rows = rows.numel() // columns
    block_columns = 1 << (columns - 1).bit_length()
    sizes = (n_rows, n_images, channels, height, width, *sides, columns)
    _cut_patches[(-(-n_rows // _TILE_ROWS),)](
        images, rows, *images.stride(), *sizes, block_rows=_TILE_ROWS, block_columns=block_columns
    )
    return rows


def adam(
    parameters: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    steps_taken: torch.Tensor,
    skip: torch.Tensor,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Take one step of Adam for each row of ``parameters`` (runs, n), in place.

    Args:
        parameters: (runs, n), updated in place.
        gradient: (runs, n).
        mean: (runs, n), the running means of gradients, updated in place.
        square: (runs, n), the running means of squared gradients, updated in place.
        steps_taken: (runs,), the number of steps of each row, updated in place.
        skip: (runs,), 1 for rows that do not change, else 0.
        learning_rate: the learning rate.
        betas: the decays of the two running means.
        epsilon: the number that is added to the denominator.
    """
    n_runs, n_parameters = parameters.shape
    log_betas = [math.log(beta) for beta in betas]
    tensors = (parameters, gradient, mean, square, steps_taken, skip)
    settings = (n_parameters, learning_rate, *log_betas, epsilon)
    _adam[(-(-n_parameters // _BLOCK_PARAMETERS), n_runs)](*tensors, *settings, block_size=_BLOCK_PARAMETERS)
    steps_taken.add_(1 - skip)
