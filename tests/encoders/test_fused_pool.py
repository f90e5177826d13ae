"""Norm, pooling and ReLU in fused kernels against torch's own operations.

The kernels need Triton, which comes with torch's builds for NVIDIA GPUs; without a GPU Triton interprets them.
"""

import os

import pytest
import torch
from torch.nn import functional

from daband.encoders import DomainNorm
from daband.encoders.normalisation import fused_kernels

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def by_torch(maps, weight, bias, mean, variance, domains):
    parts = [
        functional.batch_norm(part, mean[domain], variance[domain], weight, bias, True, 0.1, 1e-5)
        for domain, part in enumerate(torch.split(maps, len(maps) // domains))
    ]
    return functional.relu(functional.max_pool2d(torch.cat(parts), 2))


@pytest.mark.parametrize(("shape", "domains"), [((8, 5, 6, 8), 2), ((6, 70, 4, 4), 3), ((2, 64, 24, 24), 1)])
def test_values_gradients_and_running_statistics_are_those_of_torch(shape, domains):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    maps = (2 * torch.randn(shape, device=DEVICE) + 1).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(2, shape[1], device=DEVICE)
    running = torch.rand(2, domains, shape[1], device=DEVICE)
    seen = torch.randn(shape[0], shape[1], shape[2] // 2, shape[3] // 2, device=DEVICE)
    found = []
    for kind in (torch.float32, torch.float64):
        given = [tensor.detach().to(kind).requires_grad_() for tensor in (maps, weight, bias)]
        mean, variance = running.to(kind, copy=True)
        if kind == torch.float32:
            out = fused_kernels().norm_pool_relu(*given, mean, variance, domains=domains, momentum=0.1, epsilon=1e-5)
        else:
            out = by_torch(*given, mean, variance, domains)
        found.append([out, mean, variance, *torch.autograd.grad(out, given, seen.to(kind))])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def test_the_kernels_are_for_training_on_a_gpu_by_own_statistics_of_equal_domains():
    maps = torch.zeros(4, 3, 6, 6, device=DEVICE)
    norm = DomainNorm(channels=3).to(DEVICE)
    assert norm._fuses(maps, (2, 2)) == maps.is_cuda
    assert not norm._fuses(maps, (3, 1))
    assert not norm._fuses(maps, (0, 4))
    assert not norm._fuses(maps[..., :5], (2, 2))
    assert not norm.eval()._fuses(maps, (2, 2))
    assert not DomainNorm(channels=3, statistics="source").to(DEVICE)._fuses(maps, (2, 2))
