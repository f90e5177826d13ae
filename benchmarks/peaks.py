"""What the machine can do at best, and what a gradient step asks of it: products, copies, operations, traffic."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

_REPEATS = 7


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of a few repeats: the rate at best is what is asked for."""
    seconds = []
    for _ in range(_REPEATS):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def peaks(device: torch.device) -> dict[str, float]:
    """Measured rates: float32 products as torch is set up (and with TF32 on a GPU), and a copy, read and write."""
    size = 8192 if device.type == "cuda" else 1536
    a, b = torch.rand(size, size, device=device), torch.rand(size, size, device=device)
    rates = {"product_flops": 2 * size**3 / _fastest(lambda: a @ b, device)}
    if device.type == "cuda":
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        rates["product_tf32_flops"] = 2 * size**3 / _fastest(lambda: a @ b, device)
        torch.backends.cuda.matmul.allow_tf32 = before
    numbers = torch.zeros((256 if device.type == "cuda" else 16) << 20, device=device)
    other = torch.empty_like(numbers)
    rates["copy_bytes"] = 2 * numbers.nbytes / _fastest(lambda: other.copy_(numbers), device)
    return rates


class _Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bytes that operations read and write; views move nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not func.is_view:
            self.bytes += sum(tensor.nbytes for tensor in [*read, *written])
        return result


class Demand(dict[str, float]):
    """What one step asks for: ``flops`` of products and convolutions, ``bytes`` read and written by its operations."""


def demand_of(step: Callable[[], object]) -> Demand:
    """Count what one step does; it is taken three times."""
    step()
    with FlopCounterMode(display=False) as flops:
        step()
    with _Traffic() as traffic:
        step()
    return Demand(flops=float(flops.get_total_flops()), bytes=float(traffic.bytes))


def forget_peak_memory(device: torch.device) -> None:
    """Start a new measurement of the peak."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # then the peak is that of the whole process so far


def peak_memory(device: torch.device) -> int:
    """Bytes at the peak: of the device's allocator, or of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = platform.processor() or platform.machine()
    try:
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    except OSError:
        pass
    return {
        "cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None, "load_average": os.getloadavg(),
        "python": platform.python_version(), "torch": torch.__version__,
    }  # fmt: skip
