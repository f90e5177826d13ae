"""Sums over rounds: those of parts add up to those of the whole, and teach what the rounds
themselves teach.
"""

import copy
import pickle

import numpy as np
import pytest

from daband.errors import InvalidInput
from daband.linear import _ridge
from daband.linear._ridge import Ridge, RidgeSums


def rounds(n, *, dim=6, heads=4, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(n, dim)).astype(dtype),
        rng.integers(0, heads, n),
        rng.random(n),
        rng.uniform(0.1, 3.0, n),
    )


def summed(*parts):
    sums = RidgeSums(4, 6)
    for part in parts:
        sums.add(*part)
    return sums


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_they_are_those_of_dense_algebra(weighted, dtype, order, monkeypatch):
    z, heads, rewards, weights = rounds(900, dtype=dtype)
    weights = weights if weighted else np.ones(900)
    monkeypatch.setattr(_ridge, "_TILE_BYTES", 1)  # tiles of 64 rows
    sums = RidgeSums(4, 6)
    sums.add(np.asarray(z, order=order), heads, rewards, weights if weighted else None)
    for head in range(4):
        own = z[heads == head].astype(np.float64)
        w = weights[heads == head]
        np.testing.assert_allclose(sums.gram[head], (own * w[:, None]).T @ own, rtol=0, atol=1e-10)
        both = np.stack([rewards[heads == head], np.ones(len(own))], axis=1)
        np.testing.assert_allclose(sums.b[head], (w[:, None] * both).T @ own, rtol=0, atol=1e-10)
        assert sums.counts[head] == len(own)
    assert sums.reward_moments.mean == pytest.approx(np.average(rewards, weights=weights))
    assert sums.reward_moments.scale**2 == pytest.approx(np.cov(rewards, aweights=weights, ddof=0))


def test_parts_add_up_and_teach_what_the_rounds_teach():
    z, heads, rewards, weights = rounds(1000)
    direct = Ridge(4, 6, 0.5)
    direct.update(z[:100], heads[:100], rewards[:100])
    by_sums = copy.deepcopy(direct)
    direct.update(z[100:], heads[100:], rewards[100:], weights[100:])
    parts = [
        summed((z[s], heads[s], rewards[s], weights[s]))
        for s in (slice(100, 500), slice(500, 501), slice(501, 1000))
    ]
    whole = parts[2]
    for part in parts[:2]:
        whole.merge(pickle.loads(pickle.dumps(part)))
    by_sums.add_sums(whole)
    np.testing.assert_array_equal(by_sums.counts, direct.counts)
    np.testing.assert_allclose(by_sums.theta, direct.theta, rtol=0, atol=1e-9)
    np.testing.assert_allclose(by_sums.A_inv, direct.A_inv, rtol=0, atol=1e-9)
    for statistics in (by_sums, direct):  # and it goes on from there
        statistics.update(z[:50], heads[:50], rewards[:50])
    np.testing.assert_allclose(by_sums.theta, direct.theta, rtol=0, atol=1e-9)


def test_heads_without_rounds_stay_as_they_were():
    z, _, rewards, _ = rounds(20)
    statistics = Ridge(4, 6, 2.0)
    statistics.add_sums(summed((z, np.full(20, 2), rewards)))
    np.testing.assert_array_equal(statistics.counts, [0, 0, 20, 0])
    np.testing.assert_array_equal(statistics.A_inv[0], np.eye(6) / 2.0)


def test_what_cannot_be_inverted_changes_nothing():
    z, heads, rewards, _ = rounds(40)
    statistics = Ridge(4, 6, 1e-3)
    statistics.update(z, heads, rewards)
    before = {name: array.copy() for name, array in statistics.state().items()}
    far = np.repeat(z[:1] * 1e6, 40, axis=0) + 1e-3 * z
    with pytest.raises(InvalidInput, match="ill-conditioned"):
        statistics.add_sums(summed((far, np.zeros(40, np.int64), rewards)))
    for name, array in statistics.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


@pytest.mark.parametrize(
    ("scale", "total"),
    [
        ("even", 200_000),
        ("uneven", 200_000),
        pytest.param("uneven", 1_000_000, marks=pytest.mark.slow),
    ],
)
def test_many_updates_stay_within_1e8_of_a_dense_solve(scale, total):
    """Uneven contexts make A ill-conditioned: one direction is seen a million times more than
    another.
    """
    dim = 8
    batch = 5_000
    spread = np.ones(dim) if scale == "even" else np.logspace(0, -3, dim)
    rng = np.random.default_rng(0)
    statistics = Ridge(1, dim, 0.1)
    gram = 0.1 * np.eye(dim)
    moment = np.zeros((dim, 2))
    heads = np.zeros(batch, np.int64)
    for _ in range(total // batch):
        contexts = rng.uniform(-1, 1, (batch, dim)) * spread
        rewards = rng.random(batch)
        gram += contexts.T @ contexts
        moment += contexts.T @ np.stack([rewards, np.ones(batch)], axis=1)
        # small batches, never one large refit
        for start in range(0, batch, 20):
            part = slice(start, start + 20)
            statistics.update(contexts[part], heads[part], rewards[part])
    inverse = np.linalg.inv(gram)
    assert statistics.counts[0] == total
    assert np.linalg.norm(statistics.A_inv[0] - inverse) <= 1e-8 * np.linalg.norm(inverse)
    theta = np.linalg.solve(gram, moment)
    assert np.linalg.norm(statistics.theta[0].T - theta) <= 1e-8 * np.linalg.norm(theta)


def test_penalties_are_kept_if_an_inversion_fails():
    ridge = Ridge(1, 2, 1.0)
    ridge.update(np.ones((1, 2)), np.array([0]), np.array([1.0]))
    before = {name: array.copy() for name, array in ridge.state().items()}
    ridge.set_penalties(np.full(2, 1e-20))
    assert (ridge.penalties == 1.0).all()
    for name, array in ridge.state().items():
        np.testing.assert_array_equal(array, before[name])
