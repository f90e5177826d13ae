"""How the loops are compiled: with numba, and its cache where one can be written.

numba writes compiled loops beside the package or below the user's home. A container whose file system is read-only,
with a user who has no home, offers neither: there every process compiles anew, which takes some seconds.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

__all__ = ["UncachedKernelsWarning", "compiled"]

Loop = TypeVar("Loop", bound=Callable[..., Any])


class UncachedKernelsWarning(UserWarning):
    """Compiled loops cannot be kept on disk, so that this process compiles them anew."""


def compiled(**options: Any) -> Callable[[Loop], Loop]:
    """``numba.njit`` with a cache on disk, or without where numba finds no place to write one."""

    def compile_loop(loop: Loop) -> Loop:
        try:
            jitted: Loop = njit(cache=True, **options)(loop)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            _say_uncached()
            jitted = njit(**options)(loop)
        return jitted

    return compile_loop


@functools.cache
def _say_uncached() -> None:
    """Warn, once a process."""
    warnings.warn(
        "numba can write its cache neither beside the package nor below a home directory, so this process compiles "
        "daband's loops anew (some seconds). Point NUMBA_CACHE_DIR to a folder that can be written, or set "
        "DABAND_KERNELS=numpy",
        UncachedKernelsWarning,
        stacklevel=2,
    )
