"""Takes the gradient steps of one or several learners: fills the tables that a step reads, and lets a runner run it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Protocol

import numpy as np
import torch

from daband._arrays import AnyArray
from daband.errors import DeviceOutOfMemory, InvalidInput
from daband.neural.encoders._encoder import domain_rows
from daband.neural.learning._batches import Batches, BatchShape
from daband.neural.learning._gradient_step import GradientStep
from daband.neural.learning._learner import Learner
from daband.neural.learning._replay_buffer import ReplayBuffers
from daband.neural.learning._stacked_runs import Stack
from daband.neural.learning._torch_settings import one_thread, single_precision, tf32_matmul

# Who runs a gradient step: Python, operation by operation, or a CUDA graph that was recorded from it.
#
# A graph holds addresses. Whenever something that it reads has moved (a buffer that grew) or a part of the step comes
# or goes (the first target context), the step is recorded anew. Where recording fails, steps run eagerly, with a
# warning.


_WARM_UP = 3
"""Steps run before recording: in them the libraries choose their kernels and allocate their work space."""

Step = Callable[[bool], None]
"""A step that changes tensors in place; its argument says whether it measures."""


class Recorder(Protocol):
    """What a ``StepRunner`` asks of the device."""

    def warm_up(self, work: Callable[[], None]) -> None:
        """Run ``work`` where it will be recorded later."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record ``work`` without running it, and return what replays it; RuntimeError where that is impossible."""


class StepRunner:
    """Runs a step as it is, or where there is a recorder from a recording: of the step that measures, or the other."""

    def __init__(self, step: Step, recorder: Recorder | None = None) -> None:
        self._step = step
        self._recorder = recorder
        self._replays: dict[bool, Callable[[], None]] = {}
        self._warm_ups = 0
        self.eager = recorder is None
        """Whether steps run as they are: without a recorder, or once recording has failed."""

    def run(self, measure: bool) -> None:
        """Take one step; with a recorder some warm up before they are recorded."""
        if self._recorder is not None and measure not in self._replays and not self.eager:
            if self._warm_ups < _WARM_UP:
                self._warm_ups += 1
                self._recorder.warm_up(lambda: self._step(measure))
                return
            try:
                self._replays[measure] = self._recorder.record(lambda: self._step(measure))
            except RuntimeError as error:
                self.eager = True
                warnings.warn(
                    f"the gradient step cannot be recorded as a CUDA graph, so steps run eagerly: {error}", stacklevel=2
                )
        replay = self._replays.get(measure)
        if replay is None or self.eager:
            self._step(measure)
        else:
            replay()

    def forget(self) -> None:
        """Warm up and record anew: something that the recordings read has moved."""
        self._replays = {}
        self._warm_ups = 0


class CudaRecorder:
    """Records CUDA graphs, of which some draw from these generators."""

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self._generators = generators
        self._collected = False

    def warm_up(self, work: Callable[[], None]) -> None:
        # On a stream of its own, as recording will be: what is allocated here is then safe to reuse there.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        if not self._collected:
            # Graphs of policies that are no longer used hold device memory until the cycle that they are part of is
            # collected. Once is enough: it takes a tenth of a second, and steps are recorded again and again.
            gc.collect()
            self._collected = True
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        try:
            with _no_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
        except RuntimeError:
            torch.cuda.synchronize()
            raise
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage within this block: events and pinned memory that are freed end a recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_MEASURE_EVERY = 16


def take_steps(learners: Sequence[Learner], steps: int, buffers: Sequence[ReplayBuffers]) -> list[dict[str, float]]:
    """Take ``steps`` gradient steps for each learner on its buffers, and return means of what was measured.

    Learners that are given together must be stackable; they stay stacked until one of them is given with others.
    """
    return start_steps(learners, steps, buffers)()


def start_steps(
    learners: Sequence[Learner], steps: int, buffers: Sequence[ReplayBuffers]
) -> Callable[[], list[dict[str, float]]]:
    """What ``take_steps`` does; a GPU works on the steps until the returned call asks for what they measured."""
    return _stepper_of(learners).start(steps, buffers)


def encode_ahead(learners: Sequence[Learner], contexts: Sequence[AnyArray], domain: int) -> torch.Tensor:
    """Start to encode as many contexts of a domain for each learner by its EMA encoder, for all learners at once.

    Returns latents (learners, B, d) on the device; the next call writes over them.
    """
    return _stepper_of(learners).encode(contexts, domain)


def _stepper_of(learners: Sequence[Learner]) -> Stepper:
    learners = list(learners)
    stepper = learners[0].stepper
    return stepper if isinstance(stepper, Stepper) and stepper.serves(learners) else Stepper(learners)


