"""Writing files so that a reader never sees half of one, whenever the writer dies."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_bytes", "write_text"]


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a whole file or nothing: to a temporary name beside it, flushed to disk, then renamed."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "the folder does not exist", str(path.parent))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | Path, content: str) -> None:
    """``write_bytes`` for text, in UTF-8."""
    write_bytes(path, content.encode())
