"""Choose devices, and set torch's precision and number of CPU threads for gradient steps.

Gradient steps use float32, and TF32 on GPUs that have it. The number of threads follows a fixed
rule, so that results on the same machine are equal bit for bit. More threads are not always faster.
With small networks they have too little work and wait for one another, and on a busy machine this
makes a step several times as long.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from daband.errors import InvalidInput

#: The minimum number of multiplications in a forward pass for which several threads are used.
_MIN_THREADED_MULTIPLICATIONS = 1e9
#: Environment variables by which users set the number of threads.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
#: The number of threads when daband was imported.
_N_DEFAULT_THREADS = torch.get_num_threads()


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


def needs_threads(network: nn.Module, *, context_shape: tuple[int, ...], n_contexts: int) -> bool:
    """Return True if a forward pass over ``n_contexts`` contexts is enough work for more than one
    thread.

    Multiplications are counted as if the output of every convolution had the size of the context.
    This is accurate enough to distinguish small networks from large ones.
    """
    n_positions = math.prod(context_shape[1:])
    n_multiplications = sum(
        weight.numel() * (n_positions if weight.ndim > 2 else 1) for weight in network.parameters()
    )
    return n_multiplications * n_contexts >= _MIN_THREADED_MULTIPLICATIONS


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Use one thread in this block, unless the user set the number of threads, in torch or in the
    environment.
    """
    n_threads = torch.get_num_threads()
    if (
        n_threads == 1
        or n_threads != _N_DEFAULT_THREADS
        or any(os.environ.get(name) for name in _THREAD_VARIABLES)
    ):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


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
