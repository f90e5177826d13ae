"""Manage the folder of a long task, which one process locks, and defer signals until the task is saved.

Runs, log fits and audits use such a folder. A settings file identifies the task. Other settings are rejected, with an
error that names the first difference. Results are stored next to the settings file.
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

#: The minimum time between two saves, as a multiple of the duration of a save. So saving takes less than a twentieth of
#: the total time.
_SAVE_INTERVAL_FACTOR = 20.0


class Folder:
    """A folder that is locked by this process until ``release`` is called.

    Args:
        path: the folder, which is created if needed.
        what: the name of its content in error messages.
        save_every: the minimum number of seconds between two saves.
    """

    def __init__(self, path: str | Path, *, what: str = "a run", save_every: float = 0.0) -> None:
        self.path = make_folder(path)
        self.what = what
        self._save_every = self._save_interval = save_every
        self._lock = ExitStack()
        self._lock.enter_context(locked(self.path, wait=False))
        self._last_save = time.perf_counter()
        remove_orphans(self.path)

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    def claim(self, file: str, settings: Mapping[str, Any]) -> None:
        """Write the settings to ``file``. If the file exists, raise an error unless it has the same settings."""
        path, expected = self.path / file, as_json(settings)
        if not os.path.lexists(path):
            write_json(path, expected, sort_keys=True)
            return
        try:
            difference = describe_difference(read_json(path), expected)
        except DataError as error:
            raise InvalidInput(f"{error}; remove the folder to start again") from None
        if difference:
            text = f"{self.path} holds {self.what} with other settings ({difference}); choose another directory"
            raise InvalidInput(text)

    def is_due(self) -> bool:
        """Return True if it is time to save."""
        return time.perf_counter() - self._last_save >= self._save_interval

    def record_save(self, started: float, *, n_runs: int = 1) -> None:
        """Record that a save that started at ``started`` has ended, and set the time of the next save.

        If ``n_runs`` runs take turns, each saves proportionally less often.
        """
        self._last_save = time.perf_counter()
        interval = _SAVE_INTERVAL_FACTOR * n_runs * (self._last_save - started)
        self._save_interval = max(self._save_every, interval) if self._save_every else 0.0


def as_json(settings: Mapping[str, Any]) -> Any:
    """Return settings as they are after writing and reading JSON."""
    try:
        return json.loads(json.dumps(dict(settings)))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"settings must contain only strings, numbers, lists and mappings ({error})") from None


def describe_difference(stored: Any, current: Any, path: str = "") -> str:
    """Return a description of the first difference between two JSON values; empty if they are equal."""
    if isinstance(stored, dict) and isinstance(current, dict):
        # The data digest also depends on other settings: it is named only if nothing else differs.
        for key in sorted(stored.keys() | current.keys(), key=lambda key: (key == "data", key)):
            difference = describe_difference(stored.get(key), current.get(key), f"{path}.{key}" if path else key)
            if difference:
                return difference
        return ""
    return "" if stored == current else f"{path}: stored {stored!r}, now {current!r}"


#: Signals that wait until the current episode is finished and saved.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _DefaultSignalAction(BaseException):
    """An exception that ends training. The signal is then raised again, and its default action ends the process."""


class StopRequest:
    """A request to stop: the signal that arrived during an episode, if any."""

    def __init__(self) -> None:
        #: The number of the signal, or None.
        self.signal: int | None = None
        #: The handlers that signals had before training, by signal number.
        self.previous_handlers: dict[int, Any] = {}

    def handle_signal(self, save: Callable[[], None]) -> None:
        """If a signal has arrived, save and then call the handler that the signal had before training.

        That handler raises (``KeyboardInterrupt`` for Ctrl-C) or ends the process. If it returns, training continues.
        """
        if self.signal is None:
            return
        number, self.signal = self.signal, None
        save()
        handler = self.previous_handlers[number]
        if not callable(handler):
            self.signal = number
            raise _DefaultSignalAction
        handler(number, None)


@contextmanager
def defer_stop_signals(*, enabled: bool) -> Iterator[StopRequest]:
    """Record Ctrl-C and SIGTERM in this block, which must call ``handle_signal`` of the request after every episode.

    A second Ctrl-C takes effect at once. A second SIGTERM does not: a group of processes may receive one from the
    system and one from its parent. Signals are not deferred if ``enabled`` is False, or if the calling
    thread is not the main thread.
    """
    request = StopRequest()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield request
        return

    def record(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and request.signal == number:
            request.signal = None
            signal.signal(number, request.previous_handlers[number])
            signal.raise_signal(number)
        else:
            request.signal = number

    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if handler is not None and handler is not signal.SIG_IGN:  # None: set by C code
            request.previous_handlers[number] = handler
            signal.signal(number, record)
    try:
        with suppress(_DefaultSignalAction):
            yield request
    finally:
        for signal_number, handler in request.previous_handlers.items():
            signal.signal(signal_number, handler)
        if request.signal is not None:  # its default action ends the process, or no episode followed it
            signal.raise_signal(request.signal)
