"""Rounds as users give them: checked, recognised by ids, weighted by propensities, kept until they can be scaled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from daband._arguments import whole
from daband._arrays import AnyArray, ArrayLike, BoolArray, FloatArray, IntArray, Weights, as_numpy, unit_scale
from daband.errors import InvalidInput
from daband.linear._kernels import kernels
from daband.linear._primal_ridge import DISCOUNTS

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
    rewards: FloatArray = as_numpy(reward, "reward").astype(np.float64, copy=False)
    if rewards.shape != shape:
        raise InvalidInput(f"reward must have shape {shape}, got {rewards.shape}")
    return rewards


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a context: whole numbers >= 1, at least one."""
    try:
        dims = tuple(shape)
    except TypeError:
        raise InvalidInput(f"context_shape must be a tuple of whole numbers, got {shape!r}") from None
    if not dims or not all(isinstance(dim, int | np.integer) and dim >= 1 for dim in dims):
        raise InvalidInput(f"context_shape must hold whole numbers >= 1, got {shape!r}")
    return tuple(int(dim) for dim in dims)


def check_seed(seed: int) -> int:
    """A seed: any whole number from 0 to 2**62, which every generator in use can take."""
    if whole("seed", seed, least=0) > _LARGEST_SEED:
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


# Which rounds were learned already, so that none is counted twice.


_MOST_BITS = 63


class RoundIds:
    """The ids, integers or strings, of the latest ``window`` rounds that were learned with one.

    A policy in production learns for years: the window bounds its memory. A round whose id has left the window is no
    longer recognised.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._ids: dict[int | str, None] = {}  # a dict keeps the order in which ids came

    def __len__(self) -> int:
        return len(self._ids)

    def check(self, ids: Sequence[int | str] | IntArray, n: int) -> list[int | str]:
        """The ids as Python values; an error if there are not ``n``, or if one is no integer or string."""
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
        """For each id whether it is new: not in the window, and not earlier in ``names``."""
        fresh: set[int | str] = set()
        new = []
        for name in names:
            new.append(name not in self._ids and name not in fresh)
            fresh.add(name)
        return np.array(new, np.bool_)

    def add(self, names: Iterable[int | str]) -> None:
        """Note that these rounds were learned; the oldest ids beyond the window are dropped."""
        self._ids.update(dict.fromkeys(names))
        for oldest in [name for name, _ in zip(self._ids, range(len(self._ids) - self.window), strict=False)]:
            del self._ids[oldest]

    def state(self) -> dict[str, AnyArray]:
        """The ids as arrays, in the order they came: as integers where all are and fit in 64 bits, else as JSON."""
        names = list(self._ids)
        numbers = all(isinstance(name, int) and name.bit_length() <= _MOST_BITS for name in names)
        text = b"" if numbers else json.dumps(names).encode()
        return {"integers": np.array(names if numbers else [], np.int64), "json": np.frombuffer(text, np.uint8)}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""
        text, numbers = state["json"].tobytes(), state["integers"]
        self._ids = dict.fromkeys(json.loads(text) if text else numbers.tolist())


# Rounds that wait until the range of their rewards is known: what ``reward_range="auto"`` keeps back at first.


class PlayedRounds(NamedTuple):
    """A batch of rounds in one domain that were checked."""

    contexts: AnyArray
    arms: IntArray
    rewards: FloatArray
    """In the user's units."""
    domain: int
    weights: Weights = None
    times: FloatArray | None = None
    """When each was played."""

    def only(self, which: BoolArray) -> PlayedRounds:
        """Those of the rounds that are marked, as copies."""
        kept: list[Any] = [part[which] if isinstance(part, np.ndarray) else part for part in self]
        return PlayedRounds(*kept)


