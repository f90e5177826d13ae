"""Draw the batches of gradient steps from replay buffers on the device or on the host.

Batches are drawn in blocks of up to 64 steps. All random numbers of a block (the rows to read from the buffers, and the
augmentation) are drawn before its first step. A step therefore uses no random generator and has fixed shapes, so that
it can be recorded as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from daband.neural.encoders._augmentation import Augmentation, augment
from daband.neural.learning._replay_buffer import ReplayBuffer, ReplayBuffers, as_float

#: The maximum number of steps of a block, whose batches are drawn together.
BLOCK_STEPS = 64
#: The maximum number of values in all contexts of a block, if they are gathered before its first step.
_MAX_GATHERED_VALUES = 1 << 27
#: The maximum number of values in the contexts that are augmented together. Augmentation temporarily takes several
#: times their memory.
_MAX_AUGMENTED_VALUES = 1 << 26


@dataclass(frozen=True)
class BatchShape:
    """The settings that all batches of a stack of runs share."""

    #: The number of rounds, or of unlabelled contexts, in each segment of a batch.
    segment_rounds: int
    #: The number of contexts of a round: 1, or the number of arms if arms are shared.
    contexts_per_round: int
    #: The shape of one context.
    context_shape: tuple[int, ...]
    #: The augmentation of images.
    augmentation: Augmentation
    #: True if each step uses the latest rounds. Otherwise it draws stored rounds with replacement.
    uses_latest: bool
    #: True if steps use unlabelled target contexts.
    uses_target: bool
    #: True if rewards are standardised by the ``units`` of ``Batches``.
    standardised: bool = False
    #: True if all runs draw the same unlabelled contexts, from the first run's buffers.
    committee: bool = False

    @property
    def n_augmentation_draws(self) -> int:
        """The number of random numbers that augment one context."""
        return self.augmentation.count_draws(self.context_shape)


class DrawnBatch(NamedTuple):
    """The batch of one step for all runs: N contexts, in the order of ``Batches.segments``."""

    #: (runs, N, *context_shape): the contexts as they were stored.
    contexts: torch.Tensor
    #: (runs, N, *context_shape): the contexts, augmented if they are images.
    augmented: torch.Tensor
    #: (runs, rounds): the indices of the played arms in the labelled segments.
    arm: torch.Tensor
    #: (runs, rounds): the rewards in the labelled segments.
    reward: torch.Tensor


class Batches:
    """The batches of the next block of steps, in tensors whose addresses never change.

    On a CPU every step gathers its own contexts. On a GPU the number of operations determines the time of a step.
    Therefore the contexts of a whole block are gathered and augmented together, also if the buffers are on the host.

    Args:
        buffers: the replay buffers of each run.
        shape: the settings of the batches.
        generators: the random generator of each run, all on the device of the batches.
        units: the centre and scale (2,) of each run's rewards, if rewards are standardised.
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
        self._units = units
        device = self._device = generators[0].device
        runs, rounds = len(buffers), shape.segment_rounds
        #: The segments of every batch, sorted by domain. Empty buffers have no segment.
        self.segments = [
            segment
            for segment, buffer in buffers[0].by_segment().items()
            if len(buffer) and (shape.uses_target or segment.labelled)
        ]
        #: For each run, a list with the buffer from which each segment is drawn.
        self._buffers = [
            [
                (replay_buffers if segment.labelled or not shape.committee else buffers[0]).by_segment()[segment]
                for segment in self.segments
            ]
            for replay_buffers in buffers
        ]
        indexed = list(enumerate(self.segments))
        #: The indices of segments with rewards, in ``segments``.
        self.labelled_indices = [index for index, segment in indexed if segment.labelled]
        #: The indices of segments without rewards.
        self.unlabelled_indices = [index for index, segment in indexed if not segment.labelled]
        #: The indices of source segments.
        self.source_indices = [index for index, segment in indexed if not buffers[0].domains.is_target(segment.domain)]
        #: The number of contexts of each segment.
        self.segment_rows = rounds * shape.contexts_per_round
        #: The number of contexts of a batch.
        self.n_contexts = self.segment_rows * len(self.segments)
        labelled_rounds = rounds * len(self.labelled_indices)
        #: The number of stored contexts in each buffer, (runs, segments, 1).
        self._buffer_lengths = torch.zeros(runs, len(self.segments), 1, dtype=torch.int64, device=device)
        #: The rows to read from the buffers, for each step, run and segment.
        self._drawn_rows = torch.zeros(BLOCK_STEPS, runs, len(self.segments), rounds, dtype=torch.int64, device=device)
        #: The random numbers that augment each context.
        self._draws = torch.zeros(
            BLOCK_STEPS, runs, self.n_contexts, shape.n_augmentation_draws, dtype=torch.float32, device=device
        )
        #: The played arms of each step and run.
        self._arms = torch.zeros(BLOCK_STEPS, runs, labelled_rounds, dtype=torch.int64, device=device)
        #: The rewards of the played arms.
        self._rewards = torch.zeros(BLOCK_STEPS, runs, labelled_rounds, dtype=torch.float32, device=device)
        all_buffers = [buffer for run_buffers in self._buffers for buffer in run_buffers]
        dtypes = {buffer.contexts.dtype for buffer in all_buffers}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
        stored_shape = (runs, len(self.segments) * rounds, *self._buffers[0][0].context_shape)
        self._on_host = device.type == "cuda" and any(buffer.on_host for buffer in all_buffers)
        fitting_steps = max(1, min(BLOCK_STEPS, _MAX_GATHERED_VALUES // math.prod(stored_shape)))
        #: The maximum number of steps that are drawn together; fewer if contexts on the host are large.
        self.block_steps = fitting_steps if self._on_host else BLOCK_STEPS
        #: True if the contexts of a block are gathered together, before its first step.
        self.gathers_ahead = self.can_gather_ahead(fitting_steps)
        step_axis = (self.block_steps,) if self.gathers_ahead else ()
        #: The contexts of all steps of the block, or of one step if they are not gathered ahead.
        self._gathered = torch.zeros(*step_axis, *stored_shape, dtype=self._dtype, device=device)
        #: The augmented contexts of all steps of the block; empty if every step augments its own contexts.
        self._augmented = self._gathered[:0]
        if self.gathers_ahead and shape.n_augmentation_draws:
            sizes = (self.block_steps, runs, self.n_contexts, *shape.context_shape)
            self._augmented = torch.zeros(sizes, dtype=torch.float32, device=device)

    def can_gather_ahead(self, fitting_steps: int) -> bool:
        """Return True if the contexts of a block can be gathered together. ``fitting_steps`` steps fit in memory."""
        return self._on_host or (self._device.type == "cuda" and fitting_steps == BLOCK_STEPS)

    @property
    def is_recordable(self) -> bool:
        """True if ``draw`` can be recorded as a CUDA graph, because every full block takes the same operations."""
        has_weights = any(buffer.has_weights for run_buffers in self._buffers for buffer in run_buffers)
        return self.gathers_ahead and not (self._on_host or self.shape.uses_latest or has_weights)

    def load(self, steps: int, replay_draw: Callable[[], None] | None = None) -> None:
        """Draw the batches of the next ``steps`` steps, at most ``block_steps``.

        ``replay_draw`` replays a recorded call of ``draw``, and is called instead of it.
        """
        lengths = torch.tensor([[len(buffer) for buffer in run_buffers] for run_buffers in self._buffers])
        self._buffer_lengths.copy_(lengths[:, :, None], non_blocking=True)
        self.draw(steps) if replay_draw is None else replay_draw()

    def draw(self, steps: int) -> None:
        """Draw the batches of ``steps`` steps, each run from its own generator; ``load`` has set the buffer lengths."""
        rows, draws, segment_rounds = self._drawn_rows[:steps], self._draws[:steps], self.shape.segment_rounds
        n_rows = 0 if self.shape.uses_latest else rows[0, 0].numel()
        sizes = (len(self._buffers), steps, n_rows + draws[0, 0].numel())
        uniforms = torch.empty(sizes, device=self._device, dtype=torch.float32)
        for run_draws, generator in zip(uniforms, self._generators, strict=True):
            torch.rand(run_draws.shape, generator=generator, out=run_draws)
        uniforms = uniforms.transpose(0, 1)
        draws.copy_(uniforms[:, :, n_rows:].view(draws.shape))
        row_draws = uniforms[:, :, :n_rows].view(rows.shape) if n_rows else rows
        if n_rows:
            torch.minimum((row_draws * self._buffer_lengths).long(), self._buffer_lengths - 1, out=rows)
        if self.shape.committee:
            for index in self.unlabelled_indices:
                rows[:, 1:, index] = rows[:, :1, index]
        for run, run_buffers in enumerate(self._buffers):
            if self.shape.uses_latest:
                latest_rows = [_find_latest_rows(buffer, segment_rounds) for buffer in run_buffers]
                rows[:, run] = torch.stack(latest_rows).to(self._device)
            for index, buffer in enumerate(run_buffers):
                if n_rows and buffer.has_weights:
                    rows[:, run, index] = _draw_weighted_rows(buffer, row_draws[:, run, index])
            for place, index in enumerate(self.labelled_indices):
                stored, chosen_rows = run_buffers[index].columns, rows[:, run, index]
                positions = slice(place * segment_rounds, (place + 1) * segment_rounds)
                self._arms[:steps, run, positions] = stored["arms"][chosen_rows]
                rewards = stored["rewards"][chosen_rows]
                if self.shape.standardised:
                    rewards = (rewards - self._units[run][0]) / self._units[run][1]
                self._rewards[:steps, run, positions] = rewards.to(torch.float32)
        if self.gathers_ahead:
            self._gather_and_augment(steps)

    def _gather_and_augment(self, steps: int) -> None:
        """Gather and augment the contexts of the next ``steps`` steps."""
        size = self.shape.segment_rounds
        for run, run_buffers in enumerate(self._buffers):
            for index, buffer in enumerate(run_buffers):
                rows = self._drawn_rows[:steps, run, index]
                selected = buffer.contexts.index_select(0, rows.flatten().to(buffer.contexts.device))
                contexts = selected.view(*rows.shape, *buffer.contexts.shape[1:])
                positions = slice(index * size, (index + 1) * size)
                has_dtype = contexts.dtype == self._dtype
                self._gathered[:steps, run, positions] = contexts if has_dtype else as_float(contexts)
        steps_at_once = max(1, _MAX_AUGMENTED_VALUES // math.prod(self._gathered.shape[1:]))
        for start in range(0, steps if len(self._augmented) else 0, steps_at_once):
            step_slice = slice(start, min(start + steps_at_once, steps))
            stored = self._gathered[step_slice].view(-1, self.n_contexts, *self.shape.context_shape)
            augmented = self._augment(stored, self._draws[step_slice].flatten(0, 1))
            self._augmented[step_slice] = augmented.view(self._augmented[step_slice].shape)

    def count_rows(self, indices: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return the number of contexts of each domain in the segments with these indices, by default in all."""
        domains = [self.segments[index].domain for index in (range(len(self.segments)) if indices is None else indices)]
        return tuple(self.segment_rows * domains.count(domain) for domain in range(max(domains, default=0) + 1))

    def count_splittable_rows(self) -> int:
        """Return the number of contexts in labelled segments if the batch can be split after them, else 0.

        The batch can be split if the labelled segments come first, and no domain has segments of both kinds.
        """
        labelled, unlabelled = self.labelled_indices, self.unlabelled_indices
        domains = [{self.segments[index].domain for index in indices} for indices in (labelled, unlabelled)]
        is_apart = labelled == list(range(len(labelled))) and not domains[0] & domains[1]
        return self.segment_rows * len(labelled) if is_apart and labelled and unlabelled else 0

    def get_batch(self, position: torch.Tensor) -> DrawnBatch:
        """Return the batch of one step. ``position`` (1,) is the step's index in the block, a tensor on the device."""

        def select(by_step: torch.Tensor) -> torch.Tensor:
            """Return the entry of this step from a tensor (steps, ...)."""
            return by_step.index_select(0, position).squeeze(0)

        if self.gathers_ahead:
            stored = select(self._gathered)
        else:
            stored = self._gathered
            self._gather_step(select(self._drawn_rows), stored)
        contexts = stored.view(len(self._buffers), self.n_contexts, *self.shape.context_shape)
        augmented = select(self._augmented) if len(self._augmented) else self._augment(contexts, select(self._draws))
        return DrawnBatch(contexts, augmented, select(self._arms), select(self._rewards))

    def _augment(self, contexts: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Return contexts (runs, N, ...), augmented by random draws (runs, N, n) from [0, 1)."""
        flat = augment(contexts.flatten(0, 1), self.shape.augmentation, draws.flatten(0, 1))
        return flat.view(*contexts.shape[:2], *flat.shape[1:])

    def _gather_step(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the contexts of ``rows`` (runs, segments, n) from the buffers to ``out`` (runs, segments * n, ...)."""
        size = self.shape.segment_rounds
        for run_buffers, run_rows, run_out in zip(self._buffers, rows.unbind(), out.unbind(), strict=True):
            starts = range(0, len(run_out), size)
            for buffer, buffer_rows, start in zip(run_buffers, run_rows.unbind(), starts, strict=True):
                contexts, destination = buffer.contexts, run_out[start : start + size]
                if contexts.dtype == destination.dtype and contexts.device == destination.device:
                    torch.index_select(contexts, 0, buffer_rows, out=destination)
                else:
                    destination.copy_(as_float(contexts.index_select(0, buffer_rows.to(contexts.device))))


def _draw_weighted_rows(buffer: ReplayBuffer, uniform_draws: torch.Tensor) -> torch.Tensor:
    """Return rows of a buffer, drawn with probabilities proportional to their weights, from uniform draws in [0, 1)."""
    cumulative = buffer.columns["weights"][: len(buffer)].cumsum(0)
    rows = torch.searchsorted(cumulative, uniform_draws.to(cumulative.dtype).contiguous() * cumulative[-1], right=True)
    return rows.clamp(max=len(buffer) - 1)


def _find_latest_rows(buffer: ReplayBuffer, size: int) -> torch.Tensor:
    """Return the rows (size,) of the latest contexts. If there are fewer, the oldest one is repeated."""
    context_numbers = torch.arange(buffer.n_seen - size, buffer.n_seen).clamp(min=0)
    return context_numbers % buffer.capacity  # a full buffer replaces its oldest context
