"""Run gradient steps, eagerly or from a recorded CUDA graph.

Policies call ``take_steps``. It finds or builds the ``Stepper`` of the learners, whose ``StepRunner`` repeats the
``GradientStep``.

A CUDA graph contains the addresses of tensors. If a tensor has moved (because a buffer grew), or if the step has a new
part (because of the first target context), the step is recorded again. If recording fails, steps run eagerly, with a
warning.
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
from daband.neural.learning._batches import Batches, BatchShape
from daband.neural.learning._gradient_step import GradientStep
from daband.neural.learning._learner import Learner
from daband.neural.learning._replay_buffer import ReplayBuffers
from daband.neural.learning._stacked_runs import Stack
from daband.neural.learning._torch_settings import one_thread, single_precision, tf32_matmul

#: The number of eager steps before recording, in which the libraries choose kernels and allocate their workspace.
_WARM_UP_STEPS = 3
#: The number of steps from one measurement to the next.
_STEPS_PER_MEASUREMENT = 16

#: A function that takes one step, and measures it if its argument is True.
StepFunction = Callable[[bool], None]


class StepRunner:
    """Runs gradient steps, eagerly or from CUDA graphs. One graph is for measured steps, one for all other steps."""

    def __init__(self, step: StepFunction, recorder: CudaRecorder | None = None) -> None:
        self._step = step
        self._recorder = recorder
        #: The functions that replay a recorded step, by whether the step is measured.
        self._replays: dict[bool, Callable[[], None]] = {}
        #: The number of warm-up steps so far.
        self._warm_ups = 0
        #: True if steps run eagerly: without a recorder, or after recording has failed.
        self.is_eager = recorder is None

    def run(self, measure: bool) -> None:
        """Take one step, and measure it if ``measure``. With a recorder, the first steps are warm-ups for recording."""
        if self._recorder is not None and measure not in self._replays and not self.is_eager:
            if self._warm_ups < _WARM_UP_STEPS:
                self._warm_ups += 1
                self._recorder.warm_up(lambda: self._step(measure))
                return
            try:
                self._replays[measure] = self._recorder.record(lambda: self._step(measure))
            except RuntimeError as error:
                self.is_eager = True
                warnings.warn(
                    f"the gradient step cannot be recorded as a CUDA graph, so steps run eagerly: {error}", stacklevel=2
                )
        replay = self._replays.get(measure)
        if replay is None or self.is_eager:
            self._step(measure)
        else:
            replay()

    def discard_recordings(self) -> None:
        """Discard all recordings, because tensors that they read have moved."""
        self._replays = {}
        self._warm_ups = 0


class CudaRecorder:
    """Records CUDA graphs. ``generators`` are the random generators that a recorded function may use."""

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self._generators = generators
        self._has_collected_garbage = False

    def warm_up(self, work: Callable[[], None]) -> None:
        """Run the function ``work`` on a separate stream, as torch recommends before recording."""
        # Recording also uses a separate stream, so it can reuse memory that is allocated here.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record ``work`` without running it, and return a function that replays it, or raise RuntimeError."""
        if not self._has_collected_garbage:
            # Graphs of policies that are no longer used hold device memory until their reference cycle is collected.
            # Once is enough: it takes a tenth of a second, and steps are recorded often.
            gc.collect()
            self._has_collected_garbage = True
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        try:
            with _without_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
        except RuntimeError:
            torch.cuda.synchronize()
            raise
        return graph.replay


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in this block, because freeing events or pinned memory would end a recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def take_steps(
    learners: Sequence[Learner], steps: int, buffers: Sequence[ReplayBuffers], *, committee: bool = False
) -> list[dict[str, float]]:
    """Take gradient steps for one or several learners, and return the mean measurements of each learner by name.

    Args:
        learners: the learners. Several learners must be stackable. They stay stacked until a later call combines one of
            them with other learners.
        steps: the number of steps.
        buffers: the replay buffers of each learner.
        committee: if True, the mean predictions of all EMA encoders are the pseudo-labels of every learner.
    """
    return _find_stepper(learners, committee).take(steps, buffers)


def _find_stepper(learners: Sequence[Learner], committee: bool) -> Stepper:
    """Return the stepper that the learners already share, or a new one."""
    learners = list(learners)
    stepper = learners[0].stepper
    is_reusable = isinstance(stepper, Stepper) and stepper.is_valid_for(learners, committee)
    return stepper if is_reusable else Stepper(learners, committee)  # type: ignore[return-value]


