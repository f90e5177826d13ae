"""A policy that learns the rewards of all arms, and corrects them by single rewards."""

import copy
import functools

import numpy as np
import pytest

import daband
from daband.errors import InvalidInput
from daband.policies import _ensemble


def make_rows(n=500, seed=0):
    """Contexts whose best arm a straight line does not find, and one-hot rewards of two arms."""
    x = np.random.default_rng(seed).uniform(-1, 1, (n, 3))
    return x, np.eye(2)[(x[:, 0] * x[:, 1] > 0).astype(int)]


def make(feedback="one_hot", **settings):
    return daband.Supervised(context_shape=(3,), n_arms=2, feedback=feedback, seed=0, **settings)


@functools.cache
def fit(feedback):
    policy = make(feedback)
    policy.learn_full(*make_rows())
    policy.weights  # fits  # noqa: B018
    return policy


def learned(feedback="one_hot"):
    return copy.deepcopy(fit(feedback))


def compute_accuracy(policy, **arguments):
    x, rewards = make_rows(1000, seed=9)
    return (policy.decide(x, rule="greedy", **arguments).arm == rewards.argmax(axis=1)).mean()


@pytest.mark.parametrize("feedback", ["one_hot", "bandit"])
def test_it_learns_all_arms_of_rows(feedback):
    policy = learned(feedback)
    assert compute_accuracy(policy) > 0.9
    assert policy.counts.tolist() == [500, 500]
    assert sum(policy.weights.values()) == pytest.approx(1.0)


def test_the_held_out_error_shows_labels_that_contexts_do_not_explain():
    assert make().held_out_error is None
    rng = np.random.default_rng(1)
    policy = daband.Supervised(context_shape=(8,), n_arms=2, feedback="one_hot")
    policy.learn_full(rng.normal(size=(300, 8)), np.eye(2)[rng.integers(2, size=300)])
    noise = policy.held_out_error
    assert noise.value < -2.0 * noise.standard_error  # right for half, and predicted for more
    error = fit("one_hot").held_out_error
    assert error.value > 0.0
    assert 0.0 < error.standard_error < 0.02


@pytest.mark.parametrize("has_same_rows", [True, False])
@pytest.mark.parametrize("feedback", ["one_hot", "bandit"])
def test_rows_in_other_units_need_no_second_cross_validation(feedback, has_same_rows, monkeypatch):
    """A policy that fits like another one has nearly the weights of its own cross-validation."""
    x, rewards = make_rows()
    first = learned(feedback)
    other_x = 3.0 * x + 1.0
    if not has_same_rows:
        other_x[0] += 0.1
    other = make(feedback)
    other.learn_full(other_x, rewards)
    n_fits = []
    fit = _ensemble._fit_learners
    monkeypatch.setattr(
        _ensemble, "_fit_learners", lambda *arguments: n_fits.append(1) or fit(*arguments)
    )
    other.fit(like=first)
    assert len(n_fits) == (1 if has_same_rows else 4)
    assert not has_same_rows or other.weights == first.weights
    assert (other.held_out_error == first.held_out_error) == has_same_rows
    alone = make(feedback)
    alone.learn_full(other_x, rewards)
    assert other.weights == pytest.approx(alone.weights, abs=0.01)
    np.testing.assert_allclose(other.decide(other_x).mean, alone.decide(other_x).mean, atol=0.01)


def test_a_policy_without_rows_fits_like_another_one_without_rows():
    policy = make()
    policy.fit(like=make())
    assert policy.weights == {}


def test_target_rewards_correct_what_the_source_taught():
    """In the target, arm 0 has reward 3 for every context."""
    x, rewards = make_rows(1000, seed=3)
    policy = make(transform=daband.Standardise())
    policy.prepare(x, x)
    policy.learn_full(x, rewards)
    policy.deploy("target")
    before = compute_accuracy(policy)
    for rows in np.array_split(np.arange(1000), 20):
        arms = policy.select(x[rows]).arm
        policy.update(x[rows], arms, np.where(arms == 0, 3.0, rewards[rows, 1]))
    assert before > 0.9
    assert (policy.decide(x, rule="greedy").arm == 0).mean() > 0.9


