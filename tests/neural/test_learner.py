"""One gradient step and its parts; and a learner that grows, is copied, saved, and undoes steps that
are not finite.
"""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import daband
from daband.errors import InvalidInput, TrainingDiverged
from daband.features._domain_names import DomainNames
from daband.linear._reward_moments import RewardMoments
from daband.neural import EncoderSettings, Term, Weight, recipe_for, terms
from daband.neural._learner import (
    Learner,
    build_terms,
    compute_loss,
    compute_weights,
    limit_frequencies,
)
from daband.neural._replay import ReplayBuffers
from daband.neural.encoders._encoder import CustomFeatures, Encoder, encoders
from tests.neural.batches import make_batch, term_settings
from tests.neural.test_neural_linucb import (
    ARMS,
    SHAPE,
    fingerprint,
    make,
    problem,
    small,
    trained,
)
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


def test_assumed_frequencies_are_the_predicted_ones_within_a_factor():
    predicted = torch.tensor([0.01, 0.33, 0.66])
    uniform = torch.full((3,), 1 / 3)
    torch.testing.assert_close(limit_frequencies(predicted, uniform, 1.0), uniform)
    torch.testing.assert_close(limit_frequencies(predicted, uniform, 100.0), predicted)
    expected = torch.tensor([1 / 12, 0.33, 0.66])
    torch.testing.assert_close(
        limit_frequencies(predicted, uniform, 4.0), expected / expected.sum()
    )


def test_weights_may_all_be_zero():
    policy = make(recipe=replace(small(), weights={"source_cross_entropy": Weight(0.0)}))
    policy.play(*problem(16))
    assert policy.adapt()["loss"] == 0


@pytest.mark.parametrize("arms", ["disjoint", "shared"])
def test_steps_take_both_arm_models_and_rewarded_target_rounds(arms):
    policy = make(recipe=with_terms(data_divergence=0.5, predicted_reward=0.5), arms=arms)
    rng = np.random.default_rng(0)
    shape = (ARMS, *SHAPE) if arms == "shared" else SHAPE
    for domain in ("source", "target"):
        policy.play(rng.normal(size=(16, *shape)), rng.random((16, ARMS)), domain)
        policy.observe_target(rng.normal(size=(16, *shape)))
        measured = policy.adapt()
        assert math.isfinite(measured["loss"])


def test_terms_on_the_target_alone_wait_for_it():
    policy = make(recipe=replace(small(), weights={"data_divergence": Weight(1.0)}))
    policy.play(*problem(16))
    before = copy.deepcopy(policy.learner.parameters)
    with pytest.warns(UserWarning, match="target .*observe_target"):
        assert policy.adapt()["loss"] == 0
    assert all(map(torch.equal, policy.learner.parameters, before))


def values_of(state):
    return {name: array.tobytes() for name, array in state.items()}


def test_one_step_that_is_not_finite_undoes_all_steps_of_the_call(monkeypatch):
    policy = trained(make(), episodes=1)
    before = policy.learner.state()
    real = Learner.encode

    def spoiled(learner, inputs):
        encoding = real(learner, inputs)
        # the first of nine steps, whose batches are drawn together
        is_first = torch.equal(inputs.contexts, drawn[0])
        return encoding._replace(features=encoding.features * math.nan) if is_first else encoding

    drawn = []
    draw = Learner.draw_block

    def remembered(learner, *arguments):
        block = draw(learner, *arguments)
        drawn.append(block.contexts[0])
        return block

    monkeypatch.setattr(Learner, "encode", spoiled)
    monkeypatch.setattr(Learner, "draw_block", remembered)
    with pytest.raises(TrainingDiverged):
        policy.adapt(steps=9)
    assert values_of(policy.learner.state()) == values_of(before)


class Raising(Term):
    def forward(self, batch):
        raise ArithmeticError("in the term")


def test_an_error_in_a_step_undoes_the_steps_before_it():
    with temporarily(terms, "raising", Raising):
        recipe = replace(small(), weights={**small().weights, "raising": Weight(1.0)})
        policy = make(recipe=recipe)
        policy.play(*problem(32))
        policy.observe_target(problem(32, seed=3)[0])
        before = policy.learner.state()
        with pytest.raises(ArithmeticError):
            policy.adapt()
        assert values_of(policy.learner.state()) == values_of(before)
        assert fingerprint(copy.deepcopy(policy)) == fingerprint(policy)


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


