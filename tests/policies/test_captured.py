"""The captured step against the same steps one by one. Needs a GPU; the rest of the suite covers the eager path."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from daband.policies import DABand, recipe_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to capture")


def trained(*, capture, shape=(3, 20, 20), episodes=6):
    recipe = recipe_for("default-rpd", context_shape=shape)
    recipe = replace(recipe, learning=replace(recipe.learning, steps=16, batch=32))
    policy = DABand(context_shape=shape, n_arms=4, recipe=recipe, reveal="one_correct_arm", device="cuda", seed=1)
    if not capture:
        policy._learner._captured = None
    rng = np.random.default_rng(0)
    for _ in range(episodes):
        contexts = rng.integers(0, 256, (64, *shape), dtype=np.uint8)
        policy.play(contexts, np.eye(4)[contexts.reshape(64, -1)[:, 0] // 64])
        policy.observe_target(255 - contexts)
        measured = policy.adapt()
    return policy, measured


def test_captured_steps_equal_steps_one_by_one():
    (captured, ours), (eager, theirs) = trained(capture=True), trained(capture=False)
    assert not captured._learner._captured.refused
    assert captured._learner._captured._graph is not None
    assert set(ours) == set(theirs)
    assert float(captured._learner.step_number) == float(eager._learner.step_number) == 6 * 16
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.05)
    images = np.random.default_rng(5).integers(0, 256, (50, 3, 20, 20), dtype=np.uint8)
    np.testing.assert_allclose(captured.decide(images).mean, eager.decide(images).mean, atol=0.05)


def test_a_saved_policy_goes_on_from_the_device(tmp_path):
    from daband.policies import load

    policy, _ = trained(capture=True)
    policy.save(tmp_path / "p.safetensors")
    again = load(tmp_path / "p.safetensors")
    images = np.random.default_rng(5).integers(0, 256, (50, 3, 20, 20), dtype=np.uint8)
    np.testing.assert_allclose(again.decide(images).mean, policy.decide(images).mean, atol=1e-6)
    assert again.adapt()["skipped_steps"] == 0
