"""Declare two data sets of digits.

* ``digit``: MNIST to MNIST-M, which has MNIST's digits over photographs.
* ``handwritten``: any two of MNIST, USPS and Semeion.
"""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from daband._arrays import AnyArray, IntArray
from daband.domains._registry import find_data, require_data
from daband.domains.datasets import _builder as builder
from daband.domains.datasets._builder import PairData, declare, find_data_file, split_target
from daband.domains.readers._images import decode_image
from daband.errors import DataError

# Functions that read MNIST from its idx files, and generate MNIST-M by the published recipe.


#: Images (n, ...) of uint8 and labels (n,).
LabelledImages: TypeAlias = tuple[AnyArray, IntArray]

#: Possible folders of the idx files below the data directory.
_MNIST_FOLDERS = ("mnist", "MNIST/raw")
#: Pixels per side.
_SIDE = 28
#: The end of messages about a damaged file.
_REPLACE_HINT = "replace it: `daband data check digit` prints where to get it"
# Colour photographs in installed packages, so that nothing is downloaded. Drawings, microscopy and mostly black images
# in these packages are not used, because MNIST-M was made from everyday scenes.
_SKIMAGE_PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png")
_SKLEARN_PHOTOGRAPHS = ("china.jpg", "flower.jpg")


def read_mnist(split: str, *, pair: str) -> LabelledImages:
    """Return images (n, 28, 28) of uint8 and labels (n,) of the split "train" or "t10k".

    ``pair`` is the name of the pair in error messages.
    """
    folder = require_data(_MNIST_FOLDERS, pair=pair)
    images, labels = (_read_idx_file(folder, f"{split}-{name}") for name in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    if images.shape[1:] != (_SIDE, _SIDE) or labels.shape != (len(images),) or labels.max(initial=0) > 9:
        raise DataError(
            f"{folder}: {split} images {images.shape} and labels {labels.shape} do not match. Replace the files: "
            "`daband data check digit` prints where to get them"
        )
    return images, labels.astype(np.int64)


def _read_idx_file(folder: Path, name: str) -> AnyArray:
    """Return the array in the idx file ``name`` of a folder. The file may be gzipped."""
    path = find_data([name, f"{name}.gz"], directory=folder)
    if path is None:
        raise DataError(f"{folder / name}(.gz) does not exist: `daband data check digit` prints where to get it")
    return read_idx(path)


def read_idx(path: Path) -> AnyArray:
    """Return the array of unsigned bytes in an idx file, gzipped or not."""
    try:
        file_bytes = path.read_bytes()
        content = gzip.decompress(file_bytes) if file_bytes[:2] == b"\x1f\x8b" else file_bytes
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); {_REPLACE_HINT}") from None
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or content[3] == 0:
        raise DataError(f"{path} is not an idx file of unsigned bytes; {_REPLACE_HINT}")
    header_bytes = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[start : start + 4], "big") for start in range(4, header_bytes, 4))
    n_bytes = header_bytes + int(np.prod(shape, dtype=np.int64))
    if len(content) != n_bytes:
        raise DataError(f"{path} is damaged: {len(content)} bytes, but {n_bytes} by its header; {_REPLACE_HINT}")
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)


def blend(digits: AnyArray, photographs: Sequence[AnyArray], *, seed: int) -> AnyArray:
    """Return digits (n, 28, 28) of uint8 over random patches of photographs: (n, 3, 28, 28) of uint8.

    As in Ganin et al. (2016), digits are made binary: every non-zero pixel is 1. A photograph and a patch of it are
    drawn at random. The result is ``|patch - 255 * digit|`` in every colour channel.
    """
    generator = np.random.default_rng(seed)
    n = len(digits)
    photograph_indices = generator.integers(len(photographs), size=n)
    corners = generator.random((n, 2))
    images = np.empty((n, 3, _SIDE, _SIDE), dtype=np.uint8)
    for index, photograph in enumerate(photographs):
        rows = np.flatnonzero(photograph_indices == index)
        if not len(rows):
            continue
        # Patches are views of the photograph, so that only the drawn ones are copied.
        windows = np.lib.stride_tricks.sliding_window_view(photograph, (_SIDE, _SIDE), axis=(0, 1))
        height, width = windows.shape[:2]
        top = (corners[rows, 0] * height).astype(np.int64)
        left = (corners[rows, 1] * width).astype(np.int64)
        images[rows] = windows[top, left]
    is_digit = digits > 0
    np.copyto(images, 255 - images, where=is_digit[:, None])  # |patch - 255| = 255 - patch
    return images


