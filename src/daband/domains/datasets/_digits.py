"""Build the pair ``digit``: MNIST to MNIST-M, which has MNIST's digits over photographs."""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daband.base._arrays import AnyArray, IntArray
from daband.domains._contract import Pair
from daband.domains._registry import find_data, pairs, register_pair, require_data
from daband.domains.datasets._catalogue import describe_data, load_splits
from daband.domains.readers._arrays import from_arrays
from daband.domains.readers._images import decode_image
from daband.errors import DataError, InvalidInput
from daband.features._shift import ShiftLike

# Functions that read MNIST from its idx files, and generate MNIST-M by the published recipe.


class Digits(NamedTuple):
    """Images of digits and their labels."""

    #: (n, 28, 28), or with c channels (n, c, 28, 28), of uint8.
    images: AnyArray
    #: The digit of each image, (n,).
    labels: IntArray


#: Possible folders of the idx files below the data directory.
_MNIST_FOLDERS = ("mnist", "MNIST/raw")
#: Pixels per side.
SIDE = 28
#: The end of messages about a damaged file.
_REPLACE_HINT = "replace it: `daband data check digit` prints where to get it"
# Colour photographs in installed packages, so that nothing is downloaded. Drawings, microscopy and
# mostly black images in these packages are not used, because MNIST-M was made from everyday scenes.
_SKIMAGE_PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png")
_SKLEARN_PHOTOGRAPHS = ("china.jpg", "flower.jpg")


def read_mnist(split: str, *, pair: str) -> Digits:
    """Return images (n, 28, 28) of uint8 and labels (n,) of the split "train" or "t10k".

    ``pair`` is the name of the pair in error messages.
    """
    folder = require_data(_MNIST_FOLDERS, pair=pair)
    images, labels = (
        _read_idx_file(folder, f"{split}-{name}")
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    if (
        images.shape[1:] != (SIDE, SIDE)
        or labels.shape != (len(images),)
        or labels.max(initial=0) > 9
    ):
        raise DataError(
            f"{folder}: {split} images {images.shape} and labels {labels.shape} do not match."
            " Replace the files: `daband data check digit` prints where to get them"
        )
    return Digits(images, labels.astype(np.int64))


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
    images = np.empty((n, 3, SIDE, SIDE), dtype=np.uint8)
    for index, photograph in enumerate(photographs):
        rows = np.flatnonzero(photograph_indices == index)
        if not len(rows):
            continue
        # All possible patches are views of the photograph, so that only the drawn ones are copied.
        patches = np.lib.stride_tricks.sliding_window_view(photograph, (SIDE, SIDE), axis=(0, 1))
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
    has_files = None not in (find_data(_MNIST_FOLDERS), find_data(_RELEASED_PATHS))
    return {**options, "form": "released" if has_files else "embedded"}


@register_pair("digit", resolve=_resolve_form, **describe_data("digit"))
def _build_digit(
    *,
    form: str = "auto",
    tiny: bool = False,
    shift: ShiftLike = None,
) -> Pair:
    """Build MNIST as source and MNIST-M as target: contexts (3, 28, 28) of uint8, 10 arms.

    ``source_test`` is MNIST's test set, or its 3,000 embedded digits.

    Args:
        form: "embedded" (inside the package: 20,000 + 20,000 digits, test 3,000), "released"
            (MNIST's idx files and the released MNIST-M), or "auto" ("released" if these files
            exist, otherwise "embedded").
        tiny: True for only 300 embedded digits; ``form`` is then ignored.
        shift: as in ``from_arrays``.
    """
    if form not in ("auto", "embedded", "released"):
        raise InvalidInput(f"digit's values of form are auto, embedded, released, got {form!r}")
    form = _resolve_form({"form": "embedded" if tiny else form})["form"]
    if form == "embedded":
        source, source_test, target, target_test = _build_embedded_domains(300 if tiny else None)
    else:
        source, source_test = (read_mnist(split, pair="digit") for split in ("train", "t10k"))
        target, target_test = _read_released_target()
    # ``source_test`` and ``target_test`` have the same digits. The former is shuffled, so that its
    # labels do not reveal the labels of the latter.
    order = np.random.default_rng(_SOURCE_TEST_SEED).permutation(len(source_test.labels))
    pair = from_arrays(
        source=(_repeat_channels(source.images), source.labels),
        source_test=(_repeat_channels(source_test.images[order]), source_test.labels[order]),
        target=target.images,
        target_test=target_test,
        target_labelled=target,
        class_names=tuple("0123456789"),
        n_arms=10,
        feedback="bandit",
        shift=shift,
        name="digit",
    )
    about = pairs.get("digit").about
    return replace(pair, about=replace(about, summary=f"{about.summary}; the {form} form"))


@lru_cache(maxsize=1)
def _load_embedded_digits() -> tuple[Digits, Digits]:
    """Return images (n, 28, 28) and labels (n,) of the embedded digits, for training and for the
    test.
    """
    with np.load(_EMBEDDED_PATH, allow_pickle=False) as arrays:
        training, test = (
            Digits(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")
        )
    for array in (*training, *test):
        array.setflags(write=False)
    return training, test


def _build_embedded_domains(n_digits: int | None) -> list[Digits]:
    """Return source, source test, target and target test, from the embedded digits.

    The first ``n_digits`` digits for training and the first ``n_digits // 3`` for the test are
    used; None uses all.
    """
    training, test = _load_embedded_digits()
    n_test = None if n_digits is None else n_digits // 3
    source = Digits(training.images[:n_digits], training.labels[:n_digits].astype(np.int64))
    source_test = Digits(test.images[:n_test], test.labels[:n_test].astype(np.int64))
    photographs = load_packaged_photographs()
    # As in the release, the target has the source's digits. They are shuffled, so that the source
    # labels do not reveal the target labels.
    order = np.random.default_rng(_TRAINING_SEED).permutation(len(source.images))
    target = Digits(
        blend(source.images[order], photographs, seed=_TRAINING_SEED), source.labels[order]
    )
    target_test = Digits(
        blend(source_test.images, photographs, seed=_TEST_SEED), source_test.labels
    )
    return [source, source_test, target, target_test]


def _read_released_target() -> list[Digits]:
    """Return images (n, 3, 28, 28) and labels (n,) of the released MNIST-M, for training and for
    the test.
    """
    splits = load_splits(require_data(_RELEASED_PATHS, pair="digit"))
    return [
        Digits(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels)
        for images, labels in splits
    ]


def _repeat_channels(digits: AnyArray) -> AnyArray:
    """Return grey digits (n, 28, 28) as colour images (n, 3, 28, 28).

    The channels are copied, because numpy reads broadcast views 20 times slower.
    """
    return np.repeat(digits[:, None], 3, axis=1)
