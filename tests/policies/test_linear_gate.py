"""LinUCB beside the network: who acts, and that held-out contexts reach no gradient step."""

import numpy as np
import pytest

import daband
from daband.linear import Exploration
from daband.policies.linear_gate import (
    LinearGate,
    calibrated,
    not_clearly_worse,
    ridge_coefficients,
    values_of_arms,
)

DIM = 6


def _gate(**changes):
    settings = {"feature_shape": (DIM,), "n_arms": 2, "arms": "disjoint", "ridge": 1.0, "share": 0.5, "seed": 3}
    settings["one_hot"] = False
    return LinearGate(exploration=Exploration("ucb", 1.0), **{**settings, **changes})


def _rounds(n, seed=0, dim=DIM):
    draw = np.random.default_rng(seed)
    return draw.standard_normal((n, dim)).astype(np.float32), draw.integers(2, size=n), draw.random(n)


def _policy(kind=daband.NeuralLinUCB, dim=DIM, **learning):
    recipe = {"base": "small", "learning": {"steps": 2, **learning}}
    return kind(context_shape=(dim,), n_arms=2, recipe=recipe, device="cpu", seed=0)


def test_a_context_is_held_out_every_time_it_comes_or_never():
    gate = _gate()
    contexts, arms, rewards = _rounds(200)
    first = gate.hold_out(contexts, arms, rewards)
    again = gate.hold_out(contexts[::-1].astype(np.float64), arms, rewards)
    assert 60 < first.sum() < 140
    np.testing.assert_array_equal(first, again[::-1])
    assert len(gate.rounds[0]) == 2 * first.sum()


def test_no_more_contexts_are_held_out_than_are_of_use():
    gate = _gate(share=0.99)
    contexts, arms, rewards = _rounds(2000)
    assert gate.hold_out(contexts, arms, rewards).sum() == 512


def test_steps_draw_from_none_of_the_held_out_contexts():
    policy = _policy(linear_gate=0.5)
    contexts, arms, rewards = _rounds(100)
    policy.update(contexts, arms, rewards)
    stored = {row.tobytes() for row in policy.buffers.source.columns()[0].numpy()}
    held = {row.tobytes() for row in policy._gate.rounds[0]}
    assert stored
    assert held
    assert not stored & held
    assert len(stored) + len(held) == 100
    assert policy.counts.sum() == 100  # the heads learn all rounds


def test_closed_it_is_linucb():
    pair = daband.domains.load("synthetic", tiny=True)
    linear = daband.LinUCB.for_pair(pair, seed=0)
    # 80 rounds hold out too few contexts for the network to act.
    neural = daband.DABand.for_pair(pair, seed=0, recipe={"base": "small", "learning": {"steps": 1}}, device="cpu")
    for policy in (linear, neural):
        daband.train(policy, source=pair.source, target=pair.target, episodes=5, episode_length=16)
    assert neural.linear_acts
    rows = pair.target.read(np.arange(50))
    np.testing.assert_array_equal(linear.select(rows, "target").arm, neural.select(rows, "target").arm)


@pytest.mark.parametrize(("network_knows", "acts"), [(True, "network"), (False, "linear")])
def test_linucb_acts_where_its_choices_are_worth_clearly_more(network_knows, acts):
    gate = _gate(one_hot=True)
    contexts, arms, _ = _rounds(400)
    linear, crossed = contexts[:, 0] > 0, contexts[:, 0] * contexts[:, 1] > 0
    best = (crossed if network_knows else linear).astype(int)  # nothing linear in the first
    rewards = (arms == best).astype(float)
    gate.fit_transform(contexts)
    held = gate.hold_out(contexts, arms, rewards)
    predicted = np.random.default_rng(9).random((held.sum(), 2))
    if network_knows:
        predicted = 0.2 * predicted + 0.3 * np.eye(2)[best[held]]
    gate.judge(contexts[~held], arms[~held], rewards[~held], predicted)
    assert gate.open == (acts == "network")
    assert gate.acts == (acts == "linear")


