"""Decisions rest on what was published last: they neither wait for ``adapt`` nor see half of it."""

import threading

import numpy as np
import pytest

from daband.neural import Term, terms
from tests.neural.test_neural_linucb import make, problem, small, trained
from tests.registries import temporarily


class Blocking(Term):
    """Tells that a step has begun, and waits until it may go on."""

    begun = threading.Event()
    may_end = threading.Event()

    def forward(self, batch):
        self.begun.set()
        assert self.may_end.wait(60)
        return batch.predictions.sum() * 0.0


@pytest.fixture
def blocking():
    Blocking.may_end.set()
    with temporarily(terms, "blocking", Blocking):
        yield Blocking
    Blocking.may_end.set()


def test_every_decision_is_that_of_one_published_state():
    policy = trained(make(recipe=small()))
    contexts, _ = problem(20, seed=99)

    def now():
        return policy.decide(contexts, "target", rule="greedy").mean

    published = [now()]
    seen = []
    stop = threading.Event()

    def select():
        while not stop.is_set():
            seen.append(now())

    threads = [threading.Thread(target=select) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(12):
        policy.adapt()
        published.append(now())
        if policy.adapt(0) == {}:  # nothing to do, nothing published
            np.testing.assert_array_equal(now(), published[-1])
    stop.set()
    for thread in threads:
        thread.join(60)
    states = np.stack(published)
    apart = min(np.abs(states[i] - states[j]).max() for i in range(len(states)) for j in range(i))
    assert apart > 1e-4
    assert len(seen) > 0
    for mean in seen:
        assert np.abs(states - mean).max(axis=(1, 2)).min() < 1e-6


def test_rounds_are_learned_in_place_and_adapt_publishes_another_encoder():
    policy = trained(make())
    head = policy._head
    encoder = policy._encoder
    counts = head.statistics.counts.sum()
    policy.play(*problem(64, seed=50))
    policy.adapt()
    assert policy._head is head
    assert head.statistics.counts.sum() == counts + 64
    assert policy._encoder is not encoder
    assert all(not module.training for module in policy._encoder.network.modules())
