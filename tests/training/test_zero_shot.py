import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daband
from daband.domains import EvaluationDomain
from daband.domains.readers._arrays import ArrayRewards
from daband.errors import InvalidInput
from daband.training import _zero_shot
from daband.training._zero_shot import find_best_arms


def trained():
    pair = daband.domains.load("synthetic", tiny=True)
    policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms, alpha=0.5)
    daband.train(policy, source=pair.source, episodes=2, episode_length=20)
    return pair, policy


def test_every_number_against_a_loop(monkeypatch):
    pair, policy = trained()
    monkeypatch.setattr(_zero_shot, "_BATCH_CONTEXTS", 7)
    result = daband.evaluate(policy, pair.target_test)
    n = len(pair.target_test)
    contexts = pair.target_test.read(0, n)
    expected = pair.target_test.read_expected(0, n)
    arms = policy.decide(contexts, "target", rule="ucb").arm
    paid = [expected[row][arm] for row, arm in enumerate(arms)]
    best = [max(row) for row in expected]
    right = [paid[row] == best[row] for row in range(n)]
    assert result.value == pytest.approx(sum(paid) / n)
    assert result.best_value == pytest.approx(sum(best) / n)
    assert result.constant_value == pytest.approx(max(sum(column) / n for column in expected.T))
    assert result.regret == pytest.approx(sum(best) - sum(paid))
    assert result.accuracy == pytest.approx(sum(right) / n)
    kinds = expected.argmax(axis=1)
    for arm in range(pair.n_arms):
        mine = [right[row] for row in range(n) if kinds[row] == arm]
        assert result.per_class[arm] == (pytest.approx(sum(mine) / len(mine)) if mine else None)
    assert result.accuracy_macro == pytest.approx(
        np.mean([c for c in result.per_class if c is not None])
    )
    assert result.arm_counts == np.bincount(arms, minlength=pair.n_arms).tolist()
    assert result.contexts == n


EUROS = np.array([[12.0, -5.0, 3.0], [-5.0, 12.0, 12.0], [1.0, 1.0, 1.0], [0.0, 7.0, 7.0 + 1e-12]])


@pytest.mark.parametrize("unit", [1.0, 1000.0, 2.0**-20])
def test_real_rewards_are_in_their_own_unit_and_accuracy_is_a_share(unit):
    policy = daband.LinUCB(context_shape=(1,), n_arms=3, alpha=0.0, standardise_rewards=False)
    policy.update([[1.0]], [0], [1.0])  # arm 0 from now on
    result = daband.evaluate(
        policy, EvaluationDomain(ArrayRewards(np.ones((4, 1)), unit * EUROS, n_arms=3))
    )
    assert result.value == pytest.approx(unit * 8 / 4)
    assert result.best_value == pytest.approx(unit * 32 / 4)
    assert result.constant_value == pytest.approx(unit * 23 / 4)  # arm 2
    assert result.regret == pytest.approx(unit * 24)
    assert result.accuracy == 0.5  # right where it pays 12, and where all arms pay the same
    # a tie counts for each of its arms
    assert result.per_class == [1.0, pytest.approx(1 / 3), pytest.approx(1 / 3)]


def test_ties_are_told_from_small_differences():
    assert find_best_arms(np.array([[0.1 + 0.2, 0.3]])).all()
    assert find_best_arms(np.array([[1e6, 1e6 + 1e-3]])).tolist() == [[False, True]]
    assert find_best_arms(np.zeros((1, 3))).all()


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    seed=st.integers(0, 5),
)
@settings(deadline=None, max_examples=30, derandomize=True)
def test_where_one_arm_pays_one_the_accuracy_is_the_papers(labels, seed):
    policy = daband.Random(context_shape=(2,), n_arms=4, seed=seed)
    result = daband.evaluate(
        policy, EvaluationDomain(ArrayRewards(np.zeros((len(labels), 2)), labels, n_arms=4))
    )
    assert result.accuracy == pytest.approx(1 - result.regret / len(labels))
    assert result.value == pytest.approx(result.accuracy)
    assert result.best_value == 1.0


def test_labels_give_the_share_of_right_answers_and_empty_classes_none():
    x = np.eye(3)[[0, 1, 1, 0]]
    policy = daband.LinUCB(
        context_shape=(3,), n_arms=4, alpha=0.0, ridge=1e-3, standardise_rewards=False
    )
    policy.update(np.eye(3), [0, 1, 2], [1.0, 1.0, 1.0])
    result = daband.evaluate(policy, EvaluationDomain(ArrayRewards(x, [0, 1, 0, 0], n_arms=4)))
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
        context_shape=pair.context_shape,
        n_arms=pair.n_arms,
        epsilon=0.9,
        explore="ucb",
        alpha=50.0,
    )
    daband.train(noisy, source=pair.source, episodes=2, episode_length=20)
    assert daband.evaluate(noisy, pair.target_test) == daband.evaluate(noisy, pair.target_test)
    with_bonus = daband.evaluate(noisy, pair.target_test, rule="ucb")
    greedy = daband.evaluate(noisy, pair.target_test, rule="greedy")
    assert with_bonus.value != greedy.value


@pytest.mark.parametrize("nothing", [None, "linucb", daband.LinUCB, np.zeros(3)])
def test_what_is_no_policy_is_refused(nothing):
    pair, _ = trained()
    with pytest.raises(InvalidInput, match=rf"policy .*{type(nothing).__name__}$"):
        daband.evaluate(nothing, pair.target_test)


def test_bad_input():
    pair, policy = trained()
    with pytest.raises(InvalidInput, match=r"domain .*None: .*target_test="):
        daband.evaluate(policy, None)
    with pytest.raises(InvalidInput, match="EvaluationDomain"):
        daband.evaluate(policy, pair.target)
    with pytest.raises(InvalidInput, match="rule"):
        daband.evaluate(policy, pair.target_test, rule="softmax")
    with pytest.raises(InvalidInput, match="arms"):
        daband.evaluate(
            daband.LinUCB(context_shape=pair.context_shape, n_arms=99), pair.target_test
        )


@pytest.mark.parametrize(
    ("settings", "wanted"), [({}, "target"), ({"as_domain": "source"}, "source")]
)
def test_the_policy_is_told_which_domain_it_decides_in(monkeypatch, settings, wanted):
    pair, policy = trained()
    told = set()
    decide = policy.decide

    def listening(contexts, domain=None, *arguments, **keywords):
        told.add(domain)
        return decide(contexts, domain, *arguments, **keywords)

    monkeypatch.setattr(policy, "decide", listening)
    daband.evaluate(policy, pair.target_test, **settings)
    assert told == {wanted}
