"""Algorithm 1, one episode by hand: dense algebra for the head, written-out losses, and one Adam
step.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from daband.neural._daband import DABand
from daband.neural._recipes import recipe_for

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
        np.testing.assert_allclose(head.compute_gram(a), A[a], atol=1e-12)
        np.testing.assert_allclose(head.theta[a, 0], np.linalg.solve(A[a], b[a]), atol=1e-10)


def by_hand(walked):
    """Losses of the step, and the encoder behind it."""
    _, start, head, played, source, target, rewards, _ = walked
    encoder = start.encoder
    discriminator = start.objective.terms["adversarial"].discriminator
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
        "source_squared": regret,
        "regression_error": error,
        "predicted_reward": reg,
        "adversarial": divergence,
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
        terms["source_squared"]
        + 2 * terms["regression_error"]
        + terms["predicted_reward"]
        + terms["adversarial"]
    )
    assert measured["loss"] == pytest.approx(float(total.detach()), rel=1e-5)
    after = policy.learner.encoder.state_dict()
    moved = 0.0
    for name, tensor in encoder.state_dict().items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=2e-7)
        moved = max(moved, float((after[name] - before[name]).abs().max()))
    assert moved > 5e-6
    ours = policy.learner.objective.terms["adversarial"].discriminator.state_dict()
    for name, tensor in discriminator.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=2e-7)


def test_statistics_stay_stale_and_the_last_rounds_alone_are_trained_on(walked):
    policy = walked[0]
    head = walked[2]
    np.testing.assert_array_equal(policy._head.statistics.compute_gram(0), head.compute_gram(0))
    assert len(policy.buffers.rounds[0]) == H
    assert (policy.recipe.replay.sampling, policy.recipe.learning.batch) == ("last", H)
    assert policy.recipe.alpha == 0.05
    weights = {name: weight.value for name, weight in policy.recipe.weights.items()}
    assert weights == {
        "source_squared": 1,
        "regression_error": 2,
        "predicted_reward": 1,
        "adversarial": 1,
    }
    assert policy.recipe.learning.learning_rate == 1e-5
