"""Regressions on pseudo-labels: the same by either system of equations, and better than their labels."""

import numpy as np
import pytest

from daband.linear._pseudo_labels import fit_pseudo_labels


@pytest.mark.parametrize("n", [5, 60])
def test_either_system_of_equations_gives_the_ridge_regression_of_the_labels(n):
    draw = np.random.default_rng(0)
    features, predicted = draw.standard_normal((n, 20)), draw.random((n, 3))
    labels = (predicted == predicted.max(axis=1, keepdims=True)).astype(float)
    theta = fit_pseudo_labels(features, predicted, ridge=2.0).theta
    dense = labels.T @ features @ np.linalg.inv(features.T @ features + 2.0 * np.eye(20))
    np.testing.assert_allclose(theta, dense, atol=1e-10)


def test_single_errors_of_the_labels_are_corrected_by_contexts_that_resemble_them():
    draw = np.random.default_rng(1)
    centres, truth = draw.standard_normal((3, 100)), draw.integers(3, size=300)
    features = centres[truth] + draw.standard_normal((300, 100))
    labels = np.where(draw.random(300) < 0.3, draw.integers(3, size=300), truth)
    theta = fit_pseudo_labels(features, np.eye(3)[labels], ridge=100.0).theta
    new = draw.integers(3, size=300)
    chosen = ((centres[new] + draw.standard_normal((300, 100))) @ theta.T).argmax(axis=1)
    assert (labels == truth).mean() < 0.85
    assert (chosen == new).mean() > 0.95


def test_the_best_arms_predicted_reward_stays_on_average_what_it_was():
    draw = np.random.default_rng(2)
    features, predicted = draw.standard_normal((400, 100)), 0.4 * draw.random((400, 3))
    fitted = fit_pseudo_labels(features, predicted, ridge=50.0)
    both = fitted.share * (predicted + features @ fitted.theta.T)
    assert both.max(axis=1).mean() == pytest.approx(predicted.max(axis=1).mean(), abs=0.01)
