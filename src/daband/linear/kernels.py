"""Which inner loops run here: compiled ones where numba is installed, numpy ones otherwise.

``DABAND_KERNELS=numpy`` selects the numpy ones, e.g. where compiling is not wanted.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from daband.errors import InvalidInput

__all__ = ["compiled", "draws", "kernels"]


def _selected() -> str:
    asked = os.environ.get("DABAND_KERNELS", "auto")
    if asked not in ("auto", "numba", "numpy"):
        raise InvalidInput(f"DABAND_KERNELS must be 'auto', 'numba' or 'numpy', got {asked!r}")
    if asked == "auto":
        return "numba" if importlib.util.find_spec("numba") else "numpy"
    return asked


_name = _selected()
compiled = _name == "numba"
kernels: Any = importlib.import_module(f"daband.linear.kernels_{_name}")
draws: Any = importlib.import_module(f"daband.linear.draws_{_name}")
