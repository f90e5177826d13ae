"""The probability of a Thompson choice, against a closed form and brute force."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from daband.linear._draws import to_gaussians
from daband.linear._exploration import compute_best_probabilities


def by_brute_force(mean, deviation, arm):
    """The trapezoid rule on a grid that is fine wherever any of the distribution functions is
    steep.
    """
    rivals = [b for b in range(len(mean)) if b != arm]
    steps = np.linspace(-9, 9, 20_001)
    grids = [steps] + [
        (mean[b] - mean[arm] + deviation[b] * steps) / deviation[arm] for b in rivals
    ]
    t = np.unique(np.clip(np.concatenate(grids), -9, 9))
    density = stats.norm.pdf(t)
    for b in rivals:
        density = density * stats.norm.cdf(
            (mean[arm] + deviation[arm] * t - mean[b]) / deviation[b]
        )
    return trapezoid(density, t)


@pytest.mark.parametrize("seed", range(40))
def test_against_brute_force(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    mean = rng.normal(0, 1, n)
    deviation = 10.0 ** rng.uniform(-3, 0.5, n)
    mask = np.ones((n, n), bool)
    got = compute_best_probabilities(
        np.tile(mean, (n, 1)), np.tile(deviation, (n, 1)), mask, np.arange(n)
    )
    np.testing.assert_allclose(got.sum(), 1.0, atol=1e-8)
    np.testing.assert_allclose(
        got, [by_brute_force(mean, deviation, arm) for arm in range(n)], atol=1e-6
    )


def test_two_arms_have_a_closed_form():
    mean = np.array([[0.3, -0.2]])
    deviation = np.array([[0.5, 1.2]])
    wanted = stats.norm.cdf(0.5 / np.hypot(0.5, 1.2))
    got = compute_best_probabilities(mean, deviation, np.ones((1, 2), bool), np.array([0]))
    np.testing.assert_allclose(got, wanted, atol=1e-10)


def test_certain_arms():
    def chance(mean, deviation, arm, mask=None):
        mask = np.ones((1, len(mean)), bool) if mask is None else np.array([mask])
        return compute_best_probabilities(
            np.array([mean]), np.array([deviation]), mask, np.array([arm])
        )[0]

    assert chance([1.0, 0.0], [0.0, 0.0], 0) == pytest.approx(1.0)
    assert chance([1.0, 0.0], [0.0, 0.0], 1) == pytest.approx(0.0)
    assert chance([1.0, 1.0], [0.0, 0.0], 1) == pytest.approx(0.5)
    assert chance([0.0, 5.0, 0.0], [1.0, 1.0, 1.0], 0, [True, False, True]) == pytest.approx(0.5)
    assert chance([0.0, 5.0], [1.0, 1.0], 0, [True, False]) == 1.0


def test_gaussians_are_gaussian():
    draws = to_gaussians(np.random.default_rng(0).random((20_000, 6)))
    assert draws.shape == (20_000, 3)
    assert stats.kstest(draws.ravel(), "norm").pvalue > 0.01
    assert np.isfinite(to_gaussians(np.array([[0.0, 0.0], [1 - 2**-53, 0.5]]))).all()
