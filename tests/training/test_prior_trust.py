"""Continued training with prior trust: a bad hand-over recovers, a good one keeps its start, a killed one resumes."""

import numpy as np
import pytest

import daband
from daband.domains import ArraySource
from daband.errors import InvalidInput


def arrays(n, *, seed=0, shift=0):
    """Contexts around one centre per arm, and labels; with ``shift`` every label is another arm's."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    contexts = np.eye(4)[labels] * 2 + rng.normal(scale=0.3, size=(n, 4))
    return contexts.astype(np.float32), (labels + shift) % 4


def target(shift, *, n=400):
    return ArraySource(*arrays(n, seed=1, shift=shift), n_arms=4)


def trained(kind, **settings):
    policy = kind(context_shape=(4,), n_arms=4, **settings)
    daband.train(policy, source=ArraySource(*arrays(1200), n_arms=4), episodes=12, episode_length=100)
    return policy


def regret(policy, shift, trust, **options):
    return daband.continue_on_target(
        policy, target=target(shift), rounds=400, episode_length=50, prior_trust=trust, **options
    ).total_regret


SMALL = {"recipe": {"base": "small", "learning": {"steps": 4, "batch": 16}}, "device": "cpu", "feedback": "one_hot"}


@pytest.mark.parametrize(("kind", "settings"), [(daband.LinUCB, {}), (daband.NeuralLinUCB, SMALL)])
def test_a_relabelled_target_is_learned_and_the_same_one_keeps_its_head_start(kind, settings):
    ways = {trust: [regret(trained(kind, **settings), shift, trust) for shift in (0, 1)] for trust in (1.0, None)}
    assert ways[None][0] <= ways[1.0][0] + 10
    assert ways[None][1] < 0.5 * ways[1.0][1]


def test_the_setting_is_chosen_and_written_down(tmp_path):
    policy = trained(daband.LinUCB)
    policy.trust_prior(0.25)
    assert policy._head.trust.discounts == (0.25,)
    fresh = daband.LinUCB(context_shape=(4,), n_arms=4)
    regret(fresh, 0, None)
    assert fresh._head.trust is None  # it has learned nothing that could be discounted
    for wrong in ("sometimes", 1.5, -0.1, True):
        with pytest.raises(InvalidInput, match="prior_trust must be"):
            policy.trust_prior(wrong)
    with pytest.raises(InvalidInput, match="not offered"):
        daband.Random(context_shape=(4,), n_arms=4).trust_prior(0.5)
    regret(trained(daband.LinUCB), 1, "adaptive", directory=tmp_path)
    with pytest.raises(InvalidInput, match="prior_trust"):
        regret(trained(daband.LinUCB), 1, 0.5, directory=tmp_path)


class Killed(Exception):
    pass


def die(record):
    if record["episode"] == 4:
        raise Killed


@pytest.mark.parametrize(("kind", "settings"), [(daband.LinUCB, {}), (daband.NeuralLinUCB, SMALL)])
def test_a_killed_phase_resumes_to_the_same_result(kind, settings, tmp_path):
    whole = regret(trained(kind, **settings), 1, None, directory=tmp_path / "whole", save_every=0)
    with pytest.raises(Killed):
        regret(trained(kind, **settings), 1, None, directory=tmp_path / "cut", save_every=0, progress=die)
    policy = trained(kind, **settings)
    assert regret(policy, 1, None, directory=tmp_path / "cut", save_every=0) == whole
    policy.save(tmp_path / "p.safetensors")
    loaded = daband.load(tmp_path / "p.safetensors")
    assert loaded._head.trust.acting == policy._head.trust.acting
    some = arrays(20, seed=2)[0]
    np.testing.assert_array_equal(loaded.decide(some, "target").mean, policy.decide(some, "target").mean)
    policy.save(tmp_path / "without.safetensors", replay=False)
    lean = daband.load(tmp_path / "without.safetensors")
    np.testing.assert_allclose(lean.decide(some, "target").mean, policy.decide(some, "target").mean, atol=1e-9)