def test_a_state_of_another_network_is_refused_by_name():
    policy = trained(make(), episodes=1)
    state = policy.learner.state()
    state["optimiser.0.exp_avg"] = state["optimiser.0.exp_avg"][:-1]
    with pytest.raises(InvalidInput, match=r"optimiser\.0\.exp_avg"):
        policy.learner.restore(state)


# The objective.


def test_schedules():
    def at(weight, *steps):
        return compute_weights(weight, np.array(steps), run_steps=200).tolist()

    assert at(Weight(2.0), 0) == [2.0]
    assert at(Weight(2.0, start=10), 9, 10) == [0.0, 2.0]
    assert at(Weight(1.0, ramp=100), 50) == pytest.approx([2 / (1 + math.exp(-5)) - 1])
    fractions = Weight(1.0, start=0.25, ramp=0.5)
    expected = [0, 0, 2 / (1 + math.exp(-5)) - 1, 2 / (1 + math.exp(-10)) - 1]
    assert at(fractions, 49, 50, 100, 150) == pytest.approx(expected)
    assert not Weight(0.0)
    assert Weight(0.1)


def test_the_loss_is_the_sum_of_terms_times_weights():
    objective = build_terms({name: Weight(1.0) for name in terms}, term_settings()).double()
    weights = torch.linspace(0.1, 2, len(objective), dtype=torch.float64)
    loss, values = compute_loss(objective, make_batch(), weights)
    factors = [
        1.0 if term.applies_weight else weight
        for term, weight in zip(objective.values(), weights.tolist(), strict=True)
    ]
    expected = sum(
        factor * value.item() for factor, value in zip(factors, values.values(), strict=True)
    )
    assert list(values) == sorted(terms)
    assert loss.item() == pytest.approx(expected)


def test_weight_zero_is_the_term_removed_to_the_bit():
    def gradients(weights):
        torch.manual_seed(3)
        objective = build_terms(weights, term_settings())
        state = torch.get_rng_state()
        batch = make_batch(dtype=torch.float32)
        batch.predictions.requires_grad_(True)
        loss, values = compute_loss(objective, batch, torch.tensor([2.0, 1.0]))
        (gradient,) = torch.autograd.grad(loss, batch.predictions)
        return gradient, loss, sorted(values), state

    only = {"source_regret": Weight(1.0), "regression_error": Weight(2.0)}
    rest = {name: Weight(0.0) for name in terms if name not in only}
    for ours, theirs in zip(gradients(only), gradients({**rest, **only}), strict=True):
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def test_misspelt_terms_and_settings_are_refused():
    with pytest.raises(InvalidInput, match=r"'data_divergenec'.*'data_divergence'"):
        build_terms({"data_divergenec": Weight(0.0)}, term_settings())
    for wrong in ({"feedback": "labels"}, {"scale": 0.0}):
        with pytest.raises(InvalidInput):
            term_settings(**wrong)


def test_a_term_of_ones_own_is_one_class():
    class Own(Term):
        def forward(self, batch):
            return batch.predictions.mean()

    with temporarily(terms, "test_own_term", Own):
        batch = make_batch()
        objective = build_terms({"test_own_term": Weight(2.0)}, term_settings())
        loss, _ = compute_loss(objective, batch, torch.tensor([2.0], dtype=torch.float64))
        assert float(loss) == pytest.approx(2 * float(batch.predictions.mean()))


# Steps.


def started(policy, steps=1):
    """A policy that has stored rounds and target contexts, and whose learner may step."""
    policy.play(*problem(32))
    policy.observe_target(problem(32, seed=9, shift=1.0)[0])
    policy.start_steps(steps)
    return policy


def test_the_gate_weighs_terms_on_the_target_and_the_regression_error():
    policy = started(make())
    learner = policy.learner
    learner.gate_factor = 0.25
    learner.step_number = 10**6
    (weights,) = learner.draw_block(policy.buffers, 1).weights
    expected = {name: weight.value for name, weight in small().weights.items()}
    for name, weight in zip(learner.terms, weights.tolist(), strict=True):
        factor = 1.0 if name == "source_cross_entropy" else 0.25
        assert weight == pytest.approx(factor * expected[name], rel=1e-3), name


def test_pseudo_labels_are_corrected_by_the_frequencies_of_arms():
    learner = trained(make()).learner
    torch.testing.assert_close(learner.arm_frequencies.sum(dim=1), torch.ones(2))
    in_source = torch.zeros(5, ARMS)
    in_target = torch.tensor([[0.0] * (ARMS - 1) + [9.0]]).repeat(5, 1)
    for _ in range(1000):
        source, target = learner._average_frequencies(in_source, in_target)
    torch.testing.assert_close(source, torch.full((ARMS,), 1 / ARMS), rtol=0, atol=1e-3)
    assert target[-1] == pytest.approx(1.0, abs=1e-3)


