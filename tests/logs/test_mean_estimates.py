"""Intervals of means: of few values, skewed ones, and sums of two samples."""

import numpy as np
import pytest
from scipy.stats import t as t_distribution

from daband.logs._mean_estimates import (
    MeanEstimate,
    compute_effective_size,
    estimate_mean,
)


class TestIntervals:
    def test_symmetric_terms_have_a_t_interval(self):
        low, high = MeanEstimate(2.0, 0.5).compute_interval(0.95)
        assert (low, high) == pytest.approx((2.0 - 0.979982, 2.0 + 0.979982), abs=1e-5)
        low, high = estimate_mean(np.array([1.0, 2.0, 3.0])).compute_interval(0.95)
        assert (
            high - 2.0 == pytest.approx(2.0 - low) == pytest.approx(4.302653 / np.sqrt(3), abs=1e-5)
        )

    def test_a_variance_of_few_rounds_has_few_degrees_of_freedom(self):
        """Two of 100 values differ from 0: their kurtosis is 50."""
        estimate = estimate_mean(np.concatenate([np.zeros(98), [-10.0, 10.0]]))
        assert estimate.dof == pytest.approx(2 * 99 / 49)
        low, high = estimate.compute_interval(0.95)
        assert (
            high == -low == pytest.approx(t_distribution.ppf(0.975, 2 * 99 / 49) * 0.142134, 1e-4)
        )

    def test_skewed_terms_have_a_longer_side(self):
        estimate = estimate_mean(np.repeat([0.0, 1.0], [980, 20]))
        low, high = estimate.compute_interval(0.95)
        assert 1.3 * (estimate.value - low) < high - estimate.value < 3.0 * (estimate.value - low)
        mirrored = estimate_mean(-np.repeat([0.0, 1.0], [980, 20])).compute_interval(0.95)
        assert mirrored == pytest.approx((-high, -low))

    def test_one_value_says_nothing_of_its_error(self):
        assert estimate_mean(np.array([0.3])).standard_error == np.inf
        assert estimate_mean(np.array([0.3])).compute_interval(0.9) == (-np.inf, np.inf)

    def test_a_sum_of_two_samples(self):
        first = np.array([1.0, 5.0, 2.0])
        second = np.array([0.0, 0.0, 3.0, 1.0])
        found = estimate_mean(first).plus(estimate_mean(second))
        assert found.value == pytest.approx(first.mean() + second.mean())
        assert found.standard_error**2 == pytest.approx(
            first.var(ddof=1) / 3 + second.var(ddof=1) / 4
        )

    def test_effective_sample_size(self):
        assert compute_effective_size(np.full(7, 2.0)) == pytest.approx(7)
        assert compute_effective_size(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)
        assert compute_effective_size(np.zeros(3)) == 0.0

    def test_skewed_rewards_are_covered(self):
        """One in 30 buys, for amounts that vary: a normal interval covers 0.89, and misses on the
        low side.
        """
        rng = np.random.default_rng(0)
        baskets = (rng.random((1000, 1000)) < 1 / 30) * rng.lognormal(0.0, 1.0, (1000, 1000))
        truth = np.exp(0.5) / 30
        intervals = np.array([estimate_mean(terms).compute_interval(0.95) for terms in baskets])
        assert np.mean((intervals[:, 0] <= truth) & (truth <= intervals[:, 1])) > 0.93
        reach = 1.96 * baskets.std(axis=1) / np.sqrt(1000)
        assert np.mean(np.abs(baskets.mean(axis=1) - truth) <= reach) < 0.92
