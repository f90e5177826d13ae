"""Algorithm 1, one episode by hand: dense algebra for the head, written-out losses, and one Adam
step. And the four terms of the paper, each against an independent account of it.
"""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from daband.neural import Weight, recipe_for, terms
from daband.neural._learner import build_terms, compute_loss
from daband.neural.daband import (
    DABand,
    GradientReversal,
    build_paper_recipe,
    data_divergence,
    regression_error,
    source_regret,
)
from tests.neural import batches
from tests.neural.batches import B, T, make_batch, term_settings

H = 8
K = 3
D = 64
ALPHA = 0.05
LAMBDA = 1.0
pytestmark = pytest.mark.exact_contexts


@pytest.fixture(scope="module")
def walked():
    recipe = recipe_for("paper", context_shape=(4,))
    recipe = replace(recipe, learning=replace(recipe.learning, batch=H, steps=1))
    policy = DABand(
        context_shape=(4,),
        n_arms=K,
        recipe=recipe,
        feedback="one_hot",
        alpha=ALPHA,
        device="cpu",
        seed=3,
    )
    rng = np.random.default_rng(0)
    source, target = (rng.normal(size=(H, 4)).astype(np.float32) for _ in range(2))
    rewards = np.eye(K)[rng.integers(0, K, H)]
    start = copy.deepcopy(policy.learner)
    played = policy.play(source, rewards)
    policy.observe_target(target)
    head = copy.deepcopy(policy._head.statistics)
    measured = policy.adapt()
    return policy, start, head, played, source, target, rewards, measured


def test_choices_a_b_and_theta(walked):
    _, start, head, played, source, _, rewards, _ = walked
    z = start.copy_acting_encoder().encode(source, 0)
    A = np.stack([np.eye(D)] * K)
    b = np.zeros((K, D))
    for i in range(H):
        scores = [
            z[i] @ np.linalg.solve(A[a], b[a]) + ALPHA * np.sqrt(z[i] @ np.linalg.solve(A[a], z[i]))
            for a in range(K)
        ]
        assert scores[played.arm[i]] == pytest.approx(max(scores), abs=1e-12)
        a = played.arm[i]
        A[a] += np.outer(z[i], z[i])
        b[a] += rewards[i, a] * z[i]
    for a in range(K):
        np.testing.assert_allclose(head.gram[a] + np.diag(head.penalties), A[a], atol=1e-12)
        np.testing.assert_allclose(head.theta[a, 0], np.linalg.solve(A[a], b[a]), atol=1e-10)


def by_hand(walked):
    """Losses of the step, and the encoder behind it."""
    _, start, head, played, source, target, rewards, _ = walked
    encoder = start.encoder
    discriminator = start.terms["data_divergence"].discriminator
    theta = functional.normalize(torch.from_numpy(head.theta[:, 0]).float(), dim=1)
    arm = torch.from_numpy(played.arm)
    reward = torch.from_numpy(rewards[np.arange(H), played.arm]).float()
    z_source = encoder(torch.from_numpy(source), rows_per_domain=(H,)).features
    z_target = encoder(torch.from_numpy(target), rows_per_domain=(0, len(target))).features
    predicted = z_source @ theta.T
    promised = z_target @ theta.T
    regret = torch.zeros(())
    for i in range(H):
        for a in range(K):
            if reward[i] == 1 or a == arm[i]:
                regret = regret + (predicted[i, a] - (reward[i] if a == arm[i] else 0.0)) ** 2 / H
    chosen = predicted[torch.arange(H), arm]
    error = (reward - chosen).abs().mean()
    reg = promised[torch.arange(H), arm].abs().mean() + ((reward < 1).float() * chosen.abs()).mean()
    domain = torch.cat([torch.zeros(H), torch.ones(H)])
    logits = discriminator(torch.cat([z_source, z_target]))
    divergence = functional.binary_cross_entropy_with_logits(logits, domain)
    terms = {
        "source_regret": regret,
        "regression_error": error,
        "predicted_reward": reg,
        "data_divergence": divergence,
    }

    encoder_parameters = list(encoder.parameters())
    g_parameters = list(discriminator.parameters())
    descend = torch.autograd.grad(regret + 2 * error + reg, encoder_parameters, retain_graph=True)
    against = torch.autograd.grad(divergence, encoder_parameters, retain_graph=True)
    own = torch.autograd.grad(divergence, g_parameters)
    for parameter, down, up in zip(encoder_parameters, descend, against, strict=True):
        parameter.grad = down - 2 * LAMBDA * up
    for parameter, gradient in zip(g_parameters, own, strict=True):
        parameter.grad = gradient
    torch.optim.Adam([*encoder_parameters, *g_parameters], lr=1e-5).step()
    return terms, encoder, discriminator


