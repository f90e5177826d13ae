"""Manage the folder of a long task.

Training runs, ``fit_log`` and audits save their progress in such a folder, which one process locks.
A settings file identifies the task, and results are stored next to it. A later call with other
settings raises an error that names the first difference.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from daband.base._files import lock_folder, make_folder, read_json, write_json
from daband.errors import DataError, InvalidInput

#: The minimum time between two saves, as a multiple of the duration of a save. Saving therefore
#: takes less than a twentieth of the total time.
_SAVE_INTERVAL_FACTOR = 20.0


class Folder:
    """A folder that is locked by this process until ``release`` is called.

    Args:
        path: the folder, which is created if needed.
        content: the name of its content in error messages, e.g. "a run".
        save_every: the minimum number of seconds between two saves; with 0 it is always time to
            save.
    """

    def __init__(
        self, path: str | Path, *, content: str = "a run", save_every: float = 0.0
    ) -> None:
        self.path = make_folder(path)
        self.content = content
        self._min_interval = self._save_interval = save_every
        self._lock = ExitStack()
        self._lock.enter_context(lock_folder(self.path, wait=False))
        self._last_save = time.perf_counter()

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception_info: object) -> None:
        self.release()

    def claim(self, file_name: str, settings: Mapping[str, Any]) -> None:
        """Write the settings to a file of the folder.

        If it exists, raise an error unless it has the same settings.
        """
        path = self.path / file_name
        new_settings = as_json(settings)
        if not os.path.lexists(path):
            write_json(path, new_settings, sort_keys=True)
            return
        try:
            difference = describe_difference(read_json(path), new_settings)
        except DataError as error:
            raise InvalidInput(f"{error}; remove the folder to start again") from None
        if difference:
            message = (
                f"{self.path} holds {self.content} with other settings ({difference}); choose"
                " another directory"
            )
            raise InvalidInput(message)

    def is_save_due(self) -> bool:
        """Return True if it is time to save."""
        return time.perf_counter() - self._last_save >= self._save_interval

    def record_save(self, start_time: float) -> None:
        """Record the end of a save, and set the time of the next save.

        Args:
            start_time: the time at which the save started, from ``time.perf_counter``.
        """
        self._last_save = time.perf_counter()
        interval = _SAVE_INTERVAL_FACTOR * (self._last_save - start_time)
        self._save_interval = max(self._min_interval, interval) if self._min_interval else 0.0


def as_json(settings: Mapping[str, Any]) -> Any:
    """Return settings as JSON types, as they would be after writing and reading a JSON file."""
    try:
        return json.loads(json.dumps(dict(settings)))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"settings must contain only strings, numbers, lists and mappings ({error})"
        ) from None


def describe_difference(stored: Any, current: Any, name: str = "") -> str:
    """Return a description of the first difference between two JSON values; empty if they are
    equal.

    ``name`` is the path of the values in the settings, such as "training.seed".
    """
    if isinstance(stored, dict) and isinstance(current, dict):
        # The digest of the data also depends on other settings, so "data" is compared last.
        for key in sorted(stored.keys() | current.keys(), key=lambda key: (key == "data", key)):
            difference = describe_difference(
                stored.get(key), current.get(key), f"{name}.{key}" if name else key
            )
            if difference:
                return difference
        return ""
    return "" if stored == current else f"{name}: stored {stored!r}, now {current!r}"
