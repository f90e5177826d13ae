"""Rounds as given by users: checks, and recognition of rounds by their ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from daband._arguments import check_int
from daband._arrays import AnyArray, ArrayLike, BoolArray, FloatArray, IntArray, as_numpy
from daband.errors import InvalidInput
from daband.linear._kernels import kernels
from daband.weights import importance

#: Contexts with a larger Euclidean norm are rejected by default: one of them would dominate all other rows.
LARGEST_NORM = 1e7
#: The same limit for contexts that a transform scales: squares of larger numbers overflow.
LARGEST_RAW_NORM = 1e60
#: Contexts of these types are images or flags, which are never too large.
_SMALL_INTEGERS = (np.uint8, np.bool_)
_LARGEST_SEED = 2**62
#: Sums of squares up to this limit have not overflowed, by the character code of the floating-point type.
_LARGEST_SUM = {"e": 1e4, "f": 1e30, "d": 1e120}


def check_contexts(
    contexts: ArrayLike, shape: tuple[int, ...], *, dimensions: int, largest_norm: float = LARGEST_NORM
) -> AnyArray:
    """Return contexts (B, *shape) as an array; raise an error if a number is not finite or a context is too large."""
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


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a context, after checking that it has at least one integer, each >= 1."""
    if isinstance(shape, str | bytes | bytearray) or not isinstance(shape, Iterable):
        raise InvalidInput(f"context_shape must be a tuple of integers, got {shape!r}")
    dims = tuple(shape)
    if not dims or not all(isinstance(dim, int | np.integer) and dim >= 1 for dim in dims):
        raise InvalidInput(f"context_shape must hold integers >= 1, got {shape!r}")
    return tuple(int(dim) for dim in dims)


def check_seed(seed: int) -> int:
    """Return the seed, after checking that it is an integer from 0 to 2**62, which every generator accepts."""
    if check_int("seed", seed, minimum=0) > _LARGEST_SEED:
        raise InvalidInput(f"seed must be an integer from 0 to 2**62, got {seed}")
    return int(seed)


def _check_sizes(contexts: AnyArray, dimensions: int, largest_norm: float) -> None:
    flat = contexts.ravel(order="K")  # in memory order, so nothing is copied
    # One product is enough to accept nearly every batch; NaN and infinity are not below any bound.
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


# Ids of rounds that were learned already, so that no round is counted twice.


_MOST_BITS = 63


class RoundIds:
    """The ids (integers or strings) of the latest ``window`` rounds that were learned with an id.

    A policy in production learns for years: the window limits its memory. A round whose id has left the window is no
    longer recognised.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._ids: dict[int | str, None] = {}  # a dict keeps the order in which ids came

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int | str]:
        return iter(self._ids)

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def check(self, ids: Sequence[int | str] | IntArray, n: int) -> list[int | str]:
        """Return the ids as Python values; raise an error unless there are ``n``, all integers or strings."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence | np.ndarray):
            raise InvalidInput(f"ids must be a list or array with a name per round, got {ids!r}")
        names = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if len(names) != n:
            raise InvalidInput(f"ids must name each of the {n} rounds, got {len(names)}")
        names = [int(name) if isinstance(name, np.integer) else name for name in names]
        for name in names:
            if isinstance(name, bool) or not isinstance(name, (int, str)):
                raise InvalidInput(f"ids must be integers or strings, got {name!r}")
        return names

    def unknown(self, names: Iterable[int | str]) -> BoolArray:
        """Return True for each new id: not in the window, and not earlier in ``names``."""
        fresh: set[int | str] = set()
        new = []
        for name in names:
            new.append(name not in self._ids and name not in fresh)
            fresh.add(name)
        return np.array(new, np.bool_)

    def add(self, names: Iterable[int | str]) -> None:
        """Record that these rounds were learned; the oldest ids beyond the window are dropped."""
        self._ids.update(dict.fromkeys(names))
        for oldest in [name for name, _ in zip(self._ids, range(len(self._ids) - self.window), strict=False)]:
            del self._ids[oldest]

    def state(self) -> dict[str, AnyArray]:
        """Return the ids as arrays, oldest first: as integers if all are integers of 64 bits, otherwise as JSON."""
        names = list(self._ids)
        numbers = all(isinstance(name, int) and name.bit_length() <= _MOST_BITS for name in names)
        text = b"" if numbers else json.dumps(names).encode()
        return {"integers": np.array(names if numbers else [], np.int64), "json": np.frombuffer(text, np.uint8)}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        text, numbers = state["json"].tobytes(), state["integers"]
        self._ids = dict.fromkeys(json.loads(text) if text else numbers.tolist())


def log_weights(policy: Any, propensities: ArrayLike) -> FloatArray:
    """Return the weights with which a policy learns logged rounds."""
    return importance(propensities, policy.n_arms, power=policy.propensity_power, largest=policy.largest_weight)
