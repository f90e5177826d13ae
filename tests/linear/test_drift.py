"""Rank-one updates must not drift away from the truth, however many there are."""

import numpy as np
import pytest

from daband.linear._ridge import Ridge


@pytest.mark.parametrize("scale", ["even", "uneven"])
def test_a_million_updates_stay_within_1e8_of_a_dense_solve(scale):
    """Uneven contexts make A ill-conditioned: one direction is seen a million times more than
    another.
    """
    dim = 8
    total = 1_000_000
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


def test_one_by_one_updates_do_not_drift_between_refreshes():
    dim = 5
    rng = np.random.default_rng(1)
    statistics = Ridge(2, dim, 1.0)
    grams = [np.eye(dim), np.eye(dim)]
    for i in range(4_000):
        z = rng.uniform(-1, 1, (1, dim))
        head = i % 2
        statistics.update(z, np.array([head]), rng.random(1))
        grams[head] = grams[head] + z.T @ z
    for head in range(2):
        np.testing.assert_allclose(
            np.eye(dim) + statistics.gram[head], grams[head], rtol=1e-12, atol=1e-12
        )
        np.testing.assert_allclose(
            statistics.A_inv[head], np.linalg.inv(grams[head]), rtol=1e-9, atol=1e-12
        )
