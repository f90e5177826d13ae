"""What fails half-way leaves a policy as it was: its file before and after is the same, byte for
byte.
"""

import numpy as np
import pytest

import daband
from daband.policies import policies
from daband.policies._checkpoints import read_checkpoint
from daband.policies._settings import get_setting_defaults

OPTIONAL = {
    "policy/learner.run_steps",
    "policy/learner.gate.sums",
    "policy/steps",
    "policy/step/n_inputs",
    "policy/cross_fitted",
}
"""What a file may lack, because the policy knows it or computes it again."""


def content(policy, tmp_path):
    policy.save(tmp_path / "probe")
    return (tmp_path / "probe").read_bytes()


def trained(name, *, seed, rounds=40):
    kind = policies.get(name)
    settings = {"transform": daband.Standardise(), "recipe": "small", "device": "cpu"}
    known = {key: value for key, value in settings.items() if key in get_setting_defaults(kind)}
    policy = kind(context_shape=(4,), n_arms=3, seed=seed, **known)
    draws = np.random.default_rng(seed)
    policy.prepare(draws.normal(size=(30, 4)))
    policy.play(draws.normal(size=(rounds, 4)), draws.integers(0, 2, (rounds, 3)).astype(float))
    policy.update(draws.normal(size=(2, 4)), [0, 1], [1.0, 0.0], ids=["a", 7 + seed])
    policy.observe_target(draws.normal(size=(20, 4)))
    policy.adapt(1)
    return policy


@pytest.mark.parametrize("name", policies.names())
def test_a_restore_that_fails_changes_nothing(name, tmp_path):
    policy = trained(name, seed=0)
    other = trained(name, seed=1, rounds=60)
    other.deploy("target")
    other.save(tmp_path / "other")
    arrays = read_checkpoint(tmp_path / "other").arrays
    before = content(policy, tmp_path)
    for damaged in sorted(arrays.keys() - OPTIONAL):
        broken = {key: array for key, array in arrays.items() if key != damaged}
        with pytest.raises((KeyError, ValueError, RuntimeError)):
            policy.restore(broken)
        assert content(policy, tmp_path) == before, damaged
    with pytest.raises(ValueError, match=r"range 2\.0 to 1\.0"):
        policy.restore({**arrays, "rewards": np.array([1.0, 2.0, 2.0, 2.0, 1.0])})
    assert content(policy, tmp_path) == before
    policy.restore(arrays)
    assert policy.rounds_learned == other.rounds_learned
    assert policy.domain == "target"


def test_a_transform_that_was_not_fitted_is_not_after_a_failure(tmp_path):
    other = trained("linucb", seed=1)
    other.save(tmp_path / "other")
    arrays = read_checkpoint(tmp_path / "other").arrays
    del arrays["policy/primal.theta"]
    fresh = daband.LinUCB(context_shape=(4,), n_arms=3, transform=daband.Standardise())
    with pytest.raises(KeyError):
        fresh.restore(arrays)
    assert not fresh.transform.fitted
