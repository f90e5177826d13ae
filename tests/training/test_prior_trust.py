"""Continued training with prior trust: a bad hand-over recovers, a good one keeps its start, a killed one resumes."""

import numpy as np
import pytest

import daband
from daband._files import locked
from daband.domains.readers._arrays import ArraySource
from daband.errors import FolderInUse, InvalidInput


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


def test_a_folder_that_is_refused_leaves_the_prior_as_it_was(tmp_path):
    pair = daband.domains.load("synthetic", tiny=True)
    policies = [daband.LinUCB.for_pair(pair, seed=0) for _ in range(2)]
    for policy in policies:
        daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=16)
    given = {"target": pair.target_labelled, "rounds": 16, "episode_length": 8, "prior_trust": 0.1}
    with locked(tmp_path, wait=False), pytest.raises(FolderInUse):
        daband.continue_on_target(policies[0], **given, directory=tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    with pytest.raises(InvalidInput, match="other settings"):
        daband.continue_on_target(policies[0], **given, directory=tmp_path / "other")
    for policy, place in zip(policies, (tmp_path / "free", None), strict=True):
        daband.continue_on_target(policy, **given, directory=place)
    contexts = pair.target.read(np.arange(5))
    np.testing.assert_array_equal(*(policy.decide(contexts, "target").width for policy in policies))