class Stepper:
    """Takes the steps of ``learners``, which must agree in everything but seed, data and the values of weights."""

    @single_precision()
    def __init__(self, learners: Sequence[Learner]) -> None:
        self.stack = Stack(learners)
        first = self.stack.first
        learning = first.recipe.learning
        self._shape = BatchShape(
            rounds=learning.batch,
            contexts_per_round=first.contexts_per_round,
            context_shape=first.encoder.context_shape,
            augmentation=learning.augmentation,
            latest=first.recipe.replay.sampling == "last",
            uses_target=first.uses_target,
        )
        self.step = GradientStep(self.stack)
        self._cuda_graph = first.cuda_graph
        self._recorder = CudaRecorder([learner.generator for learner in learners])
        self.runner = self._runner_of(self.step)
        self._drawing = self._runner_of(lambda _: self._draw_block())
        self._ahead: dict[object, tuple[torch.Tensor, torch.Tensor, torch.Tensor, StepRunner]] = {}
        self._places: tuple[object, ...] = ()
        for learner in self.stack.learners:
            learner.stepper = self

    def _runner_of(self, step: Step) -> StepRunner:
        records = self.stack.device.type == "cuda" and self._cuda_graph
        return StepRunner(step, self._recorder if records else None)

    def serves(self, learners: Sequence[Learner]) -> bool:
        """Whether these learners' numbers are still the rows of this stack."""
        mine = self.stack.learners == learners and all(learner.stepper is self for learner in learners)
        return mine and self._cuda_graph == learners[0].cuda_graph

    @single_precision()
    def start(self, steps: int, buffers: Sequence[ReplayBuffers]) -> Callable[[], list[dict[str, float]]]:
        """Start ``steps`` steps; the returned call gives, for each learner, means of what was measured.

        Every sixteenth step measures, the last among them: measuring takes about a sixth of the operations of a small
        network's step. Steps that were skipped count in no mean. The device is read once, at the end.
        """
        batches = self._refresh_batches(buffers)
        first, faults = self.stack.first, self.stack.faults
        self.step.totals.zero_()
        faults[:, 0].zero_()
        faults[:, 2].zero_()
        try:
            with nullcontext() if first.worth_threads else one_thread(), tf32_matmul():
                for start in range(0, steps, batches.block):
                    self._take_block(batches, min(batches.block, steps - start), left=steps - start)
        except torch.OutOfMemoryError as error:
            batch, runs = self._shape.rounds, self.stack.runs
            raise DeviceOutOfMemory(
                f"the device ran out of memory at batch {batch}; try LearningSettings(batch={max(1, batch // 2)})"
                + ("" if runs == 1 else f", or fewer than {runs} stacked runs")
            ) from error
        numbers = torch.cat([faults[:, ::2], self.step.totals], dim=1)
        return lambda: [self._means(*row) for row in numbers.cpu().tolist()]

    @single_precision()
    def encode(self, contexts: Sequence[AnyArray], domain: int) -> torch.Tensor:
        """What ``encode_ahead`` returns; contexts of one shape and domain are encoded by one recording."""
        stack, key = self.stack, (domain, contexts[0].shape, contexts[0].dtype)
        if key not in self._ahead:
            rows = domain_rows(domain, len(contexts[0]))
            bytes_or_floats = torch.uint8 if contexts[0].dtype == np.uint8 else torch.float32
            sizes = (stack.runs, *contexts[0].shape)
            on_host = torch.zeros(sizes, dtype=bytes_or_floats, pin_memory=stack.device.type == "cuda")
            on_device = torch.zeros_like(on_host, device=stack.device)
            latents = torch.zeros(*sizes[:2], stack.first.encoder.dimension, device=stack.device)

            def encode(_: bool) -> None:
                encoded = stack.encode_by_teacher(on_device, rows)
                assert encoded is not None
                latents.copy_(encoded)

            self._ahead[key] = on_host, on_device, latents, self._runner_of(encode)
        on_host, on_device, latents, runner = self._ahead[key]
        np.stack(contexts, out=on_host.numpy(), casting="same_kind")
        on_device.copy_(on_host, non_blocking=True)
        runner.run(False)
        return latents

    def _take_block(self, batches: Batches, steps: int, *, left: int) -> None:
        step = self.step
        recorded = steps == batches.block and batches.recordable
        batches.load(steps, partial(self._drawing.run, False) if recorded else None)
        table = np.stack([learner.schedule(steps) for learner in self.stack.learners], axis=1)
        step.schedule[:steps].copy_(torch.from_numpy(table), non_blocking=True)
        step.position.zero_()
        self.stack.first.encoder.train()
        for remaining in range(left, left - steps, -1):
            self.runner.run(remaining % _MEASURE_EVERY == 1 or remaining == 1)

    def _draw_block(self) -> None:
        assert self.step.batches is not None
        self.step.batches.draw(self.step.batches.block)

    def _refresh_batches(self, buffers: Sequence[ReplayBuffers]) -> Batches:
        """Make batches anew, and forget recordings, where the buffers have moved or begin to hold something."""
        parts = [own.parts().values() for own in buffers]
        if len({tuple(part.kind for part in own) for own in parts}) > 1:
            raise InvalidInput("only runs whose replay buffers hold the same kinds of contexts can be stacked")
        places = tuple(
            (id(part), part.kind, None if part.on_host else part.contexts.data_ptr()) for own in parts for part in own
        ) + tuple(own.weights for own in buffers)
        if self.step.batches is None or places != self._places:
            generators = [learner.generator for learner in self.stack.learners]
            self.step.batches = Batches(buffers, self._shape, generators)
            self.runner.forget()
            self._drawing.forget()
            self._places = places
        return self.step.batches

    def _means(self, skipped: float, worst: float, counted: float, *totals: float) -> dict[str, float]:
        named = zip(self.step.measured_names, totals, strict=False)
        means = {name: total / counted for name, total in named if counted}
        return {**means, "skipped_steps": skipped, "worst_streak": worst}
