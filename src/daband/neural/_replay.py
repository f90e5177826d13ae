"""Store contexts and rounds, and draw the batches of gradient steps from them.

``ReplayBuffer`` stores the rounds or the unlabelled contexts of one domain, and ``ReplayBuffers``
has all buffers of a policy. ``ReplayBuffers.draw`` draws the contexts, arms and rewards of several
steps at once.

Contexts are stored on the device. If they would take more than a quarter of a GPU's memory, they
are stored on the host.

A full buffer keeps a uniform sample of all contexts that were added (reservoir sampling), or the
latest contexts. The row that a new context replaces depends only on the seed and on the number of
contexts before it. So a restored buffer continues as if it had never been saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from daband.base._arrays import AnyArray, FloatArray, IntArray, Weights, drop_prefix
from daband.features._domain_names import DomainNames
from daband.linear._draws import draw_uniforms
from daband.neural._settings import ReplaySettings

#: The minimum number of contexts for which memory is allocated.
_MIN_ALLOCATED_ROWS = 1024
#: The maximum fraction of a GPU's memory for the contexts of one buffer; there are two large
#: buffers.
_MAX_GPU_FRACTION = 0.25


class ReplayBuffer:
    """A buffer of contexts of one shape, in memory that doubles when it is full.

    Args:
        context_shape: the shape of one context.
        capacity: the maximum number of contexts.
        seed: determines which contexts are stored.
        device: the device of the policy; large buffers are on the host instead (``is_on_host``).
        is_labelled: store rounds, which also have ``arms``, ``rewards`` and ``weights``. Steps draw
            rounds with probabilities proportional to their weights.
        keeps_latest: store the latest contexts, context i in row ``i % capacity``, instead of a
            uniform sample.
    """

    def __init__(
        self,
        *,
        context_shape: tuple[int, ...],
        capacity: int,
        seed: int,
        device: torch.device,
        is_labelled: bool = False,
        keeps_latest: bool = False,
    ) -> None:
        self.context_shape = context_shape
        self.capacity = capacity
        self._random_key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        self.device = device
        self.keeps_latest = keeps_latest
        #: True if contexts are stored on the host although the device is a GPU.
        self.is_on_host = False
        #: The number of contexts that were ever added.
        self.n_seen = 0
        #: True if a round with a weight other than 1 was ever stored.
        self.has_weights = False
        #: The stored data by name. All columns have the same number of rows, of which the first
        #: ``len(self)`` are used.
        self.columns = {"contexts": torch.empty((0, *context_shape), device=device)}
        dtypes = (
            {"arms": torch.int64, "rewards": torch.float64, "weights": torch.float64}
            if is_labelled
            else {}
        )
        self.columns |= {
            name: torch.empty(0, dtype=dtype, device=device) for name, dtype in dtypes.items()
        }

    @property
    def contexts(self) -> Tensor:
        """The stored contexts (allocated rows, *context_shape), followed by unused rows."""
        return self.columns["contexts"]

    def __len__(self) -> int:
        return min(self.n_seen, self.capacity)

    def add(self, contexts: AnyArray) -> None:
        """Add contexts (B, *context_shape).

        If the buffer is full, they replace others or are not stored.
        """
        self._add_columns(contexts, {})

    def add_rounds(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: Weights = None
    ) -> None:
        """Add rounds: contexts (B, *context_shape), and arms, rewards and weights (B,).

        Weights are 1 by default. Rounds of weight 0 are not stored.
        """
        if weights is None:
            weights = np.ones(len(arms))
        elif not weights.all():
            contexts, arms, rewards = contexts[weights > 0], arms[weights > 0], rewards[weights > 0]
            weights = weights[weights > 0]
        self.has_weights = self.has_weights or bool((weights != 1).any())
        columns = {
            "arms": np.array(arms),
            "rewards": np.array(rewards, np.float64),
            "weights": np.array(weights),
        }
        self._add_columns(
            contexts, {name: torch.from_numpy(column) for name, column in columns.items()}
        )

    def _add_columns(self, contexts: AnyArray, round_columns: Mapping[str, Tensor]) -> None:
        """Add contexts, with the other columns of their rounds."""
        new_contexts = torch.from_numpy(np.require(contexts, requirements=["C", "W"]))
        if new_contexts.dtype != torch.uint8:
            new_contexts = new_contexts.to(torch.float32)
        # bytes stand for values in [0, 1]
        if len(self) and new_contexts.dtype != self.contexts.dtype:
            new_contexts, self.columns["contexts"] = as_float(new_contexts), as_float(self.contexts)
        elif not len(self):
            self._choose_device(new_contexts.dtype)
        columns = {"contexts": new_contexts, **round_columns}
        new_n_seen = self.n_seen + len(new_contexts)
        if new_n_seen <= self.capacity:
            self._reserve(new_n_seen)
            for name, new_values in columns.items():
                self.columns[name][self.n_seen : new_n_seen].copy_(new_values, non_blocking=True)
        else:
            slots, stored_indices = map(torch.from_numpy, self._assign_slots(len(new_contexts)))
            self._reserve(int(slots.max()) + 1 if len(slots) else 0)
            for name, new_values in columns.items():
                column = self.columns[name]
                column.index_copy_(
                    0, slots.to(column.device), new_values[stored_indices].to(column.device)
                )
        self.n_seen = new_n_seen

    def _choose_device(self, dtype: torch.dtype) -> None:
        """Choose the GPU for contexts of this dtype if they fit at full capacity, and otherwise the
        host.

        The rule uses the total memory of the GPU, not its free memory, so that runs are repeatable.
        """
        if self.device.type == "cuda":
            n_bytes = self.capacity * math.prod(self.context_shape) * dtype.itemsize
            self.is_on_host = (
                n_bytes
                > _MAX_GPU_FRACTION * torch.cuda.get_device_properties(self.device).total_memory
            )
        self.columns["contexts"] = self.contexts.to(
            "cpu" if self.is_on_host else self.device, dtype
        )

    def _assign_slots(self, n_contexts: int) -> tuple[IntArray, IntArray]:
        """Decide which of the next ``n_contexts`` contexts are stored, if they exceed the capacity.

        Return the buffer rows (m,) in which contexts are stored, and the indices (m,) of these
        among the new contexts.
        """
        n_free = max(0, self.capacity - self.n_seen)
        context_numbers = np.arange(self.n_seen + n_free, self.n_seen + n_contexts)
        if self.keeps_latest:
            drawn_slots = context_numbers % self.capacity
        # context i draws one of the slots 0 to i; it is not stored if that slot is beyond the
        # capacity
        else:
            draws = draw_uniforms(
                self._random_key, int(context_numbers[0]), len(context_numbers), 1
            )[:, 0]
            drawn_slots = (draws * (context_numbers + 1)).astype(np.int64)
        drawn_indices = np.flatnonzero(drawn_slots < self.capacity)
        slots = np.concatenate(
            [np.arange(self.n_seen, self.n_seen + n_free), drawn_slots[drawn_indices]]
        )
        stored_indices = np.concatenate([np.arange(n_free), n_free + drawn_indices])
        # The last of several contexts for a slot is stored.
        _, reversed_positions = np.unique(slots[::-1], return_index=True)
        last_positions = len(slots) - 1 - reversed_positions
        return slots[last_positions], stored_indices[last_positions]

    def _reserve(self, n_needed_rows: int) -> None:
        """Allocate memory for at least ``n_needed_rows`` contexts."""
        n_allocated_rows = len(self.contexts)
        if n_needed_rows <= n_allocated_rows:
            return
        n_rows = max(n_needed_rows, 2 * n_allocated_rows, _MIN_ALLOCATED_ROWS)
        n_rows = min(n_rows, self.capacity)
        for name, column in self.columns.items():
            grown_column = torch.zeros(
                (n_rows, *column.shape[1:]), dtype=column.dtype, device=column.device
            )
            grown_column[:n_allocated_rows] = column
            self.columns[name] = grown_column

    def draw(self, n_steps: int, n_rounds: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``n_rounds`` rounds for each step, and return their data by column, (steps, rounds,
        ...).

        Rounds are drawn with replacement and with probabilities proportional to their weights. With
        ``keeps_latest`` they are the latest rounds; if there are fewer, the oldest is repeated.
        """
        if self.keeps_latest:
            numbers = torch.arange(self.n_seen - n_rounds, self.n_seen).clamp(min=0)
            rows = (numbers % self.capacity).repeat(n_steps)
        elif self.has_weights:
            weights = self.columns["weights"][: len(self)]
            rows = torch.multinomial(weights, n_steps * n_rounds, True, generator=generator)
        else:
            shape = (n_steps * n_rounds,)
            rows = torch.randint(len(self), shape, generator=generator, device=generator.device)
        drawn = {}
        for name, column in self.columns.items():
            values = column.index_select(0, rows.to(column.device)).to(self.device)
            drawn[name] = values.view(n_steps, n_rounds, *column.shape[1:])
        return drawn

    def state(self) -> dict[str, AnyArray]:
        """Return the stored data as arrays, by name."""
        columns = {name: column[: len(self)].cpu().numpy() for name, column in self.columns.items()}
        return {**columns, "n_seen": np.array([self.n_seen], np.int64)}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        self.n_seen = int(state["n_seen"][0])
        for name, column in self.columns.items():
            if state[name].shape != (len(self), *column.shape[1:]):
                raise ValueError(
                    f"{name} has the shape {state[name].shape}, expected {len(self)} rows of"
                    f" {tuple(column.shape[1:])}"
                )
        self._choose_device(torch.from_numpy(state["contexts"][:0]).dtype)
        for name, column in self.columns.items():
            self.columns[name] = torch.from_numpy(state[name].copy()).to(column.device)
        self.has_weights = "weights" in self.columns and bool((self.columns["weights"] != 1).any())


