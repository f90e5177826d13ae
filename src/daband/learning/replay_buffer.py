"""What a neural policy remembers: contexts, and with rounds their arm and reward.

Contexts lie on the device, so that steps draw from them without the host; where they would take too much of it they lie
on the host, and ``streaming`` sends what a step needs.

Beyond its capacity a memory keeps a uniform sample of all it was shown (reservoir sampling), or the latest. Which item
makes room for which depends on the seed and on the item's number alone, so a memory that was saved goes on as if it
never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.linear.draws import uniforms

__all__ = ["ContextBuffer", "ReplayBuffers", "RoundBuffer", "joined"]

_FIRST_ROOM = 1024
_FIRST_BYTES = 1 << 26
"""Room that a GPU makes for contexts at the beginning: recorded steps hold addresses, and growth moves everything."""
_SHARE = 0.25
"""How much of a GPU's memory the contexts of one memory may take; there are two that grow large."""


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
        """How many contexts were ever shown."""
        self._make_columns()

    def _make_columns(self) -> None:
        self.contexts = torch.empty((0, *self.context_shape), device=self._home("contexts"))

    def __len__(self) -> int:
        return min(self.n_seen, self.capacity)

    @property
    def kind(self) -> tuple[bool, torch.dtype, bool]:
        """The same for memories that steps can draw from side by side: filled or empty, of one type, in one place."""
        return len(self) > 0, self.contexts.dtype, self.on_host

    def add(self, contexts: AnyArray) -> None:
        """Remember contexts (B, *context_shape), or a sample of them."""
        self._add(contexts, {})

    def _home(self, column: str) -> torch.device:
        return torch.device("cpu") if self.on_host and column == "contexts" else self.device

    def _settle(self, dtype: torch.dtype) -> None:
        """Decide where contexts of this type will lie, before the first one comes.

        It goes by sizes that a machine always has, not by what is free at the moment: the same run shall do the same
        again.
        """
        if self.place == "auto" and self.device.type == "cuda":
            needed = self.capacity * math.prod(self.context_shape) * dtype.itemsize
            self.on_host = needed > _SHARE * torch.cuda.get_device_properties(self.device).total_memory
        self.contexts = self.contexts.to(self._home("contexts"), dtype)

    def _columns(self) -> dict[str, torch.Tensor]:
        return {"contexts": self.contexts}

    def _set_column(self, name: str, column: torch.Tensor) -> None:
        setattr(self, name, column)

    def _add(self, contexts: AnyArray, more: Mapping[str, torch.Tensor]) -> None:
        incoming = torch.from_numpy(np.ascontiguousarray(contexts))
        if incoming.dtype != torch.uint8:
            incoming = incoming.to(torch.float32)
        if len(self) and incoming.dtype != self.contexts.dtype:
            # Images first as bytes and then as numbers: bytes mean 0..255 scaled to [0, 1], so both become floats.
            incoming, self.contexts = _as_float(incoming), _as_float(self.contexts)
        elif not len(self):
            self._settle(incoming.dtype)
        given = {"contexts": incoming, **more}
        end = self.n_seen + len(incoming)
        if end <= self.capacity:  # one after another
            self._make_room(end)
            for name, values in given.items():
                self._columns()[name][self.n_seen : end].copy_(values)
        else:
            slots, rows = self._places(len(incoming))
            self._make_room(int(slots.max()) + 1 if len(slots) else 0)
            where, which = torch.from_numpy(slots), torch.from_numpy(rows)
            for name, values in given.items():
                column = self._columns()[name]
                column.index_copy_(0, where.to(column.device), values[which].to(column.device))
        self.n_seen = end

    def _places(self, n: int) -> tuple[IntArray, IntArray]:
        """Where the next ``n`` items go, which are more than there is room for, and which of them do.

        Of items for one place only the last does.
        """
        free = max(0, self.capacity - self.n_seen)
        slots = np.arange(self.n_seen, self.n_seen + free)
        rows = np.arange(free)
        numbers = np.arange(self.n_seen + free, self.n_seen + n)
        if self.latest:
            drawn = numbers % self.capacity
        else:
            # Item i takes one of the places 0..i, drawn from the seed and i alone; beyond the capacity it is nowhere.
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
            self._set_column(name, grown)

    def _first_room(self) -> int:
        if self.contexts.device.type != "cuda":
            return _FIRST_ROOM
        return max(_FIRST_ROOM, _FIRST_BYTES // (math.prod(self.context_shape) * self.contexts.dtype.itemsize))

    def state(self) -> dict[str, AnyArray]:
        """What is stored, as arrays."""
        columns = {name: column[: len(self)].cpu().numpy() for name, column in self._columns().items()}
        return {**columns, "n_seen": np.array([self.n_seen], np.int64)}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Take over what ``state`` returned."""
        self.n_seen = int(state["n_seen"][0])
        self._settle(torch.from_numpy(state["contexts"][:0]).dtype)
        for name in self._columns():
            self._set_column(name, torch.from_numpy(state[name].copy()).to(self._home(name)))


class RoundBuffer(ContextBuffer):
    """Contexts with the arm that was pulled and the reward it paid."""

    def _make_columns(self) -> None:
        super()._make_columns()
        self.arms = torch.empty(0, dtype=torch.int64, device=self.device)
        self.rewards = torch.empty(0, dtype=torch.float64, device=self.device)

    def add_rounds(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray) -> None:
        """Remember rounds: contexts (B, *context_shape), arms and rewards (B,)."""
        more = {"arms": torch.from_numpy(np.array(arms)), "rewards": torch.from_numpy(np.array(rewards, np.float64))}
        self._add(contexts, more)

    def _columns(self) -> dict[str, torch.Tensor]:
        return {"contexts": self.contexts, "arms": self.arms, "rewards": self.rewards}


@dataclass(frozen=True)
class ReplayBuffers:
    """What steps draw from: source rounds, unlabelled target contexts, and target rounds once there are any."""

    source: RoundBuffer
    target: ContextBuffer
    target_rounds: RoundBuffer

    def parts(self) -> tuple[RoundBuffer, ContextBuffer, RoundBuffer]:
        """All three, in this order."""
        return self.source, self.target, self.target_rounds


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """What was drawn from several memories, (runs, R, ...); contexts in bytes and in numbers meet as numbers."""
    if len({part.dtype for part in parts}) > 1:
        parts = [_as_float(part) for part in parts]
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def _as_float(contexts: torch.Tensor) -> torch.Tensor:
    return contexts.to(torch.float32) / 255 if contexts.dtype == torch.uint8 else contexts
