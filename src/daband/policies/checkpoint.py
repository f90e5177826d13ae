"""The file a policy is saved in: safetensors with a format version and a digest. Reading one runs no code.

The header holds the policy's name and settings and the caller's notes as JSON; the tensors hold what was learned. See
``daband.tensor_files`` for the digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from daband.arrays import AnyArray
from daband.errors import InvalidInput
from daband.tensor_files import FileFormat, read_tensor_file, read_tensor_header, write_tensor_file

__all__ = ["FORMAT_VERSION", "SavedPolicy", "check_notes", "read_checkpoint", "read_notes", "write_checkpoint"]

FORMAT_VERSION = 2
_FORMAT = FileFormat(
    name="daband-policy",
    what="a policy saved by daband (policy.save writes one; daband.load_deployed reads what daband.export wrote)",
    version=FORMAT_VERSION,
    oldest=FORMAT_VERSION,
    remedy="train and save it anew",
    required=("settings", "notes"),
)


class SavedPolicy(NamedTuple):
    """What a file holds: the policy's settings, its arrays by name, and the caller's notes."""

    settings: dict[str, Any]
    arrays: dict[str, AnyArray]
    notes: dict[str, str]


def check_notes(notes: Mapping[str, str] | None) -> dict[str, str]:
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
    write_tensor_file(path, _FORMAT, {"settings": settings, "notes": notes}, arrays)


def read_checkpoint(path: str | Path) -> SavedPolicy:
    """Settings, arrays and notes of a saved policy, each bit as it was written."""
    header, arrays = read_tensor_file(path, _FORMAT)
    return SavedPolicy(header["settings"], arrays, header["notes"])


def read_notes(path: str | Path) -> dict[str, str]:
    """The caller's notes in a saved policy's header."""
    notes: dict[str, str] = read_tensor_header(path, _FORMAT)["notes"]
    return notes
