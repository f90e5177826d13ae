"""Logs and plain functions."""

import numpy as np
import pytest

from daband.checks._pairs import check_pair
from daband.domains.readers._arrays import from_callable
from daband.domains.readers._logs import from_log
from daband.errors import InvalidInput

N = 30
CONTEXTS = np.random.default_rng(0).random((N, 4))
LABELS = np.random.default_rng(1).integers(0, 3, N)
LABELS[:3] = [0, 1, 2]
LOG = (CONTEXTS, LABELS, (LABELS == 1).astype(float), np.full(N, 0.5))


def test_a_log_keeps_rows_together():
    test = (CONTEXTS + 2, LABELS[::-1])
    pair = from_log(source=LOG, target=CONTEXTS + 1, target_test=test, n_arms=3, passes=2, source_test=0)
    check_pair(pair)
    rounds = pair.source.rounds(0, 2 * N, seed=4)
    order = pair.source.order(0, 2 * N, seed=4)
    np.testing.assert_array_equal(rounds.contexts, CONTEXTS[order])
    np.testing.assert_array_equal(rounds.arms, LABELS[order])
    np.testing.assert_array_equal(rounds.rewards, LABELS[order] == 1)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (1, LABELS + 0.5, "must be integers"),
        (1, LABELS + 1, r"must lie in 0\.\.2"),
        (1, LABELS[:-1], r"shape \(30,\)"),
        (2, np.full(N, np.nan), "missing or infinite value, first in row 0"),
        (3, np.zeros(N), r"\(0, 1\]"),
        (3, np.full(N, 1.5), r"\(0, 1\]"),
    ],
)
def test_wrong_logs(position, value, message):
    log = list(LOG)
    log[position] = value
    with pytest.raises(InvalidInput, match=message):
        from_log(source=tuple(log), target=CONTEXTS, target_test=(CONTEXTS, LABELS), n_arms=3)


@pytest.mark.parametrize("options", [{"n_arms": "3"}, {"n_arms": 3.0}, {"n_arms": 3, "passes": "2"}])
def test_a_log_needs_whole_numbers(options):
    with pytest.raises(InvalidInput, match=r"(n_arms|passes) must be a whole number >= [0-9], got ('3'|3\.0|'2')"):
        from_log(source=LOG, target=CONTEXTS, target_test=(CONTEXTS, LABELS), **options)


def draw(generator, n):
    return generator.normal(size=(n, 2))


def pay(generator, contexts, arms):
    centres = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    chance = 1 / (1 + np.exp(-np.sum(contexts * centres[arms], axis=1)))
    return (generator.random(len(contexts)) < chance).astype(float)


def environment(length=1000, **options):
    test = (np.random.default_rng(0).normal(size=(50, 2)), np.random.default_rng(0).random((50, 3)))
    return from_callable(source=(draw, pay), target=draw, target_test=test, n_arms=3, length=length, **options)


def test_functions_make_a_sound_pair():
    pair = environment()
    check_pair(pair)
    rounds = pair.source.rounds(0, 900, seed=0)
    assert rounds.expected is None
    assert np.isnan(rounds.regret(np.zeros(900, dtype=int))).all()
    better = rounds.rewards[rounds.contexts[:, 0] > 1, 0].mean()
    assert better > rounds.rewards[rounds.contexts[:, 0] < -1, 0].mean() + 0.3


def test_a_round_of_functions_is_the_same_whenever_it_is_asked_for():
    one, other = environment(), environment()
    late = other.source.rounds(700, 720, seed=3)
    early = one.source.rounds(0, 1000, seed=3)
    np.testing.assert_array_equal(early.contexts[700:720], late.contexts)
    np.testing.assert_array_equal(early.rewards[700:720], late.rewards)
    assert (one.source.batch(0, 9, seed=0) != one.target.batch(0, 9, seed=0)).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": (draw,)}, "two functions"),
        ({"target": 3}, "target must be a function"),
        ({"target": lambda generator, n: np.zeros((n, 5))}, r"target contexts have shape \(5,\)"),
        ({"target": lambda generator, n: np.zeros((3, 2))}, "must return 20000 contexts"),
        ({"target": lambda generator, n: np.full((n, 2), np.nan)}, "NaN"),
        ({"length": 0}, ">= 1, got 0"),
        ({"length": "9"}, "length must be a whole number >= [0-9], got '9'"),
        ({"n_arms": "3"}, "n_arms must be a whole number >= [0-9], got '3'"),
        ({"data_seed": 0.5}, "data_seed must be a whole number >= [0-9], got 0.5"),
        ({"class_names": ["a"]}, "1 names for 3 arms"),
    ],
)
def test_wrong_functions(options, message):
    given = {"source": (draw, pay), "target": draw, "target_test": (np.zeros((2, 2)), np.zeros((2, 3))), "n_arms": 3}
    with pytest.raises(InvalidInput, match=message):
        from_callable(**(given | options))


def test_a_pay_that_returns_nonsense():
    with pytest.raises(InvalidInput, match="finite reward a context"):
        from_callable(source=(draw, lambda generator, contexts, arms: np.zeros(3)), target=draw, n_arms=3)
