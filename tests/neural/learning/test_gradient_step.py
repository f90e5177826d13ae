"""Which rows of a batch the gradient goes through."""

import copy

import numpy as np
import pytest
import torch

import daband
from daband.neural.learning._batches import Batches
from daband.neural.learning._gradient_step import GradientStep
from daband.neural.learning._stacked_runs import Stack
from tests.neural.learning.one_step import assert_same_step


def test_no_gradient_goes_through_rows_that_only_norms_look_at(monkeypatch):
    """Neural-LinUCB's target rows move the norms' statistics alone: a step is that of one pass over
    all rows.
    """
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (2, 48, 1, 16, 16), dtype=np.uint8)
    settings = {
        "context_shape": (1, 16, 16),
        "n_arms": 3,
        "feedback": "one_hot",
        "device": "cpu",
        "shift": "style",
    }
    apart = daband.NeuralLinUCB(seed=0, **settings)
    apart.play(images[0], np.eye(3)[draw.integers(0, 3, 48)])
    apart.observe_target(images[1])
    at_once = copy.deepcopy(apart)
    rows = []
    encode = Stack.encode

    def counted(stack, parameters, contexts, rows_per_domain):
        features, aligned = encode(stack, parameters, contexts, rows_per_domain)
        rows.append((contexts.shape[1], features.requires_grad))
        return features, aligned

    monkeypatch.setattr(Stack, "encode", counted)
    apart.adapt(steps=1)
    (sources, has_gradient), (targets, target_has) = rows
    assert has_gradient
    assert not target_has
    monkeypatch.setattr(Batches, "count_splittable_rows", lambda _: 0)
    at_once.adapt(steps=1)
    assert rows[2:] == [(sources + targets, True)]
    assert_same_step(apart, at_once)


def test_target_rows_of_a_term_have_a_gradient(monkeypatch):
    draw = np.random.default_rng(0)
    policy = daband.DABand(
        context_shape=(20,), n_arms=3, feedback="one_hot", device="cpu", seed=0, shift="style"
    )
    policy.play(draw.normal(size=(48, 20)), np.eye(3)[draw.integers(0, 3, 48)])
    policy.observe_target(draw.normal(size=(48, 20)))
    monkeypatch.setattr(
        Batches, "count_splittable_rows", lambda _: pytest.fail("the batch was split")
    )
    policy.adapt(steps=1)


def test_the_teacher_is_asked_when_its_term_counts(monkeypatch):
    """A term whose weight is still 0 takes no pass of the EMA encoder, and the step is the same
    without.
    """
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (2, 48, 1, 16, 16), dtype=np.uint8)
    settings = {
        "context_shape": (1, 16, 16),
        "n_arms": 3,
        "feedback": "one_hot",
        "device": "cpu",
        "shift": "style",
    }
    policy = daband.DABand(seed=0, **settings)
    policy.learner.set_run_steps(1000)
    policy.play(images[0], np.eye(3)[draw.integers(0, 3, 48)])
    policy.observe_target(images[1])
    always = copy.deepcopy(policy)
    asked = []
    teacher = Stack.encode_by_teacher
    monkeypatch.setattr(
        Stack, "encode_by_teacher", lambda *given: asked.append(1) or teacher(*given)
    )
    policy.adapt(steps=2)
    assert len(asked) == 1  # by the last step of a block, which measures
    monkeypatch.setattr(GradientStep, "_uses_teacher", lambda *_: True)
    always.adapt(steps=2)
    assert len(asked) == 3
    assert_same_step(policy, always)
    monkeypatch.undo()
    step = GradientStep(Stack([policy.learner]))
    weights = torch.zeros(1, len(policy.learner.objective.weights))
    assert step._uses_teacher(weights, measure=True)
    assert not step._uses_teacher(weights, measure=False)
    assert step._uses_teacher(weights + 0.5, measure=False)
