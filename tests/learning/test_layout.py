"""What is done for speed on the CPU gives what the plain way gives: memory layout, order of layers, threads."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from daband.encoders import DomainNorm, build_encoder
from daband.learning import threads
from daband.learning.threads import Threads
from daband.policies import DABand, load

SHAPE = (3, 20, 20)


def played(policy, rounds=96, seed=0):
    rng = np.random.default_rng(seed)
    contexts = rng.integers(0, 256, (rounds, *SHAPE), dtype=np.uint8)
    policy.play(contexts, np.eye(4)[contexts.reshape(rounds, -1)[:, 0] // 64])
    policy.observe_target(255 - contexts)
    return policy


def fresh():
    return DABand(context_shape=SHAPE, n_arms=4, recipe="small", feedback="one_hot", device="cpu", seed=1)


def plain_features(features, contexts, n_source):
    """The layers as they are usually written: ReLU, then pooling, each domain sliced out and normalised."""
    maps = contexts.contiguous()
    for layer, norm in zip(features.layers, features.norms, strict=True):
        maps = layer(maps).contiguous()
        if isinstance(norm, DomainNorm):
            parts = [maps[:n_source], maps[n_source:]]
            maps = torch.cat(
                [functional.batch_norm(part, None, None, norm.weight, norm.bias, True, 0.1, 1e-5) for part in parts]
            )
        maps = functional.max_pool2d(functional.relu(maps), 2)
    return maps.flatten(1)


@pytest.mark.parametrize("normalise", [True, False])
def test_features_and_gradients_equal_the_plain_order_in_the_plain_layout(normalise):
    torch.manual_seed(0)
    fast = build_encoder("conv", context_shape=SHAPE, channels=(8, 12), normalise=normalise)
    fast.double().to(memory_format=torch.channels_last)
    slow = build_encoder("conv", context_shape=SHAPE, channels=(8, 12), normalise=normalise).double()
    slow.load_state_dict(fast.state_dict())
    contexts = torch.rand(12, *SHAPE).double()
    outputs = [fast.features(contexts, n_source=5), plain_features(slow.features, contexts, 5)]
    weights = torch.randn(outputs[0].shape, dtype=torch.float64)
    for output in outputs:
        (output * weights).sum().backward()
    torch.testing.assert_close(*outputs)
    for ours, theirs in zip(fast.features.parameters(), slow.features.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("n_source", [0, 7])
def test_norms_that_are_folded_into_convolutions_do_what_norms_do(n_source):
    torch.manual_seed(0)
    encoder = build_encoder("conv", context_shape=SHAPE, channels=(8, 12)).double()
    for norm in encoder.features.norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    for _ in range(3):
        encoder(torch.rand(12, *SHAPE).double(), n_source=5)
    contexts = torch.rand(7, *SHAPE).double()
    folded = encoder.eval().features(contexts, n_source=n_source)
    maps = contexts
    for layer, norm in zip(encoder.features.layers, encoder.features.norms, strict=True):
        maps = functional.max_pool2d(functional.relu(norm(layer(maps), n_source=n_source)), 2)
    torch.testing.assert_close(folded, maps.flatten(1))


def test_a_saved_policy_has_the_shapes_of_the_plain_layout_and_goes_on_to_the_last_bit(tmp_path):
    policy = played(fresh())
    policy.adapt(4)
    assert policy._learner.encoder.features.layers[1].weight.is_contiguous(memory_format=torch.channels_last)
    policy.save(tmp_path / "p.safetensors")
    again = load(tmp_path / "p.safetensors")
    for some in (policy, again):
        played(some, seed=1)
        some.adapt(4)
    one, other = policy._learner.state(), again._learner.state()
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    learner = again._learner  # the modules' parameters are parts of the vector that the optimiser changes
    with torch.no_grad():
        learner.vector.fill_(7.0)
    assert all((parameter == 7).all() for parameter in learner.encoder.parameters())
    for parameter in learner.encoder.parameters():  # kernels read 16 bytes at once
        assert parameter.ndim == 1 or parameter.data_ptr() % 16 == learner.vector.data_ptr() % 16


class Machine:
    """Stands for torch's threads: work takes what the table says for the present number."""

    def __init__(self, monkeypatch, seconds, most):
        self.now, self.threads, self.seconds = 0.0, most, seconds
        for name in threads._VARIABLES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(threads, "_AT_IMPORT", most)
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.threads)
        monkeypatch.setattr(torch, "set_num_threads", lambda n: setattr(self, "threads", n))

    def work(self):
        self.now += self.seconds[self.threads]

    def chosen(self):
        kept = Threads()
        kept.choose(self.work, clock=lambda: self.now)
        return kept


def test_threads_are_added_while_they_are_worth_it(monkeypatch):
    machine = Machine(monkeypatch, {1: 1.0, 2: 0.6, 4: 0.4, 6: 0.39}, most=6)
    assert machine.chosen().count == 4
    assert machine.threads == 6  # what the user has is as it was


def test_threads_that_wait_for_one_another_are_not_used(monkeypatch):
    machine = Machine(monkeypatch, {1: 0.05, 2: 0.8}, most=2)
    kept = machine.chosen()
    assert kept.count == 1
    with kept.held():
        assert machine.threads == 1
    assert machine.threads == 2


def test_what_the_user_chose_is_left_alone(monkeypatch):
    machine = Machine(monkeypatch, {1: 1.0, 2: 5.0}, most=2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    kept = machine.chosen()
    assert kept.count == 0
    kept.count = 1  # as a saved policy may say
    with kept.held():
        assert machine.threads == 2


def test_work_of_one_kind_gets_one_number_in_a_process(monkeypatch):
    monkeypatch.setattr(threads, "_CHOSEN", {})
    machine = Machine(monkeypatch, {1: 1.0, 2: 0.4}, most=2)
    first, second, other = Threads(), Threads(), Threads()
    first.choose(machine.work, like="a", clock=lambda: machine.now)
    machine.seconds = {1: 1.0, 2: 5.0}  # somebody else has taken the cores
    second.choose(machine.work, like="a", clock=lambda: machine.now)
    other.choose(machine.work, like="b", clock=lambda: machine.now)
    assert (first.count, second.count, other.count) == (2, 2, 1)


def test_threads_are_chosen_before_a_policy_is_first_saved(monkeypatch):
    """Or a run that is killed before its second save might go on with another number than one left alone."""
    monkeypatch.setattr(threads, "_CHOSEN", {})
    Machine(monkeypatch, {1: 1.0, 2: 0.4}, most=2)
    policy = fresh()
    assert policy.learner.threads.count == 0
    assert policy.learner.state()["threads"][0] == policy.learner.threads.count > 0


def test_the_number_of_threads_is_saved_with_the_policy(tmp_path):
    policy = played(fresh())
    policy._learner.threads.count = 1
    policy.save(tmp_path / "p.safetensors")
    assert load(tmp_path / "p.safetensors")._learner.threads.count == 1


def test_timing_threads_leaves_no_trace():
    policy = played(fresh())
    before = {name: array.copy() for name, array in policy._learner.state().items()}
    policy._learner._trial()
    for name, array in policy._learner.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert all(parameter.grad is None for parameter in policy._learner.encoder.parameters())
