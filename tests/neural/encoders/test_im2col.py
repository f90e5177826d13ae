import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from daband.neural.encoders import _conv
from daband.neural.encoders._conv import GroupedConvolution, convolve_by_im2col, is_im2col_faster
from daband.neural.encoders._encoder import build_encoder


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
    ours = convolve_by_im2col(images, weight, shift)
    theirs = functional.conv2d(images.flatten(1, 2), weight, shift, groups=runs)
    torch.testing.assert_close(ours, theirs)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    seen = torch.randn_like(theirs)
    for got, right in zip(
        torch.autograd.grad(ours, wanted, seen),
        torch.autograd.grad(theirs, wanted, seen),
        strict=True,
    ):
        torch.testing.assert_close(got, right)


def test_gradients_of_patches_are_those_of_finite_differences():
    images, weight, shift = problem(runs=2, inputs=1, outputs=2)
    assert torch.autograd.gradcheck(lambda w, b: convolve_by_im2col(images, w, b), (weight, shift))


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("normalise", [True, False])
def test_an_encoder_of_patches_gives_what_one_of_convolutions_gives(monkeypatch, runs, normalise):
    torch.manual_seed(0)
    alone = [
        build_encoder("conv", context_shape=(3, 20, 17), normalise=normalise).double()
        for _ in range(runs)
    ]
    network = alone[0]
    parameters = {
        name: (
            torch.cat([dict(own.named_parameters())[name] for own in alone])
            .detach()
            .requires_grad_()
        )
        for name, _ in network.named_parameters()
    }
    buffers = {
        name: torch.cat([own] * runs, dim=-1) if own.ndim == 2 else own
        for name, own in network.named_buffers()
    }
    contexts = torch.rand(8, *([runs] if runs > 1 else []), 3, 20, 17, dtype=torch.float64)
    settings = {"rows_per_domain": (4, len(contexts) - 4), "n_runs": runs}
    results = []
    used = []

    def counted(*given):
        used.append(given)
        return convolve_by_im2col(*given)

    monkeypatch.setattr(_conv, "convolve_by_im2col", counted)
    for rule in (is_im2col_faster, lambda images, _: not images.requires_grad):
        monkeypatch.setattr(_conv, "is_im2col_faster", rule)
        given = {**parameters, **{name: own.clone() for name, own in buffers.items()}}
        features, aligned = functional_call(network, given, (contexts,), settings)
        loss = features[..., 0].sum() + aligned.square().mean()
        results.append([features, aligned, *torch.autograd.grad(loss, list(parameters.values()))])
    # the first layer alone: what comes behind it needs a gradient itself
    assert len(used) == 1 + contexts.is_cuda
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_no_images_are_no_features():
    features, aligned = build_encoder("conv", context_shape=(3, 20, 20))(torch.rand(0, 3, 20, 20))
    assert (features.shape, len(aligned)) == ((0, 64), 0)


@pytest.mark.parametrize("groups", [1, 5])
def test_a_grouped_convolution_and_its_gradient_are_those_of_torch(groups):
    torch.manual_seed(0)
    maps = torch.randn(4, 3 * groups, 9, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2 * groups, 3, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *given: GroupedConvolution.apply(*given, groups), (maps, weight)
    )
    torch.testing.assert_close(
        GroupedConvolution.apply(maps, weight, groups),
        functional.conv2d(maps, weight, groups=groups),
    )