class Stepper:
    """Takes the gradient steps of a stack of learners (``Stack``)."""

    @single_precision()
    def __init__(self, learners: Sequence[Learner], committee: bool = False) -> None:
        self.stack = Stack(learners)
        first = self.stack.first
        learning = first.recipe.learning
        self._shape = BatchShape(
            segment_rounds=learning.batch,
            contexts_per_round=first.contexts_per_round,
            context_shape=first.encoder.context_shape,
            augmentation=learning.augmentation,
            uses_latest=first.recipe.replay.sampling == "last",
            uses_target=first.uses_target,
            standardised=first.standardised,
            committee=committee,
        )
        self.step = GradientStep(self.stack)
        self._cuda_graph = first.cuda_graph
        self._recorder = CudaRecorder([learner.generator for learner in learners])
        self.runner = self._make_runner(self.step)
        self._draw_runner = self._make_runner(lambda _: self._draw_block())
        #: The addresses of the buffers from which ``step.batches`` was built.
        self._addresses: tuple[object, ...] = ()
        for learner in self.stack.learners:
            learner.stepper = self

    def _make_runner(self, step: StepFunction) -> StepRunner:
        """Return a runner that records CUDA graphs on a GPU."""
        uses_graphs = self.stack.device.type == "cuda" and self._cuda_graph
        return StepRunner(step, self._recorder if uses_graphs else None)

    def is_valid_for(self, learners: Sequence[Learner], committee: bool) -> bool:
        """Return True if this is the stepper of exactly these learners and settings, so it can take their steps."""
        is_same_stack = self.stack.learners == learners and all(learner.stepper is self for learner in learners)
        return is_same_stack and self._cuda_graph == learners[0].cuda_graph and self._shape.committee == committee

    @single_precision()
    def take(self, steps: int, buffers: Sequence[ReplayBuffers]) -> list[dict[str, float]]:
        """Take ``steps`` steps on the buffers of each learner, and return each learner's mean measurements by name.

        Only every sixteenth step and the last one are measured, because measuring takes about a sixth of the operations
        of a small network's step. Skipped steps are not in the means. The device is read once, at the end.
        """
        batches = self._refresh_batches(buffers)
        first, skip_counts = self.stack.first, self.stack.skip_counts
        self.step.totals.zero_()
        skip_counts[:, ::2].zero_()  # skipped steps and the longest streak; column 1 is the current streak
        try:
            with nullcontext() if first.needs_threads else one_thread(), tf32_matmul():
                for start in range(0, steps, batches.block_steps):
                    self._take_block(batches, min(batches.block_steps, steps - start), steps_left=steps - start)
        except torch.OutOfMemoryError as error:
            batch, runs = self._shape.segment_rounds, self.stack.runs
            raise DeviceOutOfMemory(
                f"the device ran out of memory with batch={batch}; try LearningSettings(batch={max(1, batch // 2)})"
                + ("" if runs == 1 else f", or fewer than {runs} stacked runs")
            ) from error
        measurements = torch.cat([skip_counts[:, ::2], self.step.totals], dim=1)
        return [self._average(*row) for row in measurements.cpu().tolist()]

    def _take_block(self, batches: Batches, steps: int, *, steps_left: int) -> None:
        """Draw batches, and take ``steps`` of the ``steps_left`` steps that ``take`` has left."""
        step = self.step
        is_recorded = steps == batches.block_steps and batches.is_recordable
        batches.load(steps, partial(self._draw_runner.run, False) if is_recorded else None)
        schedules = np.stack([learner.advance_schedule(steps) for learner in self.stack.learners], axis=1)
        step.schedule[:steps].copy_(torch.from_numpy(schedules), non_blocking=True)
        step.position.zero_()
        self.stack.first.encoder.train()
        for remaining in range(steps_left, steps_left - steps, -1):
            self.runner.run(remaining % _STEPS_PER_MEASUREMENT == 1 or remaining == 1)

    def _draw_block(self) -> None:
        """Draw the batches of a full block."""
        assert self.step.batches is not None
        self.step.batches.draw(self.step.batches.block_steps)

    def _refresh_batches(self, buffers: Sequence[ReplayBuffers]) -> Batches:
        """Return the batches. If a buffer has moved or got its first contexts, build them again.

        Recorded steps are then discarded.
        """
        buffers_by_run = [run_buffers.by_segment().values() for run_buffers in buffers]
        if len({tuple(buffer.stack_key for buffer in run_buffers) for run_buffers in buffers_by_run}) > 1:
            raise InvalidInput("buffers of stacked runs must hold the same kinds of contexts; train them separately")
        addresses = tuple(
            (id(buffer), buffer.stack_key, None if buffer.on_host else buffer.contexts.data_ptr())
            for run_buffers in buffers_by_run
            for buffer in run_buffers
        )
        if self.step.batches is None or addresses != self._addresses:
            generators = [learner.generator for learner in self.stack.learners]
            units = [learner.loss_inputs["unit"] for learner in self.stack.learners]
            self.step.batches = Batches(buffers, self._shape, generators, units)
            self.runner.discard_recordings()
            self._draw_runner.discard_recordings()
            self._addresses = addresses
        return self.step.batches

    def _average(self, skipped: float, worst_streak: float, n_measured: float, *totals: float) -> dict[str, float]:
        """Return the means of ``totals`` over ``n_measured`` steps by name, with the two counts of skipped steps."""
        totals_by_name = zip(self.step.measurement_names, totals, strict=False)
        means = {name: total / n_measured for name, total in totals_by_name if n_measured}
        return {**means, "skipped_steps": skipped, "worst_streak": worst_streak}
