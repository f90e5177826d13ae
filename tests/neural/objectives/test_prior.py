"""The prior of the diversity term."""

import numpy as np
import pytest
import torch

import daband
from daband.neural.objectives._target_predictions import target_diversity


def _predicted(probabilities, n=8):
    return torch.log(torch.tensor(probabilities)).repeat(n, 1)


def test_predictions_that_match_the_prior_cost_nothing():
    prior = torch.tensor([0.7, 0.2, 0.1])
    predicted = _predicted([0.7, 0.2, 0.1])
    assert target_diversity(predicted, scale=1.0, prior=prior).item() == pytest.approx(0.0, abs=1e-6)
    assert target_diversity(predicted, scale=1.0).item() > 0.2


def test_an_even_prior_is_no_prior():
    predicted = _predicted([0.7, 0.2, 0.1])
    even = target_diversity(predicted, scale=1.0, prior=torch.full((3,), 1 / 3)).item()
    assert even == pytest.approx(target_diversity(predicted, scale=1.0).item(), abs=1e-6)


def test_an_estimated_prior_follows_the_target():
    draw = np.random.default_rng(0)
    prototypes = 3 * np.eye(3, 5)

    def contexts(frequencies, n):
        labels = draw.choice(3, size=n, p=frequencies)
        return (prototypes[labels] + 0.3 * draw.standard_normal((n, 5))).astype(np.float32), labels

    recipe = {
        "base": "small",
        "weights": {"target_diversity": 0.1},
        "learning": {"prior": "estimated", "linear_weight": 0.0, "steps": 8},
    }
    policy = daband.DABand(context_shape=(5,), n_arms=3, recipe=recipe, device="cpu", seed=0, feedback="one_hot")
    target, _ = contexts([0.8, 0.15, 0.05], 300)
    for _ in range(4):
        source, labels = contexts(np.full(3, 1 / 3), 100)
        arms = draw.integers(3, size=100)
        policy.update(source, arms, (arms == labels).astype(float))
        policy.observe_target(target)
        policy.adapt()
    assert policy._prior is not None
    assert policy._prior.sum() == pytest.approx(1.0)
    assert policy._prior.argmax() == 0
    np.testing.assert_allclose(policy.learner.constants["prior"].sum().item(), 1.0, atol=1e-5)
    with pytest.raises(daband.InvalidInput, match="prior"):
        daband.DABand(context_shape=(5,), n_arms=3, recipe={"learning": {"prior": "even"}})
