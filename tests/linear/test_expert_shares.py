"""Shares of experts: least squares over the simplex, against a search, and the guarantee it states."""

import numpy as np
import pytest

from daband.linear._expert_shares import ExpertShares, simplex_least_squares


@pytest.mark.parametrize("seed", range(5))
def test_the_least_squares_are_those_of_a_grid_search(seed):
    draw = np.random.default_rng(seed)
    predictions, rewards = draw.random((40, 3)), draw.random(40)
    gram, moment = predictions.T @ predictions, predictions.T @ rewards
    best = simplex_least_squares(gram, moment)
    steps = np.linspace(0, 1, 201)
    grid = np.array([(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-12])
    losses = np.einsum("gi,ij,gj->g", grid, gram, grid) - 2 * grid @ moment
    assert best.min() >= 0
    np.testing.assert_allclose(best.sum(), 1.0)
    assert best @ gram @ best - 2 * best @ moment <= losses.min() + 1e-12
    np.testing.assert_allclose(best, grid[losses.argmin()], atol=0.01)


def test_before_the_first_round_the_prior_counts():
    shares = ExpertShares([0.5, 0.5, 0.0])
    assert shares.shares.tolist() == [0.5, 0.5, 0.0]
    assert np.isnan(shares.errors()).all()
    shares.add(np.array([[0.5, 0.5, 0.6]]), np.array([0.55]))
    np.testing.assert_allclose(shares.shares, [0.5, 0.5, 0.0], atol=0.01)  # one round says little


def test_the_mixture_is_nearly_as_good_as_the_best_mixture_in_hindsight():
    draw = np.random.default_rng(0)
    n = 4000
    rewards = draw.random(n)
    predictions = np.stack(
        [0.5 + 0.6 * (rewards - 0.5) + 0.2 * draw.standard_normal(n), np.full(n, 0.5), draw.random(n)], axis=1
    )
    shares, loss = ExpertShares([1 / 3] * 3), 0.0
    for t in range(n):
        loss += (rewards[t] - predictions[t].clip(0, 1) @ shares.shares) ** 2
        shares.add(predictions[t : t + 1], rewards[t : t + 1])
    clipped = predictions.clip(0, 1)
    best = simplex_least_squares(clipped.T @ clipped, clipped.T @ rewards)
    assert loss <= ((rewards - clipped @ best) ** 2).sum() + 100 / 3 + 3 * np.log(n)
    np.testing.assert_allclose(shares.shares, best, atol=0.2)  # the prior still counts
    assert shares.errors().argmin() == 0


def test_a_restored_state_continues_alike():
    draw = np.random.default_rng(1)
    one, other = ExpertShares([0.5, 0.5]), ExpertShares([0.5, 0.5])
    one.add(draw.random((50, 2)), draw.random(50))
    other.restore(one.state())
    more, rewards = draw.random((50, 2)), draw.random(50)
    for shares in (one, other):
        shares.add(more, rewards)
    assert one.shares.tolist() == other.shares.tolist()
    with pytest.raises(ValueError, match="shares"):
        other.restore({**one.state(), "shares": np.array([2.0, -1.0])})
