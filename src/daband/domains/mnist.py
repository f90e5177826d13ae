"""MNIST from its four idx files, as several pairs read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daband.arrays import AnyArray, IntArray
from daband.domains.data_paths import find, need
from daband.domains.readers.idx import read_idx
from daband.errors import DataError

__all__ = ["MNIST_PLACES", "read_mnist"]

MNIST_PLACES = ("mnist", "MNIST/raw")
"""Where the idx files may lie below the data directory."""


def read_mnist(split: str, *, pair: str) -> tuple[AnyArray, IntArray]:
    """Images (n, 28, 28) of uint8 and labels (n,) of ``split``, "train" or "t10k"; errors name ``pair``."""
    folder = need(MNIST_PLACES, pair=pair)
    images, labels = (_idx(folder, f"{split}-{name}") for name in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    if images.ndim != 3 or images.shape[1:] != (28, 28):
        raise DataError(f"the {split} images in {folder} have shape {images.shape}, MNIST's are (n, 28, 28)")
    if labels.shape != (len(images),) or labels.max(initial=0) > 9:
        raise DataError(
            f"{folder}: {len(images)} {split} images but labels {labels.shape}; the files do not belong together. "
            "Delete them and run `daband data get digit`"
        )
    return images, labels.astype(np.int64)


def _idx(folder: Path, name: str) -> AnyArray:
    found = find([name, f"{name}.gz"], directory=folder)
    if found is None:
        raise DataError(f"{folder / name}(.gz) is not there; `daband data get digit` downloads it")
    return read_idx(found)
