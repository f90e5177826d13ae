"""Properties of every registered network: unit norms, and a batch equals its singles."""

import pytest
import torch
from torch import nn

from daband.neural.encoders._encoder import (
    CustomFeatures,
    build_encoder,
    encoders,
    make_rows_per_domain,
)
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


def test_every_registered_network_is_checked_or_needs_what_is_not_here():
    assert set(encoders.names()) == {name for name, _ in SHAPES}


def test_a_network_that_a_user_brings_has_the_same_properties():
    def brought(*, context_shape):
        return CustomFeatures(module=nn.Linear(5, 4), context_shape=context_shape)

    with temporarily(encoders, "mine", brought):
        test_latents_have_unit_norm("mine", (5,))
        test_a_batch_equals_its_singles("mine", (5,))
