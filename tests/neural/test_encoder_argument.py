"""``encoder=``: a name, settings, or a custom module."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import daband
from daband.errors import InvalidInput
from daband.neural import DenseSettings, EncoderSettings
from daband.neural.encoders._mlp import MlpFeatures
from daband.policies import load_policy
from tests.neural.test_neural_linucb import SHAPE, fingerprint, make, problem, small, trained


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(SHAPE[0], 6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, contexts):
        if self.training:
            self.calls += 1
        return torch.relu(self.layer(contexts))


def test_a_name_or_settings_replace_the_recipes_network():
    named = make(encoder="mlp")
    assert named.recipe == small()  # its options stay where the network is the same
    other = make(recipe=replace(small(), encoder=EncoderSettings(name="conv")), encoder="mlp")
    assert (other.recipe.encoder.name, other.recipe.encoder.options) == ("mlp", {})
    settings = EncoderSettings(
        name="mlp", options={"widths": (8,)}, dense=DenseSettings(dimension=5)
    )
    policy = make(encoder=settings)
    assert policy.recipe.encoder == settings
    assert isinstance(policy.learner.encoder.features, MlpFeatures)
    assert policy.encode(problem(3)[0]).shape == (3, 5)
    with pytest.raises(InvalidInput, match=r"encoder .*7$"):
        make(encoder=7)


def test_a_custom_module_is_trained_saved_by_its_weights_and_given_anew(tmp_path):
    network = Net()
    before = copy.deepcopy(network.state_dict())
    policy = trained(make(encoder=network))
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in before.items())
    assert not torch.equal(
        policy.learner.encoder.features.module.layer.weight, network.layer.weight
    )
    assert policy.recipe.encoder.name == "custom"
    policy.save(tmp_path / "p.safetensors")
    with pytest.raises(InvalidInput, match=r"p\.safetensors .*\(Net\)"):
        load_policy(tmp_path / "p.safetensors")
    again = load_policy(tmp_path / "p.safetensors", encoder=Net())
    assert fingerprint(again) == fingerprint(policy)
    contexts, _ = problem(9)
    np.testing.assert_array_equal(
        again.decide(contexts, "target").mean, policy.decide(contexts, "target").mean
    )
    twin = copy.deepcopy(policy)
    for some in (policy, again, twin):
        trained(some, start=3, episodes=1)
    assert fingerprint(again) == fingerprint(policy) == fingerprint(twin)


def test_a_custom_module_gets_vectors_of_the_pairs_shape():
    contexts = np.random.default_rng(0).normal(size=(96, 8))
    pair = daband.domains.from_arrays(source=(contexts, np.arange(96) % 2), target=contexts)
    policy = daband.DABand.for_pair(pair, encoder=nn.Linear(8, 32), recipe="small", device="cpu")
    assert policy.feature_shape == (8,)
    daband.train(policy, source=pair.source, target=pair.target, episodes=1)


def test_a_recipe_of_a_custom_module_needs_the_module():
    recipe = make(encoder=Net()).recipe
    with pytest.raises(InvalidInput, match=r"encoder.*module"):
        make(recipe=recipe)
    make(recipe=recipe, encoder=Net())
