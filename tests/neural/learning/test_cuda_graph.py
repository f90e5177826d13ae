"""Steps replayed from a CUDA graph against the same steps run eagerly.

Needs a GPU; ``test_runners`` does not.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from daband.neural._daband import DABand
from daband.neural._neural_linucb import NeuralLinUCB
from daband.neural._recipes import recipe_for
from daband.neural.learning._replay_buffer import ReplayBuffer

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: no graph to record"
)


@pytest.fixture(autouse=True)
def _every_digit(monkeypatch):
    """Without TF32: steps carry its rounding on, so that after some dozens nothing close could be
    asked for.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def trained(*, uses_cuda_graph, shape=(3, 20, 20), episodes=6, steps=16):
    recipe = recipe_for("default-rpd", context_shape=shape)
    recipe = replace(recipe, learning=replace(recipe.learning, steps=steps, batch=32))
    policy = DABand(
        context_shape=shape, n_arms=4, recipe=recipe, feedback="one_hot", device="cuda", seed=1
    )
    policy.learner.uses_cuda_graph = uses_cuda_graph
    rng = np.random.default_rng(0)
    for _ in range(episodes):
        contexts = rng.integers(0, 256, (64, *shape), dtype=np.uint8)
        policy.play(contexts, np.eye(4)[contexts.reshape(64, -1)[:, 0] // 64])
        policy.observe_target(255 - contexts)
        measured = policy.adapt()
    return policy, measured


def test_replayed_steps_move_parameters_as_eager_steps_do():
    """Sums on a GPU have no fixed order, and Adam carries differences on: the way of ten steps is
    compared as a whole.

    A step that was lost, taken twice or taken on another batch would change the way by about its
    own length."""
    start = (
        trained(uses_cuda_graph=True, episodes=1, steps=0)[0]
        .learner.parameter_vector.detach()
        .cpu()
    )
    replayed, ours = trained(uses_cuda_graph=True, episodes=1, steps=10)
    eager, theirs = trained(uses_cuda_graph=False, episodes=1, steps=10)
    runner = replayed.learner.trainer.recordable_step
    assert not runner.is_eager
    assert set(runner._replays) == {False, True}
    assert eager.learner.trainer.recordable_step.is_eager
    assert set(ours) == set(theirs)
    assert replayed.learner.step_number == eager.learner.step_number == 10
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.01)
    one, other = (
        policy.learner.parameter_vector.detach().cpu() - start for policy in (replayed, eager)
    )
    assert other.norm() > 0
    assert (one - other).norm() < 0.3 * other.norm()


def test_steps_on_rounds_of_both_domains_without_target_contexts_are_recorded_too():
    policy = NeuralLinUCB(context_shape=(12,), n_arms=4, feedback="one_hot", device="cuda", seed=1)
    rng = np.random.default_rng(0)
    for domain in ("source", "target"):
        policy.play(rng.normal(size=(64, 12)), np.eye(4)[rng.integers(0, 4, 64)], domain)
        policy.adapt(16)
    assert not policy.learner.trainer.recordable_step.is_eager
    assert set(policy.learner.trainer.recordable_step._replays) == {False, True}


def test_room_for_many_contexts_is_made_at_once_so_that_recordings_hold():
    device = torch.device("cuda")
    buffer = ReplayBuffer(context_shape=(3, 20, 20), capacity=200_000, seed=0, device=device)
    buffer.add(np.zeros((64, 3, 20, 20), np.uint8))
    place = buffer.contexts.data_ptr()
    for _ in range(40):
        buffer.add(np.zeros((500, 3, 20, 20), np.uint8))
    assert buffer.contexts.data_ptr() == place


def test_a_saved_policy_goes_on_from_the_device(tmp_path):
    from daband.policies._checkpoints import load_policy

    policy, _ = trained(uses_cuda_graph=True)
    policy.save(tmp_path / "p.safetensors")
    again = load_policy(tmp_path / "p.safetensors")
    images = np.random.default_rng(5).integers(0, 256, (50, 3, 20, 20), dtype=np.uint8)
    np.testing.assert_allclose(again.decide(images).mean, policy.decide(images).mean, atol=1e-6)
    assert again.adapt()["skipped_steps"] == 0


def test_runs_together_equal_runs_alone_on_the_device():
    import daband
    from daband.training._loop import train, train_stacked
    from daband.training._trainer import TrainSettings, build_source_phase

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
    # At the recipe's learning rate of 1e-3, 48 steps can turn rounding errors into half of the
    # loss.
    recipe = replace(
        recipe, learning=replace(recipe.learning, steps=16, batch=32, learning_rate=1e-5)
    )

    def fresh(seed):
        return DABand(
            context_shape=(3, 20, 20),
            n_arms=4,
            recipe=recipe,
            feedback="one_hot",
            device="cuda",
            seed=seed,
        )

    domains = {"source": pair.source, "target": pair.target}
    together = [fresh(seed) for seed in range(7)]  # more than one convolution takes
    runs = train_stacked(
        [
            build_source_phase(policy, pair.source, pair.target, TrainSettings(episodes=3))
            for policy in together
        ]
    )
    assert not together[0].learner.trainer.recordable_step.is_eager
    for seed in (0, 6):
        alone = fresh(seed)
        run = train(alone, **domains, episodes=3)
        assert runs[seed].episodes[-1]["loss"] == pytest.approx(
            run.episodes[-1]["loss"], rel=0.01, abs=1e-3
        )
        np.testing.assert_allclose(
            together[seed].decide(images[:50], "target").mean,
            alone.decide(images[:50], "target").mean,
            atol=5e-3,
        )
