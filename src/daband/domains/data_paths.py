"""Where data lies: the data directory that a user fills, and the cache that daband fills.

They are two folders because the first may be shared and read-only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from daband.errors import DataError

__all__ = ["cache_directory", "data_directory", "find", "need"]


def data_directory() -> Path:
    """The folder with downloaded data: ``DABAND_DATA``, else ``data`` in the cache folder. It need not exist."""
    given = os.environ.get("DABAND_DATA")
    return Path(given).expanduser() if given else cache_directory() / "data"


def cache_directory() -> Path:
    """The folder for what daband can make again: ``DABAND_CACHE``, else the user's cache folder."""
    given = os.environ.get("DABAND_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser() / "daband"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/daband").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "daband"


def find(candidates: Sequence[str], *, directory: Path | None = None) -> Path | None:
    """The first of these paths below the data directory that exists."""
    root = data_directory() if directory is None else directory
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    return None


def need(candidates: Sequence[str], *, pair: str, directory: Path | None = None) -> Path:
    """Like ``find``; when nothing is there, an error that says what is missing and where it would be looked for."""
    found = find(candidates, directory=directory)
    if found is None:
        root = data_directory() if directory is None else directory
        names = " or ".join(candidates)
        raise DataError(
            f"{pair} needs {names} below the data directory {root}. `daband data check {pair}` says where to get it; "
            f"set DABAND_DATA to use another directory"
        )
    return found
