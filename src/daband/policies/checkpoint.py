"""The file a policy is saved in: safetensors with a format version. Reading one runs no code.

The policy's name and settings and the caller's notes stand in the header as JSON; all that was learned is tensors. The
header has a single entry because safetensors writes several in no fixed order: so equal policies give equal files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from daband.arrays import AnyArray
from daband.errors import CheckpointError
from daband.files import write_bytes

__all__ = ["FORMAT_VERSION", "read_checkpoint", "read_notes", "write_checkpoint"]

FORMAT_VERSION = 1
_FORMAT = "daband-policy"


def write_checkpoint(path: Path, settings: dict[str, Any], arrays: dict[str, AnyArray], notes: dict[str, str]) -> None:
    """Write a whole file or nothing."""
    header = json.dumps({"version": FORMAT_VERSION, "settings": settings, "notes": notes}, sort_keys=True)
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_bytes(path, safetensors.numpy.save(tensors, metadata={_FORMAT: header}))


def read_checkpoint(path: str | Path) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Settings and arrays of a saved policy."""
    path = Path(path)
    header = _header(path)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return header["settings"], {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def read_notes(path: str | Path) -> dict[str, str]:
    """The caller's notes in a saved policy's header."""
    notes: dict[str, str] = _header(Path(path))["notes"]
    return notes


def _header(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            start = file.read(9)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if len(start) < 9:
        raise CheckpointError(f"{path} is truncated: a safetensors file has more than {len(start)} bytes")
    # A safetensors file begins with the length of its header, which may look like a pickle's mark, and then with "{".
    if start[8:] != b"{" and (start[:1] == b"\x80" or start[:4] == b"PK\x03\x04"):
        raise CheckpointError(
            f"{path} is a pickle or a zip archive, not a daband policy; pickles can run code and are never opened"
        )
    try:
        with safetensors.safe_open(path, framework="np") as opened:
            entries = opened.metadata() or {}
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is truncated or not a safetensors file: {error}") from error
    if _FORMAT not in entries:
        raise CheckpointError(f"{path} is a safetensors file, but not a policy saved by daband")
    try:
        header: dict[str, Any] = json.loads(entries[_FORMAT])
        version = int(header["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} has a damaged header: {error}") from error
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {version}, this daband reads up to {FORMAT_VERSION}; a newer daband reads it"
        )
    return header
