"""What an array is in daband: numpy inside, numpy or torch at the door."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from daband.errors import InvalidInput

__all__ = [
    "AnyArray",
    "ArrayLike",
    "BoolArray",
    "FloatArray",
    "IntArray",
    "as_numpy",
    "checked_number",
    "restored_array",
    "unit_scale",
]

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
AnyArray: TypeAlias = npt.NDArray[Any]
ArrayLike: TypeAlias = Any  # numpy arrays, nested sequences, torch tensors on any device

_KINDS_OF_NUMBERS = "biuf"


def as_numpy(value: ArrayLike, name: str) -> AnyArray:
    """Turn what a user passed into a numpy array of numbers, or say which argument was not one.

    torch is not imported for this: a tensor can only arrive if its owner has imported torch already.
    """
    if type(value) is np.ndarray:
        array = value
    elif isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(f"{name} is a masked array; fill its gaps or leave those rows out")
    else:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            tensor = value.detach().cpu()
            array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        else:
            try:
                array = np.asarray(value)
            except ValueError as error:
                raise InvalidInput(f"{name} is not a rectangular array of numbers: {error}") from None
    if array.dtype.kind not in _KINDS_OF_NUMBERS:
        raise InvalidInput(f"{name} must hold numbers, but its type is {array.dtype}")
    return array


def restored_array(state: dict[str, AnyArray], name: str, like: AnyArray) -> AnyArray:
    """A copy of a saved array, or a ``ValueError`` where it is not of the shape and type of ``like``, or not finite.

    Compiled loops trust their arrays: what comes from a file is checked before they see it.
    """
    array = state[name]
    if array.shape != like.shape or array.dtype != like.dtype:
        raise ValueError(f"{name} is {array.dtype} {array.shape}, expected {like.dtype} {like.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} has a NaN or infinite value")
    return array.copy()


def checked_number(name: str, value: Any) -> float:
    """A number as a float, or an error that names the argument."""
    if isinstance(value, bool | str) or value is None:
        raise InvalidInput(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be a number, got {value!r}") from None


def unit_scale(contexts: AnyArray) -> FloatArray:
    """Contexts as float64; ``uint8`` is read as an image and scaled from 0..255 to [0, 1].

    ``daband.encoders.unit_range`` does the same for tensors.
    """
    if contexts.dtype == np.float64 and contexts.flags.c_contiguous:
        return contexts
    if contexts.dtype == np.uint8:
        return contexts / 255.0
    return np.ascontiguousarray(contexts, dtype=np.float64)