class PendingRounds(list[PlayedRounds]):
    """Batches of rounds in the order they came."""

    @property
    def n_rounds(self) -> int:
        """How many rounds there are."""
        return sum(len(batch.arms) for batch in self)

    def state(self) -> dict[str, AnyArray]:
        """All rounds as arrays; nothing where there are none."""
        if not self:
            return {}
        contexts = [batch.contexts for batch in self]
        if len({part.dtype for part in contexts}) > 1:
            contexts = [unit_scale(part) for part in contexts]
        weights = {}
        if any(batch.weights is not None for batch in self):
            parts = [np.ones(len(batch.arms)) if batch.weights is None else batch.weights for batch in self]
            weights = {"weights": np.concatenate(parts)}
        return {
            **weights,
            "contexts": np.concatenate(contexts),
            "arms": np.concatenate([batch.arms for batch in self]),
            "rewards": np.concatenate([batch.rewards for batch in self]),
            "domain": np.concatenate([np.full(len(batch.arms), batch.domain, np.int64) for batch in self]),
            "ends": np.cumsum([len(batch.arms) for batch in self]),
        }

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned. Files of older versions do not say where a batch ends: domains do there."""
        self.clear()
        if not state:
            return
        # Files of older versions have one source and one target, and say whether a round is the target's.
        domains = state["domain"] if "domain" in state else state["in_target"].astype(np.int64)
        ends = state.get("ends", np.append(np.flatnonzero(np.diff(domains)) + 1, len(domains)))
        edges = [0, *ends.tolist()]
        columns = [state["contexts"], state["arms"], state["rewards"], state.get("weights")]
        for start, stop in pairwise(edges):
            contexts, arms, rewards, weights = (None if one is None else one[start:stop].copy() for one in columns)
            self.append(PlayedRounds(contexts, arms, rewards, int(domains[start]), weights))  # type: ignore[arg-type]


# How the propensities of a log enter learning: as weights of rounds, or in pseudo-rewards of every arm.
#
# A logging policy that prefers some arms in some contexts leaves a sample of each arm's rewards that is not a sample of
# all contexts. A regression that cannot represent the rewards exactly then fits them where the arm was chosen often.
# Weights of one over the propensity undo that, at the price of more variance. Flattened weights, a power of those, are
# between the two (Shimodaira: "Improving predictive inference under covariate shift", 2000).


WEIGHTINGS = ("flattened", "importance", "doubly_robust", "none")
"""What ``propensity_weighting`` may be. The first that a policy offers is its default."""

LARGEST_WEIGHT = 10.0
"""Weights are cut off here: rounds of an arm that the log hardly ever chose would decide everything."""


def round_weights(propensities: FloatArray, n_arms: int, *, weighting: str) -> FloatArray | None:
    """The weight of each round (B,), from the probability with which its arm was chosen (B,).

    With "importance" it is ``1 / (n_arms * propensity)``, as in Vowpal Wabbit's ``mtr``, and at most 10; with
    "flattened" the fourth root of ``1 / (n_arms * propensity)``; with "none" there is none. Rounds of a log that chose
    arms evenly have a weight of 1: learning with weights is then learning without them. A weight depends on its own
    round alone, so that the statistics of the parts of a log add up to those of the whole.
    """
    if weighting == "none":
        return None
    if weighting not in ("flattened", "importance"):
        raise InvalidInput(f"propensity_weighting={weighting!r} is not by weights of rounds")
    weights: FloatArray = 1.0 / (n_arms * propensities)
    return np.minimum(weights if weighting == "importance" else np.sqrt(np.sqrt(weights)), LARGEST_WEIGHT)


def pseudo_rewards(
    predicted: FloatArray, arms: IntArray, rewards: FloatArray, propensities: FloatArray, *, largest: float
) -> FloatArray:
    """Doubly robust rewards of every arm (B, K), unbiased where propensities or predictions are right.

    Args:
        predicted: rewards that a model predicts which did not see these rounds, (B, K).
        arms: the arm that was played in each round, (B,).
        rewards: its reward, (B,).
        propensities: the probability with which it was chosen, (B,).
        largest: the largest ``1 / propensity``; larger ones are cut off.
    """
    rows = np.arange(len(arms))
    filled = predicted.copy()
    filled[rows, arms] += (rewards - predicted[rows, arms]) * np.minimum(1.0 / propensities, largest)
    return filled


def resolve_weighting(weighting: str | None, offered: tuple[str, ...], policy: str) -> str:
    """The weighting to use: the one asked for, or the first that the policy offers."""
    if weighting is None:
        return offered[0]
    if weighting not in WEIGHTINGS:
        raise InvalidInput(
            f"propensity_weighting must be one of {', '.join(repr(name) for name in WEIGHTINGS)}, got {weighting!r}"
        )
    if weighting not in offered:
        raise InvalidInput(
            f"propensity_weighting={weighting!r} is not offered by {policy}, which has "
            f"{', '.join(repr(name) for name in offered)}"
        )
    return weighting
