"""A source of weight w counts w times as much in the gradient as one of weight 1."""

import numpy as np
import pytest
import torch

import daband
from daband._domain_names import DomainNames


def policy_of(weights):
    domains = DomainNames(("de", "fr"), ("pl",))
    policy = daband.NeuralLinUCB(context_shape=(4,), n_arms=2, recipe="small", device="cpu", seed=0, domains=domains)
    rng = np.random.default_rng(0)
    for name in ("de", "fr"):
        contexts = rng.normal(size=(80, 4))
        policy.update(contexts, rng.integers(0, 2, 80), rng.random(80), name)
    policy.source_weights = weights
    return policy


def gradient(weights):
    """The first step's gradient, from what Adam has kept of it."""
    policy = policy_of(weights)
    policy.adapt(steps=1)
    return policy.learner.moments["exp_avg"].clone()


def test_a_gradient_is_the_weighted_sum_of_its_sources():
    both, first, half = (gradient({"de": 1.0, "fr": fr}) for fr in (1.0, 1e-9, 0.5))
    assert (both - first).abs().max() > 1e-6
    torch.testing.assert_close(half, (both + first) / 2, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("weights", [{"de": 1.0, "fr": 1.0}, {"de": 1.0, "fr": 0.0}])
def test_sources_that_count_alike_have_no_weights(weights):
    assert policy_of(weights).buffers.weights == ()


def test_weights_that_change_are_seen():
    policy = policy_of({"de": 1.0, "fr": 0.5})
    assert policy.buffers.weights == (1.0, 0.5, 1.0)
    policy.adapt(steps=2)
    policy.source_weights = {"de": 0.25, "fr": 1.0}
    assert policy.buffers.weights == (0.25, 1.0, 1.0)
    policy.adapt(steps=2)
