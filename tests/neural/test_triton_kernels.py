"""The kernels written in Triton against torch's own operations.

The kernels need Triton, which comes with torch's builds for NVIDIA GPUs; without a GPU Triton
interprets them."""

import os
from importlib import import_module

import pytest
import torch
from torch.nn import functional

from daband.neural.encoders import _domain_norm as domain_norm
from daband.neural.encoders._conv import _cut_patches
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.learning._flat_parameters import RowAdam, make_initial_moments

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def kernels():
    pytest.importorskip("triton")
    return import_module("daband.neural._triton_kernels")


def by_torch(maps, weight, bias, mean, variance, domains):
    parts = [
        functional.batch_norm(part, mean[domain], variance[domain], weight, bias, True, 0.1, 1e-5)
        for domain, part in enumerate(torch.split(maps, len(maps) // domains))
    ]
    return functional.relu(functional.max_pool2d(torch.cat(parts), 2))


@pytest.mark.parametrize(
    ("shape", "domains"), [((8, 5, 6, 8), 2), ((6, 70, 4, 4), 3), ((2, 64, 24, 24), 1)]
)
def test_values_gradients_and_running_statistics_are_those_of_torch(kernels, shape, domains):
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
            out = kernels.norm_pool_relu(
                *given, mean, variance, n_domains=domains, momentum=0.1, epsilon=1e-5
            )
        else:
            out = by_torch(*given, mean, variance, domains)
        found.append([out, mean, variance, *torch.autograd.grad(out, given, seen.to(kind))])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def test_running_statistics_pooling_and_relu_are_those_of_the_norm(kernels):
    torch.manual_seed(0)
    norm = DomainNorm(n_channels=70).to(DEVICE).eval()
    norm.running_mean.normal_()
    norm.running_variance.uniform_(0.5, 2)
    norm.batches_seen += 1
    maps = torch.randn(3, 70, 6, 4, device=DEVICE)
    with torch.no_grad():
        ours = kernels.affine_pool_relu(maps, *norm.compute_affine(1))
        theirs = norm.pool_relu(maps.cpu() if DEVICE == "cpu" else maps, rows_per_domain=(0, 3))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("runs", [1, 3])
def test_patches_are_those_of_torch(kernels, runs):
    images = torch.rand(runs, 4, 3, 9, 11).transpose(0, 1)  # as stacked runs have them
    theirs = _cut_patches(images, 5, 3, n_columns=48, dtype=torch.float32)
    ours = kernels.cut_patches(images.to(DEVICE), 5, 3, n_columns=48, dtype=torch.float32)
    assert torch.equal(ours.cpu(), theirs)


def test_steps_of_adam_are_those_of_torch_and_a_bad_row_takes_none(kernels):
    torch.manual_seed(0)
    rows = torch.randn(3, 10_000)
    moments = [make_initial_moments(row) for row in rows]
    theirs = {name: torch.stack([own[name] for own in moments]) for name in moments[0]}
    ours = {name: own.to(DEVICE, copy=True) for name, own in theirs.items()}
    mine = rows.to(DEVICE, copy=True)
    yours = rows.clone()
    by_torch = RowAdam(yours, theirs, learning_rate=1e-3)
    settings = {"learning_rate": 1e-3, "betas": (0.9, 0.999), "epsilon": 1e-8}
    for bad in ([0, 0, 0], [0, 1, 0], [0, 0, 0]):
        gradient = torch.randn(3, 10_000)
        wrong = torch.tensor(bad, dtype=torch.float32)
        by_torch.step(gradient, wrong)
        kernels.adam(
            mine,
            gradient.to(DEVICE),
            *(ours[name] for name in ("exp_avg", "exp_avg_sq", "step")),
            wrong.to(DEVICE),
            **settings,
        )
    torch.testing.assert_close(mine.cpu(), yours, rtol=1e-5, atol=1e-6)
    for name, own in theirs.items():
        # On a GPU settings are single numbers: 1 - .999 is 5e-5 of it too large there.
        torch.testing.assert_close(
            ours[name].cpu(), own, rtol=1e-5 if DEVICE == "cpu" else 1e-4, atol=1e-7
        )


def test_the_kernels_normalise_in_training_by_own_statistics_of_equal_domains():
    norm = DomainNorm(n_channels=3)
    assert norm._can_fuse((2, 2))
    assert not norm._can_fuse((3, 1))
    assert not norm._can_fuse((0, 4))
    assert not norm.eval()._can_fuse((2, 2))
    assert not DomainNorm(n_channels=3, statistics="source")._can_fuse((2, 2))


@pytest.mark.parametrize(
    ("device", "capability", "kernels_run", "bfloat16"),
    [
        ("cuda:0", 9, True, True),
        ("cuda", 8, True, True),
        ("cuda:0", 7, False, False),
        ("cuda:1", 9, False, True),  # Triton starts kernels on the current device alone
        ("cpu", 9, False, False),
    ],
)
def test_kernels_and_bfloat16_are_for_gpus_that_have_them(
    monkeypatch, device, capability, kernels_run, bfloat16
):
    found = object()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(domain_norm, "_get_capability", lambda _: capability)
    monkeypatch.setattr(domain_norm, "_import_kernels", lambda: found)
    assert (domain_norm.get_triton_kernels(torch.device(device)) is found) == kernels_run
    assert domain_norm.has_bfloat16(torch.device(device)) == bfloat16
