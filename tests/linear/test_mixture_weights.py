"""Weights of predictors: least squares over the simplex, against a search, and the stated
guarantee.
"""

import numpy as np
import pytest

from daband.linear._mixture_weights import MixtureWeights, solve_on_simplex


@pytest.mark.parametrize("seed", range(5))
def test_the_least_squares_are_those_of_a_grid_search(seed):
    draw = np.random.default_rng(seed)
    predictions = draw.random((40, 3))
    rewards = draw.random(40)
    gram = predictions.T @ predictions
    moment = predictions.T @ rewards
    best = solve_on_simplex(gram, moment)
    steps = np.linspace(0, 1, 201)
    grid = np.array([(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-12])
    losses = np.einsum("gi,ij,gj->g", grid, gram, grid) - 2 * grid @ moment
    assert best.min() >= 0
    np.testing.assert_allclose(best.sum(), 1.0)
    assert best @ gram @ best - 2 * best @ moment <= losses.min() + 1e-12
    np.testing.assert_allclose(best, grid[losses.argmin()], atol=0.01)


def test_before_the_first_round_the_prior_counts():
    stack = MixtureWeights([0.5, 0.5, 0.0])
    assert stack.weights.tolist() == [0.5, 0.5, 0.0]
    stack.add(np.array([[0.5, 0.5, 0.6]]), np.array([0.55]))
    np.testing.assert_allclose(stack.weights, [0.5, 0.5, 0.0], atol=0.01)  # one round says little


def test_the_mixture_is_nearly_as_good_as_the_best_mixture_in_hindsight():
    draw = np.random.default_rng(0)
    n = 4000
    rewards = draw.random(n)
    predictions = np.stack(
        [
            0.5 + 0.6 * (rewards - 0.5) + 0.2 * draw.standard_normal(n),
            np.full(n, 0.5),
            draw.random(n),
        ],
        axis=1,
    )
    stack = MixtureWeights([1 / 3] * 3)
    loss = 0.0
    for t in range(n):
        loss += (rewards[t] - predictions[t].clip(0, 1) @ stack.weights) ** 2
        stack.add(predictions[t : t + 1].clip(0, 1), rewards[t : t + 1])
    clipped = predictions.clip(0, 1)
    best = solve_on_simplex(clipped.T @ clipped, clipped.T @ rewards)
    assert loss <= ((rewards - clipped @ best) ** 2).sum() + 100 / 3 + 3 * np.log(n)
    np.testing.assert_allclose(stack.weights, best, atol=0.2)  # the prior still counts


def test_rewards_that_differ_by_rounding_only_give_weights():
    weights = MixtureWeights([0.5, 0.25, 0.25])
    weights.add(np.array([[0.0, 0.0, 0.1]]), np.array([0.3]))
    weights.add(np.array([[0.3, 0.3, 0.3]]), np.array([0.3]), reward_deviation=2e-17)
    assert weights.weights.sum() == pytest.approx(1.0)
    assert weights.weights[2] == pytest.approx(1.0, abs=1e-6)
