"""Distance between domains, support and signs of a collapse, on cases whose answer is known."""

import numpy as np
import pytest

from daband.trust._assess import (
    find_collapse_signs,
    measure_classifier_accuracy,
    measure_outside_support,
    project_contexts,
)


def draws(n, *, moved=0.0, stretched=1.0, seed=0, d=6):
    return moved + stretched * np.random.default_rng(seed).standard_normal((n, d))


def test_one_domain_cannot_be_told_from_itself():
    accuracy = measure_classifier_accuracy(draws(400, seed=1), draws(400, seed=2))
    assert abs(accuracy - 0.5) < 0.08


@pytest.mark.parametrize("change", [{"moved": 1.0}, {"stretched": 3.0}])
def test_a_domain_that_moved_or_was_stretched_is_told_apart(change):
    accuracy = measure_classifier_accuracy(draws(400, seed=1), draws(400, seed=2, **change))
    assert accuracy > 0.7


def test_long_contexts_are_projected_alike_in_both_domains():
    rows = np.random.default_rng(0).random((5, 3, 20, 20))
    assert project_contexts(rows).shape == (5, 48)
    np.testing.assert_array_equal(project_contexts(rows)[:2], project_contexts(rows[:2]))


def test_support_counts_contexts_that_are_far_away():
    source = draws(600, seed=3)
    assert measure_outside_support(source, draws(600, seed=4)) < 0.05
    half = np.concatenate([draws(300, seed=4), draws(300, seed=5, moved=8.0)])
    assert measure_outside_support(source, half) == pytest.approx(0.5, abs=0.05)


def test_signs_of_a_collapse():
    draw = np.random.default_rng(0)
    means = draw.random((400, 4))
    arms = means.argmax(axis=1)
    assert find_collapse_signs(arms, arms, 4) == []
    flat = " ".join(find_collapse_signs(arms, np.ones_like(arms), 4))
    assert "100% of target contexts go to arm 1" in flat
    (fewer,) = find_collapse_signs(arms, arms % 2, 4)
    assert "2 of the 4 arms used in the source are not used" in fewer