IMAGES = {
    "context_shape": (1, 16, 16),
    "n_arms": 3,
    "feedback": "one_hot",
    "device": "cpu",
    "shift": "style",
}


def with_images(kind):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (2, 48, 1, 16, 16), dtype=np.uint8)
    policy = kind(seed=0, **IMAGES)
    policy.play(images[0], np.eye(3)[draw.integers(0, 3, 48)])
    policy.observe_target(images[1])
    return policy


def test_no_gradient_goes_through_rows_that_only_norms_look_at(monkeypatch):
    """Neural-LinUCB's target rows move the norms' statistics alone: a step is that of one pass over
    all rows.
    """
    apart = with_images(daband.NeuralLinUCB)
    at_once = copy.deepcopy(apart)
    rows = []
    encode = Encoder.forward

    def counted(encoder, contexts, **options):
        encoding = encode(encoder, contexts, **options)
        if encoder.training:
            rows.append((len(contexts), encoding.features.requires_grad))
        return encoding

    monkeypatch.setattr(Encoder, "forward", counted)
    apart.adapt(steps=1)
    assert rows == [(64, True), (64, False)]
    at_once.learner.needs_target = True
    at_once._has_warned = True
    at_once.adapt(steps=1)
    assert rows[2:] == [(128, True)]
    ours, theirs = apart.learner.state(), at_once.learner.state()
    for name in ours:
        if ".running_" in name or ".exp_avg" in name:
            largest = np.abs(theirs[name]).max(initial=0.0)
            np.testing.assert_allclose(ours[name], theirs[name], atol=1e-4 * largest, err_msg=name)


def test_several_domains_step_and_keep_their_statistics_apart():
    domains = DomainNames(sources=("a", "b"), targets=("c", "d"))
    rng = np.random.default_rng(0)
    recipe = recipe_for("default-rpd", context_shape=(4,)).changed(
        {
            "weights": {"pseudo_labels": 0.1},
            "encoder": {"options": {"statistics": "own"}},
            "learning": {"gate_exponent": 0.0},
        }
    )
    cpu = torch.device("cpu")
    learner = Learner(
        recipe=recipe,
        context_shape=(4,),
        n_arms=3,
        has_shared_arms=False,
        feedback="one_hot",
        seed=0,
        device=cpu,
        domains=domains,
    )
    buffers = ReplayBuffers((4,), recipe.replay, seed=0, device=cpu, domains=domains)
    for domain in (0, 1, 3):
        contexts = domain + rng.normal(size=(90, 4))
        rewards = rng.integers(0, 2, 90).astype(float)
        buffers.rounds[domain].add_rounds(contexts, rng.integers(0, 3, 90), rewards)
    for domain, part in enumerate(buffers.unlabelled, start=2):
        part.add(domain + rng.normal(size=(90, 4)))
    theta = rng.normal(size=(3, 64))
    learner.start(buffers, theta, RewardMoments(standardise=False))
    (batch,) = learner.draw_batches(buffers, 1)
    learner.step(batch)
    encoded = learner.last_batch
    assert [len(rows) for rows in (encoded.predictions, encoded.aligned)] == [3 * 64, 2 * 64]
    assert [len(encoded.target_predictions), len(encoded.target_aligned)] == [2 * 64, 2 * 64]
    measured = learner.finish(1)
    assert math.isfinite(measured["loss"])
    assert 0 <= measured["discriminator_accuracy"] <= 1
    norm = learner.encoder.features.normalise_input
    assert norm.batches_seen.tolist() == [1] * 4
    assert norm.running_mean.mean(dim=1).argsort().tolist() == [0, 1, 2, 3]


def test_frozen_parameters_are_shared_and_not_trained():
    def frozen(*, context_shape):
        module = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))
        return CustomFeatures(module=module.requires_grad_(False), context_shape=context_shape)

    with temporarily(encoders, "frozen", frozen):
        policy = make(recipe=small(encoder=EncoderSettings(name="frozen")))
        learner = policy.learner
        weight = learner.encoder.features.module[0].weight
        before = weight.clone()
        trained(policy)
        assert learner.ema_encoder.features.module[0].weight is weight
        assert policy._encoder.network.features.module[0].weight is weight
        assert torch.equal(weight, before)
        assert not torch.equal(learner.ema_encoder.first.weight, learner.encoder.first.weight)
