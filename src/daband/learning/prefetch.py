"""Batches for memories that are larger than the device: contexts stay on the host, and each step's are sent ahead.

What the coming steps will draw is drawn before the first of them, from the same generators in the same order as steps
would draw it, so that a run that streams takes the same steps as one that does not. While the device works on a step,
the host gathers the contexts of the next ones into pinned buffers, and they are copied on a stream of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from daband.learning.replay_buffer import ContextBuffer, ReplayBuffers

__all__ = ["Feed", "feed_for", "streams"]

_SLOTS = 3
"""Steps whose contexts are on the device or on their way: one in use, one that has arrived, one under way."""

Drawn = tuple[list[torch.Tensor], torch.Tensor]


def streams(memories: Sequence[ReplayBuffers]) -> bool:
    """Whether any memory keeps its contexts on the host."""
    return any(part.on_host for own in memories for part in own.parts() if len(part))


def feed_for(
    before: Feed | None, parts: Sequence[Sequence[ContextBuffer]], *, steps: int, draw: Callable[[], Drawn]
) -> Feed:
    """A feed with the draws of the coming steps: the one before where its buffers serve, or a new one."""
    drawn = [draw() for _ in range(steps)]
    feed = before
    if feed is None or not feed.fits(parts, steps=steps):
        feed = Feed(parts, steps=steps, drawn=drawn[0])
    feed.load(drawn)
    return feed


class Feed:
    """The draws of the coming steps, and a window of their contexts: buffers whose places never change.

    ``parts`` are the kinds of memory that a step draws from, each with the memories of all runs.
    """

    def __init__(self, parts: Sequence[Sequence[ContextBuffer]], *, steps: int, drawn: Drawn) -> None:
        rows, draws = drawn
        self.device = draws.device
        self.steps = steps
        self._rows = [torch.zeros(steps, *own.shape, dtype=own.dtype, device=self.device) for own in rows]
        self._draws = torch.zeros(steps, *draws.shape, device=self.device)
        self._on_host: list[torch.Tensor] = []
        sizes = [(len(part), own.shape[1], *part[0].context_shape) for part, own in zip(parts, rows, strict=True)]
        types = [part[0].contexts.dtype for part in parts]
        both = list(zip(sizes, types, strict=True))
        self._window = [torch.zeros(_SLOTS, *size, dtype=kind, device=self.device) for size, kind in both]
        self._cuda = self.device.type == "cuda"
        self._waiting = self._window
        if self._cuda:
            self._waiting = [torch.zeros(_SLOTS, *size, dtype=kind, pin_memory=True) for size, kind in both]
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._sent = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]
            self._used = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]
        self._next = 0

    def fits(self, parts: Sequence[Sequence[ContextBuffer]], *, steps: int) -> bool:
        """Whether these buffers serve so many steps on these memories."""
        held = [(tuple(window.shape[3:]), window.dtype) for window in self._window]
        asked = [(part[0].context_shape, part[0].contexts.dtype) for part in parts]
        return steps <= self.steps and held == asked

    def load(self, drawn: Sequence[Drawn]) -> None:
        """Take over the draws of the coming steps."""
        for kind, kept in enumerate(self._rows):
            kept[: len(drawn)].copy_(torch.stack([rows[kind] for rows, _ in drawn]))
        self._draws[: len(drawn)].copy_(torch.stack([draws for _, draws in drawn]))
        self._on_host = [rows[: len(drawn)].cpu() for rows in self._rows]
        self._next = 0

    def send(self, parts: Sequence[Sequence[ContextBuffer]]) -> None:
        """Gather the contexts of the next step and send them; the present stream will wait for them."""
        slot = self._next % _SLOTS
        if self._cuda:
            self._sent[slot].synchronize()  # what was gathered there before has left
        for part, rows, waiting in zip(parts, self._on_host, self._waiting, strict=True):
            for memory, own, place in zip(part, rows[self._next], waiting[slot], strict=True):
                if memory.on_host:
                    torch.index_select(memory.contexts, 0, own, out=place)
                else:  # beside one that is not; rare, as they have one shape and one capacity
                    place.copy_(memory.contexts[own.to(memory.contexts.device)])
        if self._cuda:
            self._stream.wait_event(self._used[slot])
            with torch.cuda.stream(self._stream):
                for window, waiting in zip(self._window, self._waiting, strict=True):
                    window[slot].copy_(waiting[slot], non_blocking=True)
                self._sent[slot].record(self._stream)
            torch.cuda.current_stream(self.device).wait_event(self._sent[slot])
        self._next += 1

    def done(self) -> None:
        """The step that was sent last has been given to the device: its place is free behind it."""
        if self._cuda:
            self._used[(self._next - 1) % _SLOTS].record(torch.cuda.current_stream(self.device))

    def drawn(self, position: torch.Tensor) -> Drawn:
        """The draws of the step at ``position`` (1,), which is on the device."""
        rows = [kept.index_select(0, position).squeeze(0) for kept in self._rows]
        return rows, self._draws.index_select(0, position).squeeze(0)

    def contexts(self, position: torch.Tensor) -> list[torch.Tensor]:
        """Its contexts, (runs, size, *shape) of each kind."""
        return [window.index_select(0, position % _SLOTS).squeeze(0) for window in self._window]
