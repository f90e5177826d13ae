"""What a GPU has besides torch's own operations."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch

__all__ = ["triton_kernels"]


def triton_kernels(device: torch.device) -> ModuleType | None:
    """``daband.triton_kernels`` for a GPU where Triton is installed, as it is beside a torch for NVIDIA GPUs."""
    return _module() if device.type == "cuda" else None


@cache
def _module() -> ModuleType | None:
    return import_module("daband.triton_kernels") if find_spec("triton") else None
