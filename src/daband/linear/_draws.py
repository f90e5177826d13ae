"""Draw random numbers for decisions without a generator.

A draw is a hash (splitmix64) of a key, a round number and a slot, which is the index of the draw in
its round. So a batch has the same draws as its single rounds, rounds can be drawn in any order, and
there is no generator state to save.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from daband.base._arrays import FloatArray

#: A function from a number of rounds and a number of slots to uniform random numbers in [0, 1),
#: (rounds, slots). The number in slot 0 is compared with epsilon, and the number in slot 1 chooses
#: among random or tied arms.
DrawFunction = Callable[[int, int], FloatArray]

#: The multiplier of round numbers. It is odd, so different round numbers give different products.
_ROUND_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
#: The multiplier of slot numbers; also odd.
_SLOT_MULTIPLIER = np.uint64(0xD1B54A32D192ED03)
#: The first multiplier of the hash function splitmix64.
_HASH_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
#: The second multiplier of the hash function splitmix64.
_HASH_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
#: The largest 64-bit integer.
_MAX_BITS = (1 << 64) - 1


@functools.lru_cache(maxsize=1024)
def make_draw_key(seed: int, fork_path: tuple[int, ...] = ()) -> np.uint64:
    """Return the key of random draws for a seed and a path of forks (``Locks.fork_path``).

    Seeds that differ in one bit give unrelated keys, and so do different paths.
    """
    return np.random.SeedSequence(seed, spawn_key=fork_path).generate_state(1, np.uint64)[0]


def draw_uniforms(key: np.uint64, first_round: int, n_rounds: int, n_slots: int) -> FloatArray:
    """Return draws in [0, 1), (n_rounds, n_slots), for the rounds from ``first_round`` on."""
    if n_rounds == 1:  # for one number, Python's integers are faster than arrays
        bits = _hash_integer(int(key) + (first_round + 1) * int(_ROUND_MULTIPLIER))
        slots = range(1, n_slots + 1)
        hashes = [_hash_integer(bits + slot * int(_SLOT_MULTIPLIER)) for slot in slots]
        return np.array([[(value >> 11) * 2.0**-53 for value in hashes]])
    rounds = np.arange(first_round + 1, first_round + n_rounds + 1, dtype=np.uint64)[:, None]
    return _draw_rounds(key, rounds, n_slots)


def _draw_rounds(key: np.uint64, rounds: npt.NDArray[np.uint64], n_slots: int) -> FloatArray:
    """Return draws in [0, 1), (n, n_slots), for the numbers of rounds (n, 1)."""
    slots = np.arange(1, n_slots + 1, dtype=np.uint64)
    round_bits = _hash_bits(np.asarray(key, np.uint64) + rounds * _ROUND_MULTIPLIER)
    return _to_unit_interval(_hash_bits(round_bits + slots * _SLOT_MULTIPLIER))


def make_seeded_draw(key: np.uint64, first_round: int) -> DrawFunction:
    """Return a function that draws for the rounds from ``first_round`` on.

    Its draws depend only on key and round.
    """
    return functools.partial(draw_uniforms, key, first_round)


def make_id_draw(key: np.uint64, ids: Sequence[str]) -> DrawFunction:
    """Return a function that draws for the rounds with these ids.

    Its draws depend only on key and id, so a round that is decided again gets the same arm.
    """
    digests = (hashlib.blake2b(round_id.encode(), digest_size=8).digest() for round_id in ids)
    rounds = np.frombuffer(b"".join(digests), np.uint64)

    def draw(_: int, n_slots: int) -> FloatArray:
        return _draw_rounds(key, rounds[:, None], n_slots)

    return draw


def draw_fresh(n_rounds: int, n_slots: int) -> FloatArray:
    """Return uniform draws (rounds, slots) from the operating system, which cannot be repeated."""
    bits = np.frombuffer(os.urandom(8 * n_rounds * n_slots), np.uint64)
    return _to_unit_interval(bits.reshape(n_rounds, n_slots))


def _hash_bits(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the hash of 64-bit integers (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * _HASH_MULTIPLIER_1
    x = (x ^ (x >> np.uint64(27))) * _HASH_MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


def _hash_integer(x: int) -> int:
    """Return what ``_hash_bits`` returns for x modulo 2^64."""
    x &= _MAX_BITS
    x = ((x ^ (x >> 30)) * int(_HASH_MULTIPLIER_1)) & _MAX_BITS
    x = ((x ^ (x >> 27)) * int(_HASH_MULTIPLIER_2)) & _MAX_BITS
    return x ^ (x >> 31)


def _to_unit_interval(bits: npt.NDArray[np.uint64]) -> FloatArray:
    """Return numbers in [0, 1) from the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
