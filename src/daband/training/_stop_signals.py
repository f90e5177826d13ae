"""Ctrl-C and SIGTERM during training: the episode under way is finished and saved, then the signal takes effect."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _EndByDefault(BaseException):
    """Unwinds training before a signal has its default effect, which ends the process at once."""


class StopRequest:
    """The signal that arrived while an episode was under way, if one did."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.previous: dict[int, Any] = {}

    def obey(self, save: Callable[[], None]) -> None:
        """Where a signal has arrived: save, then do what the signal did before training began.

        That raises (``KeyboardInterrupt`` for Ctrl-C) or ends the process. A handler of the caller's own that only
        returns lets training go on.
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


@contextlib.contextmanager
def stop_signals_deferred(*, wanted: bool) -> Iterator[StopRequest]:
    """Note Ctrl-C and SIGTERM instead of acting on them; the caller obeys at the end of an episode.

    A second Ctrl-C takes effect at once. A second SIGTERM does not: a group of processes may receive one from the
    system and one from its parent. Only the main thread can do this, and it is of use only where a run has a folder to
    save into: elsewhere signals act as they always do.
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
        with contextlib.suppress(_EndByDefault):
            yield request
    finally:
        for replaced, handler in request.previous.items():
            signal.signal(replaced, handler)
        if request.signal is not None:  # its default ends the process, or no episode followed it
            signal.raise_signal(request.signal)