def test_a_choice_is_worth_what_it_was_paid_or_what_is_predicted():
    mean = np.array([[0.2, 0.6, 0.2], [0.2, 0.6, 0.2]])
    arms, rewards = np.array([1, 1]), np.array([1.0, 0.0])
    np.testing.assert_allclose(values_of_arms(mean, arms, rewards, one_hot=True), [[0, 1, 0], [0.5, 0, 0.5]])
    np.testing.assert_allclose(values_of_arms(mean, arms, rewards, one_hot=False), [[0.2, 1, 0.2], [0.2, 0, 0.2]])


def test_rounds_of_one_context_count_once():
    gain = np.array([-1.0] * 12 + [1.0, -1.0] * 20)
    assert not_clearly_worse(gain, np.array([0] * 12 + list(range(1, 41))))
    assert not not_clearly_worse(gain, np.arange(52))
    assert not_clearly_worse(np.zeros(30), np.arange(30))  # level with LinUCB, the network acts: it alone is adapted
    assert not not_clearly_worse(np.linspace(-1.1, -0.9, 30), np.arange(30))
    assert not not_clearly_worse(np.linspace(0.9, 1.1, 30), np.zeros(30, int))  # one context is no evidence


def test_ridge_coefficients_do_not_depend_on_the_system_that_is_solved():
    draw = np.random.default_rng(4)
    for n in (3, 5, 40):
        features, rewards = draw.standard_normal((n, 5)), draw.random(n)
        dense = np.linalg.inv(features.T @ features + 2 * np.eye(5)) @ features.T @ rewards
        np.testing.assert_allclose(ridge_coefficients(features, rewards, 2.0), dense, atol=1e-10)


def test_calibration_never_turns_predictions_round():
    rewards, arms = np.array([0.0, 0.0, 1.0, 1.0]), np.zeros(4, int)
    np.testing.assert_allclose(calibrated(rewards[:, None] * 0.1 + 5, arms, rewards)[:, 0], rewards, atol=1e-12)
    np.testing.assert_allclose(calibrated(-rewards[:, None], arms, rewards), 0.5)
    np.testing.assert_allclose(calibrated(np.ones((4, 1)), arms, rewards), 0.5)


@pytest.mark.parametrize("dim", [DIM, 140])  # the second is reduced to principal components
def test_saved_and_restored_it_continues_alike(tmp_path, dim):
    policy = _policy(dim=dim, linear_gate=0.3)
    contexts, arms, rewards = _rounds(160, dim=dim)
    policy.prepare(contexts)
    policy.update(contexts[:80], arms[:80], rewards[:80])
    policy.adapt()
    policy.save(tmp_path / "p.safetensors")
    restored = daband.load(tmp_path / "p.safetensors")
    for one in (policy, restored):
        one.update(contexts[80:], arms[80:], rewards[80:])
        one.adapt()
    assert restored.linear_acts == policy.linear_acts
    np.testing.assert_array_equal(policy.select(contexts).mean, restored.select(contexts).mean)


def test_arms_can_be_added_beside_a_gate():
    policy = _policy(linear_gate=0.3)
    contexts, arms, rewards = _rounds(64)
    policy.prepare(contexts)
    policy.update(contexts, arms, rewards)
    policy.add_arm()
    decision = policy.select(contexts)
    assert decision.mean.shape == (64, 3)
    policy.update(contexts[:1], np.array([2]), np.array([1.0]))
    policy.adapt()


def test_without_a_share_there_is_no_linear_part():
    policy = _policy(linear_gate=0.0)
    contexts, arms, rewards = _rounds(64)
    policy.update(contexts, arms, rewards)
    assert policy.prepared
    assert not policy.linear_acts
    assert len(policy.buffers.source) == 64
    with pytest.raises(daband.InvalidInput, match="linear_gate"):
        _policy(linear_gate=1.0)
