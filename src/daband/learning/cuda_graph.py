"""A whole gradient step as one CUDA graph: recorded once, replayed per step, with nothing of it left to the host.

A graph holds addresses. Whenever something it reads has moved (a memory that grew, an optimiser that was restored) or a
part of the step comes or goes (the first target context), the step is recorded anew. Where recording fails, steps run
one by one as they do on the CPU, and a warning says so.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from daband.learning.replay_buffer import ReplayBuffers

__all__ = ["Capturable", "GraphRunner"]

_WARM_UP = 3
"""Steps taken before recording: they make the libraries choose their kernels and allocate their work space."""


class Capturable(Protocol):
    """What can be captured: a step that changes tensors in place, and the generators it draws from."""

    generators: list[torch.Generator]

    def step(self, memories: Sequence[ReplayBuffers], measure: bool) -> None:
        """Take one step."""


class GraphRunner:
    """Takes the steps of one or more learners, as graph replays where that is possible."""

    def __init__(self, steps: Capturable) -> None:
        self._steps = steps
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self._places: tuple[object, ...] = ()
        self._warm = 0
        self._recorded = False
        self.refused = False
        """Whether recording failed, so that steps run one by one."""

    def forget(self) -> None:
        """Record anew before the next replay."""
        self._graphs = {}
        self._places = ()
        self._warm = 0

    def look_at(self, memories: Sequence[ReplayBuffers]) -> None:
        """Before some steps: see whether what was recorded still holds."""
        places = _places(memories)
        if places != self._places:
            self.forget()
            self._places = places

    def step(self, memories: Sequence[ReplayBuffers], measure: bool) -> None:
        """Take one step, which measures or does not: there is a graph for each."""
        if self.refused:
            self._steps.step(memories, measure)
            return
        if measure not in self._graphs and self._warm < _WARM_UP:
            # On a stream of its own, as recording will be: what is allocated here is then safe to reuse there.
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._steps.step(memories, measure)
            torch.cuda.current_stream().wait_stream(stream)
            self._warm += 1
            return
        if measure not in self._graphs:
            self._record(memories, measure)
        if measure in self._graphs:
            self._graphs[measure].replay()
        else:
            self._steps.step(memories, measure)

    def _record(self, memories: Sequence[ReplayBuffers], measure: bool) -> None:
        if not self._recorded:
            # Policies and their steps hold one another, so what a dead one recorded lies on the device until then. Once
            # is enough: it takes a tenth of a second, and steps are recorded again whenever a memory moves.
            gc.collect()
            self._recorded = True
        graph = torch.cuda.CUDAGraph()
        for generator in self._steps.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        try:
            with _no_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._steps.step(memories, measure)
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.refused = True
            warnings.warn(f"the gradient step cannot be captured, so steps run one by one: {error}", stacklevel=2)
            return
        self._graphs[measure] = graph


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


def _places(memories: Sequence[ReplayBuffers]) -> tuple[object, ...]:
    """What a recorded step depends on besides values: where things are, and which parts there are."""
    parts = [part for own in memories for part in own.parts()]
    return tuple(
        (None if part.on_host else part.contexts.data_ptr(), part.contexts.dtype, len(part) > 0) for part in parts
    )
