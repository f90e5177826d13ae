"""Check user arguments, and raise errors that name the argument.

Every ``check_*`` function takes the name of the argument for the message, and returns the value in
its final type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np

from daband.base._arrays import ArrayLike, BoolArray, as_numpy
from daband.errors import InvalidInput

#: A function that is called with numbers by name while a long task runs, such as the rows so far.
Progress: TypeAlias = Callable[[dict[str, float]], None]


def check_int(name: str, value: Any, *, minimum: int) -> int:
    """Return the value as an int.

    Raise an error unless it is an integer >= ``minimum``; True and 2.0 are rejected.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise InvalidInput(f"{name} must be an integer >= {minimum}, got {value!r}")
    return int(value)


def check_finite(name: str, value: Any) -> float:
    """Return the value as a float. Raise an error unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a finite number, got {value!r}")
    return float(value)


def check_fraction(name: str, value: Any, *, allow_one: bool = False) -> float:
    """Return the value as a float.

    Raise an error unless it is in [0, 1), or in [0, 1] with ``allow_one``.
    """
    number = check_finite(name, value)
    if not 0.0 <= number <= 1.0 or (number == 1.0 and not allow_one):
        end = "]" if allow_one else ")"
        raise InvalidInput(f"{name} must be in [0, 1{end}, got {value!r}")
    return number


def check_probability(name: str, value: Any) -> float:
    """Return the value as a float. Raise an error unless it is above 0 and below 1."""
    if not 0.0 < check_finite(name, value) < 1.0:
        raise InvalidInput(f"{name} must be between 0 and 1, got {value!r}")
    return float(value)


def check_one_of(name: str, value: Any, options: Sequence[Any]) -> Any:
    """Return the value if it is one of ``options``, otherwise raise an error.

    The types must match as well: 1 is not True. An array never matches.
    """
    if not any(isinstance(value, type(option)) and value == option for option in options):
        *other_options, last_option = map(repr, options)
        raise InvalidInput(
            f"{name} must be {', '.join(other_options)} or {last_option}, got {value!r}"
        )
    return value


def check_class_names(
    class_names: Sequence[str] | None, n_arms: int, name: str = "class_names"
) -> tuple[str, ...]:
    """Return the name of each arm, (n_arms,): ``class_names``, or "0", "1", ... if it is None.

    Raise an error unless the names are different strings, one per arm. ``name`` is the name of the
    argument in errors.
    """
    if class_names is None:
        return tuple(str(arm) for arm in range(n_arms))
    if isinstance(class_names, str) or not isinstance(class_names, Iterable):
        raise InvalidInput(f"{name} must be a list with a name per arm, got {class_names!r}")
    arm_names = tuple(class_names)
    if not all(isinstance(arm_name, str) and "\0" not in arm_name for arm_name in arm_names):
        raise InvalidInput(f"{name} must be strings without NUL characters, got {class_names!r}")
    if len(arm_names) != n_arms:
        raise InvalidInput(
            f"{name} must have a name for each of {n_arms} arms, got {len(arm_names)} names"
        )
    if len(set(arm_names)) < len(arm_names):
        repeated_name = next(arm_name for arm_name in arm_names if arm_names.count(arm_name) > 1)
        raise InvalidInput(f"{name} must be different names, but {repeated_name!r} is repeated")
    return arm_names


def check_available(
    available: ArrayLike, n: int, n_arms: int, name: str = "available"
) -> BoolArray:
    """Return ``available`` as booleans (n, n_arms), which are True for arms that may be chosen.

    ``available`` has shape (n_arms,) or (n, n_arms). Every row needs at least one available arm.
    ``name`` is the name of the argument in errors.
    """
    mask = as_numpy(available, name)
    if mask.dtype != np.bool_:
        raise InvalidInput(
            f"{name} must hold booleans, one per arm, e.g. [True, False, True], got {mask.dtype}; a"
            " list of arms is not accepted"
        )
    if mask.shape not in ((n_arms,), (n, n_arms)):
        raise InvalidInput(
            f"{name} must have shape ({n_arms},) or ({n}, {n_arms}), got {mask.shape}"
        )
    row_masks: BoolArray = np.ascontiguousarray(np.broadcast_to(mask, (n, n_arms)))
    if not row_masks.any(axis=1).all():
        raise InvalidInput(
            f"{name} must include an arm in row {int(np.argmin(row_masks.any(axis=1)))}, got only"
            " False"
        )
    return row_masks
