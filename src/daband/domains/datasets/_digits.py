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
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daband.base._arrays import AnyArray, IntArray
from daband.domains._registry import find_data, require_data
from daband.domains.datasets import _builder as builder
from daband.domains.datasets._builder import PairData, declare, find_data_file, split_target
from daband.domains.readers._images import decode_image
from daband.errors import DataError

# Functions that read MNIST from its idx files, and generate MNIST-M by the published recipe.


class _Digits(NamedTuple):
    """Images of digits and their labels."""

    #: (n, 28, 28), or with c channels (n, c, 28, 28), of uint8.
    images: AnyArray
    #: The digit of each image, (n,).
    labels: IntArray


#: Possible folders of the idx files below the data directory.
_MNIST_FOLDERS = ("mnist", "MNIST/raw")
#: Pixels per side.
_SIDE = 28
#: The end of messages about a damaged file.
_REPLACE_HINT = "replace it: `daband data check digit` prints where to get it"
# Colour photographs in installed packages, so that nothing is downloaded. Drawings, microscopy and
# mostly black images in these packages are not used, because MNIST-M was made from everyday scenes.
_SKIMAGE_PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png")
_SKLEARN_PHOTOGRAPHS = ("china.jpg", "flower.jpg")


def read_mnist(split: str, *, pair: str) -> _Digits:
    """Return images (n, 28, 28) of uint8 and labels (n,) of the split "train" or "t10k".

    ``pair`` is the name of the pair in error messages.
    """
    folder = require_data(_MNIST_FOLDERS, pair=pair)
    images, labels = (
        _read_idx_file(folder, f"{split}-{name}")
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    if (
        images.shape[1:] != (_SIDE, _SIDE)
        or labels.shape != (len(images),)
        or labels.max(initial=0) > 9
    ):
        raise DataError(
            f"{folder}: {split} images {images.shape} and labels {labels.shape} do not match."
            " Replace the files: `daband data check digit` prints where to get them"
        )
    return _Digits(images, labels.astype(np.int64))


def _read_idx_file(folder: Path, name: str) -> AnyArray:
    """Return the array in the idx file ``name`` of a folder. The file may be gzipped."""
    path = find_data([name, f"{name}.gz"], directory=folder)
    if path is None:
        raise DataError(
            f"{folder / name}(.gz) does not exist: `daband data check digit` prints where to get it"
        )
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
    shape = tuple(
        int.from_bytes(content[start : start + 4], "big") for start in range(4, header_bytes, 4)
    )
    n_bytes = header_bytes + int(np.prod(shape, dtype=np.int64))
    if len(content) != n_bytes:
        raise DataError(
            f"{path} is damaged: {len(content)} bytes, but {n_bytes} by its header; {_REPLACE_HINT}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)


def blend(digits: AnyArray, photographs: Sequence[AnyArray], *, seed: int) -> AnyArray:
    """Return digits (n, 28, 28) of uint8 over random patches of photographs: (n, 3, 28, 28) of
    uint8.

    As in Ganin et al. (2016), digits are made binary: every non-zero pixel is 1. A photograph and a
    patch of it are drawn at random. The result is ``|patch - 255 * digit|`` in every colour
    channel.
    """
    generator = np.random.default_rng(seed)
    n = len(digits)
    photograph_indices = generator.integers(len(photographs), size=n)
    corner_fractions = generator.random((n, 2))
    images = np.empty((n, 3, _SIDE, _SIDE), dtype=np.uint8)
    for index, photograph in enumerate(photographs):
        rows = np.flatnonzero(photograph_indices == index)
        if not len(rows):
            continue
        # All possible patches are views of the photograph, so that only the drawn ones are copied.
        patches = np.lib.stride_tricks.sliding_window_view(photograph, (_SIDE, _SIDE), axis=(0, 1))
        tops, lefts = (corner_fractions[rows] * patches.shape[:2]).astype(np.int64).T
        images[rows] = patches[tops, lefts]
    is_digit_pixel = digits > 0
    np.copyto(images, 255 - images, where=is_digit_pixel[:, None])  # |patch - 255| = 255 - patch
    return images


def load_packaged_photographs() -> list[AnyArray]:
    """Return the photographs in scikit-image and scikit-learn, each (H, W, 3) of uint8, in a fixed
    order.
    """
    files_by_package = {
        "skimage": ("data", _SKIMAGE_PHOTOGRAPHS),
        "sklearn": ("datasets/images", _SKLEARN_PHOTOGRAPHS),
    }
    photographs = []
    for package, (folder, names) in files_by_package.items():
        # finds the folder without importing, which takes seconds
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:  # scikit-learn is always installed
            raise DataError(
                "the embedded MNIST-M is cut from photographs of scikit-image: pip install"
                " scikit-image"
            )
        photographs += [
            decode_image(Path(spec.submodule_search_locations[0]) / folder / name) for name in names
        ]
    return photographs


# DIGIT: MNIST to MNIST-M, either embedded in the package or as released.


_EMBEDDED_PATH = Path(__file__).parents[1] / "embedded" / "mnist.npz"
_RELEASED_PATHS = ("mnist_m/mnist_m_28.npz",)
#: Seed of the patches and of the order of target digits for training. All seeds here are the same
#: in every run.
_TRAINING_SEED = 20160525
#: Seed of the patches of ``target_test``.
_TEST_SEED = 20160526
#: Seed of the order of ``source_test``.
_SOURCE_TEST_SEED = 20160527


def _resolve_form(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the form "auto" replaced by "released" or "embedded", whichever is
    available.
    """
    if options.get("tiny"):  # always the embedded form
        return {name: value for name, value in options.items() if name != "form"}
    if options.get("form", "auto") != "auto":
        return options
    return {**options, "form": _choose_form()}


def _read_digit(*, form: str = "auto", tiny: bool = False) -> PairData:
    """Read MNIST as source and MNIST-M as target: contexts (3, 28, 28) of uint8, 10 arms.

    ``source_test`` is MNIST's test set, or its 3,000 embedded digits.

    Args:
        form: "embedded" (inside the package: 20,000 + 20,000 digits, test 3,000), "released"
            (MNIST's idx files and the released MNIST-M), or "auto" ("released" if these files
            exist, otherwise "embedded").
        tiny: True for only 300 embedded digits; ``form`` is then ignored.
    """
    if tiny:
        return _build_digit_data("embedded", *_build_embedded_domains(300))
    if form == "auto":
        form = _choose_form()
    if form == "embedded":
        return _build_digit_data(form, *_build_embedded_domains(None))
    source = read_mnist("train", pair="digit")
    source_test = read_mnist("t10k", pair="digit")
    return _build_digit_data(form, source, source_test, *_read_released_target())


def _build_digit_data(
    form: str, source: _Digits, source_test: _Digits, target: _Digits, target_test: _Digits
) -> PairData:
    """Return the data of the pair from images and labels of its four parts."""
    # ``source_test`` and ``target_test`` have the same digits. The former is shuffled, so that its
    # labels do not reveal the labels of the latter.
    order = np.random.default_rng(_SOURCE_TEST_SEED).permutation(len(source_test.labels))
    arguments = {
        "source": (_repeat_channels(source.images), source.labels),
        "source_test": (_repeat_channels(source_test.images[order]), source_test.labels[order]),
        "target": target.images,
        "target_test": target_test,
        "target_labelled": target,
    }
    return PairData(arguments, note=f"; the {form} form")


def _choose_form() -> str:
    """Return "released" if the released files exist, else "embedded"."""
    return (
        "embedded"
        if find_data(_MNIST_FOLDERS) is None or find_data(_RELEASED_PATHS) is None
        else "released"
    )


@lru_cache(maxsize=1)
def _load_embedded_digits() -> tuple[_Digits, _Digits]:
    """Return images (n, 28, 28) and labels (n,) of the embedded digits, for training and for the
    test.
    """
    with np.load(_EMBEDDED_PATH, allow_pickle=False) as arrays:
        training, test = (
            _Digits(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")
        )
    for array in (*training, *test):
        array.setflags(write=False)
    return training, test


def _build_embedded_domains(n_digits: int | None) -> list[_Digits]:
    """Return source, source test, target and target test, from the embedded digits.

    The first ``n_digits`` digits for training and the first ``n_digits // 3`` for the test are
    used; None uses all.
    """
    training, test = _load_embedded_digits()
    n_test = None if n_digits is None else n_digits // 3
    source = _Digits(training.images[:n_digits], training.labels[:n_digits].astype(np.int64))
    source_test = _Digits(test.images[:n_test], test.labels[:n_test].astype(np.int64))
    photographs = load_packaged_photographs()
    # As in the release, the target has the source's digits. They are shuffled, so that the source
    # labels do not reveal the target labels.
    order = np.random.default_rng(_TRAINING_SEED).permutation(len(source.images))
    target = _Digits(
        blend(source.images[order], photographs, seed=_TRAINING_SEED), source.labels[order]
    )
    target_test = _Digits(
        blend(source_test.images, photographs, seed=_TEST_SEED), source_test.labels
    )
    return [source, source_test, target, target_test]


def _read_released_target() -> list[_Digits]:
    """Return images (n, 3, 28, 28) and labels (n,) of the released MNIST-M, for training and for
    the test.
    """
    splits = builder.load_splits(require_data(_RELEASED_PATHS, pair="digit"))
    return [
        _Digits(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels)
        for images, labels in splits
    ]


def _repeat_channels(digits: AnyArray) -> AnyArray:
    """Return grey digits (n, 28, 28) as colour images (n, 3, 28, 28).

    The channels are copied, because numpy reads broadcast views 20 times slower.
    """
    return np.repeat(digits[:, None], 3, axis=1)


declare("digit", read=_read_digit, resolve=_resolve_form)


# Handwritten digits: from one of MNIST, USPS and Semeion to another.


def _read_handwritten(*, source: str = "mnist", target: str = "usps") -> PairData:
    """Read digits of one collection as source and of another as target: contexts (1, 28, 28) of
    uint8, 10 arms.

    Semeion's 16x16 digits are interpolated. MNIST and USPS keep their split: training sees the
    training part, and the evaluator gets the target's test part. Semeion has no split, so half of
    every class is held out if it is the target.

    Args:
        source: mnist (60,000), usps (7,291) or semeion (1,593); the digits of its training part are
            used.
        target: another of them.
    """
    source_data = _read_collection(source)[0]
    training, test = _read_collection(target)
    if test is None:
        return PairData(
            {
                "source": source_data,
                **split_target(*training, name=f"handwritten/{source}-{target}"),
            }
        )
    return PairData(
        {
            "source": source_data,
            "target": training.images,
            "target_labelled": training,
            "target_test": test,
        }
    )


def _read_collection(collection: str) -> tuple[_Digits, _Digits | None]:
    """Return images (n, 1, 28, 28) and labels (n,) of the training part and of the test part, which
    may be None.
    """
    if collection == "mnist":
        training, test = (read_mnist(split, pair="handwritten") for split in ("train", "t10k"))
    else:
        path = find_data_file("handwritten", collection)
        if collection == "semeion":
            images, labels = builder.load_arrays(path, ("x", "y"))
            return _Digits(_interpolate(images)[:, None], labels.astype(np.int64)), None
        training, test = starmap(_Digits, builder.load_splits(path))
    return _Digits(training.images[:, None], training.labels), _Digits(
        test.images[:, None], test.labels
    )


def _interpolate(images: AnyArray) -> AnyArray:
    """Return images (n, s, s) of uint8, resized to (n, 28, 28) by bilinear interpolation between
    pixel centres.

    The arithmetic uses integers, so that every processor computes the same digits.
    """
    old_side = images.shape[1]
    # The centre of pixel i of 28 is at (i + 1/2) old_side / 28 - 1/2, here in units of 1/56 of a
    # pixel.
    positions = np.clip(
        (2 * np.arange(_SIDE) + 1) * old_side - _SIDE, 0, 2 * _SIDE * (old_side - 1)
    )
    lower_pixels = np.minimum(positions // (2 * _SIDE), old_side - 2)
    upper_weights = positions - 2 * _SIDE * lower_pixels
    weights = np.zeros((_SIDE, old_side), dtype=np.int64)
    weights[np.arange(_SIDE), lower_pixels] = 2 * _SIDE - upper_weights
    weights[np.arange(_SIDE), lower_pixels + 1] = upper_weights
    weighted_sums = np.einsum(
        "ri,nij,cj->nrc", weights, images.astype(np.int64), weights, optimize=True
    )
    weight_sum = (2 * _SIDE) ** 2
    return ((weighted_sums + weight_sum // 2) // weight_sum).astype(np.uint8)


declare("handwritten", read=_read_handwritten)
