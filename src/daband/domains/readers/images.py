"""Images on disk as contexts: decoded when first asked for, by worker processes, and kept in a memory-mapped cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband import image_worker
from daband.arguments import whole
from daband.arrays import AnyArray, IntArray
from daband.domains.registry import cache_directory
from daband.errors import DataError, InvalidInput
from daband.image_layout import imagenet_normalise
from daband.image_worker import decode

__all__ = ["Decoders", "Framing", "ImageStore", "decode_image", "imagenet_normalise", "shared_decoders"]

# The worker processes that decode images: started when first needed, ended with their owner.


_CHUNK = 16
_SCRIPT = Path(image_worker.__file__)


class Decoders:
    """``workers`` processes, each decoding a few images at a time into the cache file."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._one_at_a_time = threading.Lock()  # a worker's pipe has room for one question
        self._processes: list[subprocess.Popen[str]] = []
        weakref.finalize(self, _stop, self._processes)

    def decode(self, tasks: Sequence[tuple[int, str]], cache: Path, resize: int, crop: int) -> list[tuple[int, str]]:
        """Decode ``(position, path)`` tasks into the cache; return ``(position, reason)`` for those that failed."""
        chunks: queue.SimpleQueue[Sequence[tuple[int, str]]] = queue.SimpleQueue()
        for start in range(0, len(tasks), _CHUNK):
            chunks.put(tasks[start : start + _CHUNK])

        def feed(process: subprocess.Popen[str]) -> list[tuple[int, str]]:
            failed: list[tuple[int, str]] = []
            while True:
                try:
                    chunk = chunks.get_nowait()
                except queue.Empty:
                    return failed
                failed += _ask(process, {"cache": str(cache), "resize": resize, "crop": crop, "items": chunk})

        with self._one_at_a_time:
            while len(self._processes) < min(self._workers, chunks.qsize()):
                self._processes.append(_start())
            with ThreadPoolExecutor(len(self._processes)) as pool:
                failed = [failure for part in pool.map(feed, self._processes) for failure in part]
        return sorted(failed)


_POOLS: weakref.WeakValueDictionary[int, Decoders] = weakref.WeakValueDictionary()


def shared_decoders(workers: int) -> Decoders:
    """One set of processes for all stores that ask for so many: a pair has three stores, and cores do not triple."""
    pool = _POOLS.get(workers)
    if pool is None:
        pool = _POOLS[workers] = Decoders(workers)
    return pool


def _start() -> subprocess.Popen[str]:
    # -P keeps the script's folder, whose files have names of their own, off the import path.
    return subprocess.Popen(  # noqa: S603 - our own interpreter and our own file
        [sys.executable, "-P", str(_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )


def _ask(process: subprocess.Popen[str], task: dict[str, object]) -> list[tuple[int, str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        raise DataError(f"a process that decodes images ended with status {process.wait()}; run again with workers=1")
    return [(int(position), str(reason)) for position, reason in json.loads(answer)]


def _stop(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()  # the worker ends with its input
    for process in processes:
        process.wait()


_FEW = 8  # so few images are decoded here: waking the workers costs more


def decode_image(source: Any, name: Path | None = None) -> AnyArray:
    """An image file (or an open stream of one) as (H, W, 3) of uint8; a damaged one is an error that names it."""
    where = source if name is None else name
    try:
        return decode(source)
    except ImportError:
        raise DataError(f"{where} cannot be read without Pillow: pip install pillow") from None
    except FileNotFoundError:
        raise DataError(f"{where} is not there") from None
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, ... for damaged files
        raise DataError(f"{where} is not an image or is damaged ({error}); replace it") from None


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


class ImageStore:
    """Images (n, 3, H, W) of uint8 behind a list of files; ``read`` decodes what it has not seen before.

    With ``cache`` the decoded pixels are kept in a file below the cache directory, under a name made of the files'
    names, sizes and times and of the framing, so that a changed file is decoded afresh. The file is mapped for the
    length of one ``read``, so a set larger than memory does not fill it. Without ``cache``, or with too little disk,
    every read decodes.
    """

    def __init__(
        self, paths: Sequence[Path], framing: Framing, *, workers: int | None = None, cache: bool = True
    ) -> None:
        if not paths:
            raise DataError("an image store needs at least one file")
        if workers is not None and workers < 1:
            raise InvalidInput(f"workers must be at least 1, got {workers}")
        self._paths = [str(path) for path in paths]
        self.framing = framing
        self._workers = workers or os.cpu_count() or 1
        self._shape = (len(paths), *framing.shape)
        self._cache = self._open_cache() if cache else None
        self._decoders: Decoders | None = None

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
            return self._decode_here(indices)
        wanted = np.unique(indices)
        missing = wanted[self._flags()[wanted] == 0]
        if len(missing):
            self._fill(missing)
        mapped = np.memmap(self._cache / "pixels", dtype=np.uint8, mode="r", shape=self._shape)
        images: AnyArray = np.array(mapped[indices])
        return images

    def _flags(self) -> AnyArray:
        assert self._cache is not None
        return np.fromfile(self._cache / "decoded", dtype=np.uint8)

    def _fill(self, missing: IntArray) -> None:
        assert self._cache is not None
        pixels = self._cache / "pixels"
        if len(missing) <= _FEW:
            decoded = self._decode_here(missing)
            with open(pixels, "r+b", buffering=0) as file:
                for position, image in zip(missing, decoded, strict=True):
                    file.seek(int(position) * image.size)
                    file.write(image.tobytes())
        else:
            if self._decoders is None:
                self._decoders = shared_decoders(self._workers)
            tasks = [(int(position), self._paths[position]) for position in missing]
            failed = self._decoders.decode(tasks, pixels, self.framing.resize, self.framing.crop)
            if failed:
                position, reason = failed[0]
                raise DataError(f"{self._paths[position]} is not an image or is damaged ({reason}); replace it")
        flags = np.memmap(self._cache / "decoded", dtype=np.uint8, mode="r+", shape=(len(self),))
        flags[missing] = 1  # only now: an interrupted run leaves images to decode, never half an image

    def _decode_here(self, indices: IntArray) -> AnyArray:
        images = np.empty((len(indices), *self.framing.shape), dtype=np.uint8)

        def one(at: int) -> None:
            path = Path(self._paths[indices[at]])
            try:
                images[at] = decode(path, self.framing.resize, self.framing.crop).transpose(2, 0, 1)
            except ImportError:
                raise DataError(f"{path} cannot be read without Pillow: pip install pillow") from None
            except Exception as error:
                raise DataError(f"{path} is not an image or is damaged ({error}); replace it") from None

        if len(indices) <= _FEW:
            for at in range(len(indices)):
                one(at)
        else:
            with ThreadPoolExecutor(self._workers) as pool:  # Pillow lets go of the interpreter lock while it decodes
                list(pool.map(one, range(len(indices))))
        return images

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
        digest = hashlib.sha256(f"v1 {self.framing.resize} {self.framing.crop}".encode())
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError:
                raise DataError(f"{path} is not there") from None
            digest.update(f"{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:24]
