"""Images on disk as contexts: decoded when first asked for, by several threads, and kept in a memory-mapped cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._arguments import whole
from daband._arrays import AnyArray, IntArray
from daband._image_layout import decode
from daband.domains._registry import cache_directory
from daband.errors import DataError, InvalidInput

_FEW = 8  # so few images are decoded in turn: starting threads costs more


@dataclass(frozen=True)
class Framing:
    """How an image of any size becomes a context: both sides resized to ``resize``, then the centre ``crop`` of it."""

    resize: int
    crop: int

    def __post_init__(self) -> None:
        whole("framing's resize", self.resize, least=1)
        whole("framing's crop", self.crop, least=1)
        if not 1 <= self.crop <= self.resize:
            raise InvalidInput(f"framing needs 1 <= crop <= resize, got crop={self.crop}, resize={self.resize}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a context."""
        return (3, self.crop, self.crop)


def decode_image(path: Path, *, framing: Framing | None = None) -> AnyArray:
    """An image file as (H, W, 3) of uint8; a damaged one is an error that names it."""
    try:
        return decode(path) if framing is None else decode(path, framing.resize, framing.crop)
    except ImportError:
        raise DataError(f"{path} cannot be read without Pillow: pip install pillow") from None
    except FileNotFoundError:
        raise DataError(f"{path} is not there") from None
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, ... for damaged files
        raise DataError(f"{path} is not an image or is damaged ({error}); replace it") from None


class ImageStore:
    """Images (n, 3, H, W) of uint8 behind a list of files; ``read`` decodes what it has not seen before.

    With ``cache`` the decoded pixels are kept in a file below the cache directory, under a name made of the files'
    names, sizes and times and of the framing, so that a changed file is decoded afresh. The file is mapped for the
    length of one ``read``, so a set larger than memory does not fill it. Without ``cache``, or with too little disk,
    every read decodes.
    """

    def __init__(self, paths: Sequence[Path], framing: Framing, *, cache: bool = True) -> None:
        if not paths:
            raise DataError("an image store needs at least one file")
        self._paths = [str(path) for path in paths]
        self.framing = framing
        self._shape = (len(paths), *framing.shape)
        self._cache = self._open_cache() if cache else None

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def files(self) -> tuple[str, ...]:
        """The file of each image."""
        return tuple(self._paths)

    @property
    def cached(self) -> int:
        """How many images a read would take from the cache."""
        return 0 if self._cache is None else int(np.count_nonzero(self._flags()))

    def read(self, indices: IntArray) -> AnyArray:
        """The images at these positions, (B, 3, H, W) of uint8."""
        indices = np.asarray(indices, dtype=np.int64)
        if self._cache is None:
            images: AnyArray = np.empty((len(indices), *self.framing.shape), dtype=np.uint8)
            self._decode(indices, images, np.arange(len(indices)))
            return images
        wanted = np.unique(indices)
        missing = wanted[self._flags()[wanted] == 0]
        mode: Any = "r+" if len(missing) else "r"
        pixels = np.memmap(self._cache / "pixels", dtype=np.uint8, mode=mode, shape=self._shape)
        if len(missing):
            self._decode(missing, pixels, missing)
            flags = np.memmap(self._cache / "decoded", dtype=np.uint8, mode="r+", shape=(len(self),))
            flags[missing] = 1  # only now: an interrupted run leaves images to decode, never half an image
        return np.array(pixels[indices])

    def _flags(self) -> AnyArray:
        assert self._cache is not None
        return np.fromfile(self._cache / "decoded", dtype=np.uint8)

    def _decode(self, indices: IntArray, images: AnyArray, places: IntArray) -> None:
        """Write the images at ``indices`` to these ``places`` of an array."""

        def decode_one(at: int) -> None:
            path = Path(self._paths[indices[at]])
            images[places[at]] = decode_image(path, framing=self.framing).transpose(2, 0, 1)

        if len(indices) <= _FEW:
            for at in range(len(indices)):
                decode_one(at)
        else:
            with ThreadPoolExecutor(
                os.cpu_count() or 1
            ) as pool:  # Pillow releases the interpreter lock while it decodes
                list(pool.map(decode_one, range(len(indices))))

    def _open_cache(self) -> Path | None:
        root = cache_directory() / "images"
        folder = root / self._fingerprint()
        if folder.is_dir():
            return folder
        needed = int(np.prod(self._shape, dtype=np.int64)) + len(self)
        try:
            root.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(root).free < needed:
                return None
            # Made aside and renamed, so that two runs that start together agree on one folder.
            aside = Path(tempfile.mkdtemp(dir=root, prefix=".new-"))
        except OSError:
            return None
        for name, size in (("pixels", needed - len(self)), ("decoded", len(self))):
            with open(aside / name, "wb") as file:
                file.truncate(size)
        try:
            aside.rename(folder)
        except OSError:
            shutil.rmtree(aside)
            if not folder.is_dir():
                raise
        return folder

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"v2 {self.framing.resize} {self.framing.crop}".encode())
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError:
                raise DataError(f"{path} is not there") from None
            digest.update(f"{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:24]
