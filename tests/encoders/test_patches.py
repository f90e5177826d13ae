import pytest
import torch
from torch.nn import functional

from daband.encoders import build_encoder
from daband.encoders.patches import convolved_patches, worth_patches


def problem(*, runs, inputs=3, outputs=4, bias=True):
    torch.manual_seed(0)
    images = torch.rand(6, runs, inputs, 9, 11, dtype=torch.float64)
    weight = torch.randn(runs * outputs, inputs, 5, 5, dtype=torch.float64, requires_grad=True)
    shift = torch.randn(runs * outputs, dtype=torch.float64, requires_grad=True) if bias else None
    return images, weight, shift


@pytest.mark.parametrize("inputs", [1, 3, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("runs", [1, 3])
def test_products_of_patches_are_a_convolution_and_so_is_their_gradient(inputs, bias, runs):
    images, weight, shift = problem(runs=runs, inputs=inputs, bias=bias)
    wanted = [own for own in (weight, shift) if own is not None]
    ours = convolved_patches(images, weight, shift)
    theirs = functional.conv2d(images.flatten(1, 2), weight, shift, groups=runs)
    torch.testing.assert_close(ours, theirs)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    seen = torch.randn_like(theirs)
    for got, right in zip(
        torch.autograd.grad(ours, wanted, seen), torch.autograd.grad(theirs, wanted, seen), strict=True
    ):
        torch.testing.assert_close(got, right)


def test_gradients_of_patches_are_those_of_finite_differences():
    images, weight, shift = problem(runs=2, inputs=1, outputs=2)
    assert torch.autograd.gradcheck(lambda w, b: convolved_patches(images, w, b), (weight, shift))


def test_patches_are_left_alone_where_they_would_gain_nothing():
    images, weight, _ = problem(runs=1)
    assert not worth_patches(images, weight)  # no GPU
    if torch.cuda.is_available():
        images, weight = images.cuda(), weight.detach().cuda().requires_grad_()
        assert worth_patches(images, weight)
        assert not worth_patches(images, weight.detach())
        assert not worth_patches(images.requires_grad_(), weight)
        with torch.no_grad():
            assert not worth_patches(images.detach(), weight)
        many = torch.empty(1, 1, 1, device="cuda").expand(4096, 1, 3, 220, 220)
        assert not worth_patches(many, weight)


def test_an_encoder_of_patches_gives_what_one_of_convolutions_gives(monkeypatch):
    encoder = build_encoder("conv", context_shape=(3, 20, 20)).double()
    contexts = torch.rand(8, 3, 20, 20, dtype=torch.float64)
    results = []
    for patches in (False, True):
        monkeypatch.setattr(
            "daband.encoders.conv.worth_patches",
            lambda images, _, use=patches: use and images.ndim == 5 and images.shape[2] == 3,
        )
        encoder.zero_grad()
        latent, tap = encoder(contexts, n_source=4)
        (latent[:, 0].sum() + tap.square().mean()).backward()
        results.append([latent.detach(), tap.detach(), *(own.grad.clone() for own in encoder.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
