"""Checks of what users pass to a policy. Each returns the checked value or raises an error that names the argument."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import numpy as np

from daband.arguments import check_available
from daband.arrays import AnyArray, ArrayLike, FloatArray, IntArray, as_numpy
from daband.domain_names import DomainNames
from daband.errors import InvalidInput
from daband.linear import DISCOUNTS, kernels

__all__ = [
    "LARGEST_NORM",
    "LARGEST_RAW_NORM",
    "check_arms",
    "check_available",
    "check_contexts",
    "check_domain",
    "check_prior_trust",
    "check_propensities",
    "check_rewards",
    "check_seed",
    "check_shape",
    "check_whole",
]

LARGEST_NORM = 1e7
"""Contexts of a larger Euclidean norm are refused by default: one of them would swamp every other row."""
LARGEST_RAW_NORM = 1e60
"""The same for contexts that a transform scales: squares of larger numbers overflow."""
_SMALL_INTEGERS = (np.uint8, np.bool_)
"""Contexts of these types are images, or flags: never too large."""
_LARGEST_SEED = 2**62
_LARGEST_SUM = {"e": 1e4, "f": 1e30, "d": 1e120}
"""By the letter of the floating-point type: sums of squares up to here have not overflowed."""


def check_contexts(
    contexts: ArrayLike, shape: tuple[int, ...], *, dimensions: int, largest_norm: float = LARGEST_NORM
) -> AnyArray:
    """Contexts (B, *shape) as an array of finite numbers, each of its ``dimensions`` of them no larger than allowed."""
    array = as_numpy(contexts, "contexts")
    if array.shape[1:] != shape:
        raise InvalidInput(f"contexts must have shape (B, {', '.join(map(str, shape))}), got {array.shape}")
    if array.shape[0] == 0:
        raise InvalidInput("contexts is an empty batch")
    if array.dtype.kind == "f":
        _check_sizes(array, dimensions, largest_norm)
    elif array.dtype not in _SMALL_INTEGERS:
        _check_sizes(array.astype(np.float64), dimensions, largest_norm)
    return array


def check_domain(domain: str) -> str:
    """The domain's name, "source" or "target"."""
    return DomainNames().names[DomainNames().index(domain)]


def check_arms(arm: ArrayLike, n: int, n_arms: int) -> IntArray:
    """Arms (n,) of 0..n_arms - 1."""
    array = as_numpy(arm, "arm")
    if array.shape != (n,):
        raise InvalidInput(f"arm must have shape ({n},), got {array.shape}")
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"arm must hold integers, got {array.dtype}")
    arms: IntArray = array.astype(np.int64, copy=False)
    if n == 1 and 0 <= arms.item() < n_arms:  # a loop of single rounds should not pay for reductions
        return arms
    if arms.min() < 0 or arms.max() >= n_arms:
        row = int(np.argmax((arms < 0) | (arms >= n_arms)))
        raise InvalidInput(f"arm {int(arms[row])} in row {row} is outside 0..{n_arms - 1}")
    return arms


def check_prior_trust(prior_trust: float | str) -> tuple[float, ...]:
    """The discounts that are meant: one, or all where the best is to be found."""
    if prior_trust == "adaptive":
        return DISCOUNTS
    if isinstance(prior_trust, bool) or not isinstance(prior_trust, Real) or not 0.0 <= prior_trust <= 1.0:
        raise InvalidInput(f"prior_trust must be a number from 0 to 1 or 'adaptive', got {prior_trust!r}")
    return (float(prior_trust),)


def check_propensities(propensity: ArrayLike, n: int) -> FloatArray:
    """Propensities (n,), each in (0, 1]."""
    array: FloatArray = as_numpy(propensity, "propensity").astype(np.float64, copy=False)
    if array.shape != (n,):
        raise InvalidInput(f"propensity must have shape ({n},), got {array.shape}")
    wrong = ~((array > 0) & (array <= 1))  # NaN is not within any bound
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidInput(
            f"propensity must lie in (0, 1]: it is the probability with which the arm was chosen; row {row} has "
            f"{array[row]:g}"
        )
    return array


def check_rewards(reward: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Rewards of this shape; whether they lie within the policy's range is the reward scale's to check."""
    array: FloatArray = as_numpy(reward, "reward").astype(np.float64, copy=False)
    if array.shape != shape:
        raise InvalidInput(f"reward must have shape {shape}, got {array.shape}")
    return array


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a context: whole numbers >= 1, at least one."""
    try:
        dims = tuple(shape)
    except TypeError:
        raise InvalidInput(f"context_shape must be a tuple of whole numbers, got {shape!r}") from None
    if not dims or not all(isinstance(dim, int | np.integer) and dim >= 1 for dim in dims):
        raise InvalidInput(f"context_shape must hold whole numbers >= 1, got {shape!r}")
    return tuple(int(dim) for dim in dims)


def check_whole(name: str, value: int, *, least: int) -> int:
    """A whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InvalidInput(f"{name} must be a whole number >= {least}, got {value!r}")
    return int(value)


def check_seed(seed: int) -> int:
    """A seed: any whole number from 0 to 2**62, which every generator in use can take."""
    if check_whole("seed", seed, least=0) > _LARGEST_SEED:
        raise InvalidInput(f"seed must be a whole number from 0 to 2**62, got {seed}")
    return int(seed)


def _check_sizes(contexts: AnyArray, dimensions: int, largest_norm: float) -> None:
    flat = contexts.ravel(order="K")  # in whatever order they lie: nothing is copied
    # One product tells in nearly every case that all is well; NaN and infinity are not below any bound.
    safe = min(largest_norm * largest_norm, _LARGEST_SUM.get(flat.dtype.char, 0.0))
    if flat.dtype == np.float64:
        if kernels.sum_of_squares(flat) < safe:
            return
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            if np.dot(flat, flat) < safe:
                return
    if not np.isfinite(contexts).all():
        row = int(np.argwhere(~np.isfinite(contexts))[0][0])
        raise InvalidInput(f"contexts has a NaN or infinite value, first in row {row}")
    rows = np.abs(contexts.reshape(-1, dimensions).astype(np.float64))
    largest = rows.max(axis=1)
    with np.errstate(over="ignore"):
        norms = largest * np.sqrt(((rows / np.maximum(largest, 1e-300)[:, None]) ** 2).sum(axis=1))
    if norms.max() > largest_norm:
        worst = int(np.argmax(norms))
        row = worst * len(contexts) // len(rows)  # with shared arms a row has a context per arm
        raise InvalidInput(
            f"contexts has a norm of {norms[worst]:g} in row {row}, the largest that is accepted is {largest_norm:g}; "
            "scale the features to like sizes, or leave the row out if it is a mistake"
        )
