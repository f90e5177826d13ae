"""Digits: MNIST and MNIST-M, the pair of both, and digits that several groups of people wrote."""

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
from daband.domains._registry import find, need
from daband.domains.datasets import _builder as builder
from daband.domains.datasets._builder import Parts, declare, file_of, halved
from daband.domains.readers._images import decode_image
from daband.errors import DataError

# MNIST from its idx files, and MNIST-M: made by the published recipe, or read as it is distributed.


Arrays: TypeAlias = tuple[AnyArray, IntArray]

#: Where the idx files may lie below the data directory.
MNIST_PLACES = ("mnist", "MNIST/raw")
_SIDE = 28
_REMEDY = "replace it: `daband data check digit` says where to get it"
# Colour photographs inside the installed packages themselves, so nothing is downloaded. What else ships there is left
# out: drawings, microscopy, and pictures that are mostly black (a rocket at night, a retina, a deep sky), over which a
# digit looks as MNIST's do. MNIST-M was cut from everyday scenes.
_SCIKIT_IMAGE = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png")
_SCIKIT_LEARN = ("china.jpg", "flower.jpg")


def read_mnist(split: str, *, pair: str) -> Arrays:
    """Return images (n, 28, 28) of uint8 and labels (n,) of ``split``, "train" or "t10k"; errors name ``pair``."""
    folder = need(MNIST_PLACES, pair=pair)
    images, labels = (_idx(folder, f"{split}-{name}") for name in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    if images.shape[1:] != (_SIDE, _SIDE) or labels.shape != (len(images),) or labels.max(initial=0) > 9:
        raise DataError(
            f"{folder}: {split} images {images.shape} and labels {labels.shape} do not belong together. Replace the "
            "files: `daband data check digit` says where to get them"
        )
    return images, labels.astype(np.int64)


def _idx(folder: Path, name: str) -> AnyArray:
    path = find([name, f"{name}.gz"], directory=folder)
    if path is None:
        raise DataError(f"{folder / name}(.gz) is not there: `daband data check digit` says where to get it")
    return read_idx(path)


def read_idx(path: Path) -> AnyArray:
    """Return the array of unsigned bytes in an idx file, gzipped or not."""
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); {_REMEDY}") from None
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or data[3] == 0:
        raise DataError(f"{path} is not an idx file of unsigned bytes; {_REMEDY}")
    header = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4))
    wanted = header + int(np.prod(shape, dtype=np.int64))
    if len(data) != wanted:
        raise DataError(f"{path} is truncated or damaged: {len(data)} bytes where its header says {wanted}; {_REMEDY}")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def blend(digits: AnyArray, photographs: Sequence[AnyArray], *, seed: int) -> AnyArray:
    """Digits (n, 28, 28) of uint8 over random patches of photographs: (n, 3, 28, 28) of uint8.

    The recipe of Ganin et al. (2016): the digit is made binary (any ink counts), a photograph and a patch of it are
    drawn at random, and the result is ``|patch - 255 * digit|`` in every colour channel.
    """
    generator = np.random.default_rng(seed)
    n = len(digits)
    which = generator.integers(len(photographs), size=n)
    corner = generator.random((n, 2))
    blended = np.empty((n, 3, _SIDE, _SIDE), dtype=np.uint8)
    for index, photograph in enumerate(photographs):
        rows = np.flatnonzero(which == index)
        if not len(rows):
            continue
        # All patches of a photograph are windows into it: no patch is copied before it is needed.
        windows = np.lib.stride_tricks.sliding_window_view(photograph, (_SIDE, _SIDE), axis=(0, 1))
        height, width = windows.shape[:2]
        top = (corner[rows, 0] * height).astype(np.int64)
        left = (corner[rows, 1] * width).astype(np.int64)
        blended[rows] = windows[top, left]
    ink = digits > 0
    np.copyto(blended, 255 - blended, where=ink[:, None])  # |patch - 255| = 255 - patch
    return blended


def packaged_photographs() -> list[AnyArray]:
    """The photographs that come with scikit-image and scikit-learn, each (H, W, 3) of uint8, in a fixed order."""
    folders = {"skimage": ("data", _SCIKIT_IMAGE), "sklearn": ("datasets/images", _SCIKIT_LEARN)}
    photographs = []
    for package, (folder, names) in folders.items():
        spec = importlib.util.find_spec(package)  # finds the folder without the seconds that importing takes
        if spec is None or not spec.submodule_search_locations:  # scikit-learn is always installed
            raise DataError("the embedded MNIST-M is cut from photographs of scikit-image: pip install scikit-image")
        for name in names:
            photographs.append(decode_image(Path(spec.submodule_search_locations[0]) / folder / name))
    return photographs


# DIGIT: MNIST to MNIST-M, embedded in the package, or as released.


_EMBEDDED = Path(__file__).parents[1] / "embedded" / "mnist.npz"
_RELEASED = ("mnist_m/mnist_m_28.npz",)
# Of the generator alone; the data do not depend on a run's seed.
_SEED_TRAIN, _SEED_TEST, _SEED_SOURCE_TEST = 20160525, 20160526, 20160527


