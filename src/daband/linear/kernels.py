"""Which inner loops run here: compiled ones where numba is installed, numpy ones otherwise.

``DABAND_KERNELS=numpy`` selects the numpy ones, e.g. where compiling is not wanted. They are loaded when the first
loop runs: numba takes more than a second to import, and who only decides with an exported policy needs none of it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from typing import Any

from daband.errors import InvalidInput

__all__ = ["draws", "kernels", "kernels_are_compiled"]


@functools.cache
def kernels_are_compiled() -> bool:
    """Whether numba's loops run here, by ``DABAND_KERNELS`` or because numba is installed."""
    asked = os.environ.get("DABAND_KERNELS", "auto")
    if asked not in ("auto", "numba", "numpy"):
        raise InvalidInput(f"DABAND_KERNELS must be 'auto', 'numba' or 'numpy', got {asked!r}")
    return asked == "numba" or (asked == "auto" and importlib.util.find_spec("numba") is not None)


class _LoadedOnUse:
    """A module of loops that is imported when the first of them is called; afterwards an attribute like any other."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        kind = "numba" if kernels_are_compiled() else "numpy"
        loop = getattr(importlib.import_module(f"{self._module}_{kind}"), name)
        setattr(self, name, loop)
        return loop


kernels: Any = _LoadedOnUse("daband.linear.kernels")
draws: Any = _LoadedOnUse("daband.linear.draws")
