"""A head shared by threads, and statistics replaced while others are read."""

import sys
import threading

import numpy as np
import pytest

from daband.linear._ridge_head import RidgeHead


def make_head(arms="disjoint", dim=12):
    return RidgeHead(n_arms=4, dim=dim, arms=arms, ridge=1.0)


@pytest.fixture
def busy_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_switching")
def test_eight_threads_with_a_lock_end_where_one_ends():
    n = 8_000
    n_threads = 8
    rng = np.random.default_rng(0)
    contexts = rng.uniform(-1, 1, (n, 12))
    arms = rng.integers(0, 4, n)
    rewards = rng.random(n)
    # Single rounds, batches and whole episodes use different code for the same statistics.
    sizes = np.tile([1, 1, 1, 5, 1, 1, 40], n)
    stops = np.cumsum(sizes)
    parts = [slice(stop - size, stop) for stop, size in zip(stops, sizes, strict=True) if stop <= n]
    shared = make_head()
    alone = make_head()
    lock = threading.Lock()
    failures = []

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
    ours = shared.statistics
    wanted = alone.statistics
    np.testing.assert_array_equal(ours.counts, wanted.counts)
    assert ours.counts.sum() == parts[-1].stop
    np.testing.assert_allclose(ours.gram, wanted.gram, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.A_inv, wanted.A_inv, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(ours.theta, wanted.theta, rtol=1e-9, atol=1e-10)
