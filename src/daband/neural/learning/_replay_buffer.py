"""Replay buffers: contexts, and for rounds their arm and reward.

Contexts lie on the device, so that steps gather them without the host. Where they would take too much of the device,
they lie on the host, and those of the coming steps are sent at once.

Beyond its capacity a buffer keeps a uniform sample of all contexts it was given (reservoir sampling), or the latest.
Which one is replaced depends on the seed and on the number of the new one alone, so a restored buffer continues as if
it had never been saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from daband._arrays import AnyArray, FloatArray, IntArray, Weights, below
from daband._domain_names import DomainNames
from daband.linear._kernels import uniforms
from daband.neural.learning._settings import ReplaySettings

_FIRST_ROOM = 1024
_FIRST_BYTES = 1 << 26
"""Allocated for contexts on a GPU at first: recorded steps hold addresses, and growth moves everything."""
_SHARE = 0.25
"""How much of a GPU's memory the contexts of one buffer may take; there are two that grow large."""


class ContextBuffer:
    """At most ``capacity`` contexts of one shape, in a buffer that doubles as it fills.

    ``place`` says where contexts lie: "device", "host", or "auto", which is the device unless the contexts, at full
    capacity, would take more than a quarter of it. With ``latest``, item i lies in row ``i % capacity``: the oldest
    makes room.
    """

    def __init__(
        self,
        *,
        context_shape: tuple[int, ...],
        capacity: int,
        seed: int,
        device: torch.device,
        place: str = "auto",
        latest: bool = False,
    ) -> None:
        self.context_shape = context_shape
        self.capacity = capacity
        self._key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        self.device = device
        self.place = place
        self.latest = latest
        self.on_host = place == "host"
        self.n_seen = 0
        """How many contexts were ever added."""
        self._make_columns()

    def _make_columns(self) -> None:
        self.contexts = torch.empty((0, *self.context_shape), device=self._home("contexts"))

    def __len__(self) -> int:
        return min(self.n_seen, self.capacity)

    @property
    def kind(self) -> tuple[bool, torch.dtype, bool]:
        """Equal for buffers of runs that can be stacked: filled or empty, of one type, in one place."""
        return len(self) > 0, self.contexts.dtype, self.on_host

    def add(self, contexts: AnyArray) -> None:
        """Store contexts (B, *context_shape), or a sample of them."""
        self._add(contexts, {})

    def _home(self, column: str) -> torch.device:
        return torch.device("cpu") if self.on_host and column == "contexts" else self.device

    def _choose_place(self, dtype: torch.dtype) -> None:
        """Decide where contexts of this type will lie, before the first one is stored.

        The total memory decides, not what is free at the moment, so that a run can be repeated.
        """
        if self.place == "auto" and self.device.type == "cuda":
            needed = self.capacity * math.prod(self.context_shape) * dtype.itemsize
            self.on_host = needed > _SHARE * torch.cuda.get_device_properties(self.device).total_memory
        self.contexts = self.contexts.to(self._home("contexts"), dtype)

    def _columns(self) -> dict[str, torch.Tensor]:
        return {"contexts": self.contexts}

    def _add(self, contexts: AnyArray, more: Mapping[str, torch.Tensor]) -> None:
        incoming = torch.from_numpy(np.ascontiguousarray(contexts))
        if incoming.dtype != torch.uint8:
            incoming = incoming.to(torch.float32)
        if len(self) and incoming.dtype != self.contexts.dtype:
            # Bytes mean 0..255 scaled to [0, 1]; where floats follow, both become floats.
            incoming, self.contexts = as_float(incoming), as_float(self.contexts)
        elif not len(self):
            self._choose_place(incoming.dtype)
        given = {"contexts": incoming, **more}
        end = self.n_seen + len(incoming)
        if end <= self.capacity:  # one after another
            self._make_room(end)
            for name, values in given.items():  # a copy from memory that is not pinned has left it when it returns
                self._columns()[name][self.n_seen : end].copy_(values, non_blocking=True)
        else:
            slots, rows = self._places(len(incoming))
            self._make_room(int(slots.max()) + 1 if len(slots) else 0)
            where, which = torch.from_numpy(slots), torch.from_numpy(rows)
            for name, values in given.items():
                column = self._columns()[name]
                column.index_copy_(0, where.to(column.device), values[which].to(column.device))
        self.n_seen = end

    def _places(self, n: int) -> tuple[IntArray, IntArray]:
        """The slots for the next ``n`` contexts, which exceed the capacity, and which of them are stored there.

        Of several contexts for one slot the last is stored.
        """
        free = max(0, self.capacity - self.n_seen)
        slots = np.arange(self.n_seen, self.n_seen + free)
        rows = np.arange(free)
        numbers = np.arange(self.n_seen + free, self.n_seen + n)
        if self.latest:
            drawn = numbers % self.capacity
        else:
            # Context i draws one of the slots 0..i, from the seed and i alone; beyond the capacity it is not stored.
            draws = uniforms(self._key, int(numbers[0]), len(numbers), 1)[:, 0]
            drawn = (draws * (numbers + 1)).astype(np.int64)
        kept = np.flatnonzero(drawn < self.capacity)
        slots, rows = np.concatenate([slots, drawn[kept]]), np.concatenate([rows, free + kept])
        # A slot may be filled and replaced in the same batch: the last one stays.
        _, from_behind = np.unique(slots[::-1], return_index=True)
        last = len(slots) - 1 - from_behind
        return slots[last], rows[last]

    def _make_room(self, needed: int) -> None:
        room = len(self.contexts)
        if needed <= room:
            return
        size = min(self.capacity, max(needed, 2 * room, self._first_room()))
        for name, column in self._columns().items():
            grown = torch.zeros((size, *column.shape[1:]), dtype=column.dtype, device=column.device)
            grown[:room] = column
            setattr(self, name, grown)

    def _first_room(self) -> int:
        if self.contexts.device.type != "cuda":
            return _FIRST_ROOM
        return max(_FIRST_ROOM, _FIRST_BYTES // (math.prod(self.context_shape) * self.contexts.dtype.itemsize))

    def state(self) -> dict[str, AnyArray]:
        """What is stored, as arrays."""
        columns = {name: column[: len(self)].cpu().numpy() for name, column in self._columns().items()}
        return {**columns, "n_seen": np.array([self.n_seen], np.int64)}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""
        self.n_seen = int(state["n_seen"][0])
        self._choose_place(torch.from_numpy(state["contexts"][:0]).dtype)
        for name in self._columns():
            setattr(self, name, torch.from_numpy(state[name].copy()).to(self._home(name)))


class RoundBuffer(ContextBuffer):
    """Contexts with the arm that was played, its reward, and the weight by which steps draw the round."""

    def _make_columns(self) -> None:
        super()._make_columns()
        self.arms = torch.empty(0, dtype=torch.int64, device=self.device)
        self.rewards = torch.empty(0, dtype=torch.float64, device=self.device)
        self.weights = torch.empty(0, dtype=torch.float64, device=self.device)
        self.weighted = False
        """Whether any round was ever stored with a weight; else all have 1."""

    def add_rounds(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: Weights = None) -> None:
        """Store rounds: contexts (B, *context_shape), arms, rewards and weights (B,), which are 1 by default."""
        self.weighted = self.weighted or weights is not None
        given = np.ones(len(arms)) if weights is None else weights
        more = {
            "arms": torch.from_numpy(np.array(arms)),
            "rewards": torch.from_numpy(np.array(rewards, np.float64)),
            "weights": torch.from_numpy(np.array(given, np.float64)),
        }
        self._add(contexts, more)

    def fade(self, factor: float) -> None:
        """Draw every stored round by ``factor`` times its weight from now on."""
        self.weights[: len(self)] *= factor
        self.weighted = True

    def _columns(self) -> dict[str, torch.Tensor]:
        return {"contexts": self.contexts, "arms": self.arms, "rewards": self.rewards, "weights": self.weights}

    def state(self) -> dict[str, AnyArray]:
        state = super().state()
        if not self.weighted:
            del state["weights"]  # so that files are those of versions without weights
        return state

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        self.weighted = "weights" in state
        super().restore(state if self.weighted else {**state, "weights": np.ones(len(state["arms"]))})

    def columns(self, most: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Contexts, arms and rewards of the stored rounds, or of the first ``most`` of them."""
        n = len(self) if most is None else min(len(self), most)
        return self.contexts[:n], self.arms[:n], self.rewards[:n]


@dataclass(frozen=True)
class Segment:
    """A part of every batch: rounds, or unlabelled contexts, of one domain."""

    domain: int
    labelled: bool


@dataclass(frozen=True)
class ReplayBuffers:
    """What steps draw from: the rounds of each domain, and the unlabelled contexts of each target."""

    domains: DomainNames
    rounds: tuple[RoundBuffer, ...]
    """By the index of the domain; a target has some once it is labelled."""
    unlabelled: tuple[ContextBuffer, ...]
    """Of the first target, the second, ..."""
    weights: tuple[float, ...] = ()
    """By the index of the domain, how much a round of it counts in gradients; empty: all as much."""

    @classmethod
    def empty(
        cls,
        context_shape: tuple[int, ...],
        settings: ReplaySettings,
        *,
        seed: int,
        device: torch.device,
        domains: DomainNames | None = None,
    ) -> ReplayBuffers:
        """Buffers for contexts of this shape; with shared arms the contexts of a round are one of theirs."""
        domains = DomainNames() if domains is None else domains
        common: dict[str, Any] = {
            "context_shape": context_shape, "capacity": settings.capacity, "device": device, "place": settings.place,
            "latest": settings.sampling == "last",
        }  # fmt: skip
        targets = range(domains.first_target, len(domains))
        rounds = [RoundBuffer(**common, seed=_seed(seed, domain, True, domains)) for domain in range(len(domains))]
        unlabelled = [ContextBuffer(**common, seed=_seed(seed, domain, False, domains)) for domain in targets]
        return cls(domains, tuple(rounds), tuple(unlabelled))

    @property
    def rounds_seen(self) -> int:
        """How many rounds were ever added, of all domains."""
        return sum(part.n_seen for part in self.rounds)

    def parts(self) -> dict[Segment, ContextBuffer]:
        """All buffers, in the order of a batch: domain by domain, unlabelled contexts before rounds."""
        parts: dict[Segment, ContextBuffer] = {}
        for domain, rounds in enumerate(self.rounds):
            if self.domains.is_target(domain):
                parts[Segment(domain, False)] = self.unlabelled[domain - self.domains.first_target]
            parts[Segment(domain, True)] = rounds
        return parts

    def _named(self) -> dict[str, ContextBuffer]:
        """All buffers under the names that they have in files."""
        names = self.domains.names
        return {
            names[part.domain] + ("_rounds" if part.labelled and self.domains.is_target(part.domain) else ""): buffer
            for part, buffer in self.parts().items()
        }

    def state(self) -> dict[str, AnyArray]:
        """What is stored, as arrays."""
        named = self._named().items()
        return {f"{name}.{column}": array for name, part in named for column, array in part.state().items()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""
        for name, part in self._named().items():
            part.restore(below(f"{name}.", state))


def _seed(seed: int, domain: int, labelled: bool, domains: DomainNames) -> int:
    """The seed of a domain's buffer; of the first source and the first target those that files were written with."""
    if domain == 0:
        return 3 * seed
    if domain == domains.first_target:
        return 3 * seed + 1 + labelled
    return int(np.random.SeedSequence([seed, domain, labelled]).generate_state(1)[0])


def as_float(contexts: torch.Tensor) -> torch.Tensor:
    """Contexts as float32; bytes, which mean 0..255, scaled to [0, 1]."""
    return contexts.to(torch.float32) / 255 if contexts.dtype == torch.uint8 else contexts
