import threading
from functools import partial

import numpy as np
import pytest

import daband
from daband.domains.readers._arrays import ArraySource
from daband.training._trainer import Prefetcher


def test_the_next_episode_is_read_by_another_thread_while_this_one_is_in_use():
    begun, readers = threading.Event(), {}

    def read(episode):
        readers[episode] = threading.current_thread()
        if episode == 1:
            begun.set()
        return 10 * episode

    ahead = Prefetcher(read, episodes=3, wanted=True)
    assert ahead.take(0) == 0
    assert begun.wait(600)
    assert [ahead.take(1), ahead.take(2)] == [10, 20]
    assert readers[0] is threading.main_thread()
    assert threading.main_thread() not in (readers[1], readers[2])
    assert set(readers) == {0, 1, 2}


def test_nothing_is_read_early_where_it_is_not_wanted():
    seen = []
    ahead = Prefetcher(seen.append, episodes=3, wanted=False)
    ahead.take(0)
    assert seen == [0]


def test_an_error_shows_where_its_episode_is_asked_for():
    def read(episode):
        if episode == 1:
            raise ValueError("a damaged file")
        return episode

    ahead = Prefetcher(read, episodes=3, wanted=True)
    assert ahead.take(0) == 0
    with pytest.raises(ValueError, match="damaged"):
        ahead.take(1)


def test_a_run_that_reads_ahead_is_the_same_run():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    contexts = np.eye(3)[labels] + 0.3 * rng.normal(size=(300, 3))
    runs = []
    for ahead in (False, True):
        source = ArraySource(contexts, labels, n_arms=3)
        source.prefetches = ahead
        policy = daband.NeuralLinUCB(context_shape=(3,), n_arms=3, recipe="small", device="cpu")
        runs.append(daband.train(policy, source=source, episodes=10, episode_length=30))
    np.testing.assert_array_equal(runs[0].arm, runs[1].arm)
    np.testing.assert_array_equal(runs[0].propensity, runs[1].propensity)


@pytest.mark.parametrize("how", ["alone", "together"])
def test_a_run_that_is_stopped_leaves_no_thread_behind(how):
    from daband.training._loop import train_stacked
    from daband.training._trainer import TrainSettings, source_phase

    rng = np.random.default_rng(0)
    source = ArraySource(rng.normal(size=(90, 3)), rng.integers(0, 3, 90), n_arms=3)
    source.prefetches = True
    policy = daband.NeuralLinUCB(context_shape=(3,), n_arms=3, recipe="small", device="cpu")

    def stop(record):
        raise KeyboardInterrupt

    settings = {"episodes": 3, "episode_length": 30, "progress": stop}
    work = [source_phase(policy, source, None, TrainSettings(**settings))]
    train = partial(daband.train, policy, source=source, **settings) if how == "alone" else partial(train_stacked, work)
    others = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt) as caught:  # held, and with it all that the run had in hand
        train()
    for thread in set(threading.enumerate()) - others:
        thread.join(600)
    assert set(threading.enumerate()) <= others, caught
