"""MNIST from its idx files, and MNIST-M: made by the published recipe, or read as it is distributed."""

from __future__ import annotations

import gzip
import importlib.util
import io
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from daband.arrays import AnyArray, IntArray
from daband.domains.data_paths import find, need
from daband.domains.datasets.builder import load_packed
from daband.domains.readers.images import decode_image
from daband.domains.registry import Resource
from daband.errors import DataError

__all__ = [
    "MNIST_FILES",
    "MNIST_PLACES",
    "Arrays",
    "blend",
    "packaged_photographs",
    "photographs_in",
    "read_archive",
    "read_folder",
    "read_idx",
    "read_mnist",
    "read_packed",
]

Arrays: TypeAlias = tuple[AnyArray, IntArray]

MNIST_PLACES = ("mnist", "MNIST/raw")
"""Where the idx files may lie below the data directory."""
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
_SIDE = 28
_REMEDY = "delete it and run `daband data get digit`"
_UNSIGNED_BYTE = 0x08
# Colour photographs inside the installed packages themselves, so nothing is downloaded. What else ships there is left
# out: drawings, microscopy, and pictures that are mostly black (a rocket at night, a retina, a deep sky), over which a
# digit looks as MNIST's do. MNIST-M was cut from everyday scenes.
_SCIKIT_IMAGE = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png")
_SCIKIT_LEARN = ("china.jpg", "flower.jpg")


def _file(name: str, md5: str, content_md5: str, size: int) -> Resource:
    return Resource(
        what=f"MNIST, {name}",
        places=(f"mnist/{name}.gz", f"mnist/{name}", f"MNIST/raw/{name}.gz", f"MNIST/raw/{name}"),
        licence="CC BY-SA 3.0",
        url=f"{_MNIST_URL}/{name}.gz",
        md5=md5,
        content_md5=content_md5,
        size=size,
    )


MNIST_FILES = (  # the sums are the published ones
    _file(
        "train-images-idx3-ubyte",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "6bbc9ace898e44ae57da46a324031adb",
        9_912_422,
    ),
    _file("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624", 28_881),
    _file("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea", 1_648_877),
    _file("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637", 4_542),
)


def read_mnist(split: str, *, pair: str) -> Arrays:
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


def read_idx(path: Path) -> AnyArray:
    """The array of unsigned bytes in an idx file, gzipped or not."""
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except FileNotFoundError:
        raise DataError(f"{path} is not there; `daband data get digit` downloads it") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); {_REMEDY}") from None
    if len(data) < 4 or data[:2] != b"\x00\x00" or data[2] != _UNSIGNED_BYTE or data[3] == 0:
        raise DataError(f"{path} is not an idx file of unsigned bytes; {_REMEDY}")
    n_axes = data[3]
    header = 4 + 4 * n_axes
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


def read_packed(path: Path) -> tuple[Arrays, Arrays]:
    """Train and test part of an ``npz`` with ``x_train y_train x_test y_test``: images (n, 3, 28, 28), labels (n,)."""
    x_train, y_train, x_test, y_test = load_packed(path, ("x_train", "y_train", "x_test", "y_test"))
    parts = []
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        if images.ndim != 4 or images.shape[1:] != (_SIDE, _SIDE, 3) or images.dtype != np.uint8:
            raise DataError(f"{path} should hold images (n, 28, 28, 3) of uint8, got {images.shape} of {images.dtype}")
        if labels.shape != (len(images),) or labels.dtype.kind not in "ui" or labels.max(initial=0) > 9:
            raise DataError(
                f"{path} has {len(images)} images but labels {labels.shape}, {labels.dtype}: one digit each"
            )
        parts.append((np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels.astype(np.int64)))
    return parts[0], parts[1]


def read_folder(folder: Path, split: str) -> Arrays:
    """Images (n, 3, 28, 28) and labels (n,) of ``split`` ("train" or "test") in the released layout.

    The layout is ``mnist_m_train/00000000.png`` and ``mnist_m_train_labels.txt`` with a line ``00000000.png 5`` an
    image; images are 32x32, of which the centre 28x28 is taken.
    """
    listed = folder / f"mnist_m_{split}_labels.txt"
    if not listed.is_file():
        raise DataError(f"{listed} is not there, but {folder} looks like a released MNIST-M; {_REMEDY}")
    names, labels = _read_labels(listed.read_text(encoding="utf-8"), listed)
    images = folder / f"mnist_m_{split}"
    there = {path.name for path in images.glob("*.png")}
    _check_names(names, there, listed, images)
    return np.stack([_centre(decode_image(images / name), images / name) for name in names]), labels


def read_archive(path: Path, split: str) -> Arrays:
    """Like ``read_folder``, from the tar archive as it is distributed, without unpacking it to disk."""
    found: dict[str, AnyArray] = {}
    listing: str | None = None
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if not member.isfile():
                    continue
                if name.endswith(f"mnist_m_{split}_labels.txt"):
                    listing = _content(archive, member).decode()
                elif f"mnist_m_{split}/" in name and name.endswith(".png"):
                    where = Path(f"{path}:{name}")
                    found[Path(name).name] = _centre(decode_image(io.BytesIO(_content(archive, member)), where), where)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged ({error}); {_REMEDY}") from None
    if listing is None:
        raise DataError(f"{path} has no mnist_m_{split}_labels.txt; {_REMEDY}")
    names, labels = _read_labels(listing, path)
    _check_names(names, set(found), path, path)
    return np.stack([found[name] for name in names]), labels


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    assert stream is not None  # a regular file has content
    return stream.read()


def _read_labels(text: str, path: Path) -> tuple[list[str], IntArray]:
    names, labels = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        words = line.split()
        if len(words) != 2 or not words[1].isdigit() or int(words[1]) > 9:
            raise DataError(f"{path} line {number} should read `NAME.png DIGIT`, got {line!r}; {_REMEDY}")
        names.append(words[0])
        labels.append(int(words[1]))
    if not names:
        raise DataError(f"{path} lists no images; {_REMEDY}")
    return names, np.array(labels, dtype=np.int64)


def _check_names(names: Sequence[str], there: set[str], listed: Path, images: Path) -> None:
    absent = sorted(set(names) - there)
    unlisted = sorted(there - set(names))
    if absent or unlisted:
        example = f"{absent[0]} is listed but not there" if absent else f"{unlisted[0]} is there but not listed"
        raise DataError(
            f"{listed} does not match the images in {images}: {len(absent)} listed images are missing and "
            f"{len(unlisted)} images are not listed ({example}); {_REMEDY}"
        )


def _centre(image: AnyArray, path: Path) -> AnyArray:
    if image.shape != (32, 32, 3):
        raise DataError(f"{path} should be a 32x32 colour image of MNIST-M, got {image.shape}; {_REMEDY}")
    return np.ascontiguousarray(image[2:30, 2:30].transpose(2, 0, 1))


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
