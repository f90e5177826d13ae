"""The idx format in which MNIST is distributed."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from daband.arrays import AnyArray
from daband.errors import DataError

__all__ = ["read_idx"]

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> AnyArray:
    """The array of unsigned bytes in an idx file, gzipped or not."""
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except FileNotFoundError:
        raise DataError(f"{path} is not there; `daband data get digit` downloads it") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); delete it and run `daband data get digit`") from None
    remedy = "delete it and run `daband data get digit`"
    if len(data) < 4 or data[:2] != b"\x00\x00" or data[2] != _UNSIGNED_BYTE or data[3] == 0:
        raise DataError(f"{path} is not an idx file of unsigned bytes; {remedy}")
    n_axes = data[3]
    header = 4 + 4 * n_axes
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4))
    wanted = header + int(np.prod(shape, dtype=np.int64))
    if len(data) != wanted:
        raise DataError(f"{path} is truncated or damaged: {len(data)} bytes where its header says {wanted}; {remedy}")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)
