"""The file a policy is saved in: safetensors with a format version and a digest. Reading one runs no code.

The header holds the policy's name and settings and the caller's notes as JSON; the tensors hold what was learned. The
metadata has a single entry because safetensors writes several in no fixed order: so equal policies give equal files.

The entry begins with a SHA-256 digest of the whole file (with zeros in place of the digest itself), so a file in which
any bit has changed is refused: settings, notes, names, types, shapes, values and padding alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from daband.arrays import AnyArray
from daband.errors import CheckpointError, InvalidInput
from daband.files import checked_path, write_bytes

__all__ = ["FORMAT_VERSION", "SavedPolicy", "checked_notes", "read_checkpoint", "read_notes", "write_checkpoint"]

FORMAT_VERSION = 2
_FORMAT = "daband-policy"
_NO_DIGEST = "0" * 64
_BEGINNING = b'{"__metadata__":{"' + _FORMAT.encode() + b'":"{\\"digest\\": \\"'
"""How the header of every file begins, behind the eight bytes of its length; the digest follows."""
_CHUNK = 1 << 22
_LONGEST_HEADER = 100 << 20  # safetensors' own limit


class SavedPolicy(NamedTuple):
    """What a file holds: the policy's settings, its arrays by name, and the caller's notes."""

    settings: dict[str, Any]
    arrays: dict[str, AnyArray]
    notes: dict[str, str]


def checked_notes(notes: Mapping[str, str] | None) -> dict[str, str]:
    """The caller's notes as a file can hold them: texts by name."""
    if notes is None:
        return {}
    if not isinstance(notes, Mapping) or not all(isinstance(text, str) for pair in notes.items() for text in pair):
        raise InvalidInput(f"notes must be a mapping from text to text, got {notes!r}")
    return dict(notes)


def write_checkpoint(
    path: str | Path, settings: dict[str, Any], arrays: dict[str, AnyArray], notes: dict[str, str]
) -> None:
    """Write a whole file or nothing."""
    path = checked_path(path)
    about = {"version": FORMAT_VERSION, "settings": settings, "notes": notes}
    header = json.dumps({"digest": _NO_DIGEST, **about}, sort_keys=True)  # "digest" is the first of these names
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = bytearray(safetensors.numpy.save(tensors, metadata={_FORMAT: header}))
    place = slice(8 + len(_BEGINNING), 8 + len(_BEGINNING) + len(_NO_DIGEST))
    assert content[8 : place.stop] == _BEGINNING + _NO_DIGEST.encode()
    content[place] = hashlib.sha256(content).hexdigest().encode()
    write_bytes(path, content)


def read_checkpoint(path: str | Path) -> SavedPolicy:
    """Settings, arrays and notes of a saved policy, each bit as it was written."""
    path = checked_path(path)
    header = _verified_header(path)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    return SavedPolicy(header["settings"], arrays, header["notes"])


def read_notes(path: str | Path) -> dict[str, str]:
    """The caller's notes in a saved policy's header."""
    notes: dict[str, str] = _verified_header(checked_path(path))["notes"]
    return notes


def _verified_header(path: Path) -> dict[str, Any]:
    """The JSON of the header, of a file whose digest is right."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for, a device may have no end
            raise CheckpointError(f"{path} cannot be read: it is a folder, a device or a pipe, not a file")
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            start = file.read(9)
            length = int.from_bytes(start[:8], "little")
            _refuse_foreign(path, start, size)
            if 8 + length > size or length > _LONGEST_HEADER:
                raise CheckpointError(
                    f"{path} is truncated or not a safetensors file: its header would have {length} bytes, the file "
                    f"has {size}"
                )
            raw = start[8:] + file.read(length - 1)
            header, digest = _parsed(path, raw)
            found = hashlib.sha256(start[:8])
            found.update(_BEGINNING + _NO_DIGEST.encode() + raw[len(_BEGINNING) + len(_NO_DIGEST) :])
            while chunk := file.read(_CHUNK):
                found.update(chunk)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if found.hexdigest() != digest:
        raise CheckpointError(
            f"{path} is damaged: its content does not match its digest, so at least one bit differs from what was "
            "saved; restore it from a copy"
        )
    return header


def _refuse_foreign(path: Path, start: bytes, size: int) -> None:
    if size < 9:
        raise CheckpointError(f"{path} is truncated: a safetensors file has more than {size} bytes")
    # A safetensors file begins with the length of its header, which may look like a pickle's mark, and then with "{".
    if start[8:] != b"{" and (start[:1] == b"\x80" or start[:4] == b"PK\x03\x04"):
        raise CheckpointError(
            f"{path} is a pickle or a zip archive, not a daband policy; pickles can run code and are never opened"
        )


def _parsed(path: Path, raw: bytes) -> tuple[dict[str, Any], str]:
    """The JSON of our metadata entry, and the digest that it claims."""
    try:
        entries = json.loads(raw)
        metadata = entries.get("__metadata__") or {}
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from error
    if not isinstance(metadata, dict) or _FORMAT not in metadata:
        raise CheckpointError(f"{path} is a safetensors file, but not a policy saved by daband")
    try:
        header: dict[str, Any] = json.loads(metadata[_FORMAT])
        version = int(header["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} has a damaged header: {error}") from error
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {version}, this daband reads version {FORMAT_VERSION}; a newer daband reads it"
        )
    if version < FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {version}, this daband reads version {FORMAT_VERSION}; train and save it anew"
        )
    digest = raw[len(_BEGINNING) :][: len(_NO_DIGEST)]
    if not raw.startswith(_BEGINNING) or len(digest) < len(_NO_DIGEST) or digest.decode("latin-1") != header["digest"]:
        raise CheckpointError(f"{path} has a damaged header: its digest is not where it should be")
    missing = {"settings", "notes"} - header.keys()
    if missing:
        raise CheckpointError(f"{path} has a damaged header: it lacks {', '.join(sorted(missing))}")
    return header, str(header["digest"])
