"""Everything that can be reached from an object: what the leak check walks."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["reachable"]

_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.CodeType, types.FrameType)


def reachable(root: object) -> Iterator[object]:
    """Yield every object that ``root`` leads to: attributes, containers, closures, bound methods, caches, array bases.

    Not followed are modules, classes and a function's globals, through which everything leads to everything.
    """
    waiting: list[object] = [root]
    seen: dict[int, object] = {}  # holds the objects too: an id is unique only while its object lives
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, _ATOMS):
            continue
        seen[id(found)] = found
        yield found
        waiting.extend(_next(found))


def _next(found: Any) -> list[object]:
    if isinstance(found, np.ndarray):
        below: list[object] = [found.base] if found.base is not None else []
        return [*below, *found.reshape(-1).tolist()] if found.dtype == object else below
    if isinstance(found, types.FunctionType):
        cells = [cell.cell_contents for cell in found.__closure__ or () if _is_filled(cell)]
        return [*cells, *(found.__defaults__ or ()), *(found.__kwdefaults__ or {}).values(), found.__dict__]
    if isinstance(found, types.MethodType):
        return [found.__self__, found.__func__]
    if isinstance(found, functools.partial):
        return [found.func, found.args, found.keywords]
    if isinstance(found, dict):
        return [*found.keys(), *found.values()]
    slots = [getattr(found, name) for name in _slots(type(found)) if hasattr(found, name)]
    return [*gc.get_referents(found), *slots]


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _slots(kind: type) -> list[str]:
    names: list[str] = []
    for ancestor in kind.__mro__:
        own = ancestor.__dict__.get("__slots__", ())
        names += [own] if isinstance(own, str) else list(own)
    return names
