"""Choose devices, and set torch's precision for gradient steps.

Gradient steps use float32, and TF32 on GPUs that have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from daband.errors import InvalidInput

#: The minimum major compute capability of NVIDIA GPUs with bfloat16 (Ampere).
_MIN_BFLOAT16_CAPABILITY = 8


@contextmanager
def use_single_precision() -> Iterator[None]:
    """Make new tensors float32 in this block or decorated function, whatever torch's default dtype
    is.
    """
    previous_dtype = torch.get_default_dtype()
    # usually true; then nothing changes that other threads could see
    if previous_dtype == torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(previous_dtype)


@contextmanager
def use_tf32_matmul() -> Iterator[None]:
    """Use TF32 for matrix products on a GPU in this block, if torch uses it for convolutions.

    The head is not affected: its regressions are computed in float64.
    """
    previous_setting = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = previous_setting


def find_device(name: str) -> torch.device:
    """Return the torch device with this name; "auto" is a GPU if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name) if isinstance(name, str) else None
    except RuntimeError:
        device = None
    if device is None or device.type == "meta":  # a "meta" device stores no values
        raise InvalidInput(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(
            f"device={name!r} is not available: torch finds no CUDA device; use device='auto'"
        )
    if device.type == "cuda" and (device.index or 0) >= (n_devices := torch.cuda.device_count()):
        raise InvalidInput(
            f"device must be cuda:0 to cuda:{n_devices - 1} on this machine, got {name!r}"
        )
    return device


def find_gpu_name(device_name: str) -> str | None:
    """Return the model name of the GPU that a device setting selects; None for a CPU."""
    device = find_device(device_name)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def has_bfloat16(device: torch.device) -> bool:
    """Return True if the device is a GPU that supports bfloat16."""
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device)[0] >= _MIN_BFLOAT16_CAPABILITY
