"""Colour photographs to cut backgrounds from."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from daband.arrays import AnyArray
from daband.domains.readers.images import decode_image
from daband.errors import DataError

__all__ = ["packaged_photographs", "photographs_in"]

# Colour photographs inside the installed packages themselves, so nothing is downloaded. What else ships there is left
# out: drawings, microscopy, and pictures that are mostly black (a rocket at night, a retina, a deep sky), over which a
# digit looks as MNIST's do. MNIST-M was cut from everyday scenes.
_SCIKIT_IMAGE = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png")
_SCIKIT_LEARN = ("china.jpg", "flower.jpg")


def packaged_photographs() -> list[AnyArray]:
    """The photographs that come with scikit-image and scikit-learn, each (H, W, 3) of uint8, in a fixed order."""
    folders = {"skimage": ("data", _SCIKIT_IMAGE), "sklearn": ("datasets/images", _SCIKIT_LEARN)}
    found = []
    for package, (folder, names) in folders.items():
        spec = importlib.util.find_spec(package)  # finds the folder without the seconds that importing takes
        if spec is None or not spec.submodule_search_locations:
            name = {"skimage": "scikit-image", "sklearn": "scikit-learn"}[package]
            raise DataError(f"the embedded MNIST-M is cut from photographs of {name}: pip install {name}")
        for name in names:
            found.append(decode_image(Path(spec.submodule_search_locations[0]) / folder / name))
    return found


def photographs_in(folder: Path, *, at_least: int = 28) -> list[AnyArray]:
    """Every JPEG photograph of a folder in the order of their names, each (H, W, 3) of uint8."""
    paths = sorted(folder.glob("*.jpg"))
    if not paths:
        raise DataError(f"{folder} has no .jpg photographs; `daband data check digit` says where to get BSDS500")
    photographs = [decode_image(path) for path in paths]
    for path, photograph in zip(paths, photographs, strict=True):
        if min(photograph.shape[:2]) < at_least:
            raise DataError(f"{path} is smaller than {at_least} pixels; it is not a photograph of BSDS500")
    return [np.ascontiguousarray(photograph) for photograph in photographs]
