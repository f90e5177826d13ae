"""Where a policy's network calculates."""

from __future__ import annotations

import torch

from daband.errors import InvalidInput

__all__ = ["device_named"]


def device_named(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU where there is one."""
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
    return device
