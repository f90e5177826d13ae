"""Every term against an independent account of it, and its gradient against finite differences."""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from daband.neural import Batch, terms
from daband.neural._further_terms import diversity_loss, pseudo_label_loss, reward_cross_entropy
from tests.neural.batches import K, T, make_batch, term_settings


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
    value = reward_cross_entropy(
        batch.predictions, batch.arms, batch.rewards, feedback="one_hot", scale=10.0
    )
    assert float(value) == pytest.approx(np.mean(expected))


def test_cross_entropy_of_graded_rewards_is_least_at_the_reward():
    arm = torch.zeros(1, dtype=torch.int64)
    reward = torch.tensor([0.7])

    def loss(p):
        predicted = torch.tensor([[p, 0.0]])
        return float(reward_cross_entropy(predicted, arm, reward, feedback="bandit", scale=10.0))

    best = 0.5 + math.log(0.7 / 0.3) / 10
    assert loss(best) < min(loss(best - 0.05), loss(best + 0.05))


def test_who_is_sure_of_a_wrong_arm_is_told_in_full():
    predicted = torch.tensor([[50.0, 0.0, 0.0]], requires_grad=True)
    loss = reward_cross_entropy(
        predicted, torch.tensor([0]), torch.tensor([0.0]), feedback="one_hot", scale=10.0
    )
    loss.backward()
    assert loss.item() == pytest.approx(500 - math.log(2))
    assert predicted.grad[0].tolist() == pytest.approx([10, -5, -5], rel=1e-5)


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
    loss = reward_cross_entropy(predicted, *rounds, feedback="one_hot", scale=10.0)
    loss.backward()
    assert loss.item() == 0
    assert predicted.grad.tolist() == [[0], [0]]


def test_diversity_at_its_ends():
    sure = 100 * torch.eye(K)
    uniform = torch.full((K,), 1 / K)
    assert float(diversity_loss(sure, uniform, scale=10.0)) == pytest.approx(0.0, abs=1e-6)
    always_first = sure[:1].repeat(5, 1)
    assert float(diversity_loss(always_first, uniform, scale=10.0)) == pytest.approx(
        math.log(K), rel=1e-5
    )
    frequencies = torch.tensor([0.7, 0.1, 0.1, 0.1])
    assert float(diversity_loss(always_first, frequencies, scale=10.0)) == pytest.approx(
        -math.log(0.7), rel=1e-5
    )


def test_pseudo_labels_leave_unsure_contexts_out():
    teacher = torch.tensor([[1.0, 0.0], [0.1, 0.0]])
    predicted = torch.tensor([[0.3, 0.1], [5.0, 9.0]])
    expected = math.log(1 + math.exp(-2.0)) / 2
    assert float(pseudo_label_loss(predicted, teacher, scale=10.0)) == pytest.approx(expected)
    assert float(pseudo_label_loss(predicted, torch.zeros(2, 2), scale=10.0)) == 0.0


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
