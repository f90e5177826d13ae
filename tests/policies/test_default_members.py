"""Mixtures of runs that differ in their seed: common rounds and a common teacher."""

import numpy as np
import pytest

import daband
from daband.errors import InvalidInput

STYLE = {
    "recipe": {"base": "small", "weights": {"pseudo_labels": 0.5, "data_divergence": 0.3}},
    "device": "cpu",
}


def pair():
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(600, 6)).astype(np.float32)
    labels = contexts[:, :3].argmax(axis=1)
    target = contexts[::-1] + np.float32(0.2)
    return daband.domains.from_arrays(
        source=(contexts, labels), target=target.copy(), shift="style", feedback="bandit"
    )


@pytest.fixture(scope="module")
def trained():
    policy = daband.DABand.for_pair(pair(), members=3, seed=4, **STYLE)
    daband.train(policy, source=pair().source, target=pair().target, episodes=6)
    return policy


def target_means(policy):
    return policy.decide(pair().target.read(np.arange(400)), "target").mean


def test_members_differ_in_their_seed_and_decide_by_their_mean(trained):
    assert isinstance(trained, daband.Mixture)
    assert [member.seed for member in trained.members.values()] == [4, 5, 6]
    assert list(trained.weights.values()) == pytest.approx([1 / 3] * 3)
    assert {policy.rounds_learned for policy in (trained, *trained.members.values())} == {6 * 64}
    parts = [target_means(member) for member in trained.members.values()]
    assert np.abs(parts[0] - parts[1]).max() > 1e-3
    np.testing.assert_allclose(target_means(trained), np.mean(parts, axis=0), atol=1e-12)


def test_members_are_saved_and_exported(trained, tmp_path):
    trained.save(tmp_path / "p.safetensors")
    again = daband.load(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(target_means(again), target_means(trained))
    assert again.settings() == trained.settings()
    daband.export(trained, tmp_path / "p.daband", domain="target")
    rows = pair().target.read(np.arange(50))
    deployed = daband.load_deployed(tmp_path / "p.daband").decide(rows)
    np.testing.assert_allclose(deployed.mean, trained.decide(rows, "target").mean, atol=1e-4)


def test_the_number_of_members_is_checked():
    with pytest.raises(InvalidInput, match="members"):
        daband.DABand.for_pair(pair(), members=0)
    alone = daband.DABand.for_pair(pair(), members="auto", device="cpu")
    assert isinstance(alone, daband.DABand)
