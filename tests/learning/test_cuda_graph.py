"""The captured step against the same steps one by one. Needs a GPU; the rest of the suite covers the eager path."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from daband.learning.replay_buffer import ContextBuffer
from daband.policies import DABand, NeuralLinUCB, recipe_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to capture")


@pytest.fixture(autouse=True)
def _every_digit(monkeypatch):
    """Without TF32: steps carry its rounding on, so that after some dozens nothing close could be asked for."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def trained(*, capture, shape=(3, 20, 20), episodes=6):
    recipe = recipe_for("default-rpd", context_shape=shape)
    recipe = replace(recipe, learning=replace(recipe.learning, steps=16, batch=32))
    policy = DABand(context_shape=shape, n_arms=4, recipe=recipe, feedback="one_hot", device="cuda", seed=1)
    policy.learner.captures = capture
    rng = np.random.default_rng(0)
    for _ in range(episodes):
        contexts = rng.integers(0, 256, (64, *shape), dtype=np.uint8)
        policy.play(contexts, np.eye(4)[contexts.reshape(64, -1)[:, 0] // 64])
        policy.observe_target(255 - contexts)
        measured = policy.adapt()
    return policy, measured


def test_captured_steps_equal_steps_one_by_one():
    (captured, ours), (eager, theirs) = trained(capture=True, episodes=3), trained(capture=False, episodes=3)
    assert not captured.learner.steps.captured.refused
    assert set(captured.learner.steps.captured._graphs) == {False, True}
    assert eager.learner.steps.captured is None
    assert set(ours) == set(theirs)
    assert captured.learner.step_number == eager.learner.step_number == 3 * 16
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.01)
    images = np.random.default_rng(5).integers(0, 256, (50, 3, 20, 20), dtype=np.uint8)
    # Sums on a GPU have no fixed order, and steps carry the difference on: .02 was seen after twice as many.
    np.testing.assert_allclose(captured.decide(images).mean, eager.decide(images).mean, atol=0.02)


def test_steps_on_rounds_of_both_domains_without_target_contexts_are_captured_too():
    policy = NeuralLinUCB(context_shape=(12,), n_arms=4, feedback="one_hot", device="cuda", seed=1)
    rng = np.random.default_rng(0)
    for domain in ("source", "target"):
        policy.play(rng.normal(size=(64, 12)), np.eye(4)[rng.integers(0, 4, 64)], domain)
        policy.adapt(16)
    assert not policy.learner.steps.captured.refused
    assert set(policy.learner.steps.captured._graphs) == {False, True}


def test_room_for_many_contexts_is_made_at_once_so_that_recordings_hold():
    device = torch.device("cuda")
    memory = ContextBuffer(context_shape=(3, 20, 20), capacity=200_000, seed=0, device=device)
    memory.add(np.zeros((64, 3, 20, 20), np.uint8))
    place = memory.contexts.data_ptr()
    for _ in range(40):
        memory.add(np.zeros((500, 3, 20, 20), np.uint8))
    assert memory.contexts.data_ptr() == place


def test_a_saved_policy_goes_on_from_the_device(tmp_path):
    from daband.policies import load

    policy, _ = trained(capture=True)
    policy.save(tmp_path / "p.safetensors")
    again = load(tmp_path / "p.safetensors")
    images = np.random.default_rng(5).integers(0, 256, (50, 3, 20, 20), dtype=np.uint8)
    np.testing.assert_allclose(again.decide(images).mean, policy.decide(images).mean, atol=1e-6)
    assert again.adapt()["skipped_steps"] == 0


def test_runs_together_equal_runs_alone_on_the_device():
    import daband
    from daband.training import Training, train, train_stacked

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 640)
    images = rng.integers(0, 60, (640, 3, 20, 20))
    for row, label in enumerate(labels):
        images[row, :, 5 * label : 5 * label + 5] += 150
    images = images.astype(np.uint8)
    pair = daband.domains.from_arrays(
        source=(images, labels), source_test=None, target=255 - images, target_test=(images, labels)
    )
    recipe = recipe_for("default", context_shape=(3, 20, 20))
    recipe = replace(recipe, learning=replace(recipe.learning, steps=16, batch=32))

    def fresh(seed):
        return DABand(context_shape=(3, 20, 20), n_arms=4, recipe=recipe, feedback="one_hot", device="cuda", seed=seed)

    settings = {"source": pair.source, "target": pair.target, "episodes": 3}
    together = [fresh(seed) for seed in range(7)]  # more than one convolution takes
    runs = train_stacked([Training(policy, **settings) for policy in together])
    assert not together[0].learner.steps.captured.refused
    for seed in (0, 6):
        alone = fresh(seed)
        run = train(alone, **settings)
        assert runs[seed].episodes[-1]["loss"] == pytest.approx(run.episodes[-1]["loss"], rel=0.01, abs=1e-3)
        np.testing.assert_allclose(
            together[seed].decide(images[:50], "target").mean, alone.decide(images[:50], "target").mean, atol=5e-3
        )
