"""The folder of a long task: identified by its settings, locked by one process, saved before a signal ends it.

Runs, log fits and choices use such a folder. A settings file identifies the task: other settings are rejected, with
an error that names the first difference. Results are stored next to it. ``done`` is written last, with the digests
of the files, so that a changed bit is an error and never a different result.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from daband._files import locked, make_folder, read_json, remove_orphans, write_json
from daband.errors import DataError, InvalidInput

#: Minimum time between two saves, as a multiple of the time of a save, so that saving takes less than a
#: twentieth of the total even though long tasks write more each time.
_SAVES_APART = 20.0


class Folder:
    """A locked folder: call ``release``, or the lock ends with the process. ``what`` names its content."""

    def __init__(self, path: str | Path, *, what: str = "a run", save_every: float = 0.0) -> None:
        self.path = make_folder(path)
        self.what = what
        self._save_every = self._apart = save_every
        self._lock = ExitStack()
        self._lock.enter_context(locked(self.path, wait=False))
        self._saved = time.perf_counter()
        remove_orphans(self.path)

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    def claim(self, file: str, settings: Mapping[str, Any]) -> None:
        """Write the settings, or raise an error if the folder has other settings."""
        path, wanted = self.path / file, as_json(settings)
        if not os.path.lexists(path):
            write_json(path, wanted, sort_keys=True)
            return
        try:
            different = difference(read_json(path), wanted)
        except DataError as error:
            raise InvalidInput(f"{error}; remove the folder to start anew") from None
        if different:
            text = f"{self.path} holds {self.what} with other settings ({different}); choose another directory"
            raise InvalidInput(text)

    def due(self) -> bool:
        """Return True if it is time to save."""
        return time.perf_counter() - self._saved >= self._apart

    def note_save(self, begun: float, *, turns: int = 1) -> None:
        """Record the end of a save that started at ``begun``, and set the time of the next; ``turns`` multiplies it."""
        self._saved = time.perf_counter()
        self._apart = max(self._save_every, _SAVES_APART * turns * (self._saved - begun)) if self._save_every else 0.0


def as_json(settings: Mapping[str, Any]) -> Any:
    """Return settings as they are after writing and reading JSON."""
    try:
        return json.loads(json.dumps(dict(settings)))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"settings must hold texts, numbers, lists and mappings, for JSON ({error})") from None


def difference(before: Any, now: Any, path: str = "") -> str:
    """Describe the first difference of two JSON values; empty if they are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        # The data digest also depends on other settings: it is named only if nothing else differs.
        for key in sorted(before.keys() | now.keys(), key=lambda key: (key == "data", key)):
            different = difference(before.get(key), now.get(key), f"{path}.{key}" if path else key)
            if different:
                return different
        return ""
    return "" if before == now else f"{path}: there {before!r}, here {now!r}"


# Ctrl-C and SIGTERM: the current episode is finished and saved, then the signal takes effect.

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _EndByDefault(BaseException):
    """Unwinds training before a signal has its default effect, which ends the process at once."""


class StopRequest:
    """The signal that arrived during an episode, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.previous: dict[int, Any] = {}

    def obey(self, save: Callable[[], None]) -> None:
        """If a signal has arrived, save, then do what the signal did before training started.

        This raises (``KeyboardInterrupt`` for Ctrl-C) or ends the process. If the caller's own handler only returns,
        training continues.
        """
        if self.signal is None:
            return
        number, self.signal = self.signal, None
        save()
        handler = self.previous[number]
        if not callable(handler):
            self.signal = number
            raise _EndByDefault
        handler(number, None)


@contextmanager
def stop_signals_deferred(*, wanted: bool) -> Iterator[StopRequest]:
    """Record Ctrl-C and SIGTERM without acting on them; the caller obeys at the end of an episode.

    A second Ctrl-C takes effect at once. A second SIGTERM does not: a group of processes may receive one from the
    system and one from its parent. Only the main thread can do this, and only a run with a folder needs it: in all
    other cases signals act as usual.
    """
    request = StopRequest()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and request.signal == number:
            request.signal = None
            signal.signal(number, request.previous[number])
            signal.raise_signal(number)
        else:
            request.signal = number

    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if handler is not None and handler is not signal.SIG_IGN:  # neither set by foreign code nor meant to be ignored
            request.previous[number] = handler
            signal.signal(number, note)
    try:
        with suppress(_EndByDefault):
            yield request
    finally:
        for replaced, handler in request.previous.items():
            signal.signal(replaced, handler)
        if request.signal is not None:  # its default ends the process, or no episode followed it
            signal.raise_signal(request.signal)
