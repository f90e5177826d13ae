"""Estimated frequencies of arms in the target."""

import numpy as np
import pytest

from daband.linear._arm_frequencies import correct_probabilities, estimate_frequencies


def draw_probabilities(frequencies, n=20_000, seed=0):
    """Exact probabilities of the source, whose arms are equally frequent, for contexts of a
    target.
    """
    draw = np.random.default_rng(seed)
    labels = draw.choice(len(frequencies), n, p=frequencies)
    x = draw.normal(size=n) + 1.5 * labels
    densities = np.exp(-0.5 * np.square(x[:, None] - 1.5 * np.arange(len(frequencies))))
    return densities / densities.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("frequencies", [[0.9, 0.08, 0.02], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.0, 0.5]])
def test_frequencies_are_found(frequencies):
    probabilities, _ = draw_probabilities(frequencies)
    estimates = estimate_frequencies(probabilities, np.full(3, 1 / 3))
    np.testing.assert_allclose(estimates, frequencies, atol=0.02)
    assert estimates.sum() == pytest.approx(1.0)


def test_corrected_probabilities_choose_better():
    frequencies = np.array([0.9, 0.05, 0.05])
    probabilities, labels = draw_probabilities(frequencies)
    corrected = correct_probabilities(probabilities, 3.0 * frequencies)
    before, after = (
        (array.argmax(axis=1) == labels).mean() for array in (probabilities, corrected)
    )
    assert after > before + 0.1
    assert corrected.mean(axis=0) == pytest.approx(frequencies, abs=0.01)


def test_an_arm_that_was_never_right_in_the_source_has_an_estimate():
    estimates = estimate_frequencies(np.full((10, 2), 0.5), np.array([1.0, 0.0]))
    assert np.isfinite(estimates).all()
