"""A policy shared by threads in a process that forks, as gunicorn and multiprocessing do."""

import os
import pickle
import threading
import time

import numpy as np
import pytest

import daband

CHILDREN = 15
SECONDS = 20.0  # of each policy

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def make_policy(kind):
    if kind is daband.LinUCB:
        return kind(context_shape=(4,), n_arms=3, seed=0)
    policy = kind(context_shape=(4,), n_arms=3, recipe="small", device="cpu", seed=0)
    policy.observe_target(np.random.default_rng(1).normal(size=(64, 4)))
    return policy


def use_in_child(policy, rows):
    """Learn and decide in a forked child, which ends with status 0 where statistics are whole."""
    status = 1
    try:
        arms = policy.select(rows).arm
        policy.update(rows, arms, np.ones(len(rows)))
        if isinstance(policy, daband.LinUCB):
            statistics = policy._head.statistics
            A = statistics.gram + np.diag(statistics.penalties)
            status = 0 if np.allclose(A @ statistics.A_inv, np.eye(5)) else 2
        else:
            status = 0
    finally:
        os._exit(status)


def join_child(pid, until):
    """The child's exit status; None where it hangs."""
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None


@pytest.mark.parametrize("kind", [daband.LinUCB, daband.DABand])
def test_a_forked_child_of_a_process_with_busy_threads_does_not_hang(kind):
    policy = make_policy(kind)
    rows = np.random.default_rng(0).normal(size=(2, 4))
    stop = threading.Event()

    def work():
        while not stop.is_set():
            policy.update(rows, [0, 1], [1.0, 0.0])
            policy.select(rows)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        statuses = []
        for _ in range(CHILDREN):
            pid = os.fork()
            if pid == 0:
                use_in_child(policy, rows)
            statuses.append(join_child(pid, time.monotonic() + SECONDS))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert statuses == [0] * CHILDREN
    learned = policy.rounds_learned
    policy.update(rows, [0, 1], [1.0, 0.0])  # the parent's locks are free again
    assert policy.rounds_learned == learned + 2


def test_a_child_may_use_a_policy_that_adapts_in_the_parent():
    policy = make_policy(daband.LinUCB)
    rows = np.zeros((1, 4))
    with policy._locks.write:
        outcome = []

        def fork_and_join():
            pid = os.fork()
            if pid == 0:
                use_in_child(policy, rows)
            outcome.append(join_child(pid, time.monotonic() + SECONDS))

        # another thread than the one that holds the lock
        thread = threading.Thread(target=fork_and_join)
        thread.start()
        thread.join()
    assert outcome == [0]


def test_forked_children_draw_different_arms_and_the_parent_those_of_its_seed():
    def make():
        return daband.LinUCB(context_shape=(1,), n_arms=4, epsilon=1.0, seed=0)

    policy = make()
    rows = np.zeros((64, 1))
    drawn = []
    for _ in range(3):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            copied = pickle.loads(pickle.dumps(policy))
            arms = [policy.select(rows).arm, copied.select(rows).arm]
            os.write(writer, np.stack(arms).astype(np.uint8).tobytes())
            os._exit(0)
        arms, copied_arms = np.frombuffer(os.read(reader, 1 << 12), np.uint8).reshape(2, -1)
        assert join_child(pid, time.monotonic() + SECONDS) == 0
        os.close(reader)
        os.close(writer)
        assert (copied_arms == arms).all()
        drawn.append(arms.tolist())
    drawn.append(policy.select(rows).arm.tolist())
    assert len(set(map(tuple, drawn))) == 4
    assert drawn[-1] == make().select(rows).arm.tolist()
