"""The folder of work that takes long: claimed by its settings, held by one process at a time, resumed, finished.

Runs, fits to logs and choices are kept in one. A file of settings says what is done there: whoever comes with others is
refused, with the setting that differs. What was reached lies beside it. ``done`` is written last, with the digests of
the files, so that a changed bit is an error and never another number.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from daband._files import locked, make_folder, read_json, remove_orphans, write_json
from daband.errors import DataError, InvalidInput

#: Between two saves pass at least so many times what a save takes: long work has more to write each time, and yet
#: saving stays below a twentieth of it.
_SAVES_APART = 20.0


class Folder:
    """A folder at work is locked: ``release`` it, or let it go with the process. ``what`` names its content."""

    def __init__(self, path: str | Path, *, what: str = "a run", save_every: float = 0.0) -> None:
        self.path = make_folder(path)
        self.what = what
        self._save_every = self._apart = save_every
        self._lock = ExitStack()
        self._lock.enter_context(locked(self.path, wait=False))
        self._saved = time.perf_counter()
        remove_orphans(self.path)

    def release(self) -> None:
        """Let others work in the folder."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    def settings(self, file: str) -> Any:
        """The settings that the folder was claimed with; None where nobody has claimed it."""
        path = self.path / file
        if not os.path.lexists(path):
            return None
        try:
            return read_json(path)
        except DataError as error:
            raise InvalidInput(f"{error}; remove the folder to start anew") from None

    def claim(self, file: str, settings: Mapping[str, Any]) -> None:
        """Write the settings, or see that the folder holds work of the same settings."""
        before = self.settings(file)
        if before is not None:
            self.compare(before, settings)
        else:
            self.write_settings(file, settings)

    def compare(self, before: Any, settings: Mapping[str, Any]) -> None:
        """Refuse a folder that was claimed with other settings."""
        if different := difference(before, as_json(settings)):
            text = f"{self.path} holds {self.what} with other settings ({different}); choose another directory"
            raise InvalidInput(text)

    def write_settings(self, file: str, settings: Mapping[str, Any]) -> None:
        """Claim the folder with these settings from now on."""
        write_json(self.path / file, as_json(settings), sort_keys=True)

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.perf_counter() - self._saved >= self._apart

    def note_save(self, begun: float, *, turns: int = 1) -> None:
        """A save that began at ``begun`` is over: the next ones keep their distance, more where ``turns`` are taken."""
        self._saved = time.perf_counter()
        self._apart = max(self._save_every, _SAVES_APART * turns * (self._saved - begun)) if self._save_every else 0.0


def as_json(settings: Mapping[str, Any]) -> Any:
    """What comes back when settings are written to a file and read."""
    return json.loads(json.dumps(settings))


def difference(before: Any, now: Any, path: str = "") -> str:
    """The first place where two JSON values differ, in words; empty when they are the same."""
    if isinstance(before, dict) and isinstance(now, dict):
        # A mark of the data depends on other settings too: it is named where nothing else is different.
        for key in sorted(before.keys() | now.keys(), key=lambda key: (key == "data", key)):
            different = difference(before.get(key), now.get(key), f"{path}.{key}" if path else key)
            if different:
                return different
        return ""
    return "" if before == now else f"{path}: there {before!r}, here {now!r}"
