"""Policies learn in the target how much their source rounds count."""

import numpy as np
import pytest

import daband

N_SOURCE = 1500
N_TARGET = 900


def make_policy(name, **settings):
    policy_class = {"linucb": daband.LinUCB, "mixture": daband.Mixture}[name]
    # bonuses of a mixture are multiplied by the alpha of its members, 0.15
    alpha = {"linucb": 1.0, "mixture": 6.0}[name]
    settings = {"alpha": alpha, "transform": daband.Standardise(), **settings}
    return policy_class(context_shape=(6,), n_arms=3, **settings)


def make_streams(sign):
    """Return contexts and rewards of all arms in the source and in a target, whose effects have
    this sign.
    """
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(6, 3))
    contexts = rng.normal(size=(N_SOURCE + N_TARGET, 6))
    signs = np.where(np.arange(len(contexts)) < N_SOURCE, 1.0, sign)
    rewards = signs[:, None] * (contexts @ theta) + 0.5 * rng.normal(size=(len(contexts), 3))
    return contexts, rewards


def train(policy, contexts, rewards, n_source=N_SOURCE):
    policy.prepare(contexts[:N_SOURCE], contexts[N_SOURCE:])
    if n_source:
        policy.play(contexts[:n_source], rewards[:n_source], domain="source")
    return policy


@pytest.mark.parametrize("name", ["linucb", "mixture"])
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["same", "reversed"])
def test_a_trained_policy_is_not_worse_than_a_cold_start(name, sign):
    contexts, rewards = make_streams(sign)
    target = contexts[N_SOURCE:], rewards[N_SOURCE:]
    warm = train(make_policy(name), contexts, rewards)
    cold = train(make_policy(name), contexts, rewards, n_source=0)
    warm_reward = warm.play(*target, domain="target").reward
    cold_reward = cold.play(*target, domain="target").reward
    assert warm_reward[300:].mean() > cold_reward[300:].mean() - 0.05
    if sign > 0:
        assert warm_reward[:100].mean() > cold_reward[:100].mean() + 0.2
        assert warm.source_worth.worth > 0.05
    else:
        assert warm.source_worth.worth < 0.01
    assert warm.source_worth.rounds == pytest.approx(N_SOURCE * warm.source_worth.worth)


def test_a_policy_follows_a_target_that_changes():
    contexts, rewards = make_streams(1.0)
    policy = train(make_policy("linucb"), contexts, rewards)
    policy.play(contexts[:900], rewards[:900], domain="target")
    received = policy.play(contexts[N_SOURCE:], -rewards[N_SOURCE:], domain="target").reward
    best = (-rewards[N_SOURCE:]).max(axis=1)
    assert received[:50].mean() < 0
    assert received[600:].mean() > best[600:].mean() - 0.4


@pytest.mark.parametrize("name", ["linucb", "mixture"])
def test_update_play_and_a_saved_file_learn_alike(name, tmp_path):
    contexts, rewards = make_streams(-1.0)
    played = train(make_policy(name), contexts, rewards, n_source=300)
    played.save(tmp_path / "trained.safetensors")
    looped = daband.load(tmp_path / "trained.safetensors")
    target = contexts[N_SOURCE:], rewards[N_SOURCE:]
    decision = played.play(target[0][:100], target[1][:100], domain="target")
    for row in range(100):
        rows = slice(row, row + 1)
        arm = looped.select(target[0][rows], domain="target").arm
        assert arm[0] == decision.arm[row]
        looped.update(target[0][rows], arm, target[1][row, arm], domain="target")
        if row == 50:
            looped.save(tmp_path / "looped.safetensors")
            looped = daband.load(tmp_path / "looped.safetensors")
    one, other = (policy.decide(contexts, domain="target") for policy in (played, looped))
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-9)
    daband.export(played, tmp_path / "policy.daband", domain="target")
    exported = daband.load_deployed(tmp_path / "policy.daband").decide(
        contexts[:50], round_number=played.rounds_decided
    )
    decision = played.decide(contexts[:50], "target")
    np.testing.assert_array_equal(exported.arm, decision.arm)


def test_a_fixed_worth_is_kept_and_saved(tmp_path):
    contexts, rewards = make_streams(-1.0)
    policy = train(make_policy("mixture", source_worth=0.25), contexts, rewards, n_source=400)
    assert policy.source_worth == pytest.approx((1.0, 400.0))
    policy.play(contexts[N_SOURCE:], rewards[N_SOURCE:], domain="target")
    policy.save(tmp_path / "policy.safetensors")
    loaded = daband.load(tmp_path / "policy.safetensors")
    for saved in (policy, loaded):
        assert saved.source_worth.worth == pytest.approx(0.25)
        assert saved.source_worth.rounds == pytest.approx(100.0)
    assert loaded.settings()["source_worth"] == 0.25


@pytest.mark.parametrize("value", [-0.1, float("nan"), "much"])
def test_a_wrong_worth_is_an_error(value):
    with pytest.raises(daband.errors.InvalidInput, match="source_worth"):
        make_policy("linucb", source_worth=value)


def test_a_target_log_changes_the_worth(tmp_path):
    pl = pytest.importorskip("polars")
    contexts, rewards = make_streams(-1.0)
    policy = train(make_policy("linucb"), contexts, rewards)
    arms = np.random.default_rng(1).integers(3, size=N_TARGET)
    frame = pl.DataFrame(contexts[N_SOURCE:], schema=[f"x{i}" for i in range(6)])
    received = rewards[N_SOURCE:][np.arange(N_TARGET), arms]
    frame = frame.with_columns(
        arm=pl.Series(arms), reward=pl.Series(received), propensity=pl.lit(1 / 3)
    )
    frame.write_parquet(tmp_path / "week.parquet")
    daband.learn_log(policy, tmp_path / "week.parquet")
    assert policy.source_worth.worth < 0.01
    other = train(make_policy("linucb"), contexts, rewards)
    other.update(
        contexts[N_SOURCE:], arms, received, domain="target", propensities=np.full(N_TARGET, 1 / 3)
    )
    assert other.source_worth.worth == pytest.approx(policy.source_worth.worth)
