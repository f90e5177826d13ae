"""Self-training: labels from rewards, pseudo-labels in the target, files, and when it fits."""

import numpy as np
import pytest

import daband
from daband.policies import policies
from daband.policies._self_training import SelfTraining, fit_self_training

SHAPE = {"context_shape": (6,), "n_arms": 3}


def domains(seed=0, n=240, shift=1.6):
    """Return contexts and labels of a source and of a target that is moved towards the
    wrong arms.
    """
    rng = np.random.default_rng(seed)
    centres = 2.0 * np.eye(3, 6)
    labels = rng.integers(0, 3, (2, n))
    contexts = centres[labels] + 0.3 * rng.normal(size=(2, n, 6))
    # drawn towards the next arm
    contexts[1, :, :3] += shift * np.roll(np.eye(3), 1, axis=1)[labels[1]]
    return contexts, labels


def fitted(**settings):
    contexts, labels = domains()
    policy = SelfTraining(**SHAPE, feedback="one_hot", **settings)
    policy.update(contexts[0], labels[0], np.ones(len(labels[0])))
    policy.observe_target(contexts[1])
    policy.adapt()
    return policy, contexts, labels


def accuracy(theta, contexts, labels):
    return ((contexts @ theta.T).argmax(axis=1) == labels).mean()


def test_pseudo_labels_help_and_their_mean_is_safe():
    contexts, labels = domains(shift=1.9)
    source = contexts[0]
    arms = np.eye(3)[labels[0]]
    sums = source.T @ source, arms.T @ source, len(source)
    alone = fit_self_training(*sums, contexts[1][:0])
    expected = np.linalg.solve(sums[0] + np.eye(6) * np.trace(sums[0]) / sums[2], source.T @ arms)
    np.testing.assert_allclose(alone, expected.T)
    adapted = fit_self_training(*sums, contexts[1])
    assert (
        accuracy(adapted, contexts[1], labels[1]) > accuracy(alone, contexts[1], labels[1]) + 0.02
    )


def test_only_the_target_uses_the_labels():
    policy, contexts, _ = fitted()
    plain = daband.LinUCB(**SHAPE, standardise_rewards=False)
    plain.update(contexts[0], domains()[1][0], np.ones(240))
    rows = contexts[1][:20]
    np.testing.assert_allclose(policy.decide(rows, "source").mean, plain.decide(rows).mean)
    assert np.abs(policy.decide(rows, "target").mean - plain.decide(rows).mean).max() > 0.01
    policy.deploy("target")
    deployed = policy.decide(rows)
    for frozen, own in zip(
        policy.frozen().score(rows), (deployed.mean, deployed.bonus), strict=True
    ):
        np.testing.assert_allclose(frozen, own, rtol=1e-9)
    # its penalty is larger, so its prior is narrower
    assert (deployed.bonus < 0.9 * plain.decide(rows).bonus).all()
    singles = np.concatenate([policy.select(row[None]).arm for row in rows])
    np.testing.assert_array_equal(singles, policy.select(rows).arm)


def test_contexts_that_come_after_the_first_adapt_are_used():
    contexts, labels = domains()
    policy = SelfTraining(**SHAPE, feedback="one_hot")
    policy.update(contexts[0], labels[0], np.ones(len(labels[0])))
    policy.adapt()  # without target contexts there is nothing to fit
    policy.observe_target(contexts[1])
    policy.adapt()
    np.testing.assert_array_equal(policy._target_thetas[1], fitted()[0]._target_thetas[1])