def test_every_loss_and_the_encoder_after_one_adam_step(walked):
    policy = walked[0]
    measured = walked[-1]
    before = {name: tensor.clone() for name, tensor in walked[1].encoder.state_dict().items()}
    terms, encoder, discriminator = by_hand(walked)
    for name, value in terms.items():
        assert measured[name] == pytest.approx(float(value.detach()), rel=1e-5), name
    total = (
        terms["source_regret"]
        + 2 * terms["regression_error"]
        + terms["predicted_reward"]
        + terms["data_divergence"]
    )
    assert measured["loss"] == pytest.approx(float(total.detach()), rel=1e-5)
    after = policy.learner.encoder.state_dict()
    moved = 0.0
    for name, tensor in encoder.state_dict().items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=2e-7)
        moved = max(moved, float((after[name] - before[name]).abs().max()))
    assert moved > 5e-6
    ours = policy.learner.terms["data_divergence"].discriminator.state_dict()
    for name, tensor in discriminator.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=2e-7)


def test_statistics_stay_stale_and_the_last_rounds_alone_are_trained_on(walked):
    policy = walked[0]
    head = walked[2]
    np.testing.assert_array_equal(policy._head.statistics.gram[0], head.gram[0])
    assert len(policy.buffers.rounds[0]) == H
    assert (policy.recipe.replay.sampling, policy.recipe.learning.batch) == ("last", H)
    assert policy.recipe.alpha == 0.05
    weights = {name: weight.value for name, weight in policy.recipe.weights.items()}
    assert weights == {
        "source_regret": 1,
        "regression_error": 2,
        "predicted_reward": 1,
        "data_divergence": 1,
    }
    assert policy.recipe.learning.learning_rate == 1e-5


def test_lambda_is_the_weight_of_the_divergence():
    for is_image, shape in ((True, (3, 28, 28)), (False, (8,))):
        assert build_paper_recipe(is_image) == recipe_for("paper", context_shape=shape)
        recipe = build_paper_recipe(is_image, lambda_=15.0)
        weights = {name: weight.value for name, weight in recipe.weights.items()}
        assert weights == {
            "source_regret": 1,
            "regression_error": 2,
            "predicted_reward": 1,
            "data_divergence": 15,
        }


@pytest.mark.parametrize("feedback", ["one_hot", "bandit"])
def test_source_regret_by_hand(feedback):
    batch = make_batch()
    expected = []
    for predicted, arm, reward in zip(batch.predictions, batch.arms, batch.rewards, strict=True):
        everything = feedback == "one_hot" and reward == 1
        arms = range(batches.K) if everything else [int(arm)]
        expected.append(sum(float(predicted[a] - (reward if a == arm else 0)) ** 2 for a in arms))
    value = source_regret(batch.predictions, batch.arms, batch.rewards, feedback=feedback)
    assert float(value) == pytest.approx(np.mean(expected))


def test_a_graded_reward_of_one_hot_feedback_informs_about_the_played_arm_only():
    predicted = torch.tensor([[0.2, 0.3, 0.1]], requires_grad=True)
    loss = source_regret(predicted, torch.tensor([1]), torch.tensor([0.25]), feedback="one_hot")
    loss.backward()
    assert loss.item() == pytest.approx(0.05**2)
    assert predicted.grad[0].tolist() == pytest.approx([0, 0.1, 0])


def test_regression_error_by_hand():
    predicted = torch.tensor([[0.2, 0.9], [0.4, 0.1]])
    value = regression_error(predicted, torch.tensor([1, 0]), torch.tensor([1.0, 0.0]))
    assert float(value) == pytest.approx((0.1 + 0.4) / 2)


def test_predicted_reward_by_hand():
    batch = make_batch(
        predictions=torch.tensor([[0.2, 0.9], [-0.4, 0.1]]),
        arms=torch.tensor([1, 0]),
        target_predictions=torch.tensor([[0.3, 0.2], [-0.6, -0.7]]),
    )
    in_target = (0.2 + 0.6) / 2  # the arms that were played in the source: 1, then 0
    for feedback, reward, in_source in (
        ("one_hot", [1.0, 0.0], 0.4 / 2),
        ("bandit", [0.75, 0.5], (0.25 * 0.9 + 0.5 * 0.4) / 2),
    ):
        term = terms.get("predicted_reward")(term_settings(n_arms=2, feedback=feedback))
        assert float(term(replace(batch, rewards=torch.tensor(reward)))) == pytest.approx(
            in_target + in_source
        )


