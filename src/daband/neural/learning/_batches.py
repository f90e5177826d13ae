"""Draw the batches of gradient steps from replay buffers on the device or on the host.

All random numbers of the coming steps (rows of the buffers, augmentation) are drawn before the first of them. A step
therefore uses no random generator and has one shape, so that it can be recorded as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from daband.neural.encoders._augmentation import Augmentation, augment
from daband.neural.learning._replay_buffer import ReplayBuffer, ReplayBuffers, as_float

#: The maximum number of steps whose batches are drawn together.
BLOCK_STEPS = 64
#: The maximum size (rows times numbers) of the contexts that are gathered before the steps that use them.
_MAX_PREPARED_NUMBERS = 1 << 27
#: The maximum size of the contexts that are augmented together, which temporarily takes several times their memory.
_MAX_AUGMENTED_NUMBERS = 1 << 26


@dataclass(frozen=True)
class BatchShape:
    """The settings that all batches of a stack of runs share."""

    #: The number of rounds, or unlabelled contexts, drawn from each buffer.
    rounds: int
    #: The number of contexts of a round: 1, or the number of arms if arms are shared.
    contexts_per_round: int
    #: The shape of one context.
    context_shape: tuple[int, ...]
    #: The augmentation of images.
    augmentation: Augmentation
    #: True if steps use the latest rounds; otherwise they draw with replacement.
    latest: bool
    #: True if steps use unlabelled target contexts.
    uses_target: bool
    #: True if rewards are standardised by ``units``.
    standardised: bool = False
    #: True if all runs draw the same unlabelled contexts, from the first run's buffers.
    committee: bool = False

    @property
    def augmentation_draws(self) -> int:
        """The number of random numbers that the augmentation of a context takes."""
        return self.augmentation.draws(self.context_shape)


class DrawnBatch(NamedTuple):
    """The batch of one step for all runs: R contexts, segment by segment (``Batches.segments``)."""

    #: (runs, R, *context_shape): the contexts as they were stored.
    contexts: torch.Tensor
    #: (runs, R, *context_shape): the contexts, augmented if they are images.
    augmented: torch.Tensor
    #: (runs, rounds): the played arms of the labelled segments.
    arm: torch.Tensor
    #: (runs, rounds): the rewards of the labelled segments.
    reward: torch.Tensor


class Batches:
    """The batches of the coming steps, in tensors whose addresses never change.

    On the CPU a step gathers its own contexts. On a GPU the number of operations determines the time of a step, so the
    contexts of all coming steps are gathered and augmented together, also from buffers on the host.
    """

    def __init__(
        self,
        buffers: Sequence[ReplayBuffers],
        shape: BatchShape,
        generators: Sequence[torch.Generator],
        units: Sequence[torch.Tensor] = (),
    ) -> None:
        self.shape = shape
        self._generators = generators
        #: The centre and scale (2,) of each run's rewards, if they are standardised.
        self._units = units
        self._device = generators[0].device
        runs, rows = len(buffers), shape.rounds
        #: The parts of every batch, domain by domain.
        self.segments = [
            segment
            for segment, part in buffers[0].parts().items()
            if len(part) and (shape.uses_target or segment.labelled)
        ]
        #: For each run, the buffers from which steps draw the segments, one per segment.
        self._buffers = [
            [
                (run_buffers if segment.labelled or not shape.committee else buffers[0]).parts()[segment]
                for segment in self.segments
            ]
            for run_buffers in buffers
        ]
        indexed = list(enumerate(self.segments))
        #: The indices of segments with rewards.
        self.labelled = [index for index, segment in indexed if segment.labelled]
        #: The indices of segments without rewards.
        self.unlabelled = [index for index, segment in indexed if not segment.labelled]
        #: The indices of source segments.
        self.sources = [index for index, segment in indexed if not buffers[0].domains.is_target(segment.domain)]
        #: The number of contexts of each segment.
        self.segment_rows = rows * shape.contexts_per_round
        #: The number of contexts of a batch.
        self.n_contexts = self.segment_rows * len(self.segments)
        n_rounds = rows * len(self.labelled)
        device = self._device
        #: The number of stored contexts of each run and segment.
        self._lengths = torch.zeros(runs, len(self.segments), 1, dtype=torch.int64, device=device)
        # The rows, random numbers, arms and rewards of the coming steps.
        self._rows = torch.zeros(BLOCK_STEPS, runs, len(self.segments), rows, dtype=torch.int64, device=device)
        self._augmentation = torch.zeros(
            BLOCK_STEPS, runs, self.n_contexts, shape.augmentation_draws, dtype=torch.float32, device=device
        )
        self._arm = torch.zeros(BLOCK_STEPS, runs, n_rounds, dtype=torch.int64, device=device)
        self._reward = torch.zeros(BLOCK_STEPS, runs, n_rounds, dtype=torch.float32, device=device)
        types = {part.contexts.dtype for parts in self._buffers for part in parts}
        self._dtype = types.pop() if len(types) == 1 else torch.float32
        stored_shape = (runs, len(self.segments) * rows, *self._buffers[0][0].context_shape)
        self._on_host = device.type == "cuda" and any(part.on_host for parts in self._buffers for part in parts)
        fitting_steps = max(1, min(BLOCK_STEPS, _MAX_PREPARED_NUMBERS // math.prod(stored_shape)))
        #: The maximum number of steps that are drawn together.
        self.block = fitting_steps if self._on_host else BLOCK_STEPS
        #: True if the contexts of the coming steps are gathered together.
        self.prepared_ahead = self.prepares_ahead(fitting_steps)
        step_axis = (self.block,) if self.prepared_ahead else ()
        self._gathered = torch.zeros(*step_axis, *stored_shape, dtype=self._dtype, device=device)
        self._prepared = self._gathered[:0]
        if self.prepared_ahead and shape.augmentation_draws:
            sizes = (self.block, runs, self.n_contexts, *shape.context_shape)
            self._prepared = torch.zeros(sizes, dtype=torch.float32, device=device)

    def prepares_ahead(self, fitting_steps: int) -> bool:
        """Return True if contexts of coming steps are gathered together; ``fitting_steps`` of them fit in memory."""
        return self._on_host or (self._device.type == "cuda" and fitting_steps == BLOCK_STEPS)

    @property
    def recordable(self) -> bool:
        """True if ``draw`` for a full block can be recorded as a CUDA graph: it always performs the same operations."""
        has_weights = any(part.weighted for parts in self._buffers for part in parts)
        return self.prepared_ahead and not (self._on_host or self.shape.latest or has_weights)

    def load(self, steps: int, replay_draw: Callable[[], None] | None = None) -> None:
        """Draw the batches of the coming steps, at most ``block``. ``replay_draw`` is a recorded ``draw``, if any."""
        lengths = torch.tensor([[len(part) for part in parts] for parts in self._buffers])
        self._lengths.copy_(lengths[:, :, None], non_blocking=True)
        self.draw(steps) if replay_draw is None else replay_draw()

    def draw(self, steps: int) -> None:
        """Draw batches with the buffer lengths that ``load`` stored. Each run draws from its own generator."""
        rows, augmentation = self._rows[:steps], self._augmentation[:steps]
        n_rows = 0 if self.shape.latest else rows[0, 0].numel()
        sizes = (len(self._buffers), steps, n_rows + augmentation[0, 0].numel())
        uniforms = torch.empty(sizes, device=self._device, dtype=torch.float32)
        for run_draws, generator in zip(uniforms, self._generators, strict=True):
            torch.rand(run_draws.shape, generator=generator, out=run_draws)
        uniforms = uniforms.transpose(0, 1)
        augmentation.copy_(uniforms[:, :, n_rows:].view(augmentation.shape))
        uniform_draws = uniforms[:, :, :n_rows].view(rows.shape) if n_rows else rows
        if n_rows:
            torch.minimum((uniform_draws * self._lengths).long(), self._lengths - 1, out=rows)
        if self.shape.committee:
            for index in self.unlabelled:
                rows[:, 1:, index] = rows[:, :1, index]
        for run, parts in enumerate(self._buffers):
            if self.shape.latest:
                rows[:, run] = torch.stack([_latest_rows(part, self.shape.rounds) for part in parts]).to(self._device)
            for index, part in enumerate(parts):
                if n_rows and part.weighted:
                    rows[:, run, index] = _weighted_rows(part, uniform_draws[:, run, index])
            for index, segment in enumerate(self.labelled):
                stored, chosen_rows = parts[segment].columns, rows[:, run, segment]
                positions = slice(index * self.shape.rounds, (index + 1) * self.shape.rounds)
                self._arm[:steps, run, positions] = stored["arms"][chosen_rows]
                rewards = stored["rewards"][chosen_rows]
                if self.shape.standardised:
                    rewards = (rewards - self._units[run][0]) / self._units[run][1]
                self._reward[:steps, run, positions] = rewards.to(torch.float32)
        if self.prepared_ahead:
            self._prepare(steps)

    def _prepare(self, steps: int) -> None:
        """Gather and augment the contexts of the coming steps."""
        size = self.shape.rounds
        for run, parts in enumerate(self._buffers):
            for index, part in enumerate(parts):
                rows = self._rows[:steps, run, index]
                selected = part.contexts.index_select(0, rows.flatten().to(part.contexts.device))
                contexts = selected.view(*rows.shape, *part.contexts.shape[1:])
                positions = slice(index * size, (index + 1) * size)
                is_stored_type = contexts.dtype == self._dtype
                self._gathered[:steps, run, positions] = contexts if is_stored_type else as_float(contexts)
        steps_at_once = max(1, _MAX_AUGMENTED_NUMBERS // math.prod(self._gathered.shape[1:]))
        for start in range(0, steps if len(self._prepared) else 0, steps_at_once):
            block = slice(start, min(start + steps_at_once, steps))
            stored = self._gathered[block].view(-1, self.n_contexts, *self.shape.context_shape)
            augmented = self._augment(stored, self._augmentation[block].flatten(0, 1))
            self._prepared[block] = augmented.view(self._prepared[block].shape)

    def domain_rows(self, indices: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return the number of contexts of each domain in the segments with these indices, by default in all."""
        domains = [self.segments[index].domain for index in (range(len(self.segments)) if indices is None else indices)]
        return tuple(self.segment_rows * domains.count(domain) for domain in range(max(domains, default=0) + 1))

    def count_labelled_apart(self) -> int:
        """Return the number of contexts in labelled segments if the batch can be split after them, else 0.

        They must come first, and their domains must have no unlabelled segments.
        """
        domains = [{self.segments[index].domain for index in indices} for indices in (self.labelled, self.unlabelled)]
        is_apart = self.labelled == list(range(len(self.labelled))) and not domains[0] & domains[1]
        return self.segment_rows * len(self.labelled) if is_apart and self.labelled and self.unlabelled else 0

    def batch_at(self, position: torch.Tensor) -> DrawnBatch:
        """Return the batch of the step at ``position`` (1,), a tensor on the device."""

        def pick(table: torch.Tensor) -> torch.Tensor:
            """Return the entry of this step."""
            return table.index_select(0, position).squeeze(0)

        if self.prepared_ahead:
            stored = pick(self._gathered)
        else:
            stored = self._gathered
            self._gather(pick(self._rows), stored)
        contexts = stored.view(len(self._buffers), self.n_contexts, *self.shape.context_shape)
        augmented = pick(self._prepared) if len(self._prepared) else self._augment(contexts, pick(self._augmentation))
        return DrawnBatch(contexts, augmented, pick(self._arm), pick(self._reward))

    def _augment(self, contexts: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Return contexts (a, b, ...), augmented by random draws (a, b, n)."""
        flat = augment(contexts.flatten(0, 1), self.shape.augmentation, draws.flatten(0, 1))
        return flat.view(*contexts.shape[:2], *flat.shape[1:])

    def _gather(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the contexts of ``rows`` (runs, segments, size) to ``out`` (runs, segments * size, ...)."""
        size = self.shape.rounds
        for parts, run_rows, run_out in zip(self._buffers, rows.unbind(), out.unbind(), strict=True):
            for part, buffer_rows, start in zip(parts, run_rows.unbind(), range(0, len(run_out), size), strict=True):
                contexts, destination = part.contexts, run_out[start : start + size]
                if contexts.dtype == destination.dtype and contexts.device == destination.device:
                    torch.index_select(contexts, 0, buffer_rows, out=destination)
                else:
                    destination.copy_(as_float(contexts.index_select(0, buffer_rows.to(contexts.device))))


def _weighted_rows(part: ReplayBuffer, uniform_draws: torch.Tensor) -> torch.Tensor:
    """Return rows drawn with probabilities proportional to the weights of rounds, from uniform draws in [0, 1)."""
    totals = part.columns["weights"][: len(part)].cumsum(0)
    rows = torch.searchsorted(totals, uniform_draws.to(totals.dtype).contiguous() * totals[-1], right=True)
    return rows.clamp(max=len(part) - 1)


def _latest_rows(part: ReplayBuffer, size: int) -> torch.Tensor:
    """Return the rows (size,) of the latest contexts; a buffer with fewer contexts repeats its oldest."""
    item_numbers = torch.arange(part.n_seen - size, part.n_seen).clamp(min=0)
    return item_numbers % part.capacity  # a full buffer overwrites its oldest
