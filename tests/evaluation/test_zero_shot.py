import numpy as np
import pytest

import daband
from daband.domains import ArrayEvaluation
from daband.errors import InvalidInput


def trained():
    pair = daband.domains.load("synthetic", tiny=True)
    policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms, alpha=0.5)
    daband.train(policy, source=pair.source, episodes=2, episode_length=20)
    return pair, policy


def test_accuracy_is_one_minus_mean_regret_by_hand():
    pair, policy = trained()
    result = daband.evaluate(policy, pair.target_test, batch_size=7)
    n = len(pair.target_test)
    contexts, expected = pair.target_test.read(0, n), pair.target_test.read_expected(0, n)
    arms = policy.decide(contexts, "target", rule="ucb").arm
    regret = expected.max(axis=1) - expected[np.arange(n), arms]
    assert result.regret == pytest.approx(regret.sum())
    assert result.accuracy == pytest.approx(1 - regret.mean())
    best = expected.argmax(axis=1)
    for arm in range(pair.n_arms):
        if (best == arm).any():
            assert result.per_class[arm] == pytest.approx(1 - regret[best == arm].mean())
    assert result.accuracy_macro == pytest.approx(np.mean([c for c in result.per_class if c is not None]))
    assert result.arm_counts == np.bincount(arms, minlength=pair.n_arms).tolist()
    assert result.contexts == n


def test_labels_give_the_share_of_right_answers_and_empty_classes_none():
    x = np.eye(3)[[0, 1, 1, 0]]
    policy = daband.LinUCB(context_shape=(3,), n_arms=4, alpha=0.0, ridge=1e-3)
    policy.update(np.eye(3), [0, 1, 2], [1.0, 1.0, 1.0])
    result = daband.evaluate(policy, ArrayEvaluation(x, [0, 1, 0, 0], n_arms=4))
    assert result.accuracy == pytest.approx(0.75)
    assert result.per_class == [pytest.approx(2 / 3), pytest.approx(1.0), None, None]
    assert result.accuracy_macro == pytest.approx((2 / 3 + 1) / 2)


def test_evaluation_leaves_the_policy_as_it_was(tmp_path):
    pair, policy = trained()
    policy.save(tmp_path / "before")
    daband.evaluate(policy, pair.target_test)
    policy.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_exploration_noise_is_dropped_and_the_bonus_is_optional():
    pair, _ = trained()
    noisy = daband.LinUCB(
        context_shape=pair.context_shape, n_arms=pair.n_arms, explore="thompson", epsilon=0.9, alpha=50.0
    )
    daband.train(noisy, source=pair.source, episodes=2, episode_length=20)
    assert daband.evaluate(noisy, pair.target_test) == daband.evaluate(noisy, pair.target_test)
    with_bonus = daband.evaluate(noisy, pair.target_test, rule="ucb")
    greedy = daband.evaluate(noisy, pair.target_test, rule="greedy")
    assert with_bonus.arm_counts != greedy.arm_counts


def test_bad_input():
    pair, policy = trained()
    with pytest.raises(InvalidInput, match="EvaluationDomain"):
        daband.evaluate(policy, pair.target)
    with pytest.raises(InvalidInput, match="rule"):
        daband.evaluate(policy, pair.target_test, rule="thompson")
    with pytest.raises(InvalidInput, match="arms"):
        daband.evaluate(daband.LinUCB(context_shape=pair.context_shape, n_arms=99), pair.target_test)


@pytest.mark.parametrize("kind", [daband.Random, daband.LinUCB])
def test_the_batch_size_changes_nothing(kind):
    """Also where choices are drawn: at random, or among ties."""
    pair, _ = trained()
    policy = kind(context_shape=pair.context_shape, n_arms=pair.n_arms)
    results = [daband.evaluate(policy, pair.target_test, batch_size=size) for size in (1, 7, 1024)]
    assert results[0] == results[1] == results[2]
    assert min(results[0].arm_counts) > 0


@pytest.mark.parametrize(("settings", "wanted"), [({}, "target"), ({"as_domain": "source"}, "source")])
def test_the_policy_is_told_which_domain_it_decides_in(monkeypatch, settings, wanted):
    pair, policy = trained()
    told, decide = set(), policy.decide

    def listening(contexts, domain=None, *arguments, **keywords):
        told.add(domain)
        return decide(contexts, domain, *arguments, **keywords)

    monkeypatch.setattr(policy, "decide", listening)
    daband.evaluate(policy, pair.target_test, **settings)
    assert told == {wanted}
