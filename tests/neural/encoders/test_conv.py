"""The order of layers and the memory layout of ``conv`` give what the plain way gives."""

import pytest
import torch
from torch.nn import functional

from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import build_encoder

SHAPE = (3, 20, 20)


def plain_features(features, contexts, n_source):
    """The layers as they are usually written: ReLU, then pooling, each domain sliced out and
    normalised.
    """
    maps = contexts.contiguous()
    for layer, norm in zip(features.layers, features.norms, strict=True):
        maps = layer(maps).contiguous()
        if isinstance(norm, DomainNorm):
            parts = [maps[:n_source], maps[n_source:]]
            maps = torch.cat(
                [
                    functional.batch_norm(part, None, None, norm.weight, norm.bias, True, 0.1, 1e-5)
                    for part in parts
                ]
            )
        maps = functional.max_pool2d(functional.relu(maps), 2)
    return maps.flatten(1)


@pytest.mark.parametrize("normalise", [True, False])
def test_features_and_gradients_equal_the_plain_order_in_the_plain_layout(normalise):
    torch.manual_seed(0)
    fast = build_encoder("conv", context_shape=SHAPE, channels=(8, 12), normalise=normalise)
    fast.double().to(memory_format=torch.channels_last)
    slow = build_encoder(
        "conv", context_shape=SHAPE, channels=(8, 12), normalise=normalise
    ).double()
    slow.load_state_dict(fast.state_dict())
    contexts = torch.rand(12, *SHAPE).double()
    outputs = [
        fast.features(contexts, rows_per_domain=(5, len(contexts) - 5)),
        plain_features(slow.features, contexts, 5),
    ]
    weights = torch.randn(outputs[0].shape, dtype=torch.float64)
    for output in outputs:
        (output * weights).sum().backward()
    torch.testing.assert_close(*outputs)
    for ours, theirs in zip(fast.features.parameters(), slow.features.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
