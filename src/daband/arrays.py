"""What an array is in daband: numpy inside, numpy or torch at the door."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from daband.errors import InvalidInput

__all__ = ["AnyArray", "ArrayLike", "BoolArray", "FloatArray", "IntArray", "as_numpy", "unit_scale"]

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
    if isinstance(value, np.ndarray):
        array = value
    else:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            array = value.detach().cpu().numpy()
        else:
            try:
                array = np.asarray(value)
            except ValueError as error:
                raise InvalidInput(f"{name} is not a rectangular array of numbers: {error}") from None
    if array.dtype.kind not in _KINDS_OF_NUMBERS:
        raise InvalidInput(f"{name} must hold numbers, but its type is {array.dtype}")
    return array


def unit_scale(contexts: AnyArray) -> FloatArray:
    """Contexts as float64; ``uint8`` is read as an image and scaled from 0..255 to [0, 1]."""
    if contexts.dtype == np.float64 and contexts.flags.c_contiguous:
        return contexts
    if contexts.dtype == np.uint8:
        return contexts / 255.0
    return np.ascontiguousarray(contexts, dtype=np.float64)
