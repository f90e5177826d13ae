"""The worth of source rounds against a direct computation, and its guarantee."""

import numpy as np
import pytest

from daband.linear import _source_worth
from daband.linear._reward_moments import RewardMoments
from daband.linear._ridge import Ridge
from daband.linear._ridge_head import RidgeHead
from daband.linear._source_worth import EXPERTS, SourceWorth

DIM = 4
SHARE = 0.002


def make_rounds(seed, n, theta, noise=0.3):
    """Return features, heads and rewards of rounds with coefficients theta (heads, d)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, theta.shape[1]))
    heads = rng.integers(len(theta), size=n)
    rewards = np.einsum("nd,nd->n", z, theta[heads]) + noise * rng.normal(size=n)
    return z, heads, rewards


def make_theta(seed=0, n_heads=2, dim=DIM):
    return np.random.default_rng(seed).normal(size=(n_heads, dim))


def make_head(source, **attributes):
    """Return a head that has learned source rounds, and the moments of their rewards."""
    head = RidgeHead(n_arms=2, dim=source[0].shape[1], arms="disjoint", ridge=1.0)
    for name, value in attributes.items():
        setattr(head, name, value)
    head.learn(*source)
    moments = RewardMoments(standardise=True)
    moments.add(source[2])
    return head, moments


def fit_expert(source, target, worth, half_life, ages, centre):
    """Return the coefficients (heads, d) of an expert by dense algebra."""
    thetas = []
    for head in range(2):
        A = np.eye(source[0].shape[1])
        b = np.zeros(len(A))
        for (z, heads, rewards), weights in (
            (source, np.full(len(source[1]), worth)),
            (target, 2.0 ** (-ages / half_life)),
        ):
            rows = heads == head
            A = A + z[rows].T @ (weights[rows, None] * z[rows])
            b = b + z[rows].T @ (weights[rows] * (rewards[rows] - centre))
        thetas.append(np.linalg.solve(A, b))
    return np.array(thetas)


def test_weights_and_regression_equal_a_direct_computation():
    source = make_rounds(0, 200, make_theta(0))
    z, heads, rewards = target = make_rounds(1, 60, make_theta(5))
    head, moments = make_head(source)
    head.learn(*target, target_moments=moments)
    worths, half_lives, prior = np.array(EXPERTS).T
    prior = weights = prior / prior.sum()
    noise_sum, noise_weight = 20.0 * source[2].var(), 20.0
    fits = [0]
    loss = 0.0
    for start, stop in ((0, 16), (16, 32), (32, 48), (48, 64)):
        past = tuple(array[:start] for array in target)
        # rounds of one fit have one age
        ages = np.array([start - next(f for f in fits if f > i) for i in range(start)])
        thetas = np.array(
            [
                fit_expert(source, past, worth, half_life, ages, moments.centre)
                for worth, half_life in zip(worths, half_lives, strict=True)
            ]
        )
        if stop > 60:
            break
        new = slice(start, stop)
        predictions = np.einsum("nd,end->en", z[new], thetas[:, heads[new]])
        errors = np.square(rewards[new] - moments.centre - predictions).sum(axis=1)
        fits.append(stop)
        noise_sum = 2 ** ((start - stop) / 250) * noise_sum + min(errors)
        noise_weight = 2 ** ((start - stop) / 250) * noise_weight + stop - start
        share = 1 - (1 - SHARE) ** (stop - start)
        weights = (1 - share) * weights + share * prior
        weights = weights * np.exp(-errors * noise_weight / (2 * noise_sum))
        loss -= 2 * noise_sum / noise_weight * np.log(weights.sum())
        weights /= weights.sum()
    np.testing.assert_allclose(np.exp(head.worth.log_weights), weights, rtol=1e-7)
    assert head.worth.loss == pytest.approx(loss)
    assert head.estimate_worth() == pytest.approx((weights @ worths, 200 * weights @ worths))
    # the deciding regression after the last fit, which then learned 12 rounds
    base = np.argmax(np.where(np.isinf(half_lives), weights, 0.0))
    assert weights[base] / prior[base] > 20.0 * weights[0] / prior[0]
    for index in range(2):
        rows, new = source[1] == index, heads[48:60] == index
        past_rows = heads[:48] == index
        decay = 2.0 ** (-ages[past_rows] / half_lives[base])
        A = np.eye(DIM) + worths[base] * source[0][rows].T @ source[0][rows]
        A += z[:48][past_rows].T @ (decay[:, None] * z[:48][past_rows])
        b = A @ np.tensordot(weights, thetas, 1)[index]
        new_z = z[48:60][new]
        A += new_z.T @ new_z
        b += new_z.T @ (rewards[48:60][new] - moments.centre)
        theta = head.statistics.compute_coefficients(moments.centre)[index]
        np.testing.assert_allclose(theta, np.linalg.solve(A, b), rtol=1e-7)
        np.testing.assert_allclose(head.statistics.A_inv[index], np.linalg.inv(A), rtol=1e-7)


def compute_mix_loss(worth, errors, noise):
    """Return the loss of the weights in one round, for squared errors (E,) of the experts."""
    prior = np.array(EXPERTS)[:, 2]
    weights = (1 - SHARE) * np.exp(worth.log_weights) + SHARE * prior / prior.sum()
    return -2 * noise * np.logaddexp.reduce(np.log(weights) - errors / (2 * noise))


@pytest.mark.parametrize("other", [0, 5], ids=["same", "other"])
def test_the_loss_of_the_weights_is_bounded_by_the_best_expert(other, monkeypatch):
    """The bound of the module, with a noise variance that is known and a fit after each round."""
    monkeypatch.setattr(_source_worth, "_MIN_STEP", 1)
    monkeypatch.setattr(_source_worth, "_MAX_STEP", 1)
    source = make_rounds(0, 300, make_theta(0))
    z, heads, rewards = make_rounds(1, 300, make_theta(other))
    head, moments = make_head(source)
    worth = SourceWorth(head.statistics, moments)
    worth.start(head.statistics)
    total = 0.0
    expert_errors = np.zeros(len(EXPERTS))
    noise = 0.09
    for i in range(300):
        predictions = worth.theta[:, heads[i]] @ z[i]
        errors = np.square(
            rewards[i] - moments.centre - predictions[:, 0] + moments.centre * predictions[:, 1]
        )
        total += compute_mix_loss(worth, errors, noise)
        expert_errors += errors
        worth.noise_sum, worth.noise_weight = 1e9 * noise, 1e9
        one_round = z[i : i + 1], heads[i : i + 1], rewards[i : i + 1]
        worth.add_target(one_round[2], None)
        head.statistics.update(*one_round)
        worth.fit(head.statistics)
    prior = np.array(EXPERTS)[:, 2]
    bounds = expert_errors + 2 * noise * (-np.log(prior / prior.sum()) - 300 * np.log(1 - SHARE))
    assert total <= bounds.min() + 1e-6


def test_a_source_that_misleads_is_worth_nothing_and_a_good_one_much():
    source = make_rounds(0, 500, make_theta(0))
    estimates = []
    for sign in (1.0, -1.0):
        head, moments = make_head(source)
        head.learn(*make_rounds(1, 400, sign * make_theta(0)), target_moments=moments)
        estimates.append(head.estimate_worth())
    assert estimates[0].worth > 0.2
    assert estimates[1].worth < 0.01
    assert estimates[1].rounds == pytest.approx(500 * estimates[1].worth)


def test_bonuses_count_the_source_in_full_until_target_rewards_reject_it():
    source = make_rounds(0, 500, make_theta(0))
    for theta, is_rejected in ((make_theta(0), False), (-make_theta(0), True)):
        head, moments = make_head(source)
        head.learn(*make_rounds(1, 40, theta), target_moments=moments)
        assert (head.worth.base_worth < 1.0) == is_rejected


def test_target_rounds_expire_when_the_target_changes():
    source = make_rounds(0, 500, make_theta(0))
    head, moments = make_head(source)
    head.learn(*make_rounds(1, 1000, make_theta(1)), target_moments=moments)
    z, heads, rewards = make_rounds(2, 600, -make_theta(1))
    head.learn(z, heads, rewards, target_moments=moments)
    mean, _ = head.score(z, with_bonuses=False)
    truth = -z @ make_theta(1).T
    fixed = Ridge(2, DIM, 1.0)
    fixed.update(*make_rounds(1, 1000, make_theta(1)))
    fixed.update(z, heads, rewards)
    fixed_mean = z @ fixed.compute_coefficients().T
    assert np.square(mean - truth).mean() < 0.1 * np.square(fixed_mean - truth).mean()


@pytest.mark.parametrize("dim", [4, 70])
def test_a_batch_equals_its_singles(dim):
    theta = make_theta(0, dim=dim)
    source = make_rounds(0, 300, theta)
    z, heads, rewards = make_rounds(1, 150, make_theta(1, dim=dim))
    weights = np.random.default_rng(2).uniform(0.5, 2.0, 150)
    one, moments = make_head(source)
    other, _ = make_head(source)
    one.learn(z, heads, rewards, weights, target_moments=moments)
    for i in range(150):
        rows = slice(i, i + 1)
        other.learn(z[rows], heads[rows], rewards[rows], weights[rows], target_moments=moments)
    assert one.worth.axes.shape == (dim, min(dim, 64))
    assert one.estimate_worth() == pytest.approx(other.estimate_worth())
    for mine, theirs in zip(one.score(z), other.score(z), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)


def test_source_rounds_after_target_rounds_count_by_their_worth():
    source = make_rounds(0, 300, make_theta(0))
    later = make_rounds(3, 100, make_theta(0))
    target = make_rounds(1, 40, make_theta(1))
    head, moments = make_head(source, fixed_worth=0.5)
    other, _ = make_head(tuple(map(np.concatenate, zip(source, later, strict=True))))
    other.fixed_worth = 0.5
    head.learn(*target, target_moments=moments)
    head.learn(*later)
    other.learn(*target, target_moments=moments)
    assert head.estimate_worth() == pytest.approx((0.5, 200.0))
    np.testing.assert_allclose(head.statistics.gram, other.statistics.gram)
    with_sums, _ = make_head(source, fixed_worth=0.5)
    with_sums.learn(*target, target_moments=moments)
    sums = with_sums.make_empty_sums()
    sums.add(*later)
    with_sums = with_sums.with_sums(sums)
    for mine, theirs in zip(head.score(later[0]), with_sums.score(later[0]), strict=True):
        np.testing.assert_allclose(mine, theirs)
