"""The types of numbers that gradient steps work in: float32, on tensor cores where there are any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["single_precision", "tf32_matmul"]


@contextmanager
def single_precision() -> Iterator[None]:
    """Within this block, or the function it decorates, new tensors are float32, whatever the user's default is."""
    before = torch.get_default_dtype()
    if before == torch.float32:  # the usual case touches nothing that other threads see
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def tf32_matmul() -> Iterator[None]:
    """Within this block a GPU's products use TF32, as its convolutions do anyway; the head stays in float64."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
