"""Rounds that a policy keeps to learn again."""

import numpy as np
import pytest

from daband.errors import InvalidInput
from daband.policies import _stored_rounds
from daband.policies._stored_rounds import StoredRounds, fill_columns
from daband.rounds._rounds import Rounds


def draw(n=50, seed=0, **columns):
    rng = np.random.default_rng(seed)
    arms = rng.integers(0, 3, n)
    return Rounds(rng.normal(size=(n, 2)), arms, rng.normal(size=n), **columns)


def store(*blocks, is_target=False):
    stored = StoredRounds(2)
    for block in blocks:
        stored.add(fill_columns(block, is_target=is_target))
    return stored


def test_rounds_are_read_in_an_order_that_does_not_depend_on_learning():
    rounds = draw(propensities=np.full(50, 0.5), weights=np.repeat([0.0, 2.0], 25))
    parts = [rounds.select(slice(0, 30)), rounds.select(slice(30, 50))]
    one, other = store(*parts).read(), store(*parts[::-1]).read()
    assert len(one) == 25
    for column, expected in vars(other).items():
        np.testing.assert_array_equal(getattr(one, column), expected)


def test_a_sample_does_not_depend_on_the_order_either(monkeypatch):
    monkeypatch.setattr("daband.policies._trees.MAX_STORED_ROUNDS", 20)
    monkeypatch.setattr(_stored_rounds, "MAX_STORED_ROUNDS", 20)
    rounds = draw()
    reverse = rounds.select(np.arange(50)[::-1])
    one, other = store(rounds).read(), store(reverse).read()
    assert len(store(rounds)) == len(one) == 20
    np.testing.assert_array_equal(one.rewards, other.rewards)


def test_stored_rounds_are_found_again_whatever_their_domain_is():
    source, target = draw(30), draw(20, seed=1)
    stored = store(source)
    stored.add(fill_columns(target, is_target=True))
    together = Rounds.join([target, source])
    indices = stored.find(together)
    np.testing.assert_array_equal(together.rewards[indices], stored.read().rewards)
    assert stored.read().domains.tolist() == [True] * 20 + [False] * 30
    assert stored.find(source) is None
    assert stored.find(draw(0)) is None


def test_a_file_has_the_columns_or_no_round():
    stored = store(draw(clusters=np.arange(50)), is_target=True)
    arrays = stored.arrays(with_rounds=True)
    np.testing.assert_array_equal(
        StoredRounds.restore(arrays, 2, 3).read().clusters, stored.read().clusters
    )
    empty = StoredRounds.restore(stored.arrays(with_rounds=False), 2, 3)
    assert len(empty) == len(empty.read()) == 0


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("propensities", 1.5),
        ("contexts", np.nan),
        ("arms", 3),
        ("rewards", np.inf),
        ("weights", -1.0),
    ],
)
def test_damaged_columns(column, value):
    arrays = store(draw()).arrays(with_rounds=True)
    arrays[column] = np.full_like(arrays[column], value)
    with pytest.raises((InvalidInput, ValueError)):
        StoredRounds.restore(arrays, 2, 3)
