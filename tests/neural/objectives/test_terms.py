"""Every term against an independent account of it, and its gradient against finite differences."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from daband.errors import InvalidInput
from daband.neural.objectives._objective import Objective, Weight
from daband.neural.objectives._source_losses import (
    compute_cross_entropy_loss,
    compute_squared_loss,
    find_known_rewards,
)
from daband.neural.objectives._target_predictions import (
    compute_diversity_loss,
    compute_pseudo_label_loss,
)
from daband.neural.objectives._term import Batch, Term, terms
from tests.neural.objectives.batches import B, K, T, W, make_batch, term_settings, weights_at
from tests.registries import temporarily


def test_revealed_arms_by_both_rules():
    arm = torch.tensor([1, 2])
    reward = torch.tensor([1.0, 0.0])
    known, rewards = find_known_rewards(arm, reward, n_arms=3, feedback="one_hot")
    assert known.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert rewards.tolist() == [[0, 1, 0], [0, 0, 0]]
    known, _ = find_known_rewards(arm, reward, n_arms=3, feedback="bandit")
    assert known.tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("feedback", ["one_hot", "bandit"])
def test_squared_regret_by_hand(feedback):
    batch = make_batch()
    expected = []
    for predicted, arm, reward in zip(batch.predictions, batch.arms, batch.rewards, strict=True):
        everything = feedback == "one_hot" and reward == 1
        arms = range(K) if everything else [int(arm)]
        expected.append(sum(float(predicted[a] - (reward if a == arm else 0)) ** 2 for a in arms))
    value = compute_squared_loss(batch.predictions, batch.arms, batch.rewards, feedback=feedback)
    assert float(value) == pytest.approx(np.mean(expected))


def test_cross_entropy_by_hand():
    batch = make_batch()
    probabilities = np.exp(10 * batch.predictions.numpy())
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    expected = [
        -math.log(row[arm]) if reward == 1 else -math.log(1 - row[arm])
        for row, arm, reward in zip(
            probabilities, batch.arms.tolist(), batch.rewards.tolist(), strict=True
        )
    ]
    value = compute_cross_entropy_loss(
        batch.predictions, batch.arms, batch.rewards, feedback="one_hot", scale=10.0
    )
    assert float(value) == pytest.approx(np.mean(expected))


def test_cross_entropy_of_graded_rewards_is_least_at_the_reward():
    arm = torch.zeros(1, dtype=torch.int64)
    reward = torch.tensor([0.7])

    def loss(p):
        predicted = torch.tensor([[p, 0.0]])
        return float(
            compute_cross_entropy_loss(predicted, arm, reward, feedback="bandit", scale=10.0)
        )

    best = 0.5 + math.log(0.7 / 0.3) / 10
    assert loss(best) < min(loss(best - 0.05), loss(best + 0.05))


def test_who_is_sure_of_a_wrong_arm_is_told_in_full():
    predicted = torch.tensor([[50.0, 0.0, 0.0]], requires_grad=True)
    loss = compute_cross_entropy_loss(
        predicted, torch.tensor([0]), torch.tensor([0.0]), feedback="one_hot", scale=10.0
    )
    loss.backward()
    assert loss.item() == pytest.approx(500 - math.log(2))
    assert predicted.grad[0].tolist() == pytest.approx([10, -5, -5], rel=1e-5)


def test_cross_entropy_gradient_is_that_of_autograd_on_the_plain_formula():
    batch = make_batch()
    ours, plain = (batch.predictions.clone().requires_grad_(True) for _ in range(2))
    compute_cross_entropy_loss(
        ours, batch.arms, batch.rewards, feedback="one_hot", scale=10.0
    ).backward()
    probability = torch.softmax(10 * plain, dim=1).gather(1, batch.arms[:, None]).squeeze(1)
    (-torch.where(batch.rewards >= 1, probability, 1 - probability).log().mean()).backward()
    assert torch.allclose(ours.grad, plain.grad, rtol=1e-9, atol=1e-12)


def test_a_graded_reward_of_one_hot_feedback_informs_about_the_played_arm_only():
    arm = torch.tensor([1])
    reward = torch.tensor([0.25])
    known, rewards = find_known_rewards(arm, reward, n_arms=3, feedback="one_hot")
    assert known.tolist() == [[0, 1, 0]]
    assert rewards.tolist() == [[0, 0.25, 0]]
    predicted = torch.tensor([[0.2, 0.3, 0.1]], dtype=torch.float64, requires_grad=True)
    loss = compute_cross_entropy_loss(
        predicted, arm, reward.double(), feedback="one_hot", scale=10.0
    )
    probability = torch.softmax(10 * predicted, dim=1)[0, 1]
    expected = -0.25 * torch.log(probability) - 0.75 * torch.log(1 - probability)
    torch.testing.assert_close(loss, expected)
    gradients = [torch.autograd.grad(value, predicted)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients)


def test_standardised_rewards_of_any_size_have_a_squared_error():
    term = terms.get("source_cross_entropy")(
        term_settings(feedback="bandit", standardise_rewards=True)
    )
    batch = make_batch(rewards=torch.tensor([-2.0, 0.0, 7.0, 0.5, 1.0, 0.0], dtype=torch.float64))
    chosen = batch.predictions.gather(1, batch.arms[:, None]).squeeze(1)
    torch.testing.assert_close(term(batch), ((chosen - batch.rewards) ** 2).mean())


def test_a_single_arm_has_nothing_to_learn():
    predicted = torch.tensor([[0.3], [0.9]], requires_grad=True)
    rounds = (torch.zeros(2, dtype=torch.int64), torch.tensor([1.0, 0.0]))
    loss = compute_cross_entropy_loss(predicted, *rounds, feedback="one_hot", scale=10.0)
    loss.backward()
    assert loss.item() == 0
    assert predicted.grad.tolist() == [[0], [0]]


@pytest.mark.parametrize(
    ("name", "in_target"),
    [
        ("predicted_reward", (0.2 + 0.6) / 2),  # the arms that were pulled in the source: 1, then 0
        ("predicted_reward_target_choice", (0.2 + 0.6) / 2),  # the bonus makes them arms 1 and 0
    ],
)
def test_predicted_reward_by_hand(name, in_target):
    batch = make_batch(
        predictions=torch.tensor([[0.2, 0.9], [-0.4, 0.1]]),
        arms=torch.tensor([1, 0]),
        target_predictions=torch.tensor([[0.3, 0.2], [-0.6, -0.7]]),
        target_bonuses=torch.tensor([[0.0, 0.5], [0.0, 0.0]]),
    )
    for feedback, reward, in_source in (
        ("one_hot", [1.0, 0.0], 0.4 / 2),
        ("bandit", [0.75, 0.5], (0.25 * 0.9 + 0.5 * 0.4) / 2),
    ):
        term = terms.get(name)(term_settings(n_arms=2, feedback=feedback))
        assert float(term(replace(batch, rewards=torch.tensor(reward)))) == pytest.approx(
            in_target + in_source
        )


def test_predicted_reward_looks_at_the_sources_arm_in_the_target():
    batch = make_batch(arms=torch.zeros(B, dtype=torch.int64), target_bonuses=torch.zeros(T, K))
    raised = replace(
        batch, target_predictions=batch.target_predictions + torch.tensor([0.0, *[5.0] * (K - 1)])
    )
    by_formula, target_choice = (
        terms.get(name)(term_settings())
        for name in ("predicted_reward", "predicted_reward_target_choice")
    )
    assert float(by_formula(raised)) == float(by_formula(batch))
    assert float(target_choice(raised)) > float(target_choice(batch)) + 3


def test_diversity_at_its_ends():
    sure = 100 * torch.eye(K)
    assert float(compute_diversity_loss(sure, scale=10.0)) == pytest.approx(0.0, abs=1e-6)
    assert float(compute_diversity_loss(sure[:1].repeat(5, 1), scale=10.0)) == pytest.approx(
        math.log(K), rel=1e-5
    )


def test_pseudo_labels_leave_unsure_contexts_out():
    teacher = torch.tensor([[1.0, 0.0], [0.1, 0.0]])
    predicted = torch.tensor([[0.3, 0.1], [5.0, 9.0]])
    expected = math.log(1 + math.exp(-2.0)) / 2
    assert float(compute_pseudo_label_loss(predicted, teacher, scale=10.0)) == pytest.approx(
        expected
    )
    assert float(compute_pseudo_label_loss(predicted, torch.zeros(2, 2), scale=10.0)) == 0.0


@pytest.mark.parametrize("feedback", ["one_hot", "bandit"])
@pytest.mark.parametrize("name", [name for name in terms if not terms.get(name).applies_weight])
def test_gradients_agree_with_finite_differences(name, feedback):
    torch.manual_seed(0)
    term = terms.get(name)(term_settings(feedback=feedback)).double()
    batch = make_batch(teacher_predictions=torch.randn(T, K, dtype=torch.float64) * 2)
    differentiable = ("predictions", "aligned", "target_predictions", "target_aligned")
    held = {field.name: getattr(batch, field.name) for field in fields(batch)}
    inputs = [held[key].clone().requires_grad_(True) for key in differentiable]

    def value(*tensors):
        return term(Batch(**{**held, **dict(zip(differentiable, tensors, strict=True))})) + 0 * sum(
            tensor.sum() for tensor in tensors
        )

    assert torch.autograd.gradcheck(value, inputs, atol=1e-6)


@pytest.mark.parametrize("name", list(terms))
def test_every_term_is_finite_in_float32_and_draws_nothing_while_running(name):
    torch.manual_seed(0)
    term = terms.get(name)(term_settings())
    batch = make_batch(dtype=torch.float32)
    before = torch.get_rng_state()
    value = term(batch)
    assert torch.equal(before, torch.get_rng_state())
    assert value.ndim == 0
    assert torch.isfinite(value)


def test_weight_zero_is_the_term_removed_to_the_bit():
    def gradients(weights):
        torch.manual_seed(3)
        objective = Objective(weights=weights, settings=term_settings())
        state = torch.get_rng_state()
        batch = make_batch(dtype=torch.float32)
        batch.predictions.requires_grad_(True)
        loss, values = objective(batch, weights_at(objective))
        (gradient,) = torch.autograd.grad(loss, batch.predictions)
        return gradient, loss, sorted(values), state

    only = {"source_squared": Weight(1.0), "regression_error": Weight(2.0)}
    rest = {name: Weight(0.0) for name in terms if name not in only}
    for ours, theirs in zip(gradients(only), gradients({**rest, **only}), strict=True):
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def test_terms_that_need_the_target_are_left_out_while_there_is_none():
    objective = Objective(
        weights={"source_squared": Weight(1.0), "adversarial": Weight(1.0)},
        settings=term_settings(),
    )
    empty = make_batch(
        dtype=torch.float32, target_predictions=torch.empty(0, K), target_aligned=torch.empty(0, W)
    )
    _, values = objective(empty, weights_at(objective))
    assert list(values) == ["source_squared"]
    assert objective.needs_target
    assert not objective.needs_bonus


def test_misspelt_terms_and_settings_are_refused():
    with pytest.raises(InvalidInput, match="did you mean 'adversarial'"):
        Objective(weights={"adversarail": Weight(0.0)}, settings=term_settings())
    for wrong in ({"feedback": "labels"}, {"scale": 0.0}):
        with pytest.raises(InvalidInput):
            term_settings(**wrong)


def test_the_gate_weighs_terms_on_the_target_and_the_regression_error():
    weights = {
        name: Weight(2.0) for name in ("source_cross_entropy", "regression_error", "adversarial")
    }
    objective = Objective(weights=weights, settings=term_settings())
    over = dict(
        zip(
            objective.weights,
            objective.compute_weights(range(3), run_steps=3, gate=0.25),
            strict=True,
        )
    )
    assert over == {
        "source_cross_entropy": [2.0] * 3,
        "regression_error": [0.5] * 3,
        "adversarial": [0.5] * 3,
    }


def test_regression_error_by_hand():
    term = terms.get("regression_error")(term_settings(n_arms=2))
    rounds = {"arms": torch.tensor([1, 0]), "rewards": torch.tensor([1.0, 0.0])}
    batch = make_batch(predictions=torch.tensor([[0.2, 0.9], [0.4, 0.1]]), **rounds)
    assert float(term(batch)) == pytest.approx((0.1 + 0.4) / 2)


@pytest.mark.parametrize(
    "wrong", [{"value": -1.0}, {"value": math.nan}, {"start": -1}, {"ramp": -1}]
)
def test_nonsense_weights_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Weight(**wrong)


def test_schedules():
    def at(weight, step):
        return weight.value_at(step, run_steps=200)

    assert at(Weight(2.0), 0) == 2.0
    late = Weight(2.0, start=10)
    assert [at(late, step) for step in (9, 10)] == [0.0, 2.0]
    assert at(Weight(1.0, ramp=100), 50) == pytest.approx(2 / (1 + math.exp(-5)) - 1)
    fractions = Weight(1.0, start=0.25, ramp=0.5)
    expected = [0, 0, 2 / (1 + math.exp(-5)) - 1, 2 / (1 + math.exp(-10)) - 1]
    assert [at(fractions, step) for step in (49, 50, 100, 150)] == pytest.approx(expected)
    assert not Weight(0.0)
    assert Weight(0.1)


def test_a_term_of_ones_own_is_one_class():
    class Own(Term):
        def forward(self, batch):
            return batch.predictions.mean()

    with temporarily(terms, "test_own_term", Own):
        objective = Objective(weights={"test_own_term": Weight(2.0)}, settings=term_settings())
        batch = make_batch()
        loss, _ = objective(batch, weights_at(objective))
        assert float(loss) == pytest.approx(2 * float(batch.predictions.mean()))
