"""Domains that come as MATLAB files with features ``fts`` and labels ``labels``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daband.arrays import FloatArray, IntArray
from daband.errors import DataError

__all__ = ["read_features"]


def read_features(path: Path, *, n_features: int, n_arms: int, first_label: int) -> tuple[FloatArray, IntArray]:
    """Features (n, d) as float64 and labels (n,) from 0, of one ``.mat`` file."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise DataError(f"{path} cannot be read without scipy: pip install scipy") from None
    try:
        content = loadmat(path, variable_names=["fts", "labels"])
    except Exception as error:  # loadmat raises many kinds for damaged files
        raise DataError(f"{path} is not a MATLAB file or is damaged ({error}); replace it") from None
    if "fts" not in content or "labels" not in content:
        raise DataError(f"{path} has no variables `fts` and `labels`")
    features = np.asarray(content["fts"], dtype=np.float64)  # counts come as uint8, which would be taken for an image
    labels = np.asarray(content["labels"]).reshape(-1).astype(np.int64) - first_label
    if features.ndim != 2 or features.shape[1] != n_features or not np.isfinite(features).all():
        raise DataError(f"{path} should have {n_features} finite features a row, got shape {features.shape}")
    if labels.shape != (len(features),):
        raise DataError(f"{path} has {len(features)} rows of features but {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= n_arms:
        raise DataError(f"{path} has labels outside {first_label}..{first_label + n_arms - 1}")
    return features, labels