def load_packaged_photographs() -> list[AnyArray]:
    """Return the photographs in scikit-image and scikit-learn, each (H, W, 3) of uint8, in a fixed order."""
    folders = {"skimage": ("data", _SKIMAGE_PHOTOGRAPHS), "sklearn": ("datasets/images", _SKLEARN_PHOTOGRAPHS)}
    photographs = []
    for package, (folder, names) in folders.items():
        spec = importlib.util.find_spec(package)  # finds the folder without importing, which takes seconds
        if spec is None or not spec.submodule_search_locations:  # scikit-learn is always installed
            raise DataError("the embedded MNIST-M is cut from photographs of scikit-image: pip install scikit-image")
        for name in names:
            photographs.append(decode_image(Path(spec.submodule_search_locations[0]) / folder / name))
    return photographs


# DIGIT: MNIST to MNIST-M, either embedded in the package or as released.


_EMBEDDED_PATH = Path(__file__).parents[1] / "embedded" / "mnist.npz"
_RELEASED_PATHS = ("mnist_m/mnist_m_28.npz",)
#: Seed of the patches and of the order of target digits for training. All seeds here are the same in every run.
_SEED_TRAIN = 20160525
#: Seed of the patches of ``target_test``.
_SEED_TEST = 20160526
#: Seed of the order of ``source_test``.
_SEED_SOURCE_TEST = 20160527


