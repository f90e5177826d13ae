"""Contexts that stay on the host give the same steps as contexts on the device."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from daband.errors import InvalidInput
from daband.learning.replay_buffer import ContextBuffer
from daband.learning.settings import Memory
from daband.policies import DABand, load, recipe_for
from daband.policies.stacked import adapt_stacked
from tests.learning.one_step import assert_same_step, copies

SHAPE = (3, 20, 20)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def policy(place, device="cpu", seed=1, replay="all", **learning):
    recipe = recipe_for("small", context_shape=SHAPE)
    recipe = replace(recipe, learning=replace(recipe.learning, **learning))
    recipe = replace(recipe, memory=Memory(place=place, replay=replay, capacity=150))
    return DABand(context_shape=SHAPE, n_arms=4, recipe=recipe, feedback="one_hot", device=device, seed=seed)


def episode(some, number, steps=5):
    rng = np.random.default_rng(number)
    contexts = rng.integers(0, 256, (64, *SHAPE), dtype=np.uint8)
    some.play(contexts, np.eye(4)[contexts.reshape(64, -1)[:, 0] // 64])
    some.observe_target(255 - contexts)
    if number == 2:
        some.play(contexts[:20], np.eye(4)[rng.integers(0, 4, 20)], "target")  # a third memory joins
    return steps


def assert_equal(one, other):
    ours, theirs = one.learner.state(), other.learner.state()
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("replay", ["all", "last"])
def test_streamed_steps_are_the_steps_of_contexts_on_the_device(device, replay, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    resident, streamed = policy("device", device, replay=replay), policy("host", device, replay=replay)
    for number, steps in enumerate((5, 3, 9, 9)):  # fewer, more, and so many that places are used again
        for some in (resident, streamed):
            episode(some, number)
            measured = some.adapt(steps)
        assert measured["skipped_steps"] == 0
    assert streamed._learner.steps.feed is not None
    assert resident._learner.steps.feed is None
    assert streamed._memories.source.contexts.device.type == "cpu"
    assert streamed._memories.source.arms.device.type == device
    if device == "cpu":
        assert_equal(resident, streamed)
    else:  # which adds up in no fixed order
        images = np.random.default_rng(9).integers(0, 256, (50, *SHAPE), dtype=np.uint8)
        np.testing.assert_allclose(resident.decide(images).mean, streamed.decide(images).mean, atol=5e-3)


def test_a_streaming_policy_goes_on_from_its_file_to_the_last_bit(tmp_path):
    one = policy("host")
    episode(one, 0)
    one.adapt(4)
    one.save(tmp_path / "p.safetensors")
    other = load(tmp_path / "p.safetensors")
    for some in (one, other):
        episode(some, 1)
        some.adapt(4)
    assert other._memories.source.on_host
    assert_equal(one, other)


def test_stacked_runs_stream_the_batches_of_runs_on_the_device():
    resident, streamed = ([policy(place, seed=seed) for seed in (1, 2)] for place in ("device", "host"))
    for number in range(3):
        for some in (*resident, *streamed):
            episode(some, number)
        adapt_stacked(resident)
        adapt_stacked(streamed)
    assert streamed[0].learner.steps.feed is not None
    assert streamed[0].learner.steps.runs == 2
    for one, other in zip(resident, streamed, strict=True):
        assert_equal(one, other)


def test_a_streamed_step_of_stacked_runs_is_that_of_each_alone():
    stacked = [policy("host", seed=seed, steps=1) for seed in (1, 2)]
    for number in range(3):
        for some in stacked:
            episode(some, number)
        alone = copies(stacked)
        adapt_stacked(stacked)
        for one, other in zip(stacked, alone, strict=True):
            other.adapt()
            assert_same_step(one, other)


def test_contexts_lie_on_the_host_where_they_would_fill_the_device(monkeypatch):
    class Card:
        total_memory = 1000

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    for capacity, on_host in ((25, False), (26, True)):
        memory = ContextBuffer(context_shape=(10,), capacity=capacity, seed=0, device=torch.device("cpu"))
        memory.device = torch.device("cuda")
        monkeypatch.setattr(ContextBuffer, "_home", lambda *_: torch.device("cpu"))
        memory._settle(torch.uint8)
        assert memory.on_host is on_host


def test_an_unknown_place_is_refused():
    with pytest.raises(InvalidInput, match="place must be"):
        Memory(place="disk")
