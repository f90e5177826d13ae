"""Provide Triton kernels for NVIDIA GPUs, which read and write large tensors fewer times than torch
does.

``norm_pool_relu`` computes batch norm by domain, 2x2 max pooling and ReLU. Between a convolution
and the pooled maps, torch reads and writes the large maps about fifteen times per step. These
kernels read them four times and write them once. ``affine_pool_relu`` does the same with fixed
statistics, for inference. ``cut_patches`` cuts images into patches, so that a convolution is a
matrix product (im2col). ``adam`` updates the parameters of all stacked runs together. Sums are
computed in a fixed order, so that results are reproducible.

Triton comes with torch's builds for NVIDIA GPUs. With other builds this module is never imported.
The kernels come first, and the functions that start them at the end.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls,
# no-warn-return-any

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

#: The number of pieces into which the rows of a domain are divided for sums; a power of two.
_N_PIECES = 64
#: The number of rows that one program (an instance of a kernel) processes.
_BLOCK_ROWS = 32
#: The number of rows that one program reads at once for sums. Many rows hide the latency of memory.
_SUM_BLOCK_ROWS = 128
#: The number of channels that one program processes.
_BLOCK_CHANNELS = 64
#: The number of parameters that one program of Adam processes.
_BLOCK_PARAMETERS = 1024
#: The options of kernels that process maps.
_KERNEL_OPTIONS = {
    "n_pieces": _N_PIECES,
    "block_rows": _BLOCK_ROWS,
    "block_columns": _BLOCK_CHANNELS,
}
#: The options of kernels that compute sums over maps.
_SUM_KERNEL_OPTIONS = {**_KERNEL_OPTIONS, "block_rows": _SUM_BLOCK_ROWS, "num_warps": 8}

# In the kernels, maps are matrices in channels-last order: a row is a pixel of an image, a column
# is a channel. The images of a domain are contiguous. Tensors are passed as pointers to their first
# element. The arguments are:
#
# * ``maps`` is the input of batch norm, ``height`` and ``width`` are the sides of its images, and
#   ``n_rows`` is the number of its rows per domain. ``pooled_maps`` is the output, with
#   ``n_pooled_rows`` rows per domain.
# * ``piece_stats`` has a statistic, such as a sum, for each piece of a domain's rows; see
#   ``_N_PIECES``. A piece has ``rows_per_piece`` rows.
# * ``normalisation`` (domains, 2, C) has the mean and 1 / standard deviation of each channel.
# * ``weight`` and ``bias`` (C,) are the parameters of batch norm. ``running_mean`` and
#   ``running_variance`` have a row per domain, and ``row_stride`` is the distance between these
#   rows.
# * ``gradient`` is the gradient with respect to ``pooled_maps``.
#
# Names in the singular, such as ``row``, ``column`` and ``offset``, are vectors or matrices: one
# index for each element of the block that a program processes. A ``..._pointer`` is a tensor's
# pointer plus such offsets.


@triton.jit
def _compute_moments(
    maps,
    piece_stats,
    n_rows,
    n_channels,
    rows_per_piece,
    n_pieces: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Compute the mean of each piece of a domain's rows, and the sum of squared differences from
    that mean.

    Both are written to ``piece_stats`` (domains, 2, pieces, C).
    """
    piece = tl.program_id(0)
    domain = tl.program_id(2)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < n_channels
    first_row = piece * rows_per_piece
    end_row = tl.minimum(first_row + rows_per_piece, n_rows)
    total = tl.zeros([block_columns], tl.float32)
    squares = tl.zeros([block_columns], tl.float32)
    for block_start in range(first_row, end_row, block_rows):
        row = block_start + tl.arange(0, block_rows)
        mask = (row < end_row)[:, None] & column_mask[None, :]
        offset = (domain * n_rows + row).to(tl.int64)[:, None] * n_channels + column[None, :]
        value = tl.load(maps + offset, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(value, axis=0)
        squares += tl.sum(value * value, axis=0)
    count = tl.maximum(end_row - first_row, 1).to(tl.float32)
    mean = total / count
    stats_pointer = piece_stats + (domain * 2 * n_pieces + piece) * n_channels + column
    tl.store(stats_pointer, mean, mask=column_mask)
    tl.store(
        stats_pointer + n_pieces * n_channels,
        tl.maximum(squares - total * mean, 0.0),
        mask=column_mask,
    )


@triton.jit
def _norm_pool(
    maps,
    piece_stats,
    weight,
    bias,
    pooled_maps,
    max_index,
    max_value,
    normalisation,
    running_mean,
    running_variance,
    row_stride,
    n_rows,
    n_channels,
    rows_per_piece,
    n_pooled_rows,
    height,
    width,
    momentum,
    epsilon,
    n_pieces: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Normalise, max-pool and apply ReLU, and update the running statistics.

    The result is written to ``pooled_maps``. ``max_index`` gets the index 0 to 3 of each maximum in
    its 2x2 window, or 4 if ReLU returns 0. ``max_value`` gets the maximum before normalisation.
    ``normalisation`` is written, too.
    """
    row_block = tl.program_id(0)
    domain = tl.program_id(2)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < n_channels
    piece = tl.arange(0, n_pieces)
    count = tl.maximum(tl.minimum(rows_per_piece, n_rows - piece * rows_per_piece), 0).to(
        tl.float32
    )[:, None]
    piece_pointer = (
        piece_stats + (domain * 2 * n_pieces + piece)[:, None] * n_channels + column[None, :]
    )
    piece_mean = tl.load(piece_pointer, mask=column_mask[None, :], other=0.0)
    piece_squares = tl.load(
        piece_pointer + n_pieces * n_channels, mask=column_mask[None, :], other=0.0
    )
    mean = tl.sum(count * piece_mean, axis=0) / n_rows
    difference = piece_mean - mean[None, :]
    variance = (
        tl.sum(tl.where(count > 0, piece_squares, 0.0) + count * difference * difference, axis=0)
        / n_rows
    )
    inverse_deviation = 1.0 / tl.sqrt(variance + epsilon)
    if row_block == 0:
        tl.store(normalisation + (domain * 2) * n_channels + column, mean, mask=column_mask)
        tl.store(
            normalisation + (domain * 2 + 1) * n_channels + column,
            inverse_deviation,
            mask=column_mask,
        )
        offset = domain * row_stride + column
        old_mean = tl.load(running_mean + offset, mask=column_mask)
        old_variance = tl.load(running_variance + offset, mask=column_mask)
        # The running variance is unbiased.
        new_variance = old_variance + momentum * (
            variance * (n_rows / (n_rows - 1.0)) - old_variance
        )
        tl.store(running_mean + offset, old_mean + momentum * (mean - old_mean), mask=column_mask)
        tl.store(running_variance + offset, new_variance, mask=column_mask)
    scale = tl.load(weight + column, mask=column_mask, other=0.0) * inverse_deviation
    shift = tl.load(bias + column, mask=column_mask, other=0.0) - mean * scale
    row = row_block * block_rows + tl.arange(0, block_rows)
    mask = (row < n_pooled_rows)[:, None] & column_mask[None, :]
    pooled_row = domain * n_pooled_rows + row
    pooled_width = width // 2
    image = pooled_row // (pooled_width * (height // 2))
    pixel = pooled_row % (pooled_width * (height // 2))
    top_left = (
        (image * height + 2 * (pixel // pooled_width)) * width + 2 * (pixel % pooled_width)
    ).to(tl.int64)
    window_pointer = maps + top_left[:, None] * n_channels + column[None, :]
    best_input = tl.load(window_pointer, mask=mask, other=0.0)
    best_output = best_input.to(tl.float32) * scale + shift
    best_index = tl.zeros([block_rows, block_columns], tl.int32)
    for corner_index in tl.static_range(1, 4):
        corner_offset = ((corner_index // 2) * width + corner_index % 2) * n_channels
        corner_input = tl.load(window_pointer + corner_offset, mask=mask, other=0.0)
        corner_output = corner_input.to(tl.float32) * scale + shift
        best_index = tl.where(corner_output > best_output, corner_index, best_index)
        best_input = tl.where(corner_output > best_output, corner_input, best_input)
        best_output = tl.maximum(corner_output, best_output)
    best_index = tl.where(best_output > 0, best_index, 4)
    offset = pooled_row.to(tl.int64)[:, None] * n_channels + column[None, :]
    tl.store(
        pooled_maps + offset,
        tl.maximum(best_output, 0.0).to(pooled_maps.dtype.element_ty),
        mask=mask,
    )
    tl.store(max_index + offset, best_index.to(tl.int8), mask=mask)
    tl.store(max_value + offset, best_input, mask=mask)


@triton.jit
def _sum_gradients(
    max_value,
    gradient,
    max_index,
    normalisation,
    piece_stats,
    n_channels,
    rows_per_piece,
    n_pooled_rows,
    n_pieces: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Sum the gradient, and the gradient times the normalised value, of each piece of a domain's
    pooled rows.

    The sums are written to ``piece_stats`` (domains, pieces, 2, C).
    """
    piece = tl.program_id(0)
    domain = tl.program_id(2)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < n_channels
    mean = tl.load(normalisation + (domain * 2) * n_channels + column, mask=column_mask, other=0.0)
    inverse_deviation = tl.load(
        normalisation + (domain * 2 + 1) * n_channels + column, mask=column_mask, other=0.0
    )
    first_row = piece * rows_per_piece
    end_row = tl.minimum(first_row + rows_per_piece, n_pooled_rows)
    gradient_sum = tl.zeros([block_columns], tl.float32)
    product_sum = tl.zeros([block_columns], tl.float32)
    for block_start in range(first_row, end_row, block_rows):
        row = block_start + tl.arange(0, block_rows)
        mask = (row < end_row)[:, None] & column_mask[None, :]
        pooled_row = domain * n_pooled_rows + row
        offset = pooled_row.to(tl.int64)[:, None] * n_channels + column[None, :]
        best_index = tl.load(max_index + offset, mask=mask, other=4).to(tl.int32)
        mask = mask & (best_index < 4)
        value = tl.load(max_value + offset, mask=mask, other=0.0)
        row_gradient = tl.load(gradient + offset, mask=mask, other=0.0).to(tl.float32)
        gradient_sum += tl.sum(row_gradient, axis=0)
        product_sum += tl.sum(
            row_gradient * (value.to(tl.float32) - mean) * inverse_deviation, axis=0
        )
    stats_pointer = piece_stats + ((domain * n_pieces + piece) * 2) * n_channels + column
    tl.store(stats_pointer, gradient_sum, mask=column_mask)
    tl.store(stats_pointer + n_channels, product_sum, mask=column_mask)


@triton.jit
def _compute_map_gradient(
    maps,
    gradient,
    max_index,
    normalisation,
    piece_stats,
    weight,
    map_gradient,
    n_rows,
    n_channels,
    n_pooled_rows,
    height,
    width,
    n_pieces: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Compute the gradient with respect to ``maps``, from the sums of ``_sum_gradients``."""
    row_block = tl.program_id(0)
    domain = tl.program_id(2)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < n_channels
    stats_row = (domain * n_pieces + tl.arange(0, n_pieces)) * 2
    piece_pointer = piece_stats + stats_row[:, None] * n_channels + column[None, :]
    mean_gradient = (
        tl.sum(tl.load(piece_pointer, mask=column_mask[None, :], other=0.0), axis=0) / n_rows
    )
    mean_product = (
        tl.sum(tl.load(piece_pointer + n_channels, mask=column_mask[None, :], other=0.0), axis=0)
        / n_rows
    )
    mean = tl.load(normalisation + (domain * 2) * n_channels + column, mask=column_mask, other=0.0)
    inverse_deviation = tl.load(
        normalisation + (domain * 2 + 1) * n_channels + column, mask=column_mask, other=0.0
    )
    scale = tl.load(weight + column, mask=column_mask, other=0.0) * inverse_deviation
    row = row_block * block_rows + tl.arange(0, block_rows)
    mask = (row < n_pooled_rows)[:, None] & column_mask[None, :]
    pooled_row = domain * n_pooled_rows + row
    pooled_width = width // 2
    image = pooled_row // (pooled_width * (height // 2))
    pixel = pooled_row % (pooled_width * (height // 2))
    top_left = (
        (image * height + 2 * (pixel // pooled_width)) * width + 2 * (pixel % pooled_width)
    ).to(tl.int64)
    offset = pooled_row.to(tl.int64)[:, None] * n_channels + column[None, :]
    row_gradient = tl.load(gradient + offset, mask=mask, other=0.0).to(tl.float32)
    best_index = tl.load(max_index + offset, mask=mask, other=4).to(tl.int32)
    window_offset = top_left[:, None] * n_channels + column[None, :]
    for corner_index in tl.static_range(4):
        corner_offset = ((corner_index // 2) * width + corner_index % 2) * n_channels
        value = tl.load(maps + window_offset + corner_offset, mask=mask, other=0.0).to(tl.float32)
        normalised = (value - mean) * inverse_deviation
        corner_gradient = tl.where(best_index == corner_index, row_gradient, 0.0)
        result = scale * (corner_gradient - mean_gradient - normalised * mean_product)
        tl.store(
            map_gradient + window_offset + corner_offset,
            result.to(map_gradient.dtype.element_ty),
            mask=mask,
        )


@triton.jit
def _affine_pool(
    maps,
    scale,
    shift,
    pooled_maps,
    n_channels,
    n_pooled_rows,
    height,
    width,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Scale and shift each channel, take the maximum of each 2x2 window, and apply ReLU."""
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    column_mask = column < n_channels
    channel_scale = tl.load(scale + column, mask=column_mask, other=0.0)
    channel_shift = tl.load(shift + column, mask=column_mask, other=0.0)
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    mask = (row < n_pooled_rows)[:, None] & column_mask[None, :]
    pooled_width = width // 2
    image = row // (pooled_width * (height // 2))
    pixel = row % (pooled_width * (height // 2))
    top_left = (
        (image * height + 2 * (pixel // pooled_width)) * width + 2 * (pixel % pooled_width)
    ).to(tl.int64)
    window_pointer = maps + top_left[:, None] * n_channels + column[None, :]
    best_output = (
        tl.load(window_pointer, mask=mask, other=0.0).to(tl.float32) * channel_scale + channel_shift
    )
    for corner_index in tl.static_range(1, 4):
        corner_offset = ((corner_index // 2) * width + corner_index % 2) * n_channels
        corner_input = tl.load(window_pointer + corner_offset, mask=mask, other=0.0).to(tl.float32)
        best_output = tl.maximum(corner_input * channel_scale + channel_shift, best_output)
    offset = row.to(tl.int64)[:, None] * n_channels + column[None, :]
    tl.store(
        pooled_maps + offset,
        tl.maximum(best_output, 0.0).to(pooled_maps.dtype.element_ty),
        mask=mask,
    )


@triton.jit
def _cut_patches(
    images,
    patches,
    image_stride,
    run_stride,
    channel_stride,
    row_stride,
    column_stride,
    n_rows,
    n_images,
    n_channels,
    height,
    width,
    out_height,
    out_width,
    n_columns,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Write the patch (C, h, w) at each position (runs, B, H', W') as a row, padded with ones up to
    ``n_columns``.
    """
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    column = tl.arange(0, block_columns)
    left = row % out_width
    remaining = row // out_width
    top = remaining % out_height
    remaining = remaining // out_height
    image = remaining % n_images
    run = remaining // n_images
    channel = column // (height * width)
    pixel = column % (height * width)  # neighbours are adjacent in memory
    start = (
        run.to(tl.int64) * run_stride
        + image.to(tl.int64) * image_stride
        + top * row_stride
        + left * column_stride
    )
    offset = (
        channel * channel_stride + (pixel // width) * row_stride + (pixel % width) * column_stride
    )
    pixel_mask = (row < n_rows)[:, None] & (channel < n_channels)[None, :]
    value = tl.load(images + start[:, None] + offset[None, :], mask=pixel_mask, other=1.0)
    patch_mask = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    patch_offset = row.to(tl.int64)[:, None] * n_columns + column[None, :]
    tl.store(patches + patch_offset, value.to(patches.dtype.element_ty), mask=patch_mask)


@triton.jit
def _adam(
    parameters,
    gradient,
    mean,
    mean_square,
    steps_taken,
    is_skipped,
    n_parameters,
    learning_rate,
    log_beta1,
    log_beta2,
    epsilon,
    block_size: tl.constexpr,
):
    """Update a block of one run's parameters by one step of Adam; see ``adam``."""
    run = tl.program_id(1)
    offset = tl.program_id(0) * block_size + tl.arange(0, block_size)
    run_is_skipped = tl.load(is_skipped + run) + tl.zeros([block_size], tl.float32)
    mask = (offset < n_parameters) & (run_is_skipped < 0.5)
    offset = offset + run.to(tl.int64) * n_parameters
    step_number = tl.load(steps_taken + run) + 1.0
    beta1 = tl.exp(log_beta1)
    beta2 = tl.exp(log_beta2)
    gradient_value = tl.load(gradient + offset, mask=mask, other=0.0)
    new_mean = tl.load(mean + offset, mask=mask, other=0.0)
    new_mean_square = tl.load(mean_square + offset, mask=mask, other=0.0)
    new_mean = new_mean + (1 - beta1) * (gradient_value - new_mean)
    new_mean_square = beta2 * new_mean_square + (1 - beta2) * gradient_value * gradient_value
    step_size = learning_rate / (1 - tl.exp(step_number * log_beta1))
    denominator = tl.sqrt(new_mean_square) / tl.sqrt(1 - tl.exp(step_number * log_beta2)) + epsilon
    tl.store(mean + offset, new_mean, mask=mask)
    tl.store(mean_square + offset, new_mean_square, mask=mask)
    old_parameters = tl.load(parameters + offset, mask=mask, other=0.0)
    tl.store(parameters + offset, old_parameters - step_size * new_mean / denominator, mask=mask)


class _NormPoolReLU(torch.autograd.Function):
    """Batch norm by domain, max pooling and ReLU with an explicit gradient; see
    ``norm_pool_relu``.
    """

    @staticmethod
    def forward(
        ctx: Any, maps, weight, bias, running_mean, running_variance, n_domains, momentum, epsilon
    ) -> torch.Tensor:
        n_images, n_channels, height, width = maps.shape
        pixels = maps.permute(0, 2, 3, 1).contiguous()
        n_rows = n_images * height * width // n_domains
        n_pooled_rows = n_images * height * width // (4 * n_domains)
        n_column_blocks = -(-n_channels // _BLOCK_CHANNELS)
        n_row_blocks = -(-n_pooled_rows // _BLOCK_ROWS)
        piece_stats = pixels.new_empty(n_domains, 2, _N_PIECES, n_channels, dtype=torch.float32)
        normalisation = pixels.new_empty(n_domains, 2, n_channels, dtype=torch.float32)
        pooled_maps = pixels.new_empty(n_images, height // 2, width // 2, n_channels)
        max_index = torch.empty_like(pooled_maps, dtype=torch.int8)
        max_value = torch.empty_like(pooled_maps)
        rows_per_piece = -(-n_rows // _N_PIECES)
        _compute_moments[(_N_PIECES, n_column_blocks, n_domains)](
            pixels, piece_stats, n_rows, n_channels, rows_per_piece, **_SUM_KERNEL_OPTIONS
        )
        inputs = (pixels, piece_stats, weight, bias)
        outputs = (pooled_maps, max_index, max_value, normalisation)
        running = (running_mean, running_variance, running_mean.stride(0))
        sizes = (n_rows, n_channels, rows_per_piece, n_pooled_rows, height, width)
        _norm_pool[(n_row_blocks, n_column_blocks, n_domains)](
            *inputs, *outputs, *running, *sizes, momentum, epsilon, **_KERNEL_OPTIONS
        )
        ctx.save_for_backward(pixels, max_index, max_value, normalisation, weight)
        ctx.n_domains = n_domains
        return pooled_maps.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        pixels, max_index, max_value, normalisation, weight = ctx.saved_tensors
        n_images, height, width, n_channels = pixels.shape
        n_domains = ctx.n_domains
        gradient = gradients[0].permute(0, 2, 3, 1).contiguous()
        n_rows = n_images * height * width // n_domains
        n_pooled_rows = n_images * height * width // (4 * n_domains)
        n_column_blocks = -(-n_channels // _BLOCK_CHANNELS)
        piece_stats = pixels.new_empty(n_domains, _N_PIECES, 2, n_channels, dtype=torch.float32)
        map_gradient = torch.empty_like(pixels)
        sums = (max_index, normalisation, piece_stats)
        sizes = (n_rows, n_channels, n_pooled_rows, height, width)
        rows_per_piece = -(-n_pooled_rows // _N_PIECES)
        sum_grid = (_N_PIECES, n_column_blocks, n_domains)
        _sum_gradients[sum_grid](
            max_value,
            gradient,
            *sums,
            n_channels,
            rows_per_piece,
            n_pooled_rows,
            **_SUM_KERNEL_OPTIONS,
        )
        map_grid = (-(-n_pooled_rows // _BLOCK_ROWS), n_column_blocks, n_domains)
        _compute_map_gradient[map_grid](
            pixels, gradient, *sums, weight, map_gradient, *sizes, **_KERNEL_OPTIONS
        )
        bias_gradient, weight_gradient = piece_stats.sum(dim=(0, 1)).unbind()
        return (
            map_gradient.permute(0, 3, 1, 2),
            weight_gradient,
            bias_gradient,
            None,
            None,
            None,
            None,
            None,
        )


def norm_pool_relu(
    maps: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_variance: torch.Tensor,
    *,
    n_domains: int,
    momentum: float,
    epsilon: float,
) -> torch.Tensor:
    """Return maps (B, C, H, W) after batch norm, 2x2 max pooling and ReLU: (B, C, H / 2, W / 2).

    H and W must be even.

    The batch has B / ``n_domains`` images of the first domain, followed by as many of the second,
    and so on. Each domain is normalised by its own statistics. The running statistics (domains, C)
    are updated in place. They may have more rows.
    """
    return _NormPoolReLU.apply(
        maps, weight, bias, running_mean, running_variance, n_domains, momentum, epsilon
    )


def affine_pool_relu(maps: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return maps (B, C, H, W) times ``scale`` (C,) plus ``shift`` (C,), after 2x2 max pooling and
    ReLU.

    H and W must be even. Gradients are not supported.
    """
    n_images, n_channels, height, width = maps.shape
    pixels = maps.permute(0, 2, 3, 1).contiguous()
    pooled_maps = pixels.new_empty(n_images, height // 2, width // 2, n_channels)
    n_pooled_rows = n_images * (height // 2) * (width // 2)
    sizes = (n_channels, n_pooled_rows, height, width)
    grid = (-(-n_pooled_rows // _BLOCK_ROWS), -(-n_channels // _BLOCK_CHANNELS))
    _affine_pool[grid](
        pixels,
        scale,
        shift,
        pooled_maps,
        *sizes,
        block_rows=_BLOCK_ROWS,
        block_columns=_BLOCK_CHANNELS,
    )
    return pooled_maps.permute(0, 3, 1, 2)


def cut_patches(
    images: torch.Tensor, height: int, width: int, *, n_columns: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return every patch (C, height, width) of images (B, runs, C, H, W) as a row, (runs, B, H',
    W', n_columns).

    Rows are padded with ones up to ``n_columns``.
    """
    n_images, n_runs, n_channels = images.shape[:3]
    out_sides = (images.shape[3] - height + 1, images.shape[4] - width + 1)
    patches = torch.empty(
        n_runs, n_images, *out_sides, n_columns, dtype=dtype, device=images.device
    )
    n_rows = patches.numel() // n_columns
    block_columns = 1 << (n_columns - 1).bit_length()
    sizes = (n_rows, n_images, n_channels, height, width, *out_sides, n_columns)
    _cut_patches[(-(-n_rows // _BLOCK_ROWS),)](
        images,
        patches,
        *images.stride(),
        *sizes,
        block_rows=_BLOCK_ROWS,
        block_columns=block_columns,
    )
    return patches


def adam(
    parameters: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    mean_square: torch.Tensor,
    steps_taken: torch.Tensor,
    is_skipped: torch.Tensor,
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
        mean_square: (runs, n), the running means of squared gradients, updated in place.
        steps_taken: (runs,), the number of steps of each row, updated in place.
        is_skipped: (runs,), 1 for rows that do not change, else 0.
        learning_rate: the learning rate.
        betas: the decays of the two running means.
        epsilon: the number that is added to the denominator.
    """
    n_runs, n_parameters = parameters.shape
    log_betas = [math.log(beta) for beta in betas]
    tensors = (parameters, gradient, mean, mean_square, steps_taken, is_skipped)
    scalars = (n_parameters, learning_rate, *log_betas, epsilon)
    _adam[(-(-n_parameters // _BLOCK_PARAMETERS), n_runs)](
        *tensors, *scalars, block_size=_BLOCK_PARAMETERS
    )
    steps_taken.add_(1 - is_skipped)