def _resolve_form(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the form that "auto" stands for on this machine."""
    if options.get("tiny"):  # whose form is always the embedded one
        return {name: value for name, value in options.items() if name != "form"}
    if options.get("form", "auto") != "auto":
        return options
    return {**options, "form": _best_form()}


def _read_digit(*, form: str = "auto") -> Parts:
    """MNIST as source, MNIST-M as target: contexts (3, 28, 28) of uint8, 10 arms.

    ``source_test`` is MNIST's test set, or its 3,000 embedded digits.

    Args:
        form: "embedded" (inside the package: 20,000 + 20,000 digits, test 3,000), "released" (MNIST's idx files and
            the released MNIST-M), or "auto": released if it is there, else embedded.
    """
    if form == "auto":
        form = _best_form()
    if form == "embedded":
        return _parts(form, *_embedded(None))
    source, source_test = read_mnist("train", pair="digit"), read_mnist("t10k", pair="digit")
    return _parts(form, source, source_test, *_released())


def _parts(form: str, source: Arrays, source_test: Arrays, target: Arrays, target_test: Arrays) -> Parts:
    # The target's test shows the same digits: shuffled, so that a position of one does not tell the label of the other.
    order = np.random.default_rng(_SEED_SOURCE_TEST).permutation(len(source_test[1]))
    arguments = {
        "source": (_three_channels(source[0]), source[1]),
        "source_test": (_three_channels(source_test[0][order]), source_test[1][order]),
        "target": target[0],
        "target_test": target_test,
        "target_labelled": target,
    }
    return Parts(arguments, note=f"; the {form} form")


def _best_form() -> str:
    return "embedded" if find(MNIST_PLACES) is None or find(_RELEASED) is None else "released"


@lru_cache(maxsize=1)
def _packed_digits() -> tuple[Arrays, Arrays]:
    with np.load(_EMBEDDED, allow_pickle=False) as packed:
        parts = {key: packed[key] for key in packed.files}
    for part in parts.values():
        part.setflags(write=False)
    return (parts["x_train"], parts["y_train"]), (parts["x_test"], parts["y_test"])


def _embedded(n: int | None) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    (x, y), (x_test, y_test) = _packed_digits()
    n_test = None if n is None else n // 3
    train, held = (x[:n], y[:n].astype(np.int64)), (x_test[:n_test], y_test[:n_test].astype(np.int64))
    photographs = packaged_photographs()
    # As in the release, the target shows the source's digits. Shuffled: position i is another digit on each side, else
    # the source's labels would be the target's.
    order = np.random.default_rng(_SEED_TRAIN).permutation(len(train[0]))
    target = (blend(train[0][order], photographs, seed=_SEED_TRAIN), train[1][order])
    return train, held, target, (blend(held[0], photographs, seed=_SEED_TEST), held[1])


def _released() -> tuple[Arrays, Arrays]:
    halves = builder.load_halves(need(_RELEASED, pair="digit"), shape=(_SIDE, _SIDE, 3), n_classes=10)
    train, test = ((np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels) for images, labels in halves)
    return train, test


def _three_channels(digits: AnyArray) -> AnyArray:
    """Grey digits (n, 28, 28) as colour images (n, 3, 28, 28).

    Written out: one channel shown three times would save memory, but numpy reads such views 20 times slower.
    """
    return np.repeat(digits[:, None], 3, axis=1)


declare("digit", read=_read_digit, tiny=lambda **_: _parts("embedded", *_embedded(300)), resolve=_resolve_form)


# Handwritten digits: learned on one of MNIST, USPS and Semeion, applied to another.


def _read_handwritten(*, source: str = "mnist", target: str = "usps") -> Parts:
    """Digits of one collection as source, of another as target: contexts (1, 28, 28) of uint8, 10 arms.

    Semeion's digits of 16x16 are interpolated. MNIST and USPS keep their own split: training sees the training part,
    the evaluator holds the test part of the target. Semeion has none: as a target, half of every class is held.

    Args:
        source: mnist (60,000), usps (7,291) or semeion (1,593); the digits of its training part pay.
        target: another of them.
    """
    of_source = _collection(source)[0]
    seen, held = _collection(target)
    if held is None:
        return Parts({"source": of_source, **halved(*seen, name=f"handwritten/{source}-{target}")})
    return Parts({"source": of_source, "target": seen[0], "target_labelled": seen, "target_test": held})


def _collection(domain: str) -> tuple[Arrays, Arrays | None]:
    """Images (n, 1, 28, 28) and labels (n,) of the training part, and of the test part where there is one."""
    if domain == "semeion":
        images, labels = builder.load_labelled(file_of("handwritten", domain), ("x", "y"), shape=(16, 16), n_classes=10)
        return (_interpolate(images)[:, None], labels), None
    if domain == "mnist":
        train, test = (read_mnist(split, pair="handwritten") for split in ("train", "t10k"))
    else:
        train, test = builder.load_halves(file_of("handwritten", domain), shape=(_SIDE, _SIDE), n_classes=10)
    return (train[0][:, None], train[1]), (test[0][:, None], test[1])


def _interpolate(images: AnyArray) -> AnyArray:
    """Images (n, s, s) of uint8 at 28x28, bilinear between the centres of pixels.

    In whole numbers, so that every processor gets the same digits.
    """
    side = images.shape[1]
    # The centre of pixel i of 28 lies at (i + 1/2) side / 28 - 1/2, here in units of 1/56 of a pixel.
    place = np.clip((2 * np.arange(_SIDE) + 1) * side - _SIDE, 0, 2 * _SIDE * (side - 1))
    lower = np.minimum(place // (2 * _SIDE), side - 2)
    share = place - 2 * _SIDE * lower
    weights = np.zeros((_SIDE, side), dtype=np.int64)
    weights[np.arange(_SIDE), lower] = 2 * _SIDE - share
    weights[np.arange(_SIDE), lower + 1] = share
    total = np.einsum("ri,nij,cj->nrc", weights, images.astype(np.int64), weights, optimize=True)
    unit = (2 * _SIDE) ** 2
    return ((total + unit // 2) // unit).astype(np.uint8)


declare(
    "handwritten",
    read=_read_handwritten,
    tiny=lambda **_: builder.made_up_images(n_arms=10, per_class=20, side=_SIDE, seed=3, channels=1, n_test=100),
)
