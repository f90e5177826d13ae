"""Means of a log for the contexts of the target."""

import numpy as np
import pytest
from scipy.optimize import brentq

from daband.logs._target_mix import TargetMix, compute_shift_index


def draw(n=4000, seed=0, slope=1.0):
    """Return weights, an index and values that depend on the index."""
    rng = np.random.default_rng(seed)
    index = rng.normal(size=n)
    return rng.uniform(0.5, 1.5, n), index, slope * index + rng.normal(size=n)


def make_mix(weights, index, values, target_index):
    """Return the estimator whose factor is fitted to these values."""
    return TargetMix(weights, None, index, target_index, values.reshape(len(values), -1))


def test_without_a_target_the_estimate_is_the_weighted_mean():
    weights, _, values = draw()
    mix = TargetMix(weights)
    assert mix.estimate(values).mean.value == pytest.approx(np.average(values, weights=weights))
    assert mix.factor == 0.0


def test_values_that_depend_on_the_index_follow_the_target():
    weights, index, values = draw()
    mix = make_mix(weights, index, values, 0.7)
    estimate = mix.estimate(values)

    def tilt(slope):
        return weights * np.exp(slope * index)

    slope = brentq(lambda slope: np.average(index, weights=tilt(slope)) - 0.7, -3.0, 3.0)
    mean = np.average(values, weights=weights)
    difference = np.average(values, weights=tilt(slope)) - mean
    assert estimate.mean.value == pytest.approx(mean + mix.factor * difference)
    assert mix.factor > 0.99
    assert abs(estimate.mean.value - 0.7) < 4.0 * estimate.mean.standard_error
    assert mix.effective_rounds < TargetMix(weights).effective_rounds


def test_a_gain_that_is_never_negative_is_estimated_as_positive():
    weights, index, _ = draw()
    gains = np.maximum(0.0, -index)  # a linear regression on the index predicts a loss
    estimate = make_mix(weights, index, gains, 1.5).estimate(gains).mean
    assert estimate.value > 0.0
    density = np.exp(-0.5 * (index - 1.5) ** 2 + 0.5 * index**2)
    truth = np.average(gains, weights=weights * density)
    assert abs(estimate.value - truth) < 4.0 * estimate.standard_error


def test_a_target_that_no_round_resembles_leaves_the_mean():
    weights, index, values = draw(slope=0.1)
    assert make_mix(weights, index, values, 2.0 * index.max()).factor < 0.5


def test_values_that_do_not_depend_on_the_index_are_hardly_adjusted():
    errors = []
    for seed in range(20):
        weights, index, values = draw(seed=seed, slope=0.0)
        estimate = make_mix(weights, index, values, 0.7).estimate(values)
        errors.append((estimate.mean.value / estimate.mean.standard_error) ** 2)
    assert np.mean(errors) < 2.0


def test_contrasts_without_a_difference_lower_the_factor():
    weights, index, values = draw(slope=0.2)
    noise = np.random.default_rng(1).normal(size=(len(values), 30))
    one = make_mix(weights, index, values, 0.7)
    many = make_mix(weights, index, np.column_stack([values, noise]), 0.7)
    assert 0.0 <= many.factor < one.factor < 1.0


def test_an_advantage_is_the_difference_between_two_estimated_means():
    weights, index, values = draw(slope=0.3)
    other = 0.5 - values**2
    mix = make_mix(weights, index, values, 0.7)
    assert 0.0 < mix.factor < 1.0
    first, second = mix.estimate_all(np.column_stack([values, other]))
    advantage = mix.estimate(values - other)
    assert advantage.mean.value == pytest.approx(first.mean.value - second.mean.value)
    np.testing.assert_allclose(advantage.terms, first.terms - second.terms, atol=1e-12)


def test_the_shift_index_is_larger_where_the_target_is():
    rng = np.random.default_rng(0)
    contexts, target = rng.normal(size=(2000, 3)), rng.normal([1.0, 0.0, 0.0], size=(1000, 3))
    index, target_index = compute_shift_index(contexts, target)
    assert np.corrcoef(index, contexts[:, 0])[0, 1] > 0.9
    assert target_index > index.mean()
