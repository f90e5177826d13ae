"""What every policy can do, and the checks that stand before it.

A policy of one's own derives from ``Policy``, fills in the hooks at the end of the class, and registers:

    @policies.register("mine")
    class Mine(Policy): ...

Whatever arrives is checked in full before anything changes, so an error leaves a policy exactly as it was.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from daband.arrays import AnyArray, ArrayLike, BoolArray, FloatArray, IntArray, as_numpy
from daband.errors import InvalidInput
from daband.linear import Decision, as_transform, transform_settings
from daband.linear.kernels import packed
from daband.policies.checkpoint import write_checkpoint
from daband.policies.for_pair import policy_for_pair
from daband.policies.round_ids import RoundIds
from daband.registry import Registry

__all__ = ["DOMAINS", "Played", "Policy", "policies"]

DOMAINS = ("source", "target")

_LARGEST_VALUE = 1e60
_LARGEST_SQUARE = {"e": 1e4, "f": 1e30, "d": 1e120, "g": 1e120}
"""By the letter of the floating-point type: below this, no value can be too large and no sum has overflowed."""


@dataclass(frozen=True, slots=True)
class Played(Decision):
    """The decisions of an episode, with the reward (B,) that each chosen arm paid."""

    reward: FloatArray


class Policy(ABC):
    """Chooses among ``n_arms`` arms by contexts of ``context_shape``.

    Contexts are (B, *context_shape), with ``arms="shared"`` (B, n_arms, *context_shape): one context per arm. Numpy
    arrays or torch tensors go in, numpy arrays come out. ``uint8`` contexts are read as images, 0..255 scaled to
    [0, 1].
    """

    name: ClassVar[str]
    """The registered name; ``policies.register`` sets it."""
    learns_by_gradients: ClassVar[bool] = False
    """Whether ``adapt`` takes gradient steps, for which a GPU may be of use."""
    scale_matters: ClassVar[bool] = False
    """Whether decisions depend on the unit and the offset of contexts; ``for_pair`` then standardises them."""

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        arms: str,
        reward_range: tuple[float, float],
        transform: Any,
        seed: int,
    ) -> None:
        self.context_shape = _checked_shape(context_shape)
        self.n_arms = _checked_whole("n_arms", n_arms, least=1)
        if arms not in ("disjoint", "shared"):
            raise InvalidInput(f"arms must be 'disjoint' or 'shared', got {arms!r}")
        self.arms = arms
        self.reward_range = _checked_range(reward_range)
        self.transform = as_transform(transform)  # a copy, fitted for this policy alone
        self.seed = _checked_whole("seed", seed, least=0)
        self.rounds_decided = 0
        self._seen = RoundIds()

    @classmethod
    def for_pair(cls, pair: Any, **settings: Any) -> Self:
        """A policy for a ``daband.domains.Pair``: context shape, arms, feedback, reward range and a transform follow.

        ``settings`` are this class's own keyword arguments; ``alpha``, ``device`` and ``feedback`` are dropped where it
        has none, so that a loop over classes needs no special cases.
        """
        return policy_for_pair(cls, pair, settings)

    # What users call.

    def select(self, contexts: ArrayLike, domain: str = "source", available: ArrayLike | None = None) -> Decision:
        """Choose an arm for every context.

        Args:
            contexts: (B, *context_shape).
            domain: which domain the contexts come from, "source" or "target".
            available: which arms may be chosen, (K,) or (B, K) of booleans; all by default.

        Returns:
            ``.arm`` (B,), ``.propensity`` (B,): the probability with which that arm was chosen, ``.mean`` (B, K):
            predicted rewards, ``.width`` (B, K): their uncertainty before ``alpha`` scales it.
        """
        decision = self.decide(contexts, domain, available)
        self.rounds_decided += len(decision.arm)
        return decision

    def decide(
        self,
        contexts: ArrayLike,
        domain: str = "source",
        available: ArrayLike | None = None,
        *,
        rule: str | None = None,
        ahead: int = 0,
    ) -> Decision:
        """``select`` without counting the rounds as played: the policy is the same afterwards.

        ``rule`` "ucb" or "greedy" stands in for the policy's own way to explore, with no randomness but for ties.
        ``ahead`` says how many rounds would have been played before these; random draws go by a round's number.
        """
        if rule not in (None, "ucb", "greedy"):
            raise InvalidInput(f"rule must be 'ucb', 'greedy' or None, got {rule!r}")
        checked = self._checked_contexts(contexts)
        self._check_domain(domain)
        mask = None if available is None else self._checked_mask(available, len(checked))
        return self._decide(self._transformed(checked), domain, mask, self.rounds_decided + ahead, rule)

    def update(
        self,
        contexts: ArrayLike,
        arm: ArrayLike,
        reward: ArrayLike,
        domain: str = "source",
        ids: Sequence[int | str] | IntArray | None = None,
    ) -> None:
        """Learn from a batch of rounds: late ones, some of them only, in any order.

        Args:
            contexts: (B, *context_shape), as they were given to ``select``.
            arm: the arm that was pulled in each round, (B,).
            reward: what it paid, (B,), within ``reward_range``.
            domain: where the rounds were played.
            ids: a name per round, integers or strings. A round that was learned before is then refused.
        """
        checked = self._checked_contexts(contexts)
        self._check_domain(domain)
        pulled = self._checked_arms(arm, len(checked))
        paid = self._checked_rewards(reward, (len(checked),))
        names = None if ids is None else self._seen.checked(ids, len(checked))
        self._learn(self._transformed(checked), pulled, paid, domain)
        if names is not None:
            self._seen.add(names)

    def play(
        self, contexts: ArrayLike, rewards: ArrayLike, domain: str = "source", available: ArrayLike | None = None
    ) -> Played:
        """Play rounds one after the other, learning after each, where the environment can say what every arm pays.

        The choices are those of ``select`` and ``update`` in turn, round by round; a policy may get there faster.

        Args:
            contexts: (B, *context_shape).
            rewards: what each arm would pay, (B, K). The policy learns the reward of the arm it pulls.
            domain: where the rounds are played.
            available: as in ``select``.
        """
        checked = self._checked_contexts(contexts)
        self._check_domain(domain)
        paid = self._checked_rewards(rewards, (len(checked), self.n_arms))
        mask = None if available is None else self._checked_mask(available, len(checked))
        played = self._play(self._transformed(checked), paid, domain, mask)
        self.rounds_decided += len(checked)
        return played

    def prepare(self, *contexts: ArrayLike) -> None:
        """Look at unlabelled contexts, of source and target, before the first round: this fits the transform."""
        if self.transform is None:
            return
        if self.transform.fitted:
            raise InvalidInput(f"{self.transform!r} is fitted already; what was learned rests on it as it is")
        checked = [self._checked_contexts(batch) for batch in contexts]
        self.transform.fit(*[batch.reshape(-1, *self.context_shape) for batch in checked])

    def observe_target(self, contexts: ArrayLike) -> None:
        """Unlabelled contexts of the target, (B, *context_shape). Policies that do not adapt ignore them."""
        self._observe(self._transformed(self._checked_contexts(contexts)))

    def adapt(self, steps: int | None = None) -> dict[str, float]:
        """Take gradient steps; returns what was measured on the way. A policy without an encoder has none to take."""
        if steps is not None:
            _checked_whole("steps", steps, least=0)
        return self._adapt(steps)

    def add_arm(self) -> int:
        """Add an arm of which nothing is known yet, and return its number."""
        self._grow()
        self.n_arms += 1
        return self.n_arms - 1

    def save(self, path: str | Path, *, notes: Mapping[str, str] | None = None) -> None:
        """Write everything to one safetensors file, all or nothing. ``daband.load`` goes on from it to the last bit.

        ``notes`` are short texts of the caller's own, read back by ``daband.policies.read_notes``.
        """
        settings = {**self.settings(), "policy": self.name}
        arrays: dict[str, AnyArray] = {f"policy/{name}": array for name, array in self._state().items()}
        arrays["rounds_decided"] = np.array([self.rounds_decided], np.int64)
        arrays.update({f"seen/{name}": array for name, array in self._seen.state().items()})
        if self.transform is not None:
            arrays.update({f"transform/{name}": array for name, array in self.transform.state().items()})
        write_checkpoint(Path(path), settings, arrays, dict(notes or {}))

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Take over the arrays of a saved file; the settings must be those it was saved with."""

        def below(prefix: str) -> dict[str, AnyArray]:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        self.rounds_decided = int(arrays["rounds_decided"][0])
        self._seen.restore(below("seen/"))
        if self.transform is not None:
            self.transform.restore(below("transform/"))
        self._restore(below("policy/"))

    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make this policy anew, as JSON can hold them."""
        return {
            "context_shape": list(self.context_shape),
            "n_arms": self.n_arms,
            "arms": self.arms,
            "reward_range": list(self.reward_range),
            "transform": transform_settings(self.transform),
            "seed": self.seed,
        }

    def timed_parts(self) -> list[tuple[str, object, str]]:
        """What a stopwatch may time: (part, object, name of its method), parts being "step", "features" and "head"."""
        return []

    # What a policy fills in. Contexts arrive checked and transformed.

    @abstractmethod
    def _decide(
        self, contexts: AnyArray, domain: str, available: BoolArray | None, first_round: int, rule: str | None
    ) -> Decision:
        """Choose; change nothing. Random numbers may depend on seed and round number only."""

    @abstractmethod
    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> None:
        """Absorb a batch of rounds."""

    @abstractmethod
    def _grow(self) -> None:
        """Make room for one more arm; ``n_arms`` is raised afterwards."""

    @abstractmethod
    def _state(self) -> dict[str, AnyArray]:
        """All that was learned, as arrays."""

    @abstractmethod
    def _restore(self, state: dict[str, AnyArray]) -> None:
        """Take over what ``_state`` returned."""

    def _play(self, contexts: AnyArray, rewards: FloatArray, domain: str, available: BoolArray | None) -> Played:
        """Round by round; a policy whose rounds can be played in one go does better."""
        decisions = []
        for i in range(len(contexts)):
            mask = None if available is None else available[i : i + 1]
            decision = self._decide(contexts[i : i + 1], domain, mask, self.rounds_decided + i, None)
            self._learn(contexts[i : i + 1], decision.arm, rewards[i, decision.arm], domain)
            decisions.append(decision)
        arms = np.concatenate([decision.arm for decision in decisions])
        return Played(
            arms,
            np.concatenate([decision.propensity for decision in decisions]),
            np.concatenate([decision.mean for decision in decisions]),
            np.concatenate([decision.width for decision in decisions]),
            rewards[np.arange(len(arms)), arms],
        )

    def _observe(self, contexts: AnyArray) -> None:  # noqa: B027 - ignoring the target is a policy too
        """See unlabelled target contexts."""

    def _adapt(self, steps: int | None) -> dict[str, float]:  # noqa: ARG002
        return {}

    # The checks.

    def _transformed(self, contexts: AnyArray) -> AnyArray:
        if self.transform is None:
            return contexts
        lead = contexts.shape[: -len(self.context_shape)]
        return self.transform(contexts.reshape(-1, *self.context_shape)).reshape(*lead, -1)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of a context behind the transform."""
        return self.context_shape if self.transform is None else (self.transform.n_features(self.context_shape),)

    def _checked_contexts(self, contexts: ArrayLike) -> AnyArray:
        array = as_numpy(contexts, "contexts")
        shape = array.shape
        wanted = (self.n_arms, *self.context_shape) if self.arms == "shared" else self.context_shape
        if shape[1:] != wanted:
            raise InvalidInput(f"contexts must have shape (B, {', '.join(map(str, wanted))}), got {shape}")
        if shape[0] == 0:
            raise InvalidInput("contexts is an empty batch")
        if array.dtype.kind == "f":
            _check_finite(array)
        return array

    def _check_domain(self, domain: str) -> None:
        if domain not in DOMAINS:
            raise InvalidInput(f"domain must be 'source' or 'target', got {domain!r}")

    def _checked_mask(self, available: ArrayLike, n: int) -> BoolArray:
        mask = as_numpy(available, "available")
        if mask.dtype != np.bool_ and not np.isin(mask, (0, 1)).all():
            raise InvalidInput("available must hold booleans")
        if mask.shape not in ((self.n_arms,), (n, self.n_arms)):
            raise InvalidInput(f"available must have shape ({self.n_arms},) or ({n}, {self.n_arms}), got {mask.shape}")
        full: BoolArray = np.ascontiguousarray(np.broadcast_to(mask.astype(np.bool_), (n, self.n_arms)))
        if not full.any(axis=1).all():
            raise InvalidInput(f"available leaves no arm to choose in row {int(np.argmin(full.any(axis=1)))}")
        return full

    def _checked_arms(self, arm: ArrayLike, n: int) -> IntArray:
        array = as_numpy(arm, "arm")
        if array.shape != (n,):
            raise InvalidInput(f"arm must have shape ({n},), got {array.shape}")
        if array.dtype.kind not in "iu":
            raise InvalidInput(f"arm must hold integers, got {array.dtype}")
        arms: IntArray = array.astype(np.int64, copy=False)
        if n == 1 and 0 <= arms.item() < self.n_arms:  # a loop of single rounds should not pay for reductions
            return arms
        if arms.min() < 0 or arms.max() >= self.n_arms:
            row = int(np.argmax((arms < 0) | (arms >= self.n_arms)))
            raise InvalidInput(f"arm {int(arms[row])} in row {row} is outside 0..{self.n_arms - 1}")
        return arms

    def _checked_rewards(self, reward: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
        array: FloatArray = as_numpy(reward, "reward").astype(np.float64, copy=False)
        if array.shape != shape:
            raise InvalidInput(f"reward must have shape {shape}, got {array.shape}")
        low, high = self.reward_range
        if array.size == 1 and low <= array.item() <= high:
            return array
        if not (array.min() >= low and array.max() <= high):  # false for NaN as well
            wrong = array[~((array >= low) & (array <= high))][0]
            raise InvalidInput(f"reward {wrong} is outside reward_range [{low}, {high}]")
        return array


def _check_finite(contexts: AnyArray) -> None:
    flat = contexts.reshape(-1)
    # One product tells in nearly every case that all is well; NaN and infinity are not below any bound.
    if packed is not None and flat.dtype == np.float64:
        if packed.sum_of_squares(flat) < _LARGEST_SQUARE["d"]:
            return
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            if np.dot(flat, flat) < _LARGEST_SQUARE[flat.dtype.char]:
                return
    if not np.isfinite(contexts).all():
        row = int(np.argwhere(~np.isfinite(contexts))[0][0])
        raise InvalidInput(f"contexts has a NaN or infinite value, first in row {row}")
    largest = float(np.abs(contexts).max())
    if largest > _LARGEST_VALUE:
        raise InvalidInput(f"contexts has a value of {largest:g}; squares of such numbers overflow: scale them down")


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        dims = tuple(shape)
    except TypeError:
        raise InvalidInput(f"context_shape must be a tuple of whole numbers, got {shape!r}") from None
    if not dims or not all(isinstance(dim, int | np.integer) and dim >= 1 for dim in dims):
        raise InvalidInput(f"context_shape must hold whole numbers >= 1, got {shape!r}")
    return tuple(int(dim) for dim in dims)


def _checked_whole(name: str, value: int, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InvalidInput(f"{name} must be a whole number >= {least}, got {value!r}")
    return int(value)


def _checked_range(reward_range: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in reward_range)
    except (TypeError, ValueError):
        raise InvalidInput(f"reward_range must be two numbers (low, high), got {reward_range!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(f"reward_range must be finite with low < high, got {reward_range!r}")
    return low, high


class _PolicyRegistry(Registry[type[Policy]]):
    """Registered policy classes; each learns its own name."""

    def add(self, name: str, member: type[Policy]) -> None:
        super().add(name, member)
        member.name = name


policies: Registry[type[Policy]] = _PolicyRegistry("policy", "daband.policies")
