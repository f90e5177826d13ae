"""What replay buffers store, and what is drawn from them."""

import numpy as np
import pytest
import torch

from daband.neural import ReplaySettings
from daband.neural._replay import ReplayBuffer, ReplayBuffers

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


def test_bytes_become_floats_when_floats_follow():
    buffer = ReplayBuffer(context_shape=(1,), capacity=10, seed=0, device=CPU)
    buffer.add(np.array([[255]], np.uint8))
    buffer.add(np.array([[0.5]], np.float64))
    assert buffer.contexts[:2, 0].tolist() == [1.0, 0.5]


def test_rounds_of_weight_zero_are_not_stored():
    buffer = ReplayBuffer(context_shape=(1,), capacity=8, seed=1, device=CPU, is_labelled=True)
    buffer.add_rounds(numbered(0, 3), np.arange(3), np.zeros(3), np.array([0.0, 1.0, 0.0]))
    assert stored(buffer) == [1]
    assert buffer.columns["arms"][:1].tolist() == [1]
    buffer.add_rounds(numbered(0, 2), np.arange(2), np.zeros(2), np.zeros(2))
    assert len(buffer) == 1


def test_contexts_are_stored_on_the_host_if_they_would_fill_the_device(monkeypatch):
    class Card:
        total_memory = 1000

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    moved = []
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *given: moved.append(str(given[0])) or self
    )
    for capacity, place in ((25, "cuda"), (26, "cpu")):
        buffer = ReplayBuffer(context_shape=(10,), capacity=capacity, seed=0, device=CPU)
        buffer.device = torch.device("cuda")
        buffer._choose_device(torch.uint8)
        assert (buffer.is_on_host, moved[-1]) == (place == "cpu", place)


def numbered_buffers(n_source, n_target=0, *, latest=False, weights=None, dtype=np.float32):
    settings = ReplaySettings(capacity=40, sampling="last" if latest else "all")
    buffers = ReplayBuffers((1,), settings, seed=0, device=CPU)
    for start in range(0, n_source, 21):
        numbers = np.arange(start, min(start + 21, n_source))
        part = None if weights is None else weights[numbers]
        buffers.rounds[0].add_rounds(
            numbers[:, None].astype(np.float32), numbers % 3, numbers / 1000, part
        )
    if n_target:
        buffers.unlabelled[0].add(np.arange(100, 100 + n_target)[:, None].astype(dtype))
    return buffers


def drawn(buffers, n_steps=1, n_rounds=16, seed=0):
    segments = [segment for segment, buffer in buffers.by_segment.items() if len(buffer)]
    return buffers.draw(segments, n_steps, n_rounds, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("n", "expected"), [(107, list(range(91, 107))), (9, [0] * 8 + list(range(1, 9)))]
)
def test_the_latest_rounds_are_the_latest_also_when_the_buffer_is_full(n, expected):
    found = drawn(numbered_buffers(n, latest=True), n_steps=2)
    for step in range(2):
        assert found["contexts"][step].flatten().tolist() == expected
        assert found["arms"][step].tolist() == [number % 3 for number in expected]
        np.testing.assert_allclose(found["rewards"][step], np.array(expected) / 1000)


def test_arms_and_rewards_are_those_of_the_drawn_contexts():
    found = drawn(numbered_buffers(30, 5), n_steps=7)
    assert found["contexts"].shape == (7, 2, 16, 1)
    numbers = found["contexts"][:, 0, :, 0].long()
    assert numbers.max() < 30
    assert len(set(numbers.flatten().tolist())) > 20
    assert torch.equal(found["arms"], numbers % 3)
    np.testing.assert_allclose(found["rewards"], numbers / 1000)
    assert set(found["contexts"][:, 1].flatten().tolist()) == {100.0, 101.0, 102.0, 103.0, 104.0}


def test_rounds_are_drawn_as_often_as_they_weigh():
    weights = np.ones(20)
    weights[3] = 20.0
    found = drawn(numbered_buffers(20, weights=weights), n_steps=50)
    share = (found["contexts"] == 3).float().mean()
    assert float(share) == pytest.approx(20 / 39, abs=0.06)
