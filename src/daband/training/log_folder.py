"""Where ``fit_log`` keeps how far it has come: a folder that a killed run resumes from, at the first part not learned.

``log.json`` says which policy learns from which columns. What was learned lies beside it in one file, which also names
the parts it rests on: so file and list never disagree, whenever the writer dies. The policy knows the digests of the
parts that it has learned: it may come back with what an earlier call taught it, and nothing is counted twice.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from daband.arrays import AnyArray
from daband.domains.readers.parquet_log import LogPart, ParquetLog
from daband.errors import CheckpointError, DataError, InvalidInput
from daband.files import locked, make_folder, read_json, read_npz, write_bytes, write_text
from daband.policies import Policy, read_checkpoint

__all__ = ["LogFolder", "part_digests", "part_name"]

_SAMPLES, _SAMPLE_BYTES = 16, 1 << 16
_SAVES_APART = 20.0
"""Between two saves pass at least so many times what a save takes."""


class LogFolder:
    """The state of one ``fit_log``; without a directory nothing is kept. ``release`` it in the end."""

    def __init__(self, directory: str | Path | None, config: Mapping[str, Any]) -> None:
        self._lock = ExitStack()
        self.path = None if directory is None else make_folder(directory)
        self._done: dict[str, str] = {}
        """The mark of the file of every part that is learned."""
        self._sums = "sums.npz"
        self._saved, self._apart = time.perf_counter(), 0.0
        if self.path is None:
            return
        self._lock.enter_context(locked(self.path, wait=False))
        try:
            self._claim(json.loads(json.dumps(config)))
        except BaseException:
            self.release()
            raise

    def _claim(self, config: dict[str, Any]) -> None:
        assert self.path is not None
        path = self.path / "log.json"
        if not os.path.lexists(path):
            write_text(path, json.dumps(config, indent=2, sort_keys=True) + "\n")
            return
        try:
            found = read_json(path)
        except DataError as error:
            raise InvalidInput(f"{error}; remove the folder to start anew") from None
        for name in sorted(config.keys() | (found.keys() if isinstance(found, dict) else set())):
            there = found.get(name) if isinstance(found, dict) else None
            if there != config.get(name):
                raise InvalidInput(
                    f"{self.path} holds a fit_log with other settings ({name}: there {there!r}, here "
                    f"{config.get(name)!r}); choose another directory"
                )

    def release(self) -> None:
        """Let others work in the folder."""
        self._lock.close()

    def read_policy(self, name: str) -> dict[str, AnyArray] | None:
        """The arrays of the policy saved under ``name``; None where there is none. Its notes say what it rests on."""
        path = None if self.path is None else self.path / f"{name}.safetensors"
        if path is None or not path.exists():
            return None
        saved = read_checkpoint(path)
        if "parts" in saved.notes:
            self._done = json.loads(saved.notes["parts"])
        return saved.arrays

    def write_policy(self, name: str, policy: Policy) -> None:
        """Save a policy under ``name``, with the parts learned so far."""
        if self.path is not None:
            policy.save(self.path / f"{name}.safetensors", notes={"parts": json.dumps(self._done)})

    def read_sums(self, learned: Iterable[str] = ()) -> dict[str, AnyArray] | None:
        """The arrays last written by ``write_sums``; None where there are none.

        ``learned`` are the digests of the parts that the policy knows already: sums of the others have their own file.
        """
        if learned := sorted(learned):
            self._sums = f"sums-{hashlib.sha256(' '.join(learned).encode()).hexdigest()[:12]}.npz"
        path = None if self.path is None else self.path / self._sums
        if path is None or not path.exists():
            return None
        try:
            arrays = read_npz(path)
            self._done = json.loads(bytes(arrays.pop("parts")).decode())
        except (DataError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged ({error}); remove the folder to start anew") from None
        return arrays

    def write_sums(self, arrays: Mapping[str, AnyArray]) -> None:
        """Save sums with the parts they are of."""
        if self.path is not None:
            parts = np.frombuffer(json.dumps(self._done).encode(), np.uint8)
            table = io.BytesIO()
            np.savez(table, **{**arrays, "parts": parts})  # type: ignore[arg-type]
            write_bytes(self.path / self._sums, table.getvalue())

    def finish_sums(self) -> None:
        """Remove the sums of earlier calls whose policies came back: a policy of today has them all."""
        if self.path is not None:
            for path in self.path.glob("sums-*.npz"):
                if path.name != self._sums:
                    path.unlink(missing_ok=True)

    def todo(self, log: ParquetLog, parts: list[LogPart]) -> list[LogPart]:
        """The parts that are not learned yet; a log that lost or changed what was learned is refused."""
        now = {part_name(part): _mark(log, part) for part in parts}
        for name, mark in self._done.items():
            if now.get(name) != mark:
                what = "is no longer part of the log" if name not in now else "has changed since"
                raise InvalidInput(
                    f"{self.path}: {name} was learned and {what}; restore the file, or remove the folder to start anew"
                )
        return [part for part in parts if part_name(part) not in self._done]

    @property
    def done(self) -> frozenset[str]:
        """The names of the parts that are learned, as ``part_name`` gives them."""
        return frozenset(self._done)

    def mark_done(self, log: ParquetLog, part: LogPart) -> None:
        """Note that a part is learned; the next save keeps it."""
        self._done[part_name(part)] = _mark(log, part)

    def due(self) -> bool:
        """Whether it is time to save."""
        return self.path is not None and time.perf_counter() - self._saved >= self._apart

    def timed(self, begun: float) -> None:
        """A save that began at ``begun`` is over: the next ones keep their distance."""
        self._saved = time.perf_counter()
        self._apart = _SAVES_APART * (self._saved - begun)


def part_name(part: LogPart) -> str:
    """The name of a part in a folder's list: its file and its rows."""
    return f"{Path(part.path).resolve()}:{part.start}-{part.stop}"


def part_digests(parts: Iterable[LogPart]) -> dict[str, str]:
    """By ``part_name``, a digest of each part's file and rows that does not depend on where the file lies.

    Of a large file it takes samples, the footer among them, as reading it all would cost as much as learning from it.
    """
    files: dict[str, str] = {}
    digests = {}
    for part in parts:
        if part.path not in files:
            size = os.path.getsize(part.path)
            mark = hashlib.sha256(str(size).encode())
            with open(part.path, "rb") as file:
                for start in np.linspace(0, max(0, size - _SAMPLE_BYTES), _SAMPLES).astype(np.int64):
                    file.seek(int(start))
                    mark.update(file.read(_SAMPLE_BYTES))
            files[part.path] = mark.hexdigest()[:32]
        digests[part_name(part)] = f"{files[part.path]}:{part.start}-{part.stop}"
    return digests


def _mark(log: ParquetLog, part: LogPart) -> str:
    return next(file.mark for file in log.files if file.path == part.path)