@pytest.mark.parametrize("feedback", ["one_hot", "bandit"])
@pytest.mark.parametrize("grows", [False, True])
def test_saved_and_frozen_policies_decide_the_same(tmp_path, feedback, grows):
    policy = learned(feedback)
    x, rewards = make_rows(60, seed=4)
    policy.update(x, np.zeros(60, int), rewards[:, 0] + 0.3, domain="target")
    if grows:
        policy.add_arm("third")
        policy.update(x[:5], np.full(5, 2), np.ones(5), domain="target")
    policy.save(tmp_path / "policy.safetensors")
    loaded = daband.load(tmp_path / "policy.safetensors")
    expected = policy.decide(x, "target")
    assert (loaded.decide(x, "target").mean == expected.mean).all()
    assert loaded.held_out_error == policy.held_out_error
    policy.update(x, np.ones(60, int), rewards[:, 1], domain="target")
    loaded.update(x, np.ones(60, int), rewards[:, 1], domain="target")
    assert (loaded.decide(x, "target").mean == policy.decide(x, "target").mean).all()
    daband.export(policy, tmp_path / "policy.daband", domain="target")
    deployed = daband.load_deployed(tmp_path / "policy.daband")
    decision = policy.decide(x, "target")
    for row in range(20):
        assert deployed.decide(x[row]).arm == decision.arm[row]


def test_files_without_replay_contain_no_rows(tmp_path):
    policy = learned()
    state = policy._state(replay=False)
    assert not len(state["kept"])
    policy.save(tmp_path / "policy.safetensors", replay=False)
    x, _ = make_rows(50)
    loaded = daband.load(tmp_path / "policy.safetensors")
    assert (loaded.decide(x).mean == policy.decide(x).mean).all()


def test_rows_after_single_rewards_are_rejected():
    policy = learned()
    x, rewards = make_rows(5)
    policy.update(x, np.zeros(5, int), rewards[:, 0])
    with pytest.raises(InvalidInput, match="learn_full"):
        policy.learn_full(x, rewards)


@pytest.mark.parametrize("rewards", [[[1.0, 1.0]], [[0.0, 0.0]], [[0.5, 0.5]]])
def test_rewards_that_are_no_label_are_rejected(rewards):
    with pytest.raises(InvalidInput, match=r"rewards.*one_hot"):
        make().learn_full([[0.0, 0.0, 0.0]], rewards)


@pytest.mark.parametrize("policy_class", [daband.LinUCB, daband.Trees, daband.Constant])
def test_full_feedback_is_a_round_for_each_arm(policy_class):
    x, rewards = make_rows(60)
    full, rounds = (policy_class(context_shape=(3,), n_arms=2, seed=0) for _ in range(2))
    full.learn_full(x, rewards)
    rounds.update(np.repeat(x, 2, axis=0), [0, 1] * 60, rewards.ravel())
    for policy in (full, rounds):
        policy.adapt()
    assert full.rounds_learned == 120
    assert (full.decide(x).mean == rounds.decide(x).mean).all()


def make_label_shift(n, frequency, seed):
    """Contexts around -1 and 1, of which the second have this frequency, and their labels."""
    draw = np.random.default_rng(seed)
    labels = (draw.random(n) < frequency).astype(int)
    return draw.normal(size=(n, 3)) + [2.0, 0.0, 0.0] * (labels[:, None] - 0.5), labels


@pytest.mark.parametrize("is_exported", [False, True])
def test_frequencies_of_labels_are_estimated_if_they_may_differ(tmp_path, is_exported):
    x, labels = make_label_shift(1000, 0.5, 0)
    target, target_labels = make_label_shift(1000, 0.05, 1)
    accuracies = {}
    for shift in ("covariate", "labels"):
        policy = make(shift=shift)
        policy.learn_full(x, np.eye(2)[labels])
        policy.observe_target(target)
        if is_exported:
            policy.save(tmp_path / "policy.safetensors", replay=False)
            policy = daband.load(tmp_path / "policy.safetensors")
        arms = policy.decide(target, "target", rule="greedy").arm
        accuracies[shift] = (arms == target_labels).mean()
        assert (policy.decide(x, "source", rule="greedy").arm == labels).mean() > 0.8
        frozen = policy.frozen("target")
        assert (frozen.score(target)[0].argmax(axis=1) == arms).all()
    assert accuracies["labels"] > accuracies["covariate"] + 0.05


def test_target_rewards_undo_a_reversed_source():
    """In the target, the other arm is right for every context."""
    x, rewards = make_rows(300, seed=3)
    policy = learned()
    for rows in np.array_split(np.arange(300), 15):
        arms = policy.select(x[rows], "target").arm
        policy.update(x[rows], arms, 1.0 - rewards[rows, arms], domain="target")
    assert compute_accuracy(policy, domain="target") < 0.1
