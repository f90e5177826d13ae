"""Divide rows into folds for cross-fitting."""

from __future__ import annotations

import numpy as np

from daband.base._arrays import IntArray

#: The usual number of folds. A model is fitted to all folds but one, and predicts for that one.
N_FOLDS = 5


def assign_folds(
    n_rows: int, n_folds: int = N_FOLDS, *, seed: int = 0, clusters: IntArray | None = None
) -> IntArray:
    """Return the random fold of each row, (n_rows,), in 0..n_folds - 1.

    All rows of a cluster have the same fold; ``clusters`` (n_rows,) has any labels. Folds have
    nearly equal numbers of rows, or of clusters. They do not depend on the order of rows, which may
    be sorted: folds with the same rewards in the same contexts would confirm each other's noise.
    """
    labels = np.arange(n_rows)
    if clusters is not None:
        labels = np.unique(clusters, return_inverse=True)[1]
    n_labels = int(labels.max(initial=-1)) + 1
    return (np.random.default_rng(seed).permutation(n_labels) % n_folds)[labels]