def test_a_context_counts_once_and_files_continue(tmp_path):
    policy, contexts, labels = fitted(seed=3)
    before = policy._gram.copy()
    policy.update(contexts[0], labels[0], np.ones(240))
    np.testing.assert_array_equal(policy._gram, before)
    policy.observe_target(contexts[1])
    assert len(policy._target_features[1]) == 240
    policy.save(tmp_path / "one")
    other = daband.load(tmp_path / "one")
    assert other.settings() == policy.settings()
    for one in (policy, other):
        one.add_arm()
        one.update(contexts[1][:9], np.full(9, 3), np.ones(9), domain="target")
        one.adapt(1)
    rows = contexts[1][:9]
    np.testing.assert_array_equal(
        other.decide(rows, "target").mean, policy.decide(rows, "target").mean
    )
    policy.save(tmp_path / "two", replay=False)
    assert not daband.load(tmp_path / "two")._target_features


def test_it_fits_when_rounds_double_and_after_the_last_episode(monkeypatch):
    contexts, labels = domains()
    calls = []
    monkeypatch.setattr(
        "daband.policies._self_training.fit_self_training",
        lambda *_: calls.append(1) or np.zeros((3, 7)),  # with an intercept
    )
    policy = SelfTraining(**SHAPE, feedback="one_hot")
    policy.plan(7)
    policy.observe_target(contexts[1])
    fits = []
    for episode in range(7):
        rows = slice(30 * episode, 30 * episode + 30)
        policy.update(contexts[0][rows], labels[0][rows], np.ones(30))
        policy.adapt()
        fits.append(len(calls))
    assert fits == [1, 2, 2, 3, 3, 3, 4]


@pytest.mark.parametrize(
    "settings", [{"feedback": "bandit"}, {"feedback": "one_hot", "arms": "shared"}]
)
def test_without_labels_it_is_linucb(settings):
    policy = policies.get("self-training")(**SHAPE, **settings)
    shape = (12, 3, 6) if policy.arms == "shared" else (12, 6)
    contexts = np.random.default_rng(0).normal(size=shape)
    policy.update(contexts, np.arange(12) % 3, np.ones(12))
    policy.observe_target(contexts)
    policy.adapt()
    assert not policy._target_thetas


@pytest.mark.parametrize(
    ("dim", "arms", "method"),
    [(1024, 3, "mixture"), (1024, 33, "mixture-p"), (4096, 5, "mixture-p")],
)
def test_wide_contexts_are_projected_if_regressions_would_be_too_large(dim, arms, method):
    """On 512 components of 1,280 features, rewards of chosen arms gave an accuracy that was 0.05
    lower.
    """
    rng = np.random.default_rng(2)
    pair = daband.domains.from_arrays(
        source=(rng.random((9, dim)), rng.random((9, arms))), target=rng.random((9, dim))
    )
    candidates = daband.trust.default_candidates(pair)
    linear = "linucb" if method == "mixture" else "linucb-p"
    assert [one.method for one in candidates][1:] == [linear, method]
    policy = candidates[-1].build(pair, seed=0, device="cpu")
    assert {"network", "ridge", "shrunk"} < set(policy.members)
    assert policy.members["network"].recipe.learning.steps == 8
    if method == "mixture-p":  # each domain is standardised before the projection
        assert policy.transform.components == 512
        assert len(policy.transform.by_domain) == dim


def test_target_rewards_reject_pseudo_labels_that_mislead():
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(1500, 6))
    labels = (contexts[:, 0] > 0).astype(np.int64)
    contexts[:, 5] = 1.0
    policy = SelfTraining(context_shape=(6,), n_arms=2, feedback="one_hot")
    policy.update(contexts[:600], labels[:600], np.ones(600))
    policy.observe_target(contexts[600:])
    policy.adapt()
    assert (policy.select(contexts[:100], domain="target").arm == labels[:100]).mean() > 0.9
    received = []
    for start in range(600, 1500, 10):
        batch = contexts[start : start + 10]
        arms = policy.select(batch, domain="target").arm
        reward = (arms != labels[start : start + 10]).astype(float)
        policy.update(batch, arms, reward, domain="target")
        received.append(reward.mean())
    assert np.mean(received[-20:]) > 0.9
    policy.observe_target(contexts)
    policy.adapt(1)
    assert (policy.select(contexts[:200], domain="target").arm != labels[:200]).mean() > 0.9
