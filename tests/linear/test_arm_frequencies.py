"""Frequencies of arms in the target, from what a bandit sees of the source."""

import numpy as np
import pytest

from daband.linear._arm_frequencies import arm_probabilities, calibrated_scale, label_shift

SCALE = 8.0


def _draw(frequencies, n, seed, spread=0.5):
    """Scores (n, K) whose softmax, at ``SCALE``, is the probability of each arm when all are as frequent."""
    draw = np.random.default_rng(seed)
    n_arms = len(frequencies)
    labels = draw.choice(n_arms, size=n, p=frequencies)
    # Normal scores around a prototype per arm: the log-odds are linear in them.
    scores = np.eye(n_arms)[labels] + spread * draw.standard_normal((n, n_arms))
    return scores / (SCALE * spread**2), labels


def test_the_scale_that_calibrates_is_found_from_the_chosen_arms_rewards():
    scores, labels = _draw(np.full(4, 0.25), 6000, 0)
    arms = np.random.default_rng(1).integers(4, size=len(labels))
    found = calibrated_scale(scores, arms, (arms == labels).astype(float))
    assert found == pytest.approx(SCALE, rel=0.25)
    assert calibrated_scale(scores / 3, arms, (arms == labels).astype(float)) == pytest.approx(3 * SCALE, rel=0.25)


@pytest.mark.parametrize(("spread", "tolerance"), [(0.25, 0.02), (0.35, 0.06), (0.5, 0.2)])
def test_frequencies_of_an_uneven_target_are_found_from_an_even_source(spread, tolerance):
    uneven, even = np.array([0.7, 0.2, 0.07, 0.03]), np.full(4, 0.25)
    source, _ = _draw(even, 4000, 2, spread)
    target, labels = _draw(uneven, 4000, 3, spread)
    found = label_shift(arm_probabilities(source, SCALE), arm_probabilities(target, SCALE))
    true = np.bincount(labels, minlength=4) / len(labels)
    np.testing.assert_allclose(found, true, atol=tolerance)
    assert np.abs(found - true).sum() < np.abs(even - true).sum() / 2


def test_weak_predictions_move_the_source_s_frequencies_little():
    """By likelihood alone, contexts that all lean a little to one arm would all be that arm's."""
    source = np.tile([0.5, 0.3, 0.2], (200, 1))
    target = np.tile([0.55, 0.27, 0.18], (200, 1))
    assert np.abs(label_shift(source, target) - source[0]).max() < 0.1


def test_frequencies_are_a_distribution_without_zeros():
    target = np.tile([1.0, 0.0, 0.0], (50, 1))
    found = label_shift(np.full((50, 3), 1 / 3), target)
    assert found.sum() == pytest.approx(1.0)
    assert (found > 0).all()
    assert found.argmax() == 0