def test_predicted_reward_looks_at_the_sources_arm_in_the_target():
    batch = make_batch(arms=torch.zeros(B, dtype=torch.int64))
    raised = replace(
        batch,
        target_predictions=batch.target_predictions + torch.tensor([0.0, *[5.0] * (batches.K - 1)]),
    )
    term = terms.get("predicted_reward")(term_settings())
    assert float(term(raised)) == float(term(batch))


def divergence(source, target):
    """The divergence of logits."""
    return data_divergence(lambda logits: logits, source, target, torch.tensor(0.0).double())


@pytest.mark.parametrize("strength", [0.0, 0.3, 5.0])
def test_the_encoder_receives_exactly_the_reversed_gradient(strength):
    torch.manual_seed(0)
    term = terms.get("data_divergence")(term_settings()).double()
    batch = make_batch()
    all_aligned = [
        batch.aligned.clone().requires_grad_(True),
        batch.target_aligned.clone().requires_grad_(True),
    ]
    held = replace(
        batch,
        aligned=all_aligned[0],
        target_aligned=all_aligned[1],
        weight=torch.tensor(strength, dtype=torch.float64),
    )
    parameters = list(term.parameters())
    received = torch.autograd.grad(term(held), [*all_aligned, *parameters])

    logits = term.discriminator(torch.cat(all_aligned))
    plain = (
        functional.binary_cross_entropy_with_logits(logits[:B], torch.zeros(B, dtype=torch.float64))
        / 2
    )
    plain = (
        plain
        + functional.binary_cross_entropy_with_logits(
            logits[B:], torch.ones(T, dtype=torch.float64)
        )
        / 2
    )
    descended = torch.autograd.grad(plain, [*all_aligned, *parameters])

    for ours, reference in zip(received[:2], descended[:2], strict=True):
        torch.testing.assert_close(ours, -2 * strength * reference, rtol=1e-12, atol=1e-15)
    for ours, reference in zip(received[2:], descended[2:], strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-15)


def test_the_discriminators_gradient_agrees_with_finite_differences():
    logits = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (4, 6)]
    half = torch.tensor(-0.5).double()  # a reversal by -2 * -0.5 = 1, so that the gradient passes

    def discriminator_loss(source, target):
        return data_divergence(lambda logits: logits, source, target, half)

    assert torch.autograd.gradcheck(discriminator_loss, logits)


def test_chance_level_is_ln_2():
    assert float(divergence(torch.zeros(3), torch.zeros(5))) == pytest.approx(math.log(2))


def test_domains_weigh_the_same_whatever_their_numbers():
    small = divergence(torch.ones(1), torch.ones(1))
    torch.testing.assert_close(small, divergence(torch.ones(9), torch.ones(1)))


def test_reversal_is_the_identity_forward():
    features = torch.randn(3, 2)
    assert torch.equal(GradientReversal.apply(features, torch.tensor(2.0)), features)


def test_the_weight_reaches_the_encoder_once_and_the_discriminator_not_at_all():
    def gradients(value):
        torch.manual_seed(1)
        objective = build_terms({"data_divergence": Weight(value)}, term_settings()).double()
        batch = make_batch()
        batch.aligned.requires_grad_(True)
        loss, _ = compute_loss(objective, batch, torch.tensor([value], dtype=torch.float64))
        first = next(objective.parameters())
        return torch.autograd.grad(loss, [batch.aligned, first])

    (aligned, first), (tap_twice, first_twice) = gradients(1.0), gradients(2.0)
    torch.testing.assert_close(tap_twice, 2 * aligned)
    assert torch.equal(first, first_twice)


def test_accuracy_is_measured():
    term = terms.get("data_divergence")(term_settings())
    with torch.no_grad():
        for parameter in term.parameters():
            parameter.zero_()
        term.discriminator[-2].bias.fill_(1.0)
    batch = make_batch(dtype=torch.float32)
    assert float(term.measure(batch)["discriminator_accuracy"]) == 0.5  # all are called target
    term.discriminator = torch.nn.Flatten(0)
    logits = {"aligned": [-1.0, -1.0, -1.0, 1.0], "target_aligned": [3.0, 1.0]}
    batch = replace(batch, **{name: torch.tensor(values) for name, values in logits.items()})
    assert float(term.measure(batch)["discriminator_accuracy"]) == (0.75 + 1) / 2
    assert term.measure(replace(batch, target_aligned=batch.aligned[:0])) == {}


def test_several_sources_are_one_mixture():
    torch.manual_seed(0)
    term = terms.get("data_divergence")(term_settings()).double()
    batch = replace(make_batch(), weight=torch.tensor(0.5).double())
    moved = batch.aligned.detach()[torch.randperm(len(batch.aligned))]
    torch.testing.assert_close(term(replace(batch, aligned=moved)), term(batch))
