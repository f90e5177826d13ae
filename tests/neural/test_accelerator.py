"""Steps of several policies, and recorded steps, are the plain steps of each policy.

On a CPU a fake recorder replays a step by calling it. The last tests need a GPU.
"""

import copy
import gc
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import daband
from daband.neural import ReplaySettings, recipe_for
from daband.neural import _accelerator as accelerator
from daband.neural._accelerator import adapt_together
from daband.neural._learner import Learner
from daband.neural.daband import DABand
from daband.neural.neural_linucb import NeuralLinUCB
from tests.neural.test_learner import with_terms
from tests.neural.test_neural_linucb import ARMS, fingerprint, make, small, trained


def copies(policies):
    """Policies in the same state to the last bit, each trained by itself from here on."""
    return [copy.deepcopy(policy) for policy in policies]


def test_a_policy_alone_takes_the_steps_of_adapt_to_the_bit():
    (policy,) = [trained(make(seed=0))]
    (alone,) = copies([policy])
    for _ in range(2):
        assert adapt_together([policy]) == [alone.adapt()]
        assert fingerprint(policy) == fingerprint(alone)


def test_nothing_is_learned_without_rounds():
    policies = [make(seed=seed) for seed in range(2)]
    assert adapt_together(policies) == [{}, {}]
    assert [policy.learner.step_number for policy in policies] == [0, 0]


def test_a_policy_that_diverges_is_rewound_and_the_others_are_adapted():
    policies = committee()
    policies[0].buffers.rounds[0].contexts.fill_(np.nan)
    before = policies[0].learner.step_number
    with pytest.raises(daband.TrainingDiverged):
        adapt_together(policies)
    steps = [policy.learner.step_number for policy in policies]
    assert steps[0] == before < steps[1] == steps[2]


def committee(**changes):
    recipe = with_terms(pseudo_labels=1.0, data_divergence=0.5)
    learning = replace(recipe.learning, steps=2, gate_exponent=0.0, **changes)
    recipe = replace(recipe, learning=learning)
    return [trained(make(recipe=recipe, seed=seed)) for seed in range(3)]


def test_a_committee_draws_target_contexts_once():
    policies = committee()
    for policy in policies:
        policy.start_steps(2)
    first = policies[0].learner.draw_block(policies[0].buffers, 2)
    second = policies[1].learner.draw_block(policies[1].buffers, 2, first)
    n_rounds = policies[0].recipe.learning.batch
    assert torch.equal(first.contexts[:, n_rounds:], second.contexts[:, n_rounds:])
    assert not torch.equal(first.contexts[:, :n_rounds], second.contexts[:, :n_rounds])


def test_a_mixture_of_seeds_is_a_committee_and_other_members_adapt_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "daband.neural._encoder_policy.adapt_together",
        lambda members, steps: asked.append(len(members)) or [{}] * len(members),
    )
    shape = {"context_shape": (5,), "n_arms": ARMS}
    same = {str(seed): make(seed=seed) for seed in range(2)}
    daband.Mixture(**shape, members=same).adapt()
    assert asked == [2]
    other = {**same, "other": make(recipe=small(alpha=0.3))}
    daband.Mixture(**shape, members=other).adapt()
    linear = {**same, "linear": daband.LinUCB(**shape)}
    daband.Mixture(**shape, members=linear).adapt()
    assert asked == [2]


# Recording, with a recorder that needs no GPU.


class FakeGraph:
    def __init__(self, step, calls):
        self.step = step
        self.calls = calls

    def replay(self):
        self.calls.append("replay")
        self.step()


@pytest.fixture
def recorder(monkeypatch):
    """Notes what is recorded and replayed; a replay calls the step. Set ``broken`` to fail."""

    recorder = SimpleNamespace(calls=[], broken=False)

    def record(step):
        if recorder.broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        recorder.calls.append("record")
        return FakeGraph(step, recorder.calls)

    monkeypatch.setattr(accelerator, "_uses_graphs", lambda _: True)
    monkeypatch.setattr(accelerator, "_make_stream", lambda: None)
    monkeypatch.setattr(accelerator, "_record_graph", record)
    return recorder


def numbers(policy):
    """The state, without measurements: a fake replay does not refresh what a recording measures."""
    return {name: array.tobytes() for name, array in policy.learner.state().items()}


@pytest.mark.parametrize("n_members", [1, 3])
def test_recorded_steps_are_the_plain_steps_to_the_bit(recorder, n_members):
    members = committee()[:n_members]
    plain = copies(members)
    for steps in (5, 3, 70):  # the last are two blocks
        adapt_together(members, steps)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accelerator, "_uses_graphs", lambda _: False)
            adapt_together(plain, steps)
        for one, other in zip(members, plain, strict=True):
            assert numbers(one) == numbers(other)
    assert recorder.calls == ["record"] + ["replay"] * (5 - 3 + 3 + 70)


