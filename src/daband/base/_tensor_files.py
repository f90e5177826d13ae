"""Read and write safetensors files with a JSON header and a digest. Reading a file runs no code.

A safetensors file starts with its own JSON header, called file header here. The metadata in it has
one entry, which is daband's header. safetensors writes several entries in no fixed order; with one
entry, equal content gives equal files. The header starts with a SHA-256 digest of the whole file,
computed with zeros in place of the digest itself. So a file is rejected if any bit of it has
changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from daband.base._arrays import Arrays
from daband.base._files import check_path, write_bytes
from daband.errors import CheckpointError

#: The zeros in place of the digest while it is computed.
_ZERO_DIGEST = "0" * 64


@dataclass(frozen=True)
class FileFormat:
    """A file format: its name, its version, and the required keys of its header."""

    #: The name of the metadata entry, e.g. "daband-policy".
    name: str
    #: The description in errors, e.g. "a policy saved by daband".
    description: str
    #: The version that is written and read.
    version: int
    #: The remedy for files of an older version.
    remedy: str
    #: The keys that the header must contain.
    required_keys: tuple[str, ...] = ()

    @property
    def header_start(self) -> bytes:
        """The first bytes of the file header, which follow the eight bytes of its length.

        The digest is next.
        """
        return b'{"__metadata__":{"' + self.name.encode() + b'":"{\\"digest\\": \\"'


def write_tensor_file(
    path: str | Path, file_format: FileFormat, header: Mapping[str, Any], arrays: Arrays
) -> None:
    """Write a file with this header and these arrays, completely or not at all."""
    write_bytes(path, pack_tensors(file_format, header, arrays))


def pack_tensors(file_format: FileFormat, header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """Return the content of a file with this header and these arrays."""
    header_json = json.dumps(
        {"version": file_format.version, **header}, sort_keys=True, allow_nan=False
    )
    header_text = f'{{"digest": "{_ZERO_DIGEST}", {header_json[1:]}'
    # ``np.ascontiguousarray`` would add a dimension to an array without dimensions.
    tensors = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = safetensors.numpy.save(tensors, metadata={file_format.name: header_text})
    digest = hashlib.sha256(content).hexdigest()
    return content.replace(_ZERO_DIGEST.encode(), digest.encode(), 1)


def read_tensor_file(path: str | Path, file_format: FileFormat) -> tuple[dict[str, Any], Arrays]:
    """Return the header and the arrays of a file, after checking the digest."""
    path = check_path(path)
    if path.exists() and not path.is_file():  # a pipe would block, a device may have no end
        raise CheckpointError(
            f"{path} cannot be read: it is a folder, a device or a pipe, not a file"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    return unpack_tensors(path, content, file_format)


def unpack_tensors(
    path: str | Path, content: bytes, file_format: FileFormat
) -> tuple[dict[str, Any], Arrays]:
    """Return the header and the arrays of the content of a file, after checking the digest.

    ``path`` is named in errors.
    """
    # The first eight bytes of a safetensors file are a length, which may look like a pickle's mark.
    # The ninth is "{".
    if content[8:9] != b"{" and content.startswith((b"\x80", b"PK\x03\x04")):
        raise CheckpointError(
            f"{path} is a pickle or a zip archive, not a daband policy; pickles can run code and"
            " are never opened"
        )
    header_end = 8 + int.from_bytes(content[:8], "little")
    if len(content) < max(9, header_end):
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file: its header would end at byte"
            f" {header_end}, the file has {len(content)}"
        )
    header = _parse_header(path, content[8:header_end], file_format)
    digest = str(header["digest"])
    zeroed_content = content.replace(digest.encode(), _ZERO_DIGEST.encode(), 1)
    if hashlib.sha256(zeroed_content).hexdigest() != digest:
        raise CheckpointError(
            f"{path} is damaged: its content does not match its digest, so at least one bit differs"
            " from what was saved; restore it from a copy"
        )
    try:
        return header, safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _parse_header(path: str | Path, file_header: bytes, file_format: FileFormat) -> dict[str, Any]:
    """Return daband's header, parsed from the bytes of the file header."""
    try:
        metadata = json.loads(file_header).get("__metadata__") or {}
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from error
    if not isinstance(metadata, dict) or file_format.name not in metadata:
        raise CheckpointError(f"{path} is a safetensors file, but not {file_format.description}")
    try:
        header: dict[str, Any] = json.loads(metadata[file_format.name])
        version = int(header["version"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # also if nested too deeply
        raise CheckpointError(f"{path} has a damaged header: {error}") from error
    if version != file_format.version:
        remedy = "a newer one reads it" if version > file_format.version else file_format.remedy
        raise CheckpointError(
            f"{path} has format version {version}, this daband reads {file_format.version};"
            f" {remedy}"
        )
    missing_keys = {"digest", *file_format.required_keys} - header.keys()
    if missing_keys:
        raise CheckpointError(
            f"{path} has a damaged header: it lacks {', '.join(sorted(missing_keys))}"
        )
    return header
