"""Round ids: each counts once, within a bounded window."""

import signal

import numpy as np
import pytest

import daband
from daband.policies._incoming_rounds import RoundIds, mask_new


def test_the_window_forgets_the_oldest():
    ids = RoundIds(max_ids=3)
    ids.add([1, "b", 3, 4])
    assert len(ids) == 3
    assert mask_new([1, "b", 3, 4, 1], ids).tolist() == [True, False, False, False, False]


def test_the_order_survives_saving():
    for names in ([5, 3, 9], ["x", 2, "y"], [2**70, 1]):
        ids = RoundIds(max_ids=3)
        restored = RoundIds(max_ids=3)
        ids.add(names)
        restored.restore(ids.state())
        restored.add(["new"])
        expected = [*names, "new"][-3:]
        assert mask_new([*names, "new"], restored).tolist() == [
            name not in expected for name in [*names, "new"]
        ]


def test_a_long_lived_policy_keeps_a_bounded_number(monkeypatch):
    monkeypatch.setattr(daband.LinUCB, "id_window", 50)
    policy = daband.LinUCB(context_shape=(2,), n_arms=2)
    for start in range(0, 500, 100):
        policy.update(
            np.ones((100, 2)), np.zeros(100, int), np.ones(100), ids=np.arange(start, start + 100)
        )
    assert len(policy._round_ids) == 50
    assert policy.update(np.ones((2, 2)), [0, 0], [1, 1], ids=[499, 1000], on_duplicate="skip") == [
        499
    ]


def test_an_update_leaves_signal_handlers_alone(monkeypatch):
    """They belong to the program."""
    monkeypatch.setattr(signal, "signal", None)
    policy = daband.LinUCB(context_shape=(3,), n_arms=2)
    assert policy.update(np.ones((1, 3)), [0], [1.0], ids=["a"]) == []


@pytest.mark.parametrize("kind", [daband.LinUCB, daband.DABand])
def test_a_signal_inside_an_update_and_a_retry_count_a_round_once(kind):
    """An exception of a signal handler, at any moment, then the same call again, as
    services retry.
    """
    settings = {"recipe": "small", "device": "cpu"} if kind is daband.DABand else {}
    policy = kind(context_shape=(3,), n_arms=2, **settings)
    policy.update(np.ones((1, 3)), [0], [1.0])  # compiles
    rounds = 400 if kind is daband.LinUCB else 60

    class Interrupted(Exception):
        pass

    def interrupt(number, frame):
        raise Interrupted

    handler = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for name in range(rounds):
            # the retry is not interrupted, or it would never end
            for delay in (1e-6 * (1 + name * 37 % 400), 0.0):
                try:
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    policy.update(
                        np.ones((1, 3)), [name % 2], [1.0], ids=[name], on_duplicate="skip"
                    )
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    break
                except Interrupted:
                    interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert interrupted > 0
    assert policy.rounds_learned == policy.counts.sum() == rounds + 1
