"""``encoder=``: a name, settings, or a module of one's own; images with the channels last,
or grey.
"""

import copy
import warnings
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
from tests.neural.test_neural_linucb import ARMS, SHAPE, fingerprint, make, problem, small, trained


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


def test_a_custom_module_with_batch_norm_is_exported_and_loaded(tmp_path):
    network = nn.Sequential(nn.Linear(SHAPE[0], 6), nn.BatchNorm1d(6), nn.ReLU())
    policy = trained(make(encoder=network))
    policy.save(tmp_path / "p.safetensors")
    contexts, _ = problem(9)
    expected = policy.decide(contexts, "target").mean
    again = load_policy(tmp_path / "p.safetensors", encoder=network)
    np.testing.assert_array_equal(again.decide(contexts, "target").mean, expected)
    daband.export(policy, tmp_path / "p.daband", domain="target")
    deployed = daband.load_deployed(tmp_path / "p.daband")
    np.testing.assert_array_equal(
        deployed.decide(contexts).arm, policy.decide(contexts, "target").arm
    )


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


SMALL = {
    "base": "small",
    "encoder": {"options": {"channels": [4]}},
    "learning": {"steps": 2, "batch": 8},
}


def images(shape, n=24):
    return np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)


def played(policy, contexts):
    rewards = np.eye(2)[np.arange(len(contexts)) % 2]
    policy.play(contexts, rewards)
    policy.observe_target(contexts)
    policy.adapt()
    return policy


@pytest.mark.parametrize(("shape", "axes"), [((16, 18, 3), (0, 2, 3, 1)), ((16, 18), None)])
def test_images_with_the_channels_last_and_grey_ones_are_images(shape, axes, tmp_path):
    first = images((3, 16, 18) if axes else (1, 16, 18))
    given = first.transpose(axes) if axes else first[:, 0]
    reference = played(
        daband.DABand(context_shape=first.shape[1:], n_arms=2, recipe=SMALL, device="cpu"), first
    )
    policy = played(daband.DABand(context_shape=shape, n_arms=2, recipe=SMALL, device="cpu"), given)
    assert policy.recipe == reference.recipe
    np.testing.assert_array_equal(policy.decide(given).mean, reference.decide(first).mean)
    np.testing.assert_array_equal(policy.encode(given[:3]), reference.encode(first[:3]))
    policy.save(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(
        load_policy(tmp_path / "p.safetensors").decide(given).mean, reference.decide(first).mean
    )


def test_a_custom_module_gets_images_as_they_are():
    seen = []

    class Last(nn.Flatten):
        def forward(self, contexts):
            seen.append(tuple(contexts.shape[1:]))
            return super().forward(contexts)

    policy = daband.DABand(
        context_shape=(16, 18, 3), n_arms=2, recipe=SMALL, encoder=Last(), device="cpu"
    )
    played(policy, images((16, 18, 3)))
    assert set(seen) == {(16, 18, 3)}


def test_floating_point_images_beyond_the_unit_range_are_warned_of_once():
    floats = images((3, 16, 16)).astype(np.float32)

    def policy():
        return daband.DABand(context_shape=(3, 16, 16), n_arms=2, recipe=SMALL, device="cpu")

    with pytest.warns(UserWarning, match="255") as warned:
        played(policy(), floats)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        played(policy(), images((3, 16, 16)))
        played(policy(), floats / 255)
        trained(make(), episodes=1).play(problem(8)[0] * 1000, np.eye(ARMS)[np.zeros(8, int)])
