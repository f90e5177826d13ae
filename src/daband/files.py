"""Files that are whole or not there, whenever the writer dies, and that are named where they cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from daband.errors import DataError

__all__ = ["read_json", "write_bytes", "write_text"]


def read_json(path: str | Path) -> Any:
    """What a JSON file holds; one that is damaged or cannot be read is an error that names it."""
    path = Path(path)
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


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
