"""Who runs a gradient step: Python, operation by operation, or a CUDA graph that was recorded from it.

A graph holds addresses. Whenever something that it reads has moved (a buffer that grew) or a part of the step comes or
goes (the first target context), the step is recorded anew. Where recording fails, steps run eagerly, with a warning.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

__all__ = ["CudaRecorder", "EagerRunner", "GraphRunner", "Recorder"]

_WARM_UP = 3
"""Steps run before recording: in them the libraries choose their kernels and allocate their work space."""

Step = Callable[[bool], None]
"""A step that changes tensors in place; its argument says whether it measures."""


class EagerRunner:
    """Runs every step as it is."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def run(self, measure: bool) -> None:
        """Take one step."""
        self._step(measure)

    def forget(self) -> None:
        """There is no recording."""


class Recorder(Protocol):
    """What a ``GraphRunner`` asks of the device."""

    def warm_up(self, work: Callable[[], None]) -> None:
        """Run ``work`` where it will be recorded later."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record ``work`` without running it, and return what replays it; RuntimeError where that is impossible."""


class GraphRunner:
    """Replays a recording of the step: one of the step that measures, one of the step that does not."""

    def __init__(self, step: Step, recorder: Recorder) -> None:
        self._step = step
        self._recorder = recorder
        self._replays: dict[bool, Callable[[], None]] = {}
        self._warm_ups = 0
        self.refused = False
        """Whether recording failed, so that steps run eagerly."""

    def run(self, measure: bool) -> None:
        """Take one step: eagerly while warming up or once recording has failed, else from its recording."""
        if measure not in self._replays and not self.refused:
            if self._warm_ups < _WARM_UP:
                self._warm_ups += 1
                self._recorder.warm_up(lambda: self._step(measure))
                return
            try:
                self._replays[measure] = self._recorder.record(lambda: self._step(measure))
            except RuntimeError as error:
                self.refused = True
                warnings.warn(
                    f"the gradient step cannot be recorded as a CUDA graph, so steps run eagerly: {error}", stacklevel=2
                )
        replay = self._replays.get(measure)
        if replay is None or self.refused:
            self._step(measure)
        else:
            replay()

    def forget(self) -> None:
        """Warm up and record anew: something that the recordings read has moved."""
        self._replays = {}
        self._warm_ups = 0


class CudaRecorder:
    """Records CUDA graphs."""

    def __init__(self) -> None:
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
