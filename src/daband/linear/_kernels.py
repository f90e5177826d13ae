"""Provide the inner loops as ``kernels``: compiled loops if numba is installed, numpy loops
otherwise.

The environment variable ``DABAND_KERNELS=numpy`` selects the numpy loops, e.g. to avoid
compilation. The module with the loops is imported when the first loop is used. Importing numba
takes more than a second, and an exported policy decides without it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from typing import Any

import numpy as np

from daband.base._arguments import check_one_of
from daband.linear._kernels_numpy import draw_uniforms


@functools.cache
def kernels_are_compiled() -> bool:
    """Return True for compiled loops: ``DABAND_KERNELS`` is "numba", or it is not "numpy" and numba
    is installed.
    """
    choice = os.environ.get("DABAND_KERNELS", "auto")
    check_one_of("DABAND_KERNELS", choice, ("auto", "numba", "numpy"))
    return choice == "numba" or (choice == "auto" and importlib.util.find_spec("numba") is not None)


class _LazyKernels:
    """A stand-in for the module with the loops. It imports the module when the first loop
    is used.
    """

    def __getattr__(self, name: str) -> Any:
        library = "numba" if kernels_are_compiled() else "numpy"
        loop = getattr(importlib.import_module(f"daband.linear._kernels_{library}"), name)
        setattr(self, name, loop)  # later uses find the loop without this method
        return loop


kernels: Any = _LazyKernels()


# Seeded random draws without a generator (``draw_uniforms``). A draw is a hash (splitmix64) of a
# key, a round number and a slot, which is the index of the draw in its round.
#
# So a batch has the same draws as its single rounds, rounds can be drawn in any order, and there is
# no generator state to save. The draws are the same with numba and without, on every processor.


def make_draw_key(seed: int) -> np.uint64:
    """Return the key of random draws for a seed. Seeds that differ in one bit give
    unrelated keys.
    """
    return np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]


__all__ = ["draw_uniforms", "kernels", "kernels_are_compiled", "make_draw_key"]
