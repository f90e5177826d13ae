"""Source rounds that training does not use."""

import numpy as np
import pytest

import daband
from daband.checks._pairs import check_source_test
from daband.domains import from_arrays, from_log, load
from daband.domains._splits import split_fraction
from daband.errors import InvalidInput

N = 60
X = np.random.default_rng(0).random((N, 4))
Y = np.arange(N) % 3


def rows(domain):
    contexts = (
        domain.read(0, len(domain))
        if isinstance(domain, daband.domains.EvaluationDomain)
        else domain.read(np.arange(len(domain)))
    )
    return {row.tobytes() for row in contexts}


def test_a_tenth_of_every_class_is_held_out_and_what_it_pays_stays_with_it():
    pair = from_arrays(source=(X, Y), target=X)
    assert (len(pair.source), len(pair.source_test)) == (54, 6)
    assert not rows(pair.source) & rows(pair.source_test)
    assert rows(pair.source) | rows(pair.source_test) == {row.tobytes() for row in X}
    truth = {row.tobytes(): label for row, label in zip(X, Y, strict=True)}
    held = pair.source_test.read_expected(0, 6).argmax(axis=1)
    assert [truth[row.tobytes()] for row in pair.source_test.read(0, 6)] == held.tolist()
    np.testing.assert_array_equal(np.bincount(held), [2, 2, 2])
    rounds = pair.source.rounds(0, 54, seed=1)
    assert [truth[row.tobytes()] for row in rounds.contexts] == rounds.rewards.argmax(
        axis=1
    ).tolist()


def test_the_split_depends_on_the_name_alone():
    one, same, other = (from_arrays(source=(X, Y), target=X, name=name) for name in ("a", "a", "b"))
    assert rows(one.source_test) == rows(same.source_test) != rows(other.source_test)


@pytest.mark.parametrize("nothing", [None, 0, 0.0])
def test_nothing_held_out(nothing):
    pair = from_arrays(source=(X, Y), target=X, source_test=nothing)
    assert pair.source_test is None
    assert len(pair.source) == N


def test_rounds_of_ones_own():
    pair = from_arrays(source=(X[:40], Y[:40]), source_test=(X[40:], Y[40:]), target=X)
    assert (len(pair.source), len(pair.source_test)) == (40, 20)
    with pytest.raises(InvalidInput, match=r"source_test .*\(3,\), .*source .*\(4,\)"):
        from_arrays(source=(X, Y), source_test=(X[:, :3], Y), target=X)


@pytest.mark.parametrize("wrong", [1.0, -0.1, float("nan"), True, 3])
def test_a_share_is_a_share(wrong):
    with pytest.raises(InvalidInput, match=f"source_test .*{wrong}"):
        from_arrays(source=(X, Y), target=X, source_test=wrong)


def test_expected_rewards_and_reward_tables_are_held_out_too():
    table = np.random.default_rng(1).random((N, 3)) * 10 - 4
    pair = from_arrays(source=(X, table), target=X)
    paid = {row.tobytes(): rewards for row, rewards in zip(X, table, strict=True)}
    for row, expected in zip(
        pair.source_test.read(0, 6), pair.source_test.read_expected(0, 6), strict=True
    ):
        np.testing.assert_array_equal(expected, paid[row.tobytes()])


def test_a_log_holds_out_logged_rounds():
    log = (X, Y, X[:, 0], np.full(N, 0.25))
    assert from_log(source=log, target=X, n_arms=3).source_test is None
    pair = from_log(source=log, target=X, n_arms=3, source_test=0.1)
    held = pair.source_test.rounds(0, 6, seed=0)
    assert len(pair.source) + len(held) == N
    np.testing.assert_array_equal(held.rewards, held.contexts[:, 0])
    assert not rows(pair.source) & rows(pair.source_test)
    given = from_log(source=log, source_test=log, target=X, n_arms=3)
    assert (len(given.source), len(given.source_test)) == (N, N)


def test_the_digits_have_a_test_set_of_their_own_in_another_order():
    pair = load("digit", tiny=True)
    assert (len(pair.source), len(pair.source_test)) == (300, 100)
    here, there = (
        test.read_expected(0, 100).argmax(axis=1) for test in (pair.source_test, pair.target_test)
    )
    np.testing.assert_array_equal(np.bincount(here), np.bincount(there))
    assert (here != there).any()


def test_the_check_finds_rounds_that_training_uses():
    pair = from_arrays(source=(X, Y), source_test=(X[:20], Y[:20]), target=X)
    with pytest.raises(AssertionError, match=r"100% .*source_test"):
        check_source_test(pair)
    few = np.arange(N) % 4  # a context that only has four values repeats, whoever holds it out
    check_source_test(from_arrays(source=(np.eye(4)[few], Y), target=np.eye(4)[few]))
    assert isinstance(pair.source_test, daband.domains.EvaluationDomain)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_shares_are_of_every_class_and_leave_one(share):
    labels = np.repeat(np.arange(5), [1, 2, 30, 300, 3])
    kept, held = split_fraction(labels, fraction=share, name="x")
    assert len(np.intersect1d(kept, held)) == 0
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(labels)))
    assert (np.bincount(labels[kept], minlength=5) >= 1).all()
    assert abs(np.bincount(labels[held], minlength=5)[3] - 300 * share) <= 1


def test_rewards_stay_in_the_users_unit():
    table = np.tile([-5.0, 3.0, 12.0], (N, 1))
    pair = from_arrays(
        source=(X, table), target=X, target_labelled=(X, 100 * table), source_test=None
    )
    np.testing.assert_array_equal(pair.source.rounds(0, N, seed=0).rewards, table)
    np.testing.assert_array_equal(pair.target_labelled.rounds(0, N, seed=0).rewards, 100 * table)
