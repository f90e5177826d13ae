"""Check the rounds that users pass to a policy, recognise rounds by their ids, and weight them by
their propensities.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from daband.base._arguments import check_int
from daband.base._arrays import (
    AnyArray,
    Arrays,
    BoolArray,
    FloatArray,
    IntArray,
    Mask,
    Shape,
)
from daband.errors import InvalidInput

#: The largest seed that every random generator accepts.
_MAX_SEED = 2**62
#: The largest importance weight. Without a limit, a few rounds could dominate a regression.
_MAX_IMPORTANCE_WEIGHT = 10.0


def check_shape(shape: Sequence[int]) -> Shape:
    """Return the shape of a context, after checking that it has at least one integer, each >= 1."""
    if isinstance(shape, str | bytes | bytearray) or not isinstance(shape, Iterable):
        raise InvalidInput(f"context_shape must be a tuple of integers, got {shape!r}")
    sizes = tuple(shape)
    if not sizes or not all(isinstance(size, int | np.integer) and size >= 1 for size in sizes):
        raise InvalidInput(f"context_shape must hold integers >= 1, got {shape!r}")
    return tuple(int(size) for size in sizes)


def check_seed(seed: int) -> int:
    """Return the seed, after checking that it is an integer from 0 to 2**62, which every generator
    accepts.
    """
    if check_int("seed", seed, minimum=0) > _MAX_SEED:
        raise InvalidInput(f"seed must be an integer from 0 to 2**62, got {seed}")
    return int(seed)


def mask_new(ids: Iterable[Any], known_ids: Container[Any]) -> BoolArray:
    """Return a mask (B,) of the ids that are neither in ``known_ids`` nor earlier in ``ids``."""
    earlier_ids = set()
    is_new = []
    for one_id in ids:
        is_new.append(one_id not in known_ids and one_id not in earlier_ids)
        earlier_ids.add(one_id)
    return np.array(is_new, np.bool_)


#: Maximum number of stored context checksums; further contexts count as new.
_MAX_CHECKSUMS = 1 << 16


class SeenContexts:
    """Checksums of contexts, by which repeated contexts are recognised."""

    def __init__(self) -> None:
        self._checksums: dict[int, None] = {}

    def add(self, contexts: AnyArray) -> BoolArray:
        """Add contexts (B, ...), and return a mask (B,) of those that were neither added before nor
        earlier in the batch.
        """
        rows = np.ascontiguousarray(contexts, None if contexts.dtype == np.uint8 else np.float32)
        checksums = [zlib.crc32(row.tobytes()) for row in rows]
        is_new = mask_new(checksums, self._checksums)
        n_free = max(0, _MAX_CHECKSUMS - len(self._checksums))
        self._checksums.update(dict.fromkeys(checksums[:n_free]))
        return is_new

    def state(self) -> IntArray:
        """Return the checksums."""
        return np.array(list(self._checksums), np.int64)

    def restore(self, checksums: AnyArray) -> None:
        """Restore the array that ``state`` returned."""
        self._checksums = dict.fromkeys(checksums.tolist())


#: Ids that are integers of at most this many bits are stored as 64-bit integers.
_MAX_INTEGER_BITS = 63


class RoundIds:
    """The ids (integers or strings) of the latest learned rounds, so that no round is learned
    twice.

    A policy in production learns for years, so only a limited number of ids is stored. Older rounds
    are no longer recognised.

    Args:
        max_ids: the number of latest ids that are stored.
    """

    def __init__(self, max_ids: int) -> None:
        self.max_ids = max_ids
        self._ids: dict[int | str, None] = {}  # a dict keeps the order in which ids came

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int | str]:
        return iter(self._ids)

    def __contains__(self, round_id: object) -> bool:
        return round_id in self._ids

    def check(self, ids: Sequence[int | str] | IntArray, n_rounds: int) -> list[int | str]:
        """Return the ids as Python values.

        Raise an error unless they are ``n_rounds`` integers or strings.
        """
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence | np.ndarray):
            raise InvalidInput(f"ids must be a list or array with an id per round, got {ids!r}")
        checked_ids = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if len(checked_ids) != n_rounds:
            raise InvalidInput(
                f"ids must have one id for each of the {n_rounds} rounds, got {len(checked_ids)}"
            )
        checked_ids = [
            int(round_id) if isinstance(round_id, np.integer) else round_id
            for round_id in checked_ids
        ]
        for round_id in checked_ids:
            if isinstance(round_id, bool) or not isinstance(round_id, (int, str)):
                raise InvalidInput(f"ids must be integers or strings, got {round_id!r}")
        return checked_ids

    def add(self, ids: Iterable[int | str]) -> None:
        """Store the ids of learned rounds, and drop the oldest ids beyond ``max_ids``."""
        self._ids.update(dict.fromkeys(ids))
        n_dropped = max(0, len(self._ids) - self.max_ids)
        for old_id in list(itertools.islice(self._ids, n_dropped)):
            del self._ids[old_id]

    def state(self) -> Arrays:
        """Return the ids as arrays, oldest first: as 64-bit integers if all ids fit, otherwise as
        JSON text.
        """
        ids = list(self._ids)
        are_integers = all(
            isinstance(round_id, int) and round_id.bit_length() <= _MAX_INTEGER_BITS
            for round_id in ids
        )
        ids_json = b"" if are_integers else json.dumps(ids).encode()
        return {
            "integers": np.array(ids if are_integers else [], np.int64),
            "json": np.frombuffer(ids_json, np.uint8),
        }

    def restore(self, state: Arrays) -> None:
        """Restore the arrays that ``state`` returned."""
        ids_json = state["json"].tobytes()
        integers = state["integers"]
        self._ids = dict.fromkeys(json.loads(ids_json) if ids_json else integers.tolist())


def compute_importance_weights(
    propensities: FloatArray, n_arms: int, available: Mask, power: float
) -> FloatArray:
    """Return the weights (B,) with which a regression learns rounds that another policy chose.

    The weight is ``(1 / (n * propensity)) ** power`` for n available arms, at most 10. A logging
    policy that prefers some arms in some contexts biases the contexts of each arm. Importance
    weights remove the bias, but increase the variance. A power between 0 and 1 is a compromise
    (Shimodaira, "Improving predictive inference under covariate shift", 2000). If arms were chosen
    uniformly, all weights are 1.
    """
    n_available = n_arms if available is None else available.sum(axis=1)
    weights: FloatArray = (1.0 / (n_available * propensities)) ** power
    return np.minimum(weights, _MAX_IMPORTANCE_WEIGHT)
