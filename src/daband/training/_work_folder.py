"""Manage the folder of a long task, and defer signals until the task is saved.

Training runs, ``fit_log`` and audits save their progress in such a folder, which one process locks.
A settings file identifies the task, and results are stored next to it. A later call with other
settings raises an error that names the first difference.

``Folder`` is the folder. ``defer_stop_signals`` delays Ctrl-C and SIGTERM until the progress is
saved.
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


#: The signals that wait until the current episode is finished and saved.
_DEFERRED_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _DefaultSignalAction(BaseException):
    """An exception that leaves the block of ``defer_stop_signals``, which then raises the signal
    again.

    The signal's default action ends the process.
    """


class StopRequest:
    """A possible request to stop: the signal that has arrived during the current episode,
    if any.
    """

    def __init__(self) -> None:
        #: The number of the signal; None if none has arrived.
        self.signal_number: int | None = None
        #: The handlers that signals had before training, by signal number.
        self.previous_handlers: dict[int, Any] = {}

    def handle_signal(self, save: Callable[[], None]) -> None:
        """Do nothing if no signal has arrived.

        Otherwise call ``save``, and then the signal's previous handler.

        Usually that handler raises an exception (``KeyboardInterrupt`` for Ctrl-C) or ends the
        process. If it returns, training continues.
        """
        if self.signal_number is None:
            return
        signal_number = self.signal_number
        self.signal_number = None
        save()
        handler = self.previous_handlers[signal_number]
        if not callable(handler):
            self.signal_number = signal_number
            raise _DefaultSignalAction
        handler(signal_number, None)


@contextmanager
def defer_stop_signals(*, enabled: bool) -> Iterator[StopRequest]:
    """Record Ctrl-C and SIGTERM in this block instead of acting on them.

    The block must call ``handle_signal`` of the yielded request after every episode. A second
    Ctrl-C takes effect at once. A second SIGTERM does not, because a process may receive one from
    the system and one from its parent. Signals are not deferred if ``enabled`` is False, or if the
    calling thread is not the main thread.
    """
    request = StopRequest()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield request
        return

    def record_signal(signal_number: int, _frame: FrameType | None) -> None:
        if signal_number == signal.SIGINT and request.signal_number == signal_number:
            request.signal_number = None
            signal.signal(signal_number, request.previous_handlers[signal_number])
            signal.raise_signal(signal_number)
        else:
            request.signal_number = signal_number

    for deferred_signal in _DEFERRED_SIGNALS:
        handler = signal.getsignal(deferred_signal)
        if handler is not None and handler is not signal.SIG_IGN:  # it is None if C code has set it
            request.previous_handlers[deferred_signal] = handler
            signal.signal(deferred_signal, record_signal)
    try:
        with suppress(_DefaultSignalAction):
            yield request
    finally:
        for signal_number, handler in request.previous_handlers.items():
            signal.signal(signal_number, handler)
        # The signal's default action must end the process, or the signal arrived after the last
        # episode.
        if request.signal_number is not None:
            signal.raise_signal(request.signal_number)
