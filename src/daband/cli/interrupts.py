"""Ctrl-C that is not lost.

Python turns the signal into an exception wherever it is. Inside a callback of a compiled library (numba loads
its kernels through such) that exception is swallowed, and the work goes on as if nobody had asked. So the asking is
noted, and looked at again whenever something is heard of the work.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from daband.experiments import Event

__all__ = ["interruptible"]

Listener = Callable[[Event], None]


@contextmanager
def interruptible(listener: Listener) -> Iterator[Listener]:
    """A listener that raises ``KeyboardInterrupt`` at the next event where one was asked for and got lost."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's alone
        yield listener
        return
    asked = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def hear(event: Event) -> None:
        if asked:
            raise KeyboardInterrupt
        listener(event)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield hear
    finally:
        signal.signal(signal.SIGINT, before)
