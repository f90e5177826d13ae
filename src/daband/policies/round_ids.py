"""Which rounds were learned already, so that none is counted twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

from daband.arrays import AnyArray, BoolArray, IntArray
from daband.errors import InvalidInput

__all__ = ["RoundIds"]

_MOST_BITS = 63


class RoundIds:
    """The ids, integers or strings, of the latest ``window`` rounds that were learned with one.

    A policy in production learns for years: the window bounds its memory. A round whose id has left the window is no
    longer recognised.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._ids: dict[int | str, None] = {}  # a dict keeps the order in which ids came

    def __len__(self) -> int:
        return len(self._ids)

    def check(self, ids: Sequence[int | str] | IntArray, n: int) -> list[int | str]:
        """The ids as Python values; an error if there are not ``n``, or if one is no integer or string."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence | np.ndarray):
            raise InvalidInput(f"ids must be a list or array with a name per round, got {ids!r}")
        names = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if len(names) != n:
            raise InvalidInput(f"ids must name each of the {n} rounds, got {len(names)}")
        names = [int(name) if isinstance(name, np.integer) else name for name in names]
        for name in names:
            if isinstance(name, bool) or not isinstance(name, (int, str)):
                raise InvalidInput(f"ids must be integers or strings, got {name!r}")
        return names

    def unknown(self, names: Iterable[int | str]) -> BoolArray:
        """For each id whether it is new: not in the window, and not earlier in ``names``."""
        fresh: set[int | str] = set()
        new = []
        for name in names:
            new.append(name not in self._ids and name not in fresh)
            fresh.add(name)
        return np.array(new, np.bool_)

    def add(self, names: Iterable[int | str]) -> None:
        """Note that these rounds were learned; the oldest ids beyond the window are dropped."""
        self._ids.update(dict.fromkeys(names))
        for oldest in [name for name, _ in zip(self._ids, range(len(self._ids) - self.window), strict=False)]:
            del self._ids[oldest]

    def state(self) -> dict[str, AnyArray]:
        """The ids as arrays, in the order they came: as integers where all are and fit in 64 bits, else as JSON."""
        names = list(self._ids)
        numbers = all(isinstance(name, int) and name.bit_length() <= _MOST_BITS for name in names)
        text = b"" if numbers else json.dumps(names).encode()
        return {
            "integers": np.array(names if numbers else [], np.int64),
            "json": np.frombuffer(text, np.uint8),
        }

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""
        text, numbers = state["json"].tobytes(), state["integers"]
        self._ids = dict.fromkeys(json.loads(text) if text else numbers.tolist())