def test_where_recording_fails_every_step_is_taken_once_without(recorder):
    recorder.broken = True
    policy = trained(make())
    plain = copy.deepcopy(policy)
    with pytest.warns(UserWarning, match="CUDA graph"):
        adapt_together([policy], 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapt_together([policy], 6)
    for _ in range(2):
        plain.adapt(6)
    assert numbers(policy) == numbers(plain)


def test_a_recording_is_forgotten_with_its_learner(recorder):
    policy = trained(make())
    adapt_together([policy], 2)
    before = len(accelerator._recordings)
    del policy
    gc.collect()
    assert len(accelerator._recordings) == before - 1


def test_a_device_without_memory_is_named_with_a_smaller_batch(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    policies = [trained(make(seed=seed)) for seed in range(2)]
    before = [fingerprint(policy) for policy in policies]
    monkeypatch.setattr(Learner, "encode", full)
    with pytest.raises(daband.errors.DeviceOutOfMemory, match=" 2 members"):
        adapt_together(policies)
    assert [fingerprint(policy) for policy in policies] == before


# On a GPU.

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def _every_digit(monkeypatch):
    """Without TF32: steps carry its rounding on, so that after some dozens nothing close could be
    asked for.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def on_gpu(seed=1, kind=DABand, shape=(3, 20, 20), replay="all", **learning):
    recipe = recipe_for("default-rpd", context_shape=shape).with_weights(pseudo_labels=0.5)
    recipe = replace(recipe, learning=replace(recipe.learning, batch=32, **learning))
    recipe = replace(recipe, replay=ReplaySettings(sampling=replay, capacity=500))
    policy = kind(
        context_shape=shape, n_arms=4, recipe=recipe, feedback="one_hot", device="cuda", seed=seed
    )
    rng = np.random.default_rng(0)
    contexts = rng.integers(0, 256, (256, *shape), dtype=np.uint8)
    policy.play(contexts, np.eye(4)[contexts.reshape(256, -1)[:, 0] // 64])
    policy.observe_target(255 - contexts)
    return policy


def way(policy, start):
    """The way that the parameters of a policy have gone."""
    pairs = zip(policy.learner.parameters, start.learner.parameters, strict=True)
    return torch.cat([(new.detach() - old.detach()).flatten() for new, old in pairs])


def assert_same_way(one, other, start):
    """Sums on a GPU have no fixed order, and Adam carries differences on: the way of ten steps is
    compared as a whole.

    A step that was lost, taken twice or taken on another batch would change the way by about its
    own length.
    """
    expected = way(other, start)
    assert expected.norm() > 0
    assert (way(one, start) - expected).norm() < 0.3 * expected.norm()


@needs_gpu
@pytest.mark.usefixtures("_every_digit")
@pytest.mark.parametrize("kind", [DABand, NeuralLinUCB])
@pytest.mark.parametrize("replay", ["all", "last"])
def test_replayed_steps_move_parameters_as_plain_steps_do(monkeypatch, kind, replay):
    start = on_gpu(kind=kind, replay=replay)
    recorded, plain = copies([start, start])
    ours = recorded.adapt(10)
    assert not accelerator._recordings[recorded.learner].is_eager
    assert accelerator._recordings[recorded.learner]._graph is not None
    monkeypatch.setattr(accelerator, "_uses_graphs", lambda _: False)
    theirs = plain.adapt(10)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=0.05, abs=0.05), name
    assert_same_way(recorded, plain, start)


@needs_gpu
@pytest.mark.usefixtures("_every_digit")
def test_several_recorded_together_are_the_plain_steps_of_each(monkeypatch):
    start = [on_gpu(seed=seed) for seed in range(7)]
    recorded = copies(start)
    plain = copies(start)
    adapt_together(recorded, 10)
    assert accelerator._recordings[recorded[0].learner]._graph is not None
    monkeypatch.setattr(accelerator, "_uses_graphs", lambda _: False)
    adapt_together(plain, 10)
    for one, other, before in zip(recorded, plain, start, strict=True):
        assert_same_way(one, other, before)


@needs_gpu
def test_a_saved_policy_goes_on_from_the_device(tmp_path):
    policy = on_gpu()
    policy.adapt(20)
    policy.save(tmp_path / "p.safetensors")
    again = daband.load(tmp_path / "p.safetensors")
    images = np.random.default_rng(5).integers(0, 256, (50, 3, 20, 20), dtype=np.uint8)
    np.testing.assert_allclose(again.decide(images).mean, policy.decide(images).mean, atol=1e-6)
    assert np.isfinite(again.adapt(5)["loss"])


@needs_gpu
@pytest.mark.usefixtures("_every_digit")
def test_contexts_on_the_host_are_those_on_the_device():
    on_device, on_host = on_gpu(), on_gpu()
    for buffer in on_host.buffers.by_segment.values():
        buffer.is_on_host = True
        buffer.columns["contexts"] = buffer.contexts.cpu()
    for policy in (on_device, on_host):
        policy.start_steps(3)
    ours, theirs = (p.learner.draw_block(p.buffers, 3) for p in (on_device, on_host))
    assert all(map(torch.equal, ours, theirs))
    assert theirs.contexts.is_cuda
