"""What a gradient step and an episode cost in counts, which do not depend on the machine's load.

A GPU's time for a small network goes by the number of operations, and a stack of runs is worth it
because that number hardly grows with the runs. Whoever makes a step longer on purpose raises the
limit here and says why."""

import gc
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import daband
from daband.neural.learning._stack_trainer import take_steps

LIMITS = {("image", 1): 257, ("image", 3): 341, ("vector", 1): 123, ("vector", 3): 178}
"""Operations of a step that does not measure: the default recipe with every term on, one run and three stacked. Four of
them are for rewards between 0 and 1 of "one_hot" feedback, and ten for the frequencies of arms."""
BETWEEN_STEPS = {"image": 43, "vector": 29}
"""Operations of an episode of 64 rounds besides its steps: encoding, playing, keeping,
copying the acting encoder.
"""
SHAPES = {"image": (3, 28, 28), "vector": (20,)}
PEAK_BYTES = 500_000
"""Of what Python allocates at the most while the default plays an episode of 64 images."""


class Counted(TorchDispatchMode):
    """Counts every operation below autograd; views cost nothing and are left out."""

    def __init__(self):
        super().__init__()
        self.operations = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.operations[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _late_in_a_run(monkeypatch):
    """Early in a run the EMA encoder is not used; later it is."""
    monkeypatch.setattr(
        "daband.neural.learning._gradient_step.GradientStep._uses_teacher",
        lambda step, *_: bool(step._teacher_term_indices),
    )


def trained(kind, seed):
    shape = SHAPES[kind]
    policy = daband.DABand(
        context_shape=shape, n_arms=10, feedback="one_hot", device="cpu", seed=seed, shift="style"
    )
    draw = np.random.default_rng(seed)
    images = (
        draw.integers(0, 256, (64, *shape), dtype=np.uint8)
        if kind == "image"
        else draw.normal(size=(64, *shape))
    )
    policy.play(images, np.eye(10)[draw.integers(0, 10, 64)])
    policy.observe_target(images)
    policy.adapt(steps=1)
    return policy, images


@pytest.mark.parametrize(("kind", "runs"), LIMITS)
def test_a_step_has_no_more_operations_than_it_had(kind, runs):
    policies = [trained(kind, seed)[0] for seed in range(runs)]
    learners = [policy.learner for policy in policies]
    buffers = [policy.buffers for policy in policies]
    take_steps(learners, 1, buffers)
    with Counted() as block:
        take_steps(learners, 2, buffers)  # the last one measures
    with Counted() as longer:
        take_steps(learners, 3, buffers)
    step = longer.operations - block.operations
    assert step.total() <= LIMITS[kind, runs], f"{step.total()} operations: {step.most_common(12)}"


def test_an_episode_allocates_no_more_than_it_did():
    policy, images = trained("image", 0)
    rewards = np.eye(10)[np.arange(64) % 10]
    policy.play(images, rewards)
    gc.collect()
    tracemalloc.start()
    try:
        policy.play(images, rewards)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= PEAK_BYTES, f"{peak:,} bytes"


@pytest.mark.parametrize("kind", SHAPES)
def test_an_episode_has_no_more_operations_between_steps_than_it_had(kind):
    policy, contexts = trained(kind, 0)
    with Counted() as episode:
        policy.play(contexts, np.eye(10)[np.arange(64) % 10])
        policy.observe_target(contexts)
        policy.adapt(steps=0)
    counted = episode.operations
    assert counted.total() <= BETWEEN_STEPS[kind], (
        f"{counted.total()} operations: {counted.most_common(12)}"
    )


@pytest.mark.parametrize("kind", SHAPES)
def test_stacked_runs_hardly_add_operations(kind):
    assert LIMITS[kind, 3] < 1.6 * LIMITS[kind, 1]
