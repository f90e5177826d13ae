"""A head shared by threads, and statistics replaced while others are read."""

import sys
import threading

import numpy as np
import pytest

from daband.linear._ridge_head import RidgeHead


def make_head(form="primal", arms="disjoint", dim=12):
    return RidgeHead(n_arms=4, dim=dim, arms=arms, ridge=1.0, form=form)


@pytest.fixture
def busy_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_switching")
def test_eight_threads_with_a_lock_end_where_one_ends():
    n, n_threads = 8_000, 8
    rng = np.random.default_rng(0)
    contexts, arms, rewards = rng.uniform(-1, 1, (n, 12)), rng.integers(0, 4, n), rng.random(n)
    # Single rounds, batches and whole episodes use different code for the same statistics.
    sizes = np.tile([1, 1, 1, 5, 1, 1, 40], n)
    stops = np.cumsum(sizes)
    parts = [slice(stop - size, stop) for stop, size in zip(stops, sizes, strict=True) if stop <= n]
    shared, alone = make_head(), make_head()
    lock, failures = threading.Lock(), []

    def work(first):
        try:
            for part in parts[first::n_threads]:
                with lock:
                    mean, _ = shared.score(contexts[part])
                assert np.isfinite(mean).all()
                with lock:
                    shared.learn(contexts[part], arms[part], rewards[part])
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for part in parts:
        alone.learn(contexts[part], arms[part], rewards[part])
    ours, wanted = shared.statistics, alone.statistics
    np.testing.assert_array_equal(ours.counts, wanted.counts)
    assert ours.counts.sum() == parts[-1].stop
    for head in range(4):
        np.testing.assert_allclose(ours.gram(head), wanted.gram(head), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.inverse, wanted.inverse, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(ours.theta, wanted.theta, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("busy_switching")
def test_a_decision_sees_the_old_statistics_or_the_new_ones():
    """Each head of one of two data sets; a mixture of them would predict something else."""
    rng = np.random.default_rng(1)
    contexts, arms = rng.uniform(-1, 1, (200, 12)), rng.integers(0, 4, 200)
    head, probe = make_head(), rng.uniform(-1, 1, (3, 12))
    choices = [head.refitted(contexts, arms, rewards) for rewards in (np.zeros(200), np.ones(200))]
    wanted = []
    for statistics in choices:
        head.statistics = statistics
        wanted.append(head.score(probe)[0])
    stop, strange = threading.Event(), []

    def read():
        while not stop.is_set():
            mean = head.score(probe)[0]
            if not any(np.array_equal(mean, other) for other in wanted):
                strange.append(mean)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(400):
        head.statistics = head.refitted(contexts, arms, np.full(200, float(i % 2)))
    stop.set()
    for reader in readers:
        reader.join()
    assert not strange


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("arms", ["disjoint", "shared"])
def test_refitting_leaves_the_present_statistics_alone(form, arms):
    rng = np.random.default_rng(2)
    head = make_head(form, arms)
    contexts = rng.uniform(-1, 1, (60, 12) if arms == "disjoint" else (60, 4, 12))
    pulled, rewards = rng.integers(0, 4, 60), rng.random(60)
    head.learn(contexts[:30], pulled[:30], rewards[:30])
    before = {name: array.copy() for name, array in head.state().items()}
    fresh = head.refitted(contexts[30:], pulled[30:], rewards[30:])
    for name, array in head.state().items():
        np.testing.assert_array_equal(array, before[name])
    assert fresh.counts.sum() == 30
    other = make_head(form, arms)
    other.learn(contexts[30:], pulled[30:], rewards[30:])
    head.statistics = fresh
    for ours, wanted in zip(head.score(contexts), other.score(contexts), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-11)
