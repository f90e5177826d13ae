"""The worker processes that decode images: started when first needed, ended with their owner."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daband import image_worker
from daband.errors import DataError

__all__ = ["Decoders", "shared_decoders"]

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
