"""The checks of pairs must fail where something is wrong."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from daband.checks import check_pair
from daband.checks._pairs import (
    check_finite_contexts,
    check_names,
    check_order,
    check_reward_values,
    check_shapes,
    check_target_has_no_rewards,
)
from daband.domains import EvaluationDomain, load
from daband.domains.readers._arrays import ArrayContexts, ArrayRewards
from tests.leaks import check_no_target_rewards_in_reach, reachable

N = 40
GENERATOR = np.random.default_rng(0)


@pytest.fixture
def pair():
    return load("synthetic", tiny=True, rewards="labels")


def test_a_sound_pair_passes(pair):
    check_pair(pair)


def _closure(secret):
    return lambda: secret


class Slotted:
    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept

    def method(self):
        return self.kept


def _cached(secret):
    @functools.lru_cache
    def remember(number):
        return secret

    remember(1)
    return remember


HIDING_PLACES = {
    "attribute": lambda secret: secret,
    "view": lambda secret: secret[::2],
    "dictionary": lambda secret: {"a": [(secret,)]},
    "closure": _closure,
    "default": lambda secret: lambda given=secret: given,
    "slots": Slotted,
    "method": lambda secret: Slotted(secret).method,
    "partial": lambda secret: functools.partial(print, secret),
    "cache": _cached,
    "copy": lambda secret: secret.copy(),
    "other type": lambda secret: secret.astype(np.uint8),
    "list": lambda secret: secret.tolist(),
    "object array": lambda secret: np.array([secret, None], dtype=object),
    "generator": lambda secret: (value for value in [secret]),
}


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("place", HIDING_PLACES)
def test_labels_are_found_wherever_they_hide(pair, side, place):
    secret = np.random.default_rng(3).integers(0, 3, N)
    contexts = np.random.default_rng(4).random((N, 8))
    leaky = replace(
        pair,
        target=ArrayContexts(contexts),
        target_test=EvaluationDomain(ArrayRewards(contexts, secret, n_arms=3)),
        target_labelled=None,
    )
    check_no_target_rewards_in_reach(leaky)
    test = leaky.target_test
    # held as it is, so that a view of it is a view of what the evaluator holds
    test._labels = secret
    getattr(leaky, side).note = HIDING_PLACES[place](secret)
    with pytest.raises(
        AssertionError,
        match=rf"pair\.{side} .*(shares|repeats) .*target_test",
    ):
        check_no_target_rewards_in_reach(leaky)


def test_tensors_are_looked_into(pair):
    torch = pytest.importorskip("torch")
    rewards = pair.target_labelled.read_rewards(np.arange(len(pair.target)))[0]
    pair.target.note = torch.as_tensor(rewards)
    with pytest.raises(AssertionError, match="target_labelled's rewards"):
        check_no_target_rewards_in_reach(pair)


def test_domains_that_pay_or_evaluate_are_found(pair):
    pair.source.note = pair.target_test
    with pytest.raises(AssertionError, match=r"pair\.source .*EvaluationDomain"):
        check_no_target_rewards_in_reach(pair)
    fresh = load("synthetic", tiny=True)
    fresh.source.note = [fresh.target_labelled]
    with pytest.raises(AssertionError, match=r"pair\.(source|target) .*pays"):
        check_no_target_rewards_in_reach(fresh)
    with pytest.raises(AssertionError, match=r"pair\.(source|target) .*pays"):
        check_no_target_rewards_in_reach(
            replace(load("synthetic", tiny=True), target=pair.target_labelled)
        )


def test_a_target_with_rewards_is_found(pair):
    check_target_has_no_rewards(pair)
    with pytest.raises(AssertionError, match=r"pair\.target .*ArrayRewards"):
        check_target_has_no_rewards(replace(pair, target=pair.target_labelled))


def test_reaching_stops_at_modules_and_globals():
    names = {type(found).__name__ for found in reachable(lambda: np)}
    assert "module" not in names
    loop = []
    loop.append(loop)
    assert len(list(reachable(loop))) == 1


CONTEXTS = GENERATOR.random((N, 8))


class Stuck(ArrayContexts):
    def order(self, start, stop, *, seed):
        return np.arange(start, stop)


class Repeating(ArrayContexts):
    def order(self, start, stop, *, seed):
        return np.zeros(stop - start, dtype=np.int64)


def noisy(contexts):
    broken = ArrayContexts(contexts)
    broken._contexts = contexts * np.nan
    return broken


@pytest.mark.parametrize(
    ("check", "change", "message"),
    [
        (check_names, {"class_names": ("a", "b")}, "2 .*3 arms"),
        (check_names, {"class_names": ("a", "b", "a")}, "unique"),
        (check_names, {"n_arms": 1, "class_names": ("a",)}, "two arms"),
        (
            check_names,
            {"source": ArrayRewards(CONTEXTS, GENERATOR.random((N, 4)))},
            "source .*4 ",
        ),
        (
            check_shapes,
            {"target": ArrayContexts(GENERATOR.random((N, 5)))},
            r"target .*\(5,\)",
        ),
        (check_shapes, {"target": ArrayContexts(CONTEXTS.astype(np.float32))}, "float32"),
        (
            check_shapes,
            {"target": ArrayContexts((9 * CONTEXTS).astype(np.int64))},
            "int64",
        ),
        (check_finite_contexts, {"target": noisy(CONTEXTS)}, "finite"),
        (
            check_reward_values,
            {"source": ArrayRewards(CONTEXTS, 2 * GENERATOR.random((N, 3)))},
            "one arm .*reward 1",
        ),
        (
            check_reward_values,
            {"source": ArrayRewards(CONTEXTS, GENERATOR.random((N, 3)))},
            "one arm .*reward 1",
        ),
        (check_order, {"target": Repeating(CONTEXTS)}, "once"),
    ],
)
def test_what_is_wrong_is_found(pair, check, change, message):
    with pytest.raises(AssertionError, match=message):
        check(replace(pair, **change))
