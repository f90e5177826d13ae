import numpy as np
import torch

from daband.neural.learning._replay_buffer import ReplayBuffer

CPU = torch.device("cpu")


def numbered(start, stop):
    return np.arange(start, stop, dtype=np.float32)[:, None]


def filled(pieces, capacity=10, seed=0):
    buffer = ReplayBuffer(context_shape=(1,), capacity=capacity, seed=seed, device=CPU)
    for start, stop in pieces:
        buffer.add(numbered(start, stop))
    return buffer


def stored(buffer):
    return buffer.contexts[: len(buffer), 0].tolist()


def test_everything_is_kept_in_order_up_to_the_capacity():
    buffer = filled([(0, 3), (3, 10)])
    assert stored(buffer) == list(range(10))
    assert len(buffer) == 10


def test_what_is_kept_does_not_depend_on_how_items_arrive():
    assert stored(filled([(0, 200)])) == stored(filled([(i, i + 1) for i in range(200)]))


def test_beyond_the_capacity_every_item_is_kept_equally_often():
    kept = np.zeros(50)
    for seed in range(600):
        kept[np.array(stored(filled([(0, 50)], seed=seed)), dtype=int)] += 1
    expected = 600 * 10 / 50
    assert abs(kept - expected).max() < 5 * np.sqrt(expected)


def test_a_restored_buffer_goes_on_alike():
    whole = filled([(0, 30), (30, 80)])
    first = filled([(0, 30)])
    second = ReplayBuffer(context_shape=(1,), capacity=10, seed=0, device=CPU)
    second.restore(first.state())
    second.add(numbered(30, 80))
    assert stored(second) == stored(whole)


def test_rounds_stay_together():
    buffer = ReplayBuffer(context_shape=(1,), capacity=8, seed=1, device=CPU, is_labelled=True)
    for start in range(0, 60, 7):
        items = numbered(start, start + 7)
        buffer.add_rounds(items, items[:, 0].astype(np.int64), items[:, 0].astype(np.float64) / 100)
    n = len(buffer)
    arms = buffer.columns["arms"][:n]
    rewards = buffer.columns["rewards"][:n]
    assert buffer.contexts[:n, 0].long().tolist() == arms.tolist()
    np.testing.assert_allclose(rewards.numpy() * 100, arms.numpy())


def test_weights_matter_only_if_one_differs_from_one():
    buffer = ReplayBuffer(context_shape=(1,), capacity=8, seed=1, device=CPU, is_labelled=True)
    rounds = numbered(0, 3), np.zeros(3, np.int64), np.zeros(3)
    buffer.add_rounds(*rounds, np.ones(3))
    assert not buffer.has_weights
    buffer.add_rounds(*rounds, np.array([1.0, 2.0, 1.0]))
    again = ReplayBuffer(context_shape=(1,), capacity=8, seed=1, device=CPU, is_labelled=True)
    again.restore(buffer.state())
    assert buffer.has_weights
    assert again.has_weights
    assert again.columns["weights"].tolist() == [1, 1, 1, 1, 2, 1]


def test_bytes_become_floats_when_floats_follow():
    buffer = ReplayBuffer(context_shape=(1,), capacity=10, seed=0, device=CPU)
    buffer.add(np.array([[255]], np.uint8))
    buffer.add(np.array([[0.5]], np.float64))
    assert buffer.contexts[:2, 0].tolist() == [1.0, 0.5]
