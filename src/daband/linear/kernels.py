"""Which inner loops run here: compiled ones where numba is installed, numpy otherwise.

``DABAND_KERNELS=numpy`` asks for the numpy ones, e.g. where compiling is unwelcome.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from daband.errors import InvalidInput

__all__ = ["compiled", "kernels", "packed"]


def _wanted() -> str:
    asked = os.environ.get("DABAND_KERNELS", "auto")
    if asked not in ("auto", "numba", "numpy"):
        raise InvalidInput(f"DABAND_KERNELS must be 'auto', 'numba' or 'numpy', got {asked!r}")
    if asked == "auto":
        return "numba" if importlib.util.find_spec("numba") else "numpy"
    return asked


_name = _wanted()
compiled = _name == "numba"
kernels: Any = importlib.import_module(f"daband.linear.kernels_{_name}")
packed: Any = importlib.import_module("daband.linear.kernels_packed") if compiled else None
"""The kernels for single rounds; they are worth having only where they are compiled."""
