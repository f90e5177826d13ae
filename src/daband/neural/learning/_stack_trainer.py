"""Run gradient steps, eagerly or from a recorded CUDA graph.

Policies call ``take_steps``. It finds or builds the ``StackTrainer`` of the learners, which calls
its ``GradientStep`` as a ``RecordableFunction``.

A CUDA graph contains the addresses of tensors. If a tensor has moved (because a buffer grew), or if
the step has a new part (because of the first target context), the step is recorded again. If
recording fails, steps run eagerly, with a warning.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch

from daband.errors import DeviceOutOfMemory, InvalidInput
from daband.neural.learning._batches import Batches, BatchSettings
from daband.neural.learning._gradient_step import GradientStep
from daband.neural.learning._learner import Learner
from daband.neural.learning._replay_buffer import ReplayBuffers
from daband.neural.learning._stacked_runs import Stack
from daband.neural.learning._torch_settings import (
    use_one_thread,
    use_single_precision,
    use_tf32_matmul,
)

#: The number of eager steps before recording, in which the libraries choose kernels and allocate
#: their workspace.
_WARM_UP_STEPS = 3
#: The number of steps from one measurement to the next.
_STEPS_PER_MEASUREMENT = 16


class RecordableFunction:
    """A function that is called eagerly or replayed from CUDA graphs.

    Its argument ``measure`` is True if the call also computes measurements. There is one graph for
    each value of the argument.
    """

    def __init__(
        self, function: Callable[[bool], None], recorder: CudaRecorder | None = None
    ) -> None:
        self._function = function
        self._recorder = recorder
        #: The functions that replay a recorded call, by the value of ``measure``.
        self._replays: dict[bool, Callable[[], None]] = {}
        #: The number of warm-up calls so far.
        self._n_warm_ups = 0
        #: True if the function is called eagerly: without a recorder, or after recording has
        #: failed.
        self.is_eager = recorder is None

    def run(self, measure: bool) -> None:
        """Call the function or replay a recorded call.

        With a recorder, the first calls are warm-ups for recording.
        """
        if self._recorder is not None and measure not in self._replays and not self.is_eager:
            if self._n_warm_ups < _WARM_UP_STEPS:
                self._n_warm_ups += 1
                self._recorder.warm_up(lambda: self._function(measure))
                return
            try:
                self._replays[measure] = self._recorder.record(lambda: self._function(measure))
            except RuntimeError as error:
                self.is_eager = True
                warnings.warn(
                    "the gradient step cannot be recorded as a CUDA graph, so steps run eagerly:"
                    f" {error}",
                    stacklevel=2,
                )
        replay = self._replays.get(measure)
        if replay is None or self.is_eager:
            self._function(measure)
        else:
            replay()

    def discard_recordings(self) -> None:
        """Discard all recordings, because tensors that they read have moved."""
        self._replays = {}
        self._n_warm_ups = 0


class CudaRecorder:
    """Records CUDA graphs.

    ``generators`` are the random generators that a recorded function may use.
    """

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self._generators = generators
        self._has_collected_garbage = False

    def warm_up(self, function: Callable[[], None]) -> None:
        """Call a function on a separate stream, as torch recommends before recording."""
        # Recording also uses a separate stream, so it can reuse memory that is allocated here.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()
        torch.cuda.current_stream().wait_stream(stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Record a call without running it, and return a function that replays it, or raise
        RuntimeError.
        """
        if not self._has_collected_garbage:
            # Graphs of policies that are no longer used hold device memory until their reference
            # cycle is collected. Once is enough: it takes a tenth of a second, and steps are
            # recorded often.
            gc.collect()
            self._has_collected_garbage = True
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        try:
            with (
                _without_garbage_collection(),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                function()
        except RuntimeError:
            torch.cuda.synchronize()
            raise
        return graph.replay


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in this block, because freeing events or pinned memory would end a
    recording.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def take_steps(
    learners: Sequence[Learner],
    n_steps: int,
    buffers: Sequence[ReplayBuffers],
    *,
    is_committee: bool = False,
) -> list[dict[str, float]]:
    """Take gradient steps for one or several learners, and return the mean measurements of each
    learner by name.

    Args:
        learners: one learner, or several that can be stacked. They stay stacked until a later call
            combines one of them with other learners.
        n_steps: the number of steps.
        buffers: the replay buffers of each learner.
        is_committee: if True, the mean predictions of all EMA encoders are the pseudo-labels of
            every learner.
    """
    return _find_trainer(learners, is_committee).take_steps(n_steps, buffers)


def _find_trainer(learners: Sequence[Learner], is_committee: bool) -> StackTrainer:
    """Return the trainer that the learners already share, or a new one."""
    trainer = learners[0].trainer
    is_reusable = isinstance(trainer, StackTrainer) and trainer.is_valid_for(learners, is_committee)
    return trainer if is_reusable else StackTrainer(learners, is_committee)  # type: ignore[return-value]


class StackTrainer:
    """Takes the gradient steps of a stack of learners (``Stack``)."""

    @use_single_precision()
    def __init__(self, learners: Sequence[Learner], is_committee: bool = False) -> None:
        self.stack = Stack(learners)
        learner = self.stack.first_learner
        learning = learner.recipe.learning
        self._batch_settings = BatchSettings(
            rounds_per_segment=learning.batch,
            contexts_per_round=learner.contexts_per_round,
            context_shape=learner.encoder.context_shape,
            augmentation=learning.augmentation,
            uses_latest=learner.recipe.replay.sampling == "last",
            uses_target=learner.uses_target,
            standardise_rewards=learner.standardise_rewards,
            is_committee=is_committee,
        )
        self._is_committee = is_committee
        self._uses_cuda_graph = learner.uses_cuda_graph
        self.gradient_step = GradientStep(self.stack)
        generators = [stacked_learner.generator for stacked_learner in learners]
        records_graphs = self.stack.device.type == "cuda" and self._uses_cuda_graph
        recorder = CudaRecorder(generators) if records_graphs else None
        self.recordable_step = RecordableFunction(self.gradient_step, recorder)
        self._recordable_draw = RecordableFunction(lambda _: self._draw_block(), recorder)
        #: The identities and addresses of the buffers from which ``gradient_step.batches`` was
        #: built.
        self._buffer_addresses: tuple[object, ...] = ()
        for stacked_learner in self.stack.learners:
            stacked_learner.trainer = self

    def is_valid_for(self, learners: Sequence[Learner], is_committee: bool) -> bool:
        """Return True if this is the trainer of exactly these learners and settings, so it can take
        their steps.
        """
        is_same_stack = self.stack.learners == list(learners) and all(
            learner.trainer is self for learner in learners
        )
        has_same_settings = (
            self._uses_cuda_graph == learners[0].uses_cuda_graph
            and self._is_committee == is_committee
        )
        return is_same_stack and has_same_settings

    @use_single_precision()
    def take_steps(self, n_steps: int, buffers: Sequence[ReplayBuffers]) -> list[dict[str, float]]:
        """Take ``n_steps`` steps on the buffers of each learner, and return each learner's mean
        measurements by name.

        Only every sixteenth step and the last one are measured, because measuring takes about a
        sixth of the operations of a small network's step. Skipped steps are not in the means. The
        device is read once, at the end.
        """
        batches = self._refresh_batches(buffers)
        # Columns 0 and 2 (skipped steps, longest streak) restart with each call; column 1 (current
        # streak) does not.
        skip_totals = self.stack.skip_counts[:, ::2]
        self.gradient_step.totals.zero_()
        skip_totals.zero_()
        needs_threads = self.stack.first_learner.needs_threads
        try:
            with use_tf32_matmul(), nullcontext() if needs_threads else use_one_thread():
                for start in range(0, n_steps, batches.steps_per_block):
                    n_left = n_steps - start
                    self._take_block(batches, min(batches.steps_per_block, n_left), n_left=n_left)
        except torch.OutOfMemoryError as error:
            size = self._batch_settings.rounds_per_segment
            n_runs = self.stack.n_runs
            raise DeviceOutOfMemory(
                f"the device ran out of memory with batch={size}; try"
                f" LearningSettings(batch={max(1, size // 2)})"
                + ("" if n_runs == 1 else f", or fewer than {n_runs} stacked runs")
            ) from error
        counts_and_totals = torch.cat([skip_totals, self.gradient_step.totals], dim=1)
        return [self._get_means(*row) for row in counts_and_totals.cpu().tolist()]

    def _take_block(self, batches: Batches, n_steps: int, *, n_left: int) -> None:
        """Draw batches, and take ``n_steps`` of the ``n_left`` steps that ``take_steps``
        has left.
        """
        is_recorded = n_steps == batches.steps_per_block and batches.is_recordable
        batches.load(n_steps, partial(self._recordable_draw.run, False) if is_recorded else None)
        schedules = np.stack(
            [learner.advance_schedule(n_steps) for learner in self.stack.learners], axis=1
        )
        self.gradient_step.schedule[:n_steps].copy_(torch.from_numpy(schedules), non_blocking=True)
        self.gradient_step.position.zero_()
        self.stack.first_learner.encoder.train()
        for n_remaining in range(n_left, n_left - n_steps, -1):
            self.recordable_step.run(n_remaining % _STEPS_PER_MEASUREMENT == 1 or n_remaining == 1)

    def _draw_block(self) -> None:
        """Draw the batches of a full block."""
        batches = self.gradient_step.batches
        assert batches is not None
        batches.draw(batches.steps_per_block)

    def _refresh_batches(self, buffers: Sequence[ReplayBuffers]) -> Batches:
        """Return the batches. If a buffer has moved or got its first contexts, build them again.

        Recorded steps are then discarded.
        """
        buffers_by_run = [
            replay_buffers.get_buffers_by_segment().values() for replay_buffers in buffers
        ]
        if (
            len(
                {
                    tuple(buffer.stacking_key for buffer in run_buffers)
                    for run_buffers in buffers_by_run
                }
            )
            > 1
        ):
            raise InvalidInput(
                "buffers of stacked runs must hold the same kinds of contexts; train them"
                " separately"
            )
        addresses = tuple(
            (
                id(buffer),
                buffer.stacking_key,
                None if buffer.is_on_host else buffer.contexts.data_ptr(),
            )
            for run_buffers in buffers_by_run
            for buffer in run_buffers
        )
        if self.gradient_step.batches is None or addresses != self._buffer_addresses:
            generators = [learner.generator for learner in self.stack.learners]
            reward_units = [learner.loss_inputs["reward_unit"] for learner in self.stack.learners]
            self.gradient_step.batches = Batches(
                buffers, self._batch_settings, generators, reward_units
            )
            self.recordable_step.discard_recordings()
            self._recordable_draw.discard_recordings()
            self._buffer_addresses = addresses
        return self.gradient_step.batches

    def _get_means(
        self, n_skipped: float, longest_streak: float, n_measured: float, *totals: float
    ) -> dict[str, float]:
        """Return the means of ``totals`` over ``n_measured`` steps by name, with the two counts of
        skipped steps.
        """
        named_totals = zip(self.gradient_step.measurement_names, totals, strict=False)
        means = {name: total / n_measured for name, total in named_totals if n_measured}
        return {**means, "skipped_steps": n_skipped, "longest_streak": longest_streak}
