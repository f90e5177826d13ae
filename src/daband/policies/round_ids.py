"""Which rounds were learned already, so that none is counted twice."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from daband.arrays import AnyArray, IntArray
from daband.errors import InvalidInput

__all__ = ["RoundIds"]


class RoundIds:
    """A set of round ids, integers or strings, that can be saved as arrays."""

    def __init__(self) -> None:
        self._ids: set[int | str] = set()

    def checked(self, ids: Sequence[int | str] | IntArray, n: int) -> list[int | str]:
        """The ids as Python values; an error if there are not ``n``, or if one is of another type or was seen."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence | np.ndarray):
            raise InvalidInput(f"ids must be a list or array with a name per round, got {ids!r}")
        names = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if len(names) != n:
            raise InvalidInput(f"ids must name each of the {n} rounds, got {len(names)}")
        fresh: set[int | str] = set()
        names = [int(name) if isinstance(name, np.integer) else name for name in names]
        for name in names:
            if isinstance(name, bool) or not isinstance(name, (int, str)):
                raise InvalidInput(f"ids must be integers or strings, got {name!r}")
            if name in self._ids or name in fresh:
                raise InvalidInput(f"ids: the round {name!r} was learned before; every round counts once")
            fresh.add(name)
        return names

    def add(self, names: list[int | str]) -> None:
        """Note that these rounds were learned."""
        self._ids.update(names)

    def state(self) -> dict[str, AnyArray]:
        """The ids as arrays: integers that fit in 64 bits, and the rest as JSON text."""
        numbers = sorted(name for name in self._ids if isinstance(name, int) and -(2**63) <= name < 2**63)
        others = [name for name in self._ids if not (isinstance(name, int) and -(2**63) <= name < 2**63)]
        text = json.dumps(sorted(others, key=str)).encode()
        return {"integers": np.array(numbers, np.int64), "others": np.frombuffer(text, np.uint8)}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Take over what ``state`` returned."""
        self._ids = set(state["integers"].tolist()) | set(json.loads(state["others"].tobytes()))
