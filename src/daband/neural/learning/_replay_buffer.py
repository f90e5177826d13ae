"""Define replay buffers for contexts, and for rounds with arm, reward and weight.

Contexts are stored on the device, so that steps gather them without the host. If they would take more than a quarter
of a GPU's memory, they are stored on the host, and the contexts of the coming steps are sent together.

Above its capacity a buffer keeps a uniform sample of all its contexts (reservoir sampling), or the latest. The slot
that is replaced depends only on the seed and on the number of the new context, so a restored buffer continues as if it
had never been saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from daband._arrays import AnyArray, FloatArray, IntArray, Weights, with_prefix
from daband._domain_names import DomainNames
from daband.linear._kernels import uniforms
from daband.neural.learning._settings import ReplaySettings

#: The number of contexts for which memory is allocated at first.
_INITIAL_ROWS = 1024
#: The number of bytes allocated at first on a GPU. Growth moves all contexts, and steps must then be recorded again.
_INITIAL_GPU_BYTES = 1 << 26
#: The maximum fraction of a GPU's memory for the contexts of one buffer; there are two large buffers.
_MAX_GPU_FRACTION = 0.25


class ReplayBuffer:
    """A buffer of at most ``capacity`` contexts of one shape, in memory that doubles as it fills.

    A ``labelled`` buffer stores rounds, which also have ``arms``, ``rewards`` and ``weights``. Steps draw rounds with
    probabilities proportional to their weights. With ``latest``, item i is stored in row ``i % capacity``, so that the
    oldest is replaced.
    """

    def __init__(
        self,
        *,
        context_shape: tuple[int, ...],
        capacity: int,
        seed: int,
        device: torch.device,
        labelled: bool = False,
        latest: bool = False,
    ) -> None:
        self.context_shape = context_shape
        self.capacity = capacity
        self._key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        self.device = device
        self.latest = latest
        self.on_host = False
        #: The number of contexts that were ever added.
        self.n_seen = 0
        #: True if a round with a weight other than 1 was ever stored.
        self.weighted = False
        self.columns = {"contexts": torch.empty((0, *context_shape), device=device)}
        dtypes = {"arms": torch.int64, "rewards": torch.float64, "weights": torch.float64} if labelled else {}
        self.columns |= {name: torch.empty(0, dtype=dtype, device=device) for name, dtype in dtypes.items()}

    @property
    def contexts(self) -> torch.Tensor:
        """The stored contexts, followed by unused rows."""
        return self.columns["contexts"]

    def __len__(self) -> int:
        return min(self.n_seen, self.capacity)

    @property
    def kind(self) -> tuple[bool, torch.dtype, bool]:
        """A key that is equal for buffers of runs that can be stacked: filled or empty, type, and device."""
        return len(self) > 0, self.contexts.dtype, self.on_host

    def add(self, contexts: AnyArray) -> None:
        """Store contexts (B, *context_shape). Above the capacity, a sample or the latest are stored."""
        self._add(contexts, {})

    def add_rounds(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: Weights = None) -> None:
        """Store rounds: contexts (B, *context_shape), arms, rewards and weights (B,), which are 1 by default."""
        all_weights = np.ones(len(arms)) if weights is None else weights
        self.weighted = self.weighted or bool((all_weights != 1).any())
        rounds = {"arms": np.array(arms), "rewards": np.array(rewards, np.float64), "weights": np.array(all_weights)}
        self._add(contexts, {name: torch.from_numpy(column) for name, column in rounds.items()})

    def _add(self, contexts: AnyArray, rounds: Mapping[str, torch.Tensor]) -> None:
        """Store contexts, with the other columns of their rounds."""
        new_contexts = torch.from_numpy(np.ascontiguousarray(contexts))
        if new_contexts.dtype != torch.uint8:
            new_contexts = new_contexts.to(torch.float32)
        if len(self) and new_contexts.dtype != self.contexts.dtype:  # bytes are 0..255 scaled to [0, 1]
            new_contexts, self.columns["contexts"] = as_float(new_contexts), as_float(self.contexts)
        elif not len(self):
            self._choose_device(new_contexts.dtype)
        columns = {"contexts": new_contexts, **rounds}
        end = self.n_seen + len(new_contexts)
        if end <= self.capacity:
            self._reserve(end)
            for name, values in columns.items():
                self.columns[name][self.n_seen : end].copy_(values, non_blocking=True)
        else:
            slots, rows = self._slots(len(new_contexts))
            self._reserve(int(slots.max()) + 1 if len(slots) else 0)
            slot_indices, row_indices = torch.from_numpy(slots), torch.from_numpy(rows)
            for name, values in columns.items():
                column = self.columns[name]
                column.index_copy_(0, slot_indices.to(column.device), values[row_indices].to(column.device))
        self.n_seen = end

    def _choose_device(self, dtype: torch.dtype) -> None:
        """Store contexts of this type on the GPU if they fit, and otherwise on the host.

        The rule uses the total memory of the GPU, not its free memory, so that runs are repeatable.
        """
        if self.device.type == "cuda":
            n_bytes = self.capacity * math.prod(self.context_shape) * dtype.itemsize
            self.on_host = n_bytes > _MAX_GPU_FRACTION * torch.cuda.get_device_properties(self.device).total_memory
        self.columns["contexts"] = self.contexts.to("cpu" if self.on_host else self.device, dtype)

    def _slots(self, n: int) -> tuple[IntArray, IntArray]:
        """Return the slots of those of the next ``n`` contexts that are stored, and their rows among the ``n``.

        The ``n`` contexts exceed the capacity, so that some of them are not stored.
        """
        n_free = max(0, self.capacity - self.n_seen)
        context_numbers = np.arange(self.n_seen + n_free, self.n_seen + n)
        if self.latest:
            drawn_slots = context_numbers % self.capacity
        else:  # context i draws one of the slots 0..i; beyond the capacity it is not stored
            draws = uniforms(self._key, int(context_numbers[0]), len(context_numbers), 1)[:, 0]
            drawn_slots = (draws * (context_numbers + 1)).astype(np.int64)
        stored_indices = np.flatnonzero(drawn_slots < self.capacity)
        slots = np.concatenate([np.arange(self.n_seen, self.n_seen + n_free), drawn_slots[stored_indices]])
        rows = np.concatenate([np.arange(n_free), n_free + stored_indices])
        _, from_end = np.unique(slots[::-1], return_index=True)  # the last of several contexts for a slot is stored
        stored_last = len(slots) - 1 - from_end
        return slots[stored_last], rows[stored_last]

    def _reserve(self, n_needed: int) -> None:
        """Allocate memory for at least this many contexts."""
        n_allocated, contexts = len(self.contexts), self.contexts
        if n_needed <= n_allocated:
            return
        initial = _INITIAL_ROWS
        if contexts.is_cuda:
            initial = max(initial, _INITIAL_GPU_BYTES // (math.prod(self.context_shape) * contexts.dtype.itemsize))
        size = min(self.capacity, max(n_needed, 2 * n_allocated, initial))
        for name, column in self.columns.items():
            grown = torch.zeros((size, *column.shape[1:]), dtype=column.dtype, device=column.device)
            grown[:n_allocated] = column
            self.columns[name] = grown

    def state(self) -> dict[str, AnyArray]:
        """Return all stored data as arrays."""
        columns = {name: column[: len(self)].cpu().numpy() for name, column in self.columns.items()}
        return {**columns, "n_seen": np.array([self.n_seen], np.int64)}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        self.n_seen = int(state["n_seen"][0])
        self._choose_device(torch.from_numpy(state["contexts"][:0]).dtype)
        for name, column in self.columns.items():
            self.columns[name] = torch.from_numpy(state[name].copy()).to(column.device)
        self.weighted = "weights" in self.columns and bool((self.columns["weights"] != 1).any())


@dataclass(frozen=True)
class Segment:
    """A part of every batch: rounds, or unlabelled contexts, of one domain."""

    #: The index of the domain.
    domain: int
    #: True for rounds, False for unlabelled contexts.
    labelled: bool


@dataclass(frozen=True)
class ReplayBuffers:
    """The replay buffers of a policy: rounds of each domain, and unlabelled contexts of each target."""

    domains: DomainNames
    #: The buffer of each domain, by its index; a target has rounds once it is labelled.
    rounds: tuple[ReplayBuffer, ...]
    #: The buffer of each target, by its index among the targets.
    unlabelled: tuple[ReplayBuffer, ...]

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
        """Return empty buffers for contexts of this shape; with shared arms a round's contexts are one item."""
        domains = DomainNames() if domains is None else domains
        settings_by_name: dict[str, Any] = {
            "context_shape": context_shape, "capacity": settings.capacity, "device": device,
            "latest": settings.sampling == "last",
        }  # fmt: skip

        def make_buffer(domain: int, labelled: bool) -> ReplayBuffer:
            buffer_seed = _buffer_seed(seed, domain, labelled, domains)
            return ReplayBuffer(**settings_by_name, seed=buffer_seed, labelled=labelled)

        targets = range(domains.first_target, len(domains))
        rounds = tuple(make_buffer(domain, True) for domain in range(len(domains)))
        return cls(domains, rounds, tuple(make_buffer(domain, False) for domain in targets))

    def parts(self) -> dict[Segment, ReplayBuffer]:
        """Return all buffers in the order of a batch: domain by domain, unlabelled contexts before rounds."""
        parts: dict[Segment, ReplayBuffer] = {}
        for domain, rounds in enumerate(self.rounds):
            if self.domains.is_target(domain):
                parts[Segment(domain, False)] = self.unlabelled[domain - self.domains.first_target]
            parts[Segment(domain, True)] = rounds
        return parts

    def _buffers_by_name(self) -> dict[str, ReplayBuffer]:
        """Return all buffers by their names in files."""
        names = self.domains.names
        return {
            names[part.domain] + ("_rounds" if part.labelled and self.domains.is_target(part.domain) else ""): buffer
            for part, buffer in self.parts().items()
        }

    def state(self) -> dict[str, AnyArray]:
        """Return all stored data as arrays."""
        named = self._buffers_by_name().items()
        return {f"{name}.{column}": array for name, buffer in named for column, array in buffer.state().items()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        for name, buffer in self._buffers_by_name().items():
            buffer.restore(with_prefix(f"{name}.", state))


def _buffer_seed(seed: int, domain: int, labelled: bool, domains: DomainNames) -> int:
    """Return the seed of a domain's buffer, by which buffers of a policy differ."""
    if domain == 0:
        return 3 * seed
    if domain == domains.first_target:
        return 3 * seed + 1 + labelled
    return int(np.random.SeedSequence([seed, domain, labelled]).generate_state(1)[0])


def as_float(contexts: torch.Tensor) -> torch.Tensor:
    """Return contexts as float32. Bytes (0..255) are scaled to [0, 1]."""
    return contexts.to(torch.float32) / 255 if contexts.dtype == torch.uint8 else contexts
