"""Ctrl-C and SIGTERM that are not lost.

Python turns Ctrl-C into an exception wherever it is. Inside a callback of a compiled library (numba loads its kernels
through such) that exception is swallowed, and the work goes on. So the request is noted, and looked at again at every
event of the work. SIGTERM is treated in the same way.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from daband.experiments import Event

__all__ = ["Terminated", "interruptible"]

Listener = Callable[[Event], None]


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; it stops the work as Ctrl-C does."""


_MEANING: dict[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


@contextmanager
def interruptible(listener: Listener) -> Iterator[Listener]:
    """A listener that raises at the next event where a stop was requested and the exception got lost.

    Ctrl-C raises ``KeyboardInterrupt``, SIGTERM ``Terminated``.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's alone
        yield listener
        return
    requested: type[KeyboardInterrupt] | None = None

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal requested
        requested = _MEANING[number]
        raise requested

    def hear(event: Event) -> None:
        if requested is not None:
            raise requested
        listener(event)

    before = {number: signal.signal(number, note) for number in _MEANING}
    try:
        yield hear
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
