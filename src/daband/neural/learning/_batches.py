"""Draw the batches of gradient steps from replay buffers on the device or on the host.

Batches are drawn in blocks of up to 64 steps. All random numbers of a block (the rows to read from
the buffers, and the augmentation) are drawn before its first step. A step therefore uses no random
generator and has fixed shapes, so that it can be recorded as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from daband.neural.encoders._augmentation import Augmentation, augment
from daband.neural.learning._replay_buffer import ReplayBuffer, ReplayBuffers, as_float

#: The maximum number of steps of a block, whose batches are drawn together.
STEPS_PER_BLOCK = 64
#: The maximum number of values in all contexts of a block, if they are gathered before its first
#: step.
_MAX_GATHERED_VALUES = 1 << 27
#: The maximum number of values in the contexts that are augmented together. Augmentation
#: temporarily takes several times their memory.
_MAX_AUGMENTED_VALUES = 1 << 26


@dataclass(frozen=True)
class BatchSettings:
    """The settings that all batches of a stack of runs share."""

    #: The number of rounds, or of unlabelled contexts, in each segment of a batch.
    rounds_per_segment: int
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
    #: True if rewards are standardised by the ``reward_units`` of ``Batches``.
    standardise_rewards: bool = False
    #: True if all runs draw the same unlabelled contexts, from the first run's buffers.
    is_committee: bool = False

    @property
    def n_augmentation_draws(self) -> int:
        """The number of random numbers that augment one context."""
        return self.augmentation.count_draws(self.context_shape)


class DrawnBatch(NamedTuple):
    """The batch of one step for all runs: N contexts, in the order of ``Batches.segments``."""

    #: (runs, N, *context_shape): the contexts as they were stored.
    contexts: Tensor
    #: (runs, N, *context_shape): the contexts, augmented if they are images.
    augmented_contexts: Tensor
    #: (runs, rounds): the indices of the played arms in the labelled segments.
    arms: Tensor
    #: (runs, rounds): the rewards in the labelled segments.
    rewards: Tensor


class Batches:
    """The batches of the next block of steps, in tensors whose addresses never change.

    On a CPU every step gathers its own contexts. On a GPU the number of operations determines the
    time of a step. Therefore the contexts of a whole block are gathered and augmented together,
    also if the buffers are on the host.

    Args:
        buffers: the replay buffers of each run.
        settings: the settings of the batches.
        generators: the random generator of each run, all on the device of the batches.
        reward_units: the mean and standard deviation (2,) of each run's rewards, if rewards are
            standardised.
    """

    def __init__(
        self,
        buffers: Sequence[ReplayBuffers],
        settings: BatchSettings,
        generators: Sequence[torch.Generator],
        reward_units: Sequence[Tensor] = (),
    ) -> None:
        self.settings = settings
        self._generators = generators
        self._reward_units = reward_units
        device = self._device = generators[0].device
        n_runs = len(buffers)
        n_rounds = settings.rounds_per_segment
        #: The segments of every batch, sorted by domain. Empty buffers have no segment.
        self.segments = [
            segment
            for segment, buffer in buffers[0].get_buffers_by_segment().items()
            if len(buffer) and (settings.uses_target or segment.is_labelled)
        ]
        #: For each run, a list with the buffer from which each segment is drawn.
        self._buffers: list[list[ReplayBuffer]] = []
        for replay_buffers in buffers:
            target_buffers = buffers[0] if settings.is_committee else replay_buffers
            pairs = [
                (segment, replay_buffers if segment.is_labelled else target_buffers)
                for segment in self.segments
            ]
            self._buffers.append(
                [run_buffers.get_buffers_by_segment()[segment] for segment, run_buffers in pairs]
            )
        indices = range(len(self.segments))
        #: The indices of segments with rewards, in ``segments``.
        self.labelled_indices = [index for index in indices if self.segments[index].is_labelled]
        #: The indices of segments without rewards.
        self.unlabelled_indices = [
            index for index in indices if not self.segments[index].is_labelled
        ]
        is_target = buffers[0].domains.is_target
        #: The indices of source segments.
        self.source_indices = [
            index for index in indices if not is_target(self.segments[index].domain)
        ]
        #: The number of contexts of each segment.
        self.rows_per_segment = n_rounds * settings.contexts_per_round
        #: The number of contexts of a batch.
        self.n_contexts = self.rows_per_segment * len(self.segments)
        n_labelled = n_rounds * len(self.labelled_indices)
        block_shape = (STEPS_PER_BLOCK, n_runs)
        #: The number of stored contexts in each buffer, (runs, segments, 1).
        self._buffer_lengths = torch.zeros(
            n_runs, len(self.segments), 1, dtype=torch.int64, device=device
        )
        #: The rows to read from the buffers, for each step, run and segment.
        self._drawn_rows = torch.zeros(
            *block_shape, len(self.segments), n_rounds, dtype=torch.int64, device=device
        )
        draws_shape = (*block_shape, self.n_contexts, settings.n_augmentation_draws)
        #: The random numbers that augment each context.
        self._augmentation_draws = torch.zeros(draws_shape, dtype=torch.float32, device=device)
        #: The played arms of each step and run.
        self._arms = torch.zeros(*block_shape, n_labelled, dtype=torch.int64, device=device)
        #: The rewards of the played arms.
        self._rewards = torch.zeros(*block_shape, n_labelled, dtype=torch.float32, device=device)
        all_buffers = [buffer for run_buffers in self._buffers for buffer in run_buffers]
        dtypes = {buffer.contexts.dtype for buffer in all_buffers}
        #: The dtype of gathered contexts.
        self._dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
        stored_shape = (n_runs, len(self.segments) * n_rounds, *self._buffers[0][0].context_shape)
        self._is_on_host = device.type == "cuda" and any(
            buffer.is_on_host for buffer in all_buffers
        )
        n_fitting_steps = max(
            1, min(STEPS_PER_BLOCK, _MAX_GATHERED_VALUES // math.prod(stored_shape))
        )
        #: The maximum number of steps that are drawn together; fewer if contexts on the host are
        #: large.
        self.steps_per_block = n_fitting_steps if self._is_on_host else STEPS_PER_BLOCK
        #: True if the contexts of a block are gathered together, before its first step.
        self.gathers_ahead = self.can_gather_ahead(n_fitting_steps)
        step_axis = (self.steps_per_block,) if self.gathers_ahead else ()
        #: The contexts of all steps of the block, or of one step if they are not gathered ahead.
        self._gathered_contexts = torch.zeros(
            *step_axis, *stored_shape, dtype=self._dtype, device=device
        )
        #: The augmented contexts of all steps of the block; empty if every step augments its own
        #: contexts.
        self._augmented_contexts = self._gathered_contexts[:0]
        if self.gathers_ahead and settings.n_augmentation_draws:
            augmented_shape = (
                self.steps_per_block,
                n_runs,
                self.n_contexts,
                *settings.context_shape,
            )
            self._augmented_contexts = torch.zeros(
                augmented_shape, dtype=torch.float32, device=device
            )

    def can_gather_ahead(self, n_fitting_steps: int) -> bool:
        """Return True if a block's contexts can be gathered together, if those of
        ``n_fitting_steps`` fit in memory.
        """
        return self._is_on_host or (
            self._device.type == "cuda" and n_fitting_steps == STEPS_PER_BLOCK
        )

    @property
    def is_recordable(self) -> bool:
        """True if ``draw`` can be recorded as a CUDA graph, because every full block takes the same
        operations.
        """
        has_weights = any(
            buffer.has_weights for run_buffers in self._buffers for buffer in run_buffers
        )
        return self.gathers_ahead and not (
            self._is_on_host or self.settings.uses_latest or has_weights
        )

    def load(self, n_steps: int, replay_draw: Callable[[], None] | None = None) -> None:
        """Draw the batches of the next ``n_steps`` steps, at most ``steps_per_block``.

        ``replay_draw`` replays a recorded call of ``draw``, and is called instead of it.
        """
        lengths = torch.tensor(
            [[len(buffer) for buffer in run_buffers] for run_buffers in self._buffers]
        )
        self._buffer_lengths.copy_(lengths[:, :, None], non_blocking=True)
        self.draw(n_steps) if replay_draw is None else replay_draw()

    def draw(self, n_steps: int) -> None:
        """Draw the batches of ``n_steps`` steps, each run from its generator; ``load`` has set the
        buffer lengths.
        """
        rows = self._drawn_rows[:n_steps]
        augmentation_draws = self._augmentation_draws[:n_steps]
        n_rounds = self.settings.rounds_per_segment
        n_row_draws = 0 if self.settings.uses_latest else rows[0, 0].numel()
        n_draws = n_row_draws + augmentation_draws[0, 0].numel()
        draws = torch.empty(
            (len(self._buffers), n_steps, n_draws), device=self._device, dtype=torch.float32
        )
        for run_draws, generator in zip(draws, self._generators, strict=True):
            torch.rand(run_draws.shape, generator=generator, out=run_draws)
        draws = draws.transpose(0, 1)
        augmentation_draws.copy_(draws[:, :, n_row_draws:].view(augmentation_draws.shape))
        row_draws = draws[:, :, :n_row_draws].view(rows.shape) if n_row_draws else rows
        if n_row_draws:
            torch.minimum(
                (row_draws * self._buffer_lengths).long(), self._buffer_lengths - 1, out=rows
            )
        if self.settings.is_committee:
            for index in self.unlabelled_indices:
                rows[:, 1:, index] = rows[:, :1, index]
        for run, run_buffers in enumerate(self._buffers):
            if self.settings.uses_latest:
                latest_rows = [_find_latest_rows(buffer, n_rounds) for buffer in run_buffers]
                rows[:, run] = torch.stack(latest_rows).to(self._device)
            for index, buffer in enumerate(run_buffers):
                if n_row_draws and buffer.has_weights:
                    rows[:, run, index] = _draw_weighted_rows(buffer, row_draws[:, run, index])
            for position, index in enumerate(self.labelled_indices):
                columns = run_buffers[index].columns
                segment_rows = rows[:, run, index]
                segment_slice = slice(position * n_rounds, (position + 1) * n_rounds)
                self._arms[:n_steps, run, segment_slice] = columns["arms"][segment_rows]
                rewards = columns["rewards"][segment_rows]
                if self.settings.standardise_rewards:
                    mean, deviation = self._reward_units[run]
                    rewards = (rewards - mean) / deviation
                self._rewards[:n_steps, run, segment_slice] = rewards.to(torch.float32)
        if self.gathers_ahead:
            self._gather_and_augment(n_steps)

    def _gather_and_augment(self, n_steps: int) -> None:
        """Gather and augment the contexts of the next ``n_steps`` steps."""
        n_rounds = self.settings.rounds_per_segment
        for run, run_buffers in enumerate(self._buffers):
            for index, buffer in enumerate(run_buffers):
                rows = self._drawn_rows[:n_steps, run, index]
                flat_contexts = buffer.contexts.index_select(
                    0, rows.flatten().to(buffer.contexts.device)
                )
                contexts = flat_contexts.view(*rows.shape, *buffer.contexts.shape[1:])
                segment_slice = slice(index * n_rounds, (index + 1) * n_rounds)
                has_dtype = contexts.dtype == self._dtype
                self._gathered_contexts[:n_steps, run, segment_slice] = (
                    contexts if has_dtype else as_float(contexts)
                )
        steps_at_once = max(
            1, _MAX_AUGMENTED_VALUES // math.prod(self._gathered_contexts.shape[1:])
        )
        for start in range(0, n_steps if len(self._augmented_contexts) else 0, steps_at_once):
            step_slice = slice(start, min(start + steps_at_once, n_steps))
            contexts = self._gathered_contexts[step_slice].view(
                -1, self.n_contexts, *self.settings.context_shape
            )
            augmented_contexts = self._augment(
                contexts, self._augmentation_draws[step_slice].flatten(0, 1)
            )
            destination = self._augmented_contexts[step_slice]
            destination.copy_(augmented_contexts.view(destination.shape))

    def count_rows(self, indices: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return the number of contexts of each domain in the segments with these indices, by
        default in all.
        """
        segments = self.segments if indices is None else [self.segments[index] for index in indices]
        domains = [segment.domain for segment in segments]
        return tuple(
            self.rows_per_segment * domains.count(domain)
            for domain in range(max(domains, default=0) + 1)
        )

    def count_splittable_rows(self) -> int:
        """Return the number of contexts in labelled segments if the batch can be split after them,
        else 0.

        The batch can be split if the labelled segments come first, and no domain has segments of
        both kinds.
        """
        n_labelled = len(self.labelled_indices)
        labelled_domains = {self.segments[index].domain for index in self.labelled_indices}
        unlabelled_domains = {self.segments[index].domain for index in self.unlabelled_indices}
        can_split = (
            self.labelled_indices == list(range(n_labelled))
            and not labelled_domains & unlabelled_domains
        )
        return self.rows_per_segment * n_labelled if can_split and unlabelled_domains else 0

    def get_batch(self, position: Tensor) -> DrawnBatch:
        """Return the batch of one step.

        ``position`` (1,) is the step's index in the block, a tensor on the device.
        """

        def select(block: Tensor) -> Tensor:
            """Return the element of this step from a tensor (steps, ...)."""
            return block.index_select(0, position).squeeze(0)

        if not self.gathers_ahead:
            self._gather_step(select(self._drawn_rows))
        contexts = (
            select(self._gathered_contexts) if self.gathers_ahead else self._gathered_contexts
        )
        contexts = contexts.view(len(self._buffers), self.n_contexts, *self.settings.context_shape)
        images = self._augmented_contexts
        images = (
            select(images)
            if len(images)
            else self._augment(contexts, select(self._augmentation_draws))
        )
        return DrawnBatch(contexts, images, select(self._arms), select(self._rewards))

    def _augment(self, contexts: Tensor, draws: Tensor) -> Tensor:
        """Return contexts (runs, N, ...), augmented by random draws (runs, N, n) from [0, 1)."""
        images = augment(contexts.flatten(0, 1), self.settings.augmentation, draws.flatten(0, 1))
        return images.view(*contexts.shape[:2], *images.shape[1:])

    def _gather_step(self, rows: Tensor) -> None:
        """Copy the contexts of ``rows`` (runs, segments, n) from the buffers to
        ``_gathered_contexts``.
        """
        n_rounds = self.settings.rounds_per_segment
        outputs = self._gathered_contexts.unbind()
        for run_buffers, run_rows, run_output in zip(
            self._buffers, rows.unbind(), outputs, strict=True
        ):
            starts = range(0, len(run_output), n_rounds)
            for buffer, buffer_rows, start in zip(
                run_buffers, run_rows.unbind(), starts, strict=True
            ):
                contexts = buffer.contexts
                destination = run_output[start : start + n_rounds]
                if contexts.dtype == destination.dtype and contexts.device == destination.device:
                    torch.index_select(contexts, 0, buffer_rows, out=destination)
                else:
                    destination.copy_(
                        as_float(contexts.index_select(0, buffer_rows.to(contexts.device)))
                    )


def _draw_weighted_rows(buffer: ReplayBuffer, uniform_draws: Tensor) -> Tensor:
    """Return rows of a buffer, drawn with probabilities proportional to their weights, from uniform
    draws in [0, 1).
    """
    cumulative_weights = buffer.columns["weights"][: len(buffer)].cumsum(0)
    drawn_weights = uniform_draws.to(cumulative_weights.dtype).contiguous() * cumulative_weights[-1]
    return torch.searchsorted(cumulative_weights, drawn_weights, right=True).clamp(
        max=len(buffer) - 1
    )


def _find_latest_rows(buffer: ReplayBuffer, n_rows: int) -> Tensor:
    """Return the rows (n_rows,) of the latest contexts.

    If there are fewer, the oldest one is repeated.
    """
    context_numbers = torch.arange(buffer.n_seen - n_rows, buffer.n_seen).clamp(min=0)
    return context_numbers % buffer.capacity  # a full buffer replaces its oldest context
