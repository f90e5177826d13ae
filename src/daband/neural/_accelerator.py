"""Take the gradient steps of one or several policies on a GPU.

A GPU computes a step of a small network faster than Python can start its kernels. Therefore the
step is recorded once as a CUDA graph, which is then replayed for every batch. The steps of several
policies are recorded in one graph, each on its own stream, so that a GPU computes them at the same
time. ``take_steps`` calls the same functions of ``Learner`` as a policy on a CPU does, and has the
same result, up to rounding. If a step cannot be recorded, it runs without a graph, with a warning.

``adapt_together`` adapts several policies, also on a CPU.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from daband.errors import DeviceOutOfMemory, TrainingDiverged
from daband.neural._learner import Learner, StepInputs
from daband.neural._replay import ReplayBuffers
from daband.neural._torch_settings import use_tf32_matmul
from daband.neural.encoders._encoder import limit_threads

#: The number of steps before recording, in which the libraries choose kernels and allocate their
#: workspace.
_WARM_UP_STEPS = 3


class AdaptedPolicy(Protocol):
    """A policy whose gradient steps a ``Learner`` takes."""

    learner: Learner
    buffers: ReplayBuffers


def adapt_together(policies: Sequence[Any], steps: int | None = None) -> list[dict[str, float]]:
    """Adapt a committee, and return the metrics of each policy, as ``adapt`` does.

    The mean prediction of all EMA encoders gives the pseudo-labels of each policy. If a policy
    fails, the others are adapted before its error is raised.

    Args:
        policies: neural policies that differ in their seed only, and have learned the same rounds.
        steps: the number of gradient steps; by default the policies' own number.
    """
    with ExitStack() as locks:
        # the same order in every thread, to avoid deadlocks
        for policy in sorted(policies, key=id):
            locks.enter_context(policy._locks.write)
        n_steps = max(policy.start_steps(steps) for policy in policies)
        if not n_steps:
            return [{} for _ in policies]
        try:
            take_steps(policies, n_steps)
        except BaseException:
            for policy in policies:
                policy.learner.rewind()
            raise
        metrics: list[dict[str, float]] = []
        failure: TrainingDiverged | None = None
        for policy in policies:
            try:
                metrics.append(policy.finish_steps(n_steps))
            except TrainingDiverged as error:
                failure = error
        if failure is not None:
            raise failure
        return metrics


def take_steps(policies: Sequence[AdaptedPolicy], n_steps: int) -> None:
    """Take ``n_steps`` gradient steps of each policy, after ``start_steps``.

    Several policies are a committee, as in ``adapt_together``.
    """
    learners = [policy.learner for policy in policies]
    n_left = n_steps
    try:
        with (
            torch.cuda.device_of(learners[0].theta),  # type: ignore[no-untyped-call]
            use_tf32_matmul(),
            limit_threads(learners[0].needs_threads),
        ):
            while n_left:
                block_steps = min(n_left, learners[0].steps_per_block)
                blocks: list[StepInputs] = []
                for policy in policies:
                    common = blocks[0] if blocks else None
                    blocks.append(policy.learner.draw_block(policy.buffers, block_steps, common))
                _take_block(learners, blocks)
                n_left -= block_steps
    except torch.OutOfMemoryError as error:
        size = learners[0].recipe.learning.batch
        others = "" if len(learners) == 1 else f", or fewer than {len(learners)} members"
        raise DeviceOutOfMemory(
            f"the device ran out of memory with batch={size}; try"
            f" LearningSettings(batch={max(1, size // 2)}){others}"
        ) from error


def _take_block(learners: Sequence[Learner], blocks: Sequence[StepInputs]) -> None:
    """Take the steps of one block: a recorded graph on a GPU, plain calls on a CPU."""
    if not _uses_graphs(learners[0].device):
        for inputs in zip(*(map(StepInputs, *block) for block in blocks), strict=True):
            _step_together(learners, inputs)
        return
    recording = _recordings.get(learners[0])
    if recording is None or not recording.matches(learners, blocks):
        recording = _recordings[learners[0]] = Recording(learners, blocks)
    recording.run(learners, blocks)


def _step_together(
    learners: Sequence[Learner],
    inputs: Sequence[StepInputs],
    streams: Sequence[tuple[Any, Any]] | None = None,
) -> None:
    """Take one step of each learner.

    Args:
        learners: the learners.
        inputs: the inputs of each.
        streams: on a GPU, two CUDA streams of each learner. The EMA encoder runs on the second.
    """
    is_committee = len(learners) > 1
    streams = [(None, None)] * len(learners) if streams is None else streams
    main = None if streams[0][0] is None else torch.cuda.current_stream()
    for stream, side_stream in streams:
        _wait(stream, main)
        _wait(side_stream, main)
    teachers: list[Tensor | None] = []
    encodings = []
    for index, (stream, side_stream) in enumerate(streams):
        with torch.cuda.stream(side_stream):
            teachers.append(learners[index].teach(inputs[index]))
        with torch.cuda.stream(stream):
            encodings.append(learners[index].encode(inputs[index]))
    for stream, side_stream in streams:
        _wait(main if is_committee else stream, side_stream)
    predictions = [teacher for teacher in teachers if teacher is not None]
    if is_committee and predictions:
        teachers = [torch.stack(predictions).mean(dim=0)] * len(learners)
    for index, (stream, _) in enumerate(streams):
        _wait(stream, main)
        with torch.cuda.stream(stream):
            learners[index].descend(inputs[index], encodings[index], teachers[index])
    for stream, side_stream in streams:
        _wait(main, stream)
        _wait(main, side_stream)


def _wait(stream: Any, other: Any) -> None:
    """Let a CUDA stream wait for another one; do nothing without streams."""
    if stream is not None and other is not None:
        stream.wait_stream(other)


class Recording:
    """A CUDA graph of one step of several learners.

    A graph contains the addresses of tensors. It reads the inputs of a step from ``_blocks``, into
    which every block is copied, and changes the tensors of the learners, which do not move. With
    other inputs, e.g. because of the first target context, or with another arm, the step must be
    recorded again.
    """

    def __init__(self, learners: Sequence[Learner], blocks: Sequence[StepInputs]) -> None:
        self._learners = [ref(learner) for learner in learners]
        self._key = _make_key(learners, blocks)
        n_steps = learners[0].steps_per_block
        self._blocks = [
            StepInputs(*(tensor.new_zeros((n_steps, *tensor.shape[1:])) for tensor in block))
            for block in blocks
        ]
        #: The index of the next step in the block, (1,).
        self._position = torch.zeros(1, dtype=torch.int64, device=learners[0].device)
        self._streams = [(_make_stream(), _make_stream()) for _ in learners]
        self._graph: Any = None
        #: The tensors of the last step, from which learners measure (``Learner.last_batch``).
        self._last_batches: list[Any] = []
        self._n_warm_ups = 0
        #: True if the step cannot be recorded.
        self.is_eager = False

    def matches(self, learners: Sequence[Learner], blocks: Sequence[StepInputs]) -> bool:
        """Return True if the recorded step is that of these learners and inputs."""
        is_same = [learner() for learner in self._learners] == list(learners)
        return is_same and self._key == _make_key(learners, blocks)

    def run(self, learners: Sequence[Learner], blocks: Sequence[StepInputs]) -> None:
        """Take the steps of one block. The first steps are warm-ups, then the step is recorded."""
        n_steps = len(blocks[0].arms)
        for static_block, block in zip(self._blocks, blocks, strict=True):
            for static_tensor, tensor in zip(static_block, block, strict=True):
                static_tensor[:n_steps].copy_(tensor)
        self._position.zero_()
        for _ in range(n_steps):
            if self._graph is None and not self.is_eager:
                if self._n_warm_ups < _WARM_UP_STEPS:
                    self._n_warm_ups += 1
                else:
                    self._record(learners)
            if self._graph is None:
                self._step(learners)
            else:
                self._graph.replay()
        for learner, last_batch in zip(learners, self._last_batches, strict=False):
            learner.last_batch = last_batch

    def _step(self, learners: Sequence[Learner]) -> None:
        """Take the next step of the block."""
        inputs = [
            StepInputs(*(tensor.index_select(0, self._position).squeeze(0) for tensor in block))
            for block in self._blocks
        ]
        _step_together(learners, inputs, self._streams)
        self._position += 1

    def _record(self, learners: Sequence[Learner]) -> None:
        """Record a step without taking it. If that fails, warn, and take all steps without a
        graph.
        """
        try:
            self._graph = _record_graph(lambda: self._step(learners))
        except RuntimeError as error:
            self.is_eager = True
            warnings.warn(
                "the gradient step cannot be recorded as a CUDA graph, so steps take longer:"
                f" {error}",
                stacklevel=2,
            )
        else:
            self._last_batches = [learner.last_batch for learner in learners]


#: The recording of each first learner.
_recordings: WeakKeyDictionary[Learner, Recording] = WeakKeyDictionary()


def _make_key(learners: Sequence[Learner], blocks: Sequence[StepInputs]) -> list[object]:
    """Return what determines the operations of a step and the tensors that it uses."""
    key: list[object] = []
    for learner, block in zip(learners, blocks, strict=True):
        inputs = [(tensor.dtype, tensor.shape[1:]) for tensor in block]
        key.append(
            [learner.layout.segments, learner.uses_teacher, learner.theta.data_ptr(), inputs]
        )
    return key


def _uses_graphs(device: torch.device) -> bool:
    """Return True if steps on this device are recorded."""
    return device.type == "cuda"


def _make_stream() -> Any:
    """Return a new CUDA stream."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _record_graph(function: Any) -> Any:
    """Record a call of a function as a CUDA graph without running it, or raise RuntimeError."""
    graph = torch.cuda.CUDAGraph()
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
    return graph


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
