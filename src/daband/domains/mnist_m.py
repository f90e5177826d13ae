"""MNIST-M: made by the published recipe, or read in the forms in which it is distributed."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from daband.arrays import AnyArray, IntArray
from daband.domains.readers.images import decode_image
from daband.errors import DataError

__all__ = ["blend", "read_archive", "read_folder", "read_packed"]

_SIDE = 28
_REMEDY = "delete it and run `daband data get digit`"


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


def read_packed(path: Path) -> tuple[AnyArray, IntArray, AnyArray, IntArray]:
    """Train images and labels, test images and labels, of an ``npz`` with ``x_train y_train x_test y_test``."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as packed:
            parts = [packed[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path} is not a packed MNIST-M ({error}); put an undamaged copy there") from None
    except Exception as error:  # zipfile.BadZipFile and zlib.error have no common root below Exception
        raise DataError(f"{path} is damaged ({error}); put an undamaged copy there") from None
    for images, labels in ((parts[0], parts[1]), (parts[2], parts[3])):
        if images.ndim != 4 or images.shape[1:] != (_SIDE, _SIDE, 3) or images.dtype != np.uint8:
            raise DataError(f"{path} should hold images (n, 28, 28, 3) of uint8, got {images.shape} of {images.dtype}")
        _check_labels(labels, len(images), path)
    x_train, y_train, x_test, y_test = parts
    return _channels_first(x_train), y_train.astype(np.int64), _channels_first(x_test), y_test.astype(np.int64)


def read_folder(folder: Path, split: str) -> tuple[AnyArray, IntArray]:
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


def read_archive(path: Path, split: str) -> tuple[AnyArray, IntArray]:
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


def _check_labels(labels: AnyArray, n: int, path: Path) -> None:
    if labels.shape != (n,) or labels.dtype.kind not in "ui" or labels.max(initial=0) > 9:
        raise DataError(f"{path} has {n} images but labels {labels.shape}, {labels.dtype}; it needs one digit an image")


def _centre(image: AnyArray, path: Path) -> AnyArray:
    if image.shape != (32, 32, 3):
        raise DataError(f"{path} should be a 32x32 colour image of MNIST-M, got {image.shape}; {_REMEDY}")
    return np.ascontiguousarray(image[2:30, 2:30].transpose(2, 0, 1))


def _channels_first(images: AnyArray) -> AnyArray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
