"""How large a context may be against the ridge before rounding errors reach the predictions.

The largest eigenvalue of A is at least |z|^2 of any context learned, the smallest may be the ridge: what double
precision leaves of means and widths shrinks with the ratio of the two.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from daband.arrays import AnyArray, FloatArray
from daband.errors import InvalidInput
from daband.linear.kernels import kernels

__all__ = ["LARGEST_SQUARE", "check_norm", "raise_too_large", "squared_norms"]

LARGEST_SQUARE = 1e10
"""The largest squared norm of a context, in units of the ridge. Up to here means are off by about 1e-6 at most, by 1e-4
in the dual form or where one such context repeats. Errors grow in proportion to it: at 1e16 widths are noise."""


def squared_norms(contexts: AnyArray) -> FloatArray:
    """The squared norm of every row of contexts (B, d), (B,); uint8 counts as 0..1."""
    wide = contexts.astype(np.float64, copy=False)
    norms: FloatArray = np.einsum("bd,bd->b", wide, wide)
    return norms / (255.0 * 255.0) if contexts.dtype == np.uint8 else norms


def check_norm(contexts: AnyArray, ridge: float) -> None:
    """Refuse contexts (..., d) of which one is too large against the ridge."""
    limit = LARGEST_SQUARE * ridge
    if contexts.dtype == np.uint8 and contexts.shape[-1] <= limit:
        return
    if contexts.dtype == np.float64 and kernels.sum_of_squares(contexts.reshape(-1)) <= limit:  # all rows at once
        return
    norms = squared_norms(contexts.reshape(-1, contexts.shape[-1]))
    if not (norms <= limit).all():
        raise_too_large(norms, ridge)


def raise_too_large(norms: FloatArray, ridge: float) -> NoReturn:
    """Name the largest of the contexts with these squared norms (B,)."""
    row = int(np.argmax(norms))
    raise InvalidInput(
        f"contexts are too large against ridge={ridge:g} for accurate arithmetic: row {row} has squared norm "
        f"{float(norms[row]):.3g}, and at most {LARGEST_SQUARE:g} times the ridge is accepted. Look for an outlier, "
        "scale the contexts down, or raise the ridge"
    )
