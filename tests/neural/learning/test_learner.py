"""What a learner does besides ordinary steps: it grows, is copied, changes its device, and skips
what is not finite.
"""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from daband.errors import InvalidInput
from daband.neural.encoders._encoder import CustomFeatures, _pad_rows, encoders
from daband.neural.learning._settings import EncoderSettings, LearningSettings
from daband.neural.learning._stack_trainer import RecordableFunction
from daband.neural.objectives._objective import Weight
from daband.policies._checkpoints import load_policy
from tests.policies.test_neural import ARMS, SHAPE, fingerprint, make, problem, small, trained
from tests.registries import temporarily


def with_terms(**weights):
    own = {name: Weight(value) for name, value in weights.items()}
    return replace(small(), weights={"source_cross_entropy": Weight(1.0), **own})


class Centred(nn.Module):
    """Takes out a running mean of its own, and counts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(SHAPE))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, contexts):
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(contexts.mean(dim=0), 0.1)
                self.batches.add_(1)
        return contexts - self.mean


@pytest.fixture
def registered():
    def centred(*, context_shape):
        return CustomFeatures(module=Centred(), context_shape=context_shape)

    with temporarily(encoders, "centred", centred):
        yield


def test_the_moving_average_follows_faster_while_training_is_young():
    learner = make(recipe=small(learning=LearningSettings(ema_decay=0.99))).learner
    assert [share for *_, share in learner.advance_schedule(3)] == pytest.approx(
        [9 / 11, 9 / 12, 9 / 13]
    )
    learner.step_number = 10**6
    assert learner.advance_schedule(1)[0][-1] == np.float32(1) - np.float32(0.99)


def test_pseudo_labels_are_corrected_by_the_frequencies_of_arms():
    policy = trained(make())
    learner, frequencies = policy.learner, policy.learner.loss_inputs["arm_frequencies"]
    assert torch.allclose(frequencies.sum(dim=1), torch.ones(2)), (
        "probabilities of arms in the source and the target"
    )
    frequencies[:, 0] = torch.tensor([0.5, 0.004])  # arm 0 is absorbed by others in the target
    features = learner.encoder.dimension**-0.5 * torch.randn(1, 50, learner.encoder.dimension)
    predicted = features @ learner.loss_inputs["theta"].T
    corrected = learner.trainer.gradient_step._predict_by_teacher(
        features, features, is_committee=False
    )
    correction = (frequencies[0].log() - frequencies[1].log()) / learner.scale
    assert torch.allclose(corrected, predicted + correction, atol=1e-5)
    assert correction.argmax() == 0
    assert (corrected.argmax(-1) == 0).sum() > (predicted.argmax(-1) == 0).sum()


def test_a_skipped_step_leaves_the_frequencies_of_arms_alone():
    policy = trained(make())
    before = policy.learner.loss_inputs["arm_frequencies"].clone()
    policy.learner.loss_inputs["theta"].fill_(math.nan)
    from daband.neural.learning._stack_trainer import take_steps

    take_steps([policy.learner], 1, [policy.buffers])
    assert torch.equal(policy.learner.loss_inputs["arm_frequencies"], before)


def test_a_policy_saved_on_another_kind_of_device_can_be_loaded():
    policy = trained(make())
    # as a GPU's generator gives it
    state = {**policy.learner.state(), "generator": np.arange(16, dtype=np.uint8)}
    drawn = []
    for _ in range(2):
        policy.learner.restore(state)
        drawn.append(torch.rand(4, generator=policy.learner.generator))
    assert torch.equal(*drawn)
    assert math.isfinite(policy.adapt()["loss"])


def test_a_copy_of_one_of_several_leaves_the_others_behind():
    from daband.neural._neural_linucb import adapt_stacked

    policies = [trained(make(seed=seed)) for seed in (0, 1)]
    adapt_stacked(policies)
    twin = copy.deepcopy(policies[0])
    assert twin.learner.trainer is None
    before = fingerprint(policies[0]), fingerprint(policies[1])
    assert fingerprint(twin) == before[0]
    trained(twin, start=3)
    assert (fingerprint(policies[0]), fingerprint(policies[1])) == before
    trained(policies[0], start=3)
    assert fingerprint(twin) == fingerprint(policies[0])


@pytest.mark.parametrize("arms", ["disjoint", "shared"])
def test_steps_take_both_arm_models_and_rewarded_target_rounds(arms):
    policy = make(recipe=with_terms(adversarial=0.5, predicted_reward=0.5), arms=arms)
    rng = np.random.default_rng(0)
    shape = (ARMS, *SHAPE) if arms == "shared" else SHAPE
    for domain in ("source", "target"):
        policy.play(rng.normal(size=(16, *shape)), rng.random((16, ARMS)), domain)
        policy.observe_target(rng.normal(size=(16, *shape)))
        measured = policy.adapt()
        assert math.isfinite(measured["loss"])
        assert measured["skipped_steps"] == 0


def test_without_a_source_round_there_is_no_divergence():
    policy = make(recipe=with_terms(adversarial=0.5))
    policy.observe_target(problem(16, seed=3, shift=1.0)[0])
    policy.play(*problem(16, seed=5, shift=1.0), "target")
    measured = policy.adapt()
    assert measured["adversarial"] == 0
    assert measured["skipped_steps"] == 0
    assert "discriminator_accuracy" not in measured


def test_terms_on_the_target_alone_wait_for_it():
    policy = make(recipe=replace(small(), weights={"adversarial": Weight(1.0)}))
    policy.play(*problem(16))
    before = policy.learner.parameter_vector.detach().clone()
    with pytest.warns(UserWarning, match="no target context"):
        assert policy.adapt()["loss"] == 0
    assert torch.equal(policy.learner.parameter_vector, before)


@pytest.mark.parametrize("ema_decay", [0.0, 0.99])
def test_a_skipped_step_leaves_buffers_of_a_users_network_alone(registered, ema_decay):
    recipe = small(
        learning=LearningSettings(steps=4, batch=16, ema_decay=ema_decay),
        encoder=EncoderSettings(name="centred"),
    )
    policy = trained(make(recipe=recipe))
    before = {name: array.copy() for name, array in policy.learner.state().items()}
    assert before["encoder.features.module.batches"] == 12
    policy.buffers.rounds[0].contexts.fill_(math.nan)
    assert policy.adapt(steps=2)["skipped_steps"] == 2
    for name, array in policy.learner.state().items():
        if name not in ("generator", "step_number", "streak"):
            np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_a_discriminators_gradient_must_be_finite_as_well(monkeypatch):
    policy = trained(make(), episodes=1)
    before = policy.learner.parameter_vector.detach().clone()
    real = torch.autograd.grad

    def spoiled(*arguments, **settings):
        (gradient,) = real(*arguments, **settings)
        gradient[:, -5] = math.inf  # far behind the encoder's
        return (gradient,)

    monkeypatch.setattr(torch.autograd, "grad", spoiled)
    assert policy.adapt(steps=2)["skipped_steps"] == 2
    assert torch.equal(policy.learner.parameter_vector, before)


def test_skipped_steps_count_in_no_mean():
    policy = trained(make(), episodes=1)
    contexts = policy.buffers.rounds[0].contexts
    kept = contexts.clone()
    contexts.fill_(math.nan)
    assert set(policy.adapt(steps=1)) == {"skipped_steps", "gate"}
    contexts.copy_(kept)
    trainer = policy.learner.trainer

    def once_broken(measure):
        if int(trainer.gradient_step.position) == 0:
            contexts.fill_(math.nan)
        trainer.gradient_step(measure)
        contexts.copy_(kept)

    trainer.recordable_step = RecordableFunction(once_broken)
    measured = policy.adapt(steps=9)  # the first and the last measure
    assert measured["skipped_steps"] == 1
    assert all(math.isfinite(value) for value in measured.values())


def test_a_module_in_a_recipe_is_told_where_to_go():
    with pytest.raises(InvalidInput, match="encoder="):
        make(recipe=replace(small(), encoder=EncoderSettings(name=nn.Flatten())))


def test_policies_that_are_given_one_network_do_not_share_it(registered):
    network = nn.Linear(5, 6)
    before = network.weight.detach().clone()

    def given(*, context_shape):
        return CustomFeatures(module=network, context_shape=context_shape)

    with temporarily(encoders, "given", given):
        recipe = small(encoder=EncoderSettings(name="given"))
        alone = fingerprint(trained(make(recipe=recipe)))
        first = make(recipe=recipe)
        second = make(recipe=recipe, seed=1)
        trained(second)
        assert fingerprint(trained(first)) == alone
        assert torch.equal(network.weight, before)
        twin = copy.deepcopy(first)
        trained(twin, start=3)
        assert fingerprint(first) == alone


def test_the_users_default_type_of_numbers_does_not_matter(tmp_path):
    expected = trained(make())
    expected.add_arm()
    torch.set_default_dtype(torch.float64)
    try:
        policy = trained(make())
        policy.add_arm()
        policy.save(tmp_path / "p.safetensors")
        again = load_policy(tmp_path / "p.safetensors")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert fingerprint(policy) == fingerprint(again) == fingerprint(expected)


@pytest.mark.parametrize(
    ("rows", "filled"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128), (2000, 2048)]
)
def test_rows_are_filled_up_to_a_power_of_two_with_copies_of_the_first(rows, filled):
    contexts = torch.arange(rows * 2, dtype=torch.float32).view(rows, 2)
    given = _pad_rows(contexts)
    assert len(given) == filled
    assert torch.equal(given[:rows], contexts)
    assert torch.equal(given[rows:], contexts[:1].expand(filled - rows, 2))


def test_a_state_laid_out_by_another_version_is_refused_by_name():
    policy = trained(make(), episodes=1)
    state = policy.learner.state()
    state["optimiser.exp_avg"] = state["optimiser.exp_avg"][:-1]
    with pytest.raises(InvalidInput, match="as many optimiser values"):
        policy.learner.restore(state)
