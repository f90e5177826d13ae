"""Devices: the uses of torch that training and experiments need besides a policy."""

from __future__ import annotations

import torch

from daband.errors import InvalidInput

__all__ = ["device_named", "gpu_name"]


def device_named(name: str) -> torch.device:
    """Return the device of this name; "auto" is a GPU if available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name) if isinstance(name, str) else None
    except RuntimeError:
        device = None
    if device is None or device.type == "meta":  # which holds no numbers
        raise InvalidInput(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f"device {name!r} was asked for, but no CUDA device is available; use device='auto'")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InvalidInput(f"device {name!r} was asked for, and this machine has cuda:0 to cuda:{count - 1}")
    return device


def gpu_name(device: str) -> str | None:
    """Return the model of the GPU that a device setting means; None for a CPU."""
    chosen = device_named(device)
    return torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else None
