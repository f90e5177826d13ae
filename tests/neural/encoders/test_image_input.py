"""Images with the channels last, grey ones, and floating-point pixels."""

import warnings

import numpy as np
import pytest
from torch import nn

import daband
from daband.policies import load_policy
from tests.neural.test_neural_linucb import ARMS, make, problem, trained

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