def _resolve_form(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the form "auto" replaced by "released" or "embedded", whichever is available."""
    if options.get("tiny"):  # always the embedded form
        return {name: value for name, value in options.items() if name != "form"}
    if options.get("form", "auto") != "auto":
        return options
    return {**options, "form": _choose_form()}


def _read_digit(*, form: str = "auto", tiny: bool = False) -> PairData:
    """Read MNIST as source and MNIST-M as target: contexts (3, 28, 28) of uint8, 10 arms.

    ``source_test`` is MNIST's test set, or its 3,000 embedded digits.

    Args:
        form: "embedded" (inside the package: 20,000 + 20,000 digits, test 3,000), "released" (MNIST's idx files and
            the released MNIST-M), or "auto" ("released" if these files exist, otherwise "embedded").
        tiny: True for only 300 embedded digits; ``form`` is then ignored.
    """
    if tiny:
        return _build_digit_data("embedded", *_read_embedded(300))
    if form == "auto":
        form = _choose_form()
    if form == "embedded":
        return _build_digit_data(form, *_read_embedded(None))
    source, source_test = read_mnist("train", pair="digit"), read_mnist("t10k", pair="digit")
    return _build_digit_data(form, source, source_test, *_read_released())


def _build_digit_data(
    form: str, source: LabelledImages, source_test: LabelledImages, target: LabelledImages, target_test: LabelledImages
) -> PairData:
    """Return the data of the pair from images and labels of its four parts."""
    # ``source_test`` and ``target_test`` have the same digits. The former is shuffled, so that its labels do not reveal
    # the labels of the latter.
    order = np.random.default_rng(_SEED_SOURCE_TEST).permutation(len(source_test[1]))
    arguments = {
        "source": (_repeat_channels(source[0]), source[1]),
        "source_test": (_repeat_channels(source_test[0][order]), source_test[1][order]),
        "target": target[0],
        "target_test": target_test,
        "target_labelled": target,
    }
    return PairData(arguments, note=f"; the {form} form")


def _choose_form() -> str:
    """Return "released" if the released files exist, else "embedded"."""
    return "embedded" if find_data(_MNIST_FOLDERS) is None or find_data(_RELEASED_PATHS) is None else "released"


@lru_cache(maxsize=1)
def _load_embedded() -> tuple[LabelledImages, LabelledImages]:
    """Return images (n, 28, 28) and labels (n,) of the embedded digits, for training and for the test."""
    with np.load(_EMBEDDED_PATH, allow_pickle=False) as arrays:
        arrays_by_key = {key: arrays[key] for key in arrays.files}
    for array in arrays_by_key.values():
        array.setflags(write=False)
    return (arrays_by_key["x_train"], arrays_by_key["y_train"]), (arrays_by_key["x_test"], arrays_by_key["y_test"])


def _read_embedded(n: int | None) -> tuple[LabelledImages, LabelledImages, LabelledImages, LabelledImages]:
    """Return source, source test, target and target test, from the embedded digits.

    The first ``n`` digits for training and the first ``n // 3`` for the test are used; None uses all.
    """
    (x, y), (x_test, y_test) = _load_embedded()
    n_test = None if n is None else n // 3
    train, test = (x[:n], y[:n].astype(np.int64)), (x_test[:n_test], y_test[:n_test].astype(np.int64))
    photographs = load_packaged_photographs()
    # As in the release, the target has the source's digits. They are shuffled, so that the source labels do not reveal
    # the target labels.
    order = np.random.default_rng(_SEED_TRAIN).permutation(len(train[0]))
    target = (blend(train[0][order], photographs, seed=_SEED_TRAIN), train[1][order])
    return train, test, target, (blend(test[0], photographs, seed=_SEED_TEST), test[1])


def _read_released() -> tuple[LabelledImages, LabelledImages]:
    """Return images (n, 3, 28, 28) and labels (n,) of the released MNIST-M, for training and for the test."""
    halves = builder.load_halves(require_data(_RELEASED_PATHS, pair="digit"), shape=(_SIDE, _SIDE, 3), n_classes=10)
    train, test = ((np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels) for images, labels in halves)
    return train, test


def _repeat_channels(digits: AnyArray) -> AnyArray:
    """Return grey digits (n, 28, 28) as colour images (n, 3, 28, 28).

    The channels are copied, because numpy reads broadcast views 20 times slower.
    """
    return np.repeat(digits[:, None], 3, axis=1)


declare("digit", read=_read_digit, resolve=_resolve_form)


# Handwritten digits: from one of MNIST, USPS and Semeion to another.


def _read_handwritten(*, source: str = "mnist", target: str = "usps") -> PairData:
    """Read digits of one collection as source and of another as target: contexts (1, 28, 28) of uint8, 10 arms.

    Semeion's 16x16 digits are interpolated. MNIST and USPS keep their split: training sees the training part, and
    the evaluator gets the target's test part. Semeion has no split, so half of every class is held out if it is the
    target.

    Args:
        source: mnist (60,000), usps (7,291) or semeion (1,593); the digits of its training part are used.
        target: another of them.
    """
    source_data = _read_collection(source)[0]
    train, test = _read_collection(target)
    if test is None:
        return PairData({"source": source_data, **split_target(*train, name=f"handwritten/{source}-{target}")})
    return PairData({"source": source_data, "target": train[0], "target_labelled": train, "target_test": test})


def _read_collection(collection: str) -> tuple[LabelledImages, LabelledImages | None]:
    """Return images (n, 1, 28, 28) and labels (n,) of the training part and of the test part, which may be None."""
    if collection == "semeion":
        images, labels = builder.load_labelled(
            find_data_file("handwritten", collection), ("x", "y"), shape=(16, 16), n_classes=10
        )
        return (_interpolate(images)[:, None], labels), None
    if collection == "mnist":
        train, test = (read_mnist(split, pair="handwritten") for split in ("train", "t10k"))
    else:
        train, test = builder.load_halves(find_data_file("handwritten", collection), shape=(_SIDE, _SIDE), n_classes=10)
    return (train[0][:, None], train[1]), (test[0][:, None], test[1])


def _interpolate(images: AnyArray) -> AnyArray:
    """Return images (n, s, s) of uint8, resized to (n, 28, 28) by bilinear interpolation between pixel centres.

    The arithmetic uses integers, so that every processor computes the same digits.
    """
    side = images.shape[1]
    # The centre of pixel i of 28 is at (i + 1/2) side / 28 - 1/2, here in units of 1/56 of a pixel.
    positions = np.clip((2 * np.arange(_SIDE) + 1) * side - _SIDE, 0, 2 * _SIDE * (side - 1))
    lower = np.minimum(positions // (2 * _SIDE), side - 2)
    fractions = positions - 2 * _SIDE * lower
    weights = np.zeros((_SIDE, side), dtype=np.int64)
    weights[np.arange(_SIDE), lower] = 2 * _SIDE - fractions
    weights[np.arange(_SIDE), lower + 1] = fractions
    weighted_sums = np.einsum("ri,nij,cj->nrc", weights, images.astype(np.int64), weights, optimize=True)
    weight_sum = (2 * _SIDE) ** 2
    return ((weighted_sums + weight_sum // 2) // weight_sum).astype(np.uint8)


declare("handwritten", read=_read_handwritten)
