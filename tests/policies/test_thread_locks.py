"""A policy that threads share."""

import copy
import threading

import numpy as np
import pytest

import daband
from daband.policies import Policy
from daband.policies import _policy as policy_module


class Slow(daband.LinUCB):
    """Adapts until it is told to stop."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.begun = threading.Event()
        self.stop = threading.Event()

    def _adapt(self, steps):
        self.begun.set()
        assert self.stop.wait(60)
        return {}


def test_select_does_not_wait_for_adapt_and_update_does():
    policy = Slow(context_shape=(3,), n_arms=2)
    adapting = threading.Thread(target=policy.adapt)
    updating = threading.Thread(target=policy.update, args=(np.ones((1, 3)), [0], [1.0]))
    adapting.start()
    assert policy.begun.wait(60)
    updating.start()
    assert policy.select(np.ones((1, 3))).arm.shape == (1,)  # would hang here
    assert policy.rounds_learned == 0
    policy.stop.set()
    adapting.join(60)
    updating.join(60)
    assert policy.rounds_learned == 1


def test_saving_sees_one_state(tmp_path):
    """Rounds of two learned in one update are both in a file or both not."""
    policy = daband.LinUCB(context_shape=(3,), n_arms=2)
    running = threading.Event()
    running.set()

    def learn():
        while running.is_set():
            policy.update(np.ones((2, 3)), [0, 1], [1.0, 0.0])

    learning = threading.Thread(target=learn)
    learning.start()
    try:
        for _ in range(20):
            policy.save(tmp_path / "p.safetensors")
            loaded = daband.load(tmp_path / "p.safetensors")
            assert loaded.counts[0] == loaded.counts[1]
            assert loaded.counts.sum() == loaded.rounds_learned
    finally:
        running.clear()
        learning.join(60)


def test_arms_added_while_others_select():
    policy: Policy = daband.LinUCB(context_shape=(3,), n_arms=2)
    errors = []

    def choose():
        try:
            for _ in range(300):
                decision = policy.select(np.ones((4, 3)))
                assert decision.arm.max() < decision.mean.shape[1]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=choose) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        policy.add_arm()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert policy.n_arms == 22


def test_copies_taken_while_another_thread_learns_are_whole():
    policy = daband.LinUCB(context_shape=(3,), n_arms=2)
    running = threading.Event()
    running.set()

    def learn():
        number = 0
        while running.is_set():
            policy.update(np.ones((2, 3)), [0, 1], [1.0, 0.0], ids=[number, number + 1])
            number += 2

    learning = threading.Thread(target=learn)
    learning.start()
    try:
        for _ in range(50):
            twin = copy.deepcopy(policy)
            assert twin.counts[0] == twin.counts[1]
            assert twin.counts.sum() == twin.rounds_learned
    finally:
        running.clear()
        learning.join(60)


@pytest.mark.parametrize("arms", ["disjoint", "shared"])
def test_an_arm_added_between_check_and_decision_is_not_offered(arms, monkeypatch):
    """``add_arm`` of another thread, at the worst moment: after the contexts were checked."""
    policy = daband.NeuralLinUCB(context_shape=(3,), n_arms=3, arms=arms, recipe="small")
    predict = policy_module.predict
    contexts = np.ones((4, 3, 3) if arms == "shared" else (4, 3))

    def grow_first(*given):
        monkeypatch.setattr(policy_module, "predict", predict)
        thread = threading.Thread(target=policy.add_arm)
        thread.start()
        thread.join(60)
        return predict(*given)

    monkeypatch.setattr(policy_module, "predict", grow_first)
    decision = policy.select(contexts, available=[True, True, False])
    assert policy.n_arms == 4
    assert decision.arm.shape == (4,)
    assert decision.arm.max() < 2


def test_threads_that_save_to_one_path_leave_a_whole_file(tmp_path):
    policies = [daband.LinUCB(context_shape=(40,), n_arms=8, seed=seed) for seed in range(4)]
    errors = []

    def save(policy):
        try:
            for _ in range(25):
                policy.save(tmp_path / "p.safetensors")
                daband.load(tmp_path / "p.safetensors")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(policy,)) for policy in policies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert [path.name for path in tmp_path.iterdir()] == ["p.safetensors"]
