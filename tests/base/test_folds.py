"""Folds for cross-fitting."""

import numpy as np
import pytest

from daband.base._folds import assign_folds


@pytest.mark.parametrize("n", [0, 4, 23, 1000])
def test_folds_have_nearly_equal_sizes_and_a_random_order(n):
    folds = assign_folds(n, 5, seed=1)
    counts = np.bincount(folds, minlength=5)
    assert (len(folds), counts.max() - counts.min() <= 1) == (n, True)
    assert np.array_equal(folds, assign_folds(n, 5, seed=1))
    if n == 1000:
        assert (folds != assign_folds(n, 5, seed=2)).any()
        assert (folds != np.arange(n) % 5).any()


def test_a_cluster_is_in_one_fold():
    clusters = np.random.default_rng(0).integers(0, 12, 500) * 7 - 3
    folds = assign_folds(500, 3, clusters=clusters)
    assert all(len(set(folds[clusters == cluster])) == 1 for cluster in clusters)
    assert len(set(folds)) == 3
    # sorted labels are shuffled
    assert [folds[clusters == cluster][0] for cluster in sorted(set(clusters))] != [0, 1, 2] * 4
