"""What is done for speed on the CPU gives what the plain way gives: memory layout and order of
layers.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional

from daband.neural._daband import DABand
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import build_encoder
from daband.policies._checkpoints import load_policy

SHAPE = (3, 20, 20)


def played(policy, rounds=96, seed=0):
    rng = np.random.default_rng(seed)
    contexts = rng.integers(0, 256, (rounds, *SHAPE), dtype=np.uint8)
    policy.play(contexts, np.eye(4)[contexts.reshape(rounds, -1)[:, 0] // 64])
    policy.observe_target(255 - contexts)
    return policy


def fresh():
    return DABand(
        context_shape=SHAPE, n_arms=4, recipe="small", feedback="one_hot", device="cpu", seed=1
    )


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


@pytest.mark.parametrize("rows", [(7,), (0, 7)])
def test_norms_that_are_folded_into_convolutions_do_what_norms_do(rows):
    torch.manual_seed(0)
    encoder = build_encoder("conv", context_shape=SHAPE, channels=(8, 12)).double()
    for norm in encoder.features.norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    for _ in range(3):
        encoder(torch.rand(12, *SHAPE).double(), rows_per_domain=(5, 7))
    contexts = torch.rand(7, *SHAPE).double()
    folded = encoder.eval().features(contexts, rows_per_domain=rows)
    maps = contexts
    for layer, norm in zip(encoder.features.layers, encoder.features.norms, strict=True):
        maps = functional.max_pool2d(functional.relu(norm(layer(maps), rows_per_domain=rows)), 2)
    torch.testing.assert_close(folded, maps.flatten(1))


def test_a_saved_policy_has_the_shapes_of_the_plain_layout_and_goes_on_to_the_last_bit(tmp_path):
    policy = played(fresh())
    policy.adapt(4)
    assert policy.learner.encoder.features.layers[1].weight.is_contiguous(
        memory_format=torch.channels_last
    )
    policy.save(tmp_path / "p.safetensors")
    again = load_policy(tmp_path / "p.safetensors")
    for some in (policy, again):
        played(some, seed=1)
        some.adapt(4)
    one = policy.learner.state()
    other = again.learner.state()
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    # the modules' parameters are parts of the vector that the optimiser changes
    learner = again.learner
    with torch.no_grad():
        learner.parameter_vector.fill_(7.0)
    assert all((parameter == 7).all() for parameter in learner.encoder.parameters())
    for parameter in learner.encoder.parameters():  # kernels read 16 bytes at once
        assert (
            parameter.ndim == 1
            or parameter.data_ptr() % 16 == learner.parameter_vector.data_ptr() % 16
        )