class Segment(NamedTuple):
    """A part of every batch: rounds, or unlabelled contexts, of one domain."""

    #: The index of the domain.
    domain: int
    #: True if the domain is a target.
    is_target: bool
    #: True for rounds, False for unlabelled contexts.
    is_labelled: bool


class BatchLayout:
    """The rows of every batch: segments of equal length, sorted by domain.

    Args:
        segments: the segments.
        rows_per_segment: the number of contexts of a segment.
    """

    def __init__(self, segments: Sequence[Segment] = (), rows_per_segment: int = 0) -> None:
        self.segments = tuple(segments)
        self.rows_per_segment = rows_per_segment
        #: The indices of segments of rounds.
        self.labelled: list[int] = []
        #: The indices of segments of unlabelled contexts.
        self.unlabelled: list[int] = []
        #: The indices of segments of source rounds, which come first.
        self.sources: list[int] = []
        for index, segment in enumerate(self.segments):
            (self.labelled if segment.is_labelled else self.unlabelled).append(index)
            if not segment.is_target:
                self.sources.append(index)

    def select(self, rows: Tensor, indices: Sequence[int]) -> Tensor:
        """Return the rows of the segments with these indices, from the rows of all segments."""
        if not indices:
            return rows[:0]
        # the gradient of split is one concatenation; the gradient of each slice would have full size
        parts = torch.split(rows, len(rows) // len(self.segments))
        if len(indices) == 1:
            return parts[indices[0]]
        return torch.cat([parts[index] for index in indices])

    def count_rows(self, indices: Sequence[int]) -> list[int]:
        """Return the number of contexts of each domain in the segments with these indices."""
        counts = [0] * (1 + self.segments[-1].domain)
        for index in indices:
            counts[self.segments[index].domain] += self.rows_per_segment
        return counts


class ReplayBuffers:
    """The replay buffers of a policy: rounds of each domain, and unlabelled contexts of each
    target.

    Args:
        context_shape: the shape of a context; with shared arms, of a round's contexts.
        settings: the settings of all buffers.
        seed: determines which contexts are stored.
        device: the device of the policy.
        domains: the names of the domains; one source and one target by default.
    """

    def __init__(
        self,
        context_shape: tuple[int, ...],
        settings: ReplaySettings,
        *,
        seed: int,
        device: torch.device,
        domains: DomainNames | None = None,
    ) -> None:
        domains = DomainNames() if domains is None else domains
        #: The buffer of rounds of each domain. The buffer of a target is empty until target rewards
        #: are learned.
        self.rounds: list[ReplayBuffer] = []
        #: The buffer of unlabelled contexts of each target.
        self.unlabelled: list[ReplayBuffer] = []
        #: All buffers in the order of a batch: sorted by domain, unlabelled contexts before rounds.
        self.by_segment: dict[Segment, ReplayBuffer] = {}
        for domain in range(len(domains)):
            is_target = domains.is_target(domain)
            for is_labelled in (False, True) if is_target else (True,):
                buffer = ReplayBuffer(
                    context_shape=context_shape,
                    capacity=settings.capacity,
                    seed=_derive_buffer_seed(seed, domain, is_labelled, domains),
                    device=device,
                    is_labelled=is_labelled,
                    keeps_latest=settings.sampling == "last",
                )
                self.by_segment[Segment(domain, is_target, is_labelled)] = buffer
                (self.rounds if is_labelled else self.unlabelled).append(buffer)

    def draw(
        self,
        segments: Sequence[Segment],
        n_steps: int,
        n_rounds: int,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Draw ``n_rounds`` rounds of every segment for each step.

        Return contexts (steps, segments, rounds, *context_shape), and the arms and rewards of the
        labelled segments, (steps, labelled segments * rounds). Bytes next to floating-point
        contexts are scaled to [0, 1].
        """
        contexts = []
        arms = []
        rewards = []
        has_floats = False
        for segment in segments:
            drawn = self.by_segment[segment].draw(n_steps, n_rounds, generator)
            contexts.append(drawn["contexts"])
            has_floats = has_floats or drawn["contexts"].is_floating_point()
            if segment.is_labelled:
                arms.append(drawn["arms"])
                rewards.append(drawn["rewards"])
        if has_floats:
            contexts = list(map(as_float, contexts))
        return {
            "contexts": torch.stack(contexts, dim=1),
            "arms": torch.cat(arms, dim=1),
            "rewards": torch.cat(rewards, dim=1),
        }

    def state(self) -> dict[str, AnyArray]:
        """Return the stored data of all buffers as arrays, by name."""
        return {
            f"{name}.{column}": array
            for name, buffer in self._get_named_buffers().items()
            for column, array in buffer.state().items()
        }

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        for name, buffer in self._get_named_buffers().items():
            buffer.restore(drop_prefix(f"{name}.", state))

    def _get_named_buffers(self) -> dict[str, ReplayBuffer]:
        """Return all buffers by their names in files."""
        return {
            f"{'rounds' if segment.is_labelled else 'unlabelled'}.{segment.domain}": buffer
            for segment, buffer in self.by_segment.items()
        }


def _derive_buffer_seed(seed: int, domain: int, is_labelled: bool, domains: DomainNames) -> int:
    """Return the seed of one buffer, which differs between all buffers of a policy."""
    if domain == 0:
        return 3 * seed
    if domain == domains.first_target:
        return 3 * seed + 1 + is_labelled
    return int(np.random.SeedSequence([seed, domain, is_labelled]).generate_state(1)[0])


def as_float(contexts: Tensor) -> Tensor:
    """Return contexts as float32. Bytes (0 to 255) are scaled to [0, 1]."""
    return contexts.to(torch.float32) / 255 if contexts.dtype == torch.uint8 else contexts
