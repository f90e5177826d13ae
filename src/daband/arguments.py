"""Arguments that a user passed, checked on entry with an error that names the argument."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from daband.errors import InvalidInput

__all__ = ["finite", "share", "whole"]


def whole(name: str, value: Any, *, least: int) -> int:
    """The value as an int, if it is a whole number of at least ``least``; True, 2.0 and "2" are none."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidInput(f"{name} must be a whole number >= {least}, got {value!r}")
    return int(value)


def finite(name: str, value: Any) -> float:
    """The value as a float, if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a finite number, got {value!r}")
    return float(value)


def share(name: str, value: Any) -> float:
    """The value as a float, if it is a share of something: at least 0 and below 1."""
    number = finite(name, value)
    if not 0.0 <= number < 1.0:
        raise InvalidInput(f"{name} must be a share, at least 0 and below 1, got {value!r}")
    return number
