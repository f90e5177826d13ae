"""Properties of every registered network: unit norms, a batch equals its singles, stacked runs
equal single runs.
"""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from daband.neural.encoders._encoder import (
    CustomFeatures,
    build_encoder,
    encoders,
    make_rows_per_domain,
)
from daband.neural.learning._flat_parameters import FlatStatistics
from tests.registries import temporarily

SHAPES = [("mlp", (5,)), ("mlp", (2, 3)), ("conv", (3, 16, 16)), ("conv", (1, 18, 17))]

_ROWS = 7
_SOURCE = 4
_DOMAIN_ROWS = (_SOURCE, _ROWS - _SOURCE)


def _close(left, right):
    return torch.allclose(left, right, atol=1e-9, rtol=1e-6)


def _encoder(name, context_shape, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_encoder(name, context_shape=context_shape).double().train()


def _contexts(context_shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    contexts = torch.rand(_ROWS, *context_shape, generator=generator, dtype=torch.float64)
    contexts[_SOURCE:] += 0.5  # the target is brighter
    return contexts


@pytest.mark.parametrize(("name", "context_shape"), SHAPES)
def test_latents_have_unit_norm(name, context_shape):
    """Check that features (B, d) have norm 1 and aligned_features (B, w) the stated width, in
    training and after it.
    """
    encoder = _encoder(name, context_shape)
    for mode in (True, False):
        features, aligned = encoder.train(mode)(
            _contexts(context_shape), rows_per_domain=_DOMAIN_ROWS
        )
        assert features.shape == (
            _ROWS,
            encoder.dimension,
        ), f"features have shape {tuple(features.shape)}"
        assert aligned.shape == (
            _ROWS,
            encoder.n_aligned_features,
        ), f"aligned_features have shape {tuple(aligned.shape)}"
        norms = features.norm(dim=1)
        assert torch.allclose(norms, torch.ones_like(norms)), (
            f"features have norms {norms.tolist()}"
        )


@pytest.mark.parametrize(("name", "context_shape"), SHAPES)
def test_a_batch_equals_its_singles(name, context_shape):
    """Check that after training a context's features does not depend on the rest of its batch."""
    encoder = _encoder(name, context_shape)
    contexts = _contexts(context_shape)
    with torch.no_grad():
        encoder(contexts, rows_per_domain=_DOMAIN_ROWS)
        encoder.eval()
        mixed = encoder(contexts, rows_per_domain=_DOMAIN_ROWS).features
        for row in range(_ROWS):
            alone = encoder(
                contexts[row : row + 1],
                rows_per_domain=make_rows_per_domain(int(row >= _SOURCE), 1),
            ).features[0]
            assert _close(alone, mixed[row]), f"row {row} has another features alone"


@pytest.mark.parametrize(("name", "context_shape"), SHAPES)
def test_two_runs_equal_each_alone(name, context_shape):
    """Check that a ``is_stackable`` encoder gives stacked runs the outputs, gradients and
    statistics of single runs.
    """
    if not _encoder(name, context_shape).features.is_stackable:
        return
    batches = [_contexts(context_shape, seed) for seed in (0, 1)]
    stacked = [_encoder(name, context_shape, seed) for seed in (0, 1)]
    layout = FlatStatistics(stacked[0], n_runs=2)
    buffers = layout.unpack(layout.pack(stacked))
    named = [dict(encoder.named_parameters()) for encoder in stacked]
    both = {
        key: torch.cat([parameters[key].detach() for parameters in named]).requires_grad_()
        for key in named[0]
    }
    for mode in (True, False):
        alone = [_encoder(name, context_shape, seed).train(mode) for seed in (0, 1)]
        for encoder, other in zip(alone, stacked, strict=True):
            encoder.load_state_dict(other.state_dict())
        stacked[0].train(mode)
        options = {"rows_per_domain": _DOMAIN_ROWS, "n_runs": 2}
        output = functional_call(
            stacked[0], {**both, **buffers}, (torch.stack(batches, dim=1),), options
        )
        gradients = torch.autograd.grad(
            _score(output.features, output.aligned), list(both.values()), allow_unused=True
        )
        for run, encoder in enumerate(alone):
            features, aligned = encoder(batches[run], rows_per_domain=_DOMAIN_ROWS)
            assert _close(output.features[:, run], features), (
                f"run {run} has other features than alone"
            )
            assert _close(output.aligned[:, run], aligned), (
                f"run {run} has other aligned_features than alone"
            )
            expected = torch.autograd.grad(
                _score(features, aligned), list(encoder.parameters()), allow_unused=True
            )
            for key, gradient, wanted in zip(both, gradients, expected, strict=True):
                if wanted is not None:
                    assert gradient is not None, f"{key} gets no gradient"
                    part = gradient.view(2, *wanted.shape)[run]
                    assert _close(part, wanted), f"run {run} has another gradient of {key}"
            state = dict(encoder.named_buffers())
            for key, buffer in stacked[run].named_buffers():
                assert _close(buffer, state[key]), f"run {run} has another {key} than alone"


def _score(features, aligned):
    """Return a number that depends on every features and aligned in a different way."""
    weights = torch.cos(torch.arange(features.shape[-1], dtype=features.dtype))
    rows = torch.arange(1, len(features) + 1, dtype=features.dtype).view(
        -1, *[1] * (features.ndim - 1)
    )
    return (rows * features * weights).sum() + (rows * aligned * aligned).sum()


def test_every_registered_network_is_checked_or_needs_what_is_not_here():
    assert set(encoders.names()) - {"pretrained"} == {name for name, _ in SHAPES}


def test_a_network_that_a_user_brings_has_the_same_properties():
    def brought(*, context_shape):
        return CustomFeatures(module=nn.Linear(5, 4), context_shape=context_shape)

    with temporarily(encoders, "mine", brought):
        test_latents_have_unit_norm("mine", (5,))
        test_a_batch_equals_its_singles("mine", (5,))
