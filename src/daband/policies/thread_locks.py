"""The locks of an object that threads share; copies and pickles get locks of their own."""

from __future__ import annotations

import copy
import threading
from typing import Any

__all__ = ["ThreadSafe"]

_LOCKS = ("_write_lock", "_state_lock")


class ThreadSafe:
    """Has ``_write_lock``, held by whoever changes the object, and ``_state_lock``, held for moments only.

    Where both are held, the write lock was taken first.
    """

    def __init__(self) -> None:
        self._write_lock = threading.RLock()
        self._state_lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        # Copied while the lock is held: what a thread changes afterwards must not be half in a copy or a pickle.
        with self._write_lock:
            return copy.deepcopy({name: value for name, value in self.__dict__.items() if name not in _LOCKS})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        ThreadSafe.__init__(self)
