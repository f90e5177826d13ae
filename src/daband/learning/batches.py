"""Where the batches of gradient steps come from: replay buffers on the device, or on the host with prefetching.

What the coming steps draw (rows of the buffers, numbers for the augmentation) is drawn before the first of them, so a
step itself uses no random generator and has one shape: it can be recorded as a CUDA graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from daband.encoders import Augmentation, augment
from daband.learning.replay_buffer import ContextBuffer, ReplayBuffers, RoundBuffer, as_float

BLOCK = 64
"""The most steps that are drawn for at once."""
_MOST_AHEAD = 1 << 27
"""Numbers of contexts that are prepared before the steps that use them."""
_MOST_AUGMENTED = 1 << 26
"""Numbers of contexts that are augmented at once, which takes several times their memory for a moment."""
_SLOTS = 3
"""Steps whose contexts are on the device or on their way: one in use, one that has arrived, one being sent."""


@dataclass(frozen=True)
class BatchShape:
    """What every batch of a stack of runs has in common."""

    rounds: int
    """Rounds, or unlabelled contexts, drawn from each buffer."""
    contexts_per_round: int
    context_shape: tuple[int, ...]
    augmentation: Augmentation
    latest: bool
    """Whether steps take the latest rounds; else they draw evenly with replacement."""
    uses_target: bool
    """Whether steps look at unlabelled target contexts."""

    @property
    def augmentation_draws(self) -> int:
        """Random numbers that the augmentation takes per context."""
        return self.augmentation.draws(self.context_shape)


class DrawnBatch(NamedTuple):
    """One step's batch of all runs: R contexts, segment by segment (``Batches.segments``)."""

    contexts: torch.Tensor
    """(runs, R, *context_shape), as they were stored."""
    augmented: torch.Tensor
    """The same, augmented; contexts that are no images are left as they are."""
    arm: torch.Tensor
    """(runs, rounds): of the labelled segments."""
    reward: torch.Tensor
    """(runs, rounds)."""


class Batches(ABC):
    """The draws of the coming steps in tables whose places in memory never change."""

    def __init__(self, buffers: Sequence[ReplayBuffers], shape: BatchShape, generators: Sequence[torch.Generator]):
        self.shape = shape
        self._generators = generators
        self._device = generators[0].device
        runs, rows = len(buffers), shape.rounds
        self.segments = [
            segment
            for segment, part in buffers[0].parts().items()
            if len(part) and (shape.uses_target or segment.labelled)
        ]
        """What every batch consists of, domain by domain."""
        self._parts = [[own.parts()[segment] for segment in self.segments] for own in buffers]
        """The buffers that steps draw from, for each run."""
        places = list(enumerate(self.segments))
        self.labelled = [place for place, segment in places if segment.labelled]
        """The places of segments that have rewards, and below of those that have none, and of the sources'."""
        self.unlabelled = [place for place, segment in places if not segment.labelled]
        self.sources = [place for place, segment in places if not buffers[0].domains.is_target(segment.domain)]
        self.segment_rows = rows * shape.contexts_per_round
        """Contexts of each segment."""
        self.n_contexts = self.segment_rows * len(self.segments)
        labelled = rows * len(self.labelled)
        device = self._device
        domains = [self.segments[place].domain for place in self.labelled if any(own.weights for own in buffers)]
        counts = [[own.weights[domain] if own.weights else 1.0 for domain in domains] for own in buffers]
        self.counts = torch.tensor(counts, dtype=torch.float32, device=device).repeat_interleave(rows, dim=1)
        """(runs, rounds): how much each round counts in gradients; (runs, 0) where all count as much."""
        self._rows = torch.zeros(BLOCK, runs, len(self.segments), rows, dtype=torch.int64, device=device)
        self._augmentation = torch.zeros(
            BLOCK, runs, self.n_contexts, shape.augmentation_draws, dtype=torch.float32, device=device
        )
        self._arm = torch.zeros(BLOCK, runs, labelled, dtype=torch.int64, device=device)
        self._reward = torch.zeros(BLOCK, runs, labelled, dtype=torch.float32, device=device)
        types = {part.contexts.dtype for own in self._parts for part in own}
        self._type = types.pop() if len(types) == 1 else torch.float32
        self._stored_shape = (runs, len(self.segments) * rows, *self._parts[0][0].context_shape)

    def load(self, steps: int) -> None:
        """Draw for the coming steps, at most ``BLOCK``; each run draws from its own generator."""
        rows, augmentation = self._rows[:steps], self._augmentation[:steps]
        n_rows = 0 if self.shape.latest else rows[0, 0].numel()
        sizes = (len(self._parts), steps, n_rows + augmentation[0, 0].numel())
        drawn = torch.empty(sizes, device=self._device, dtype=torch.float32)
        for own_draws, generator in zip(drawn, self._generators, strict=True):
            torch.rand(own_draws.shape, generator=generator, out=own_draws)
        drawn = drawn.transpose(0, 1)
        augmentation.copy_(drawn[:, :, n_rows:].view(augmentation.shape))
        evenly = drawn[:, :, :n_rows].view(rows.shape) if n_rows else rows
        if n_rows:
            counts = torch.tensor([[len(part) for part in own] for own in self._parts]).to(self._device)[:, :, None]
            torch.minimum((evenly * counts).long(), counts - 1, out=rows)
        for run, own in enumerate(self._parts):
            if self.shape.latest:
                rows[:, run] = torch.stack([_latest(part, self.shape.rounds) for part in own]).to(self._device)
            for place, part in enumerate(own):
                if n_rows and isinstance(part, RoundBuffer) and part.weighted:
                    rows[:, run, place] = _by_weight(part, evenly[:, run, place])
            for place, segment in enumerate(self.labelled):
                part, own_rows = own[segment], rows[:, run, segment]
                assert isinstance(part, RoundBuffer)
                columns = slice(place * self.shape.rounds, (place + 1) * self.shape.rounds)
                self._arm[:steps, run, columns] = part.arms[own_rows]
                self._reward[:steps, run, columns] = part.rewards[own_rows].to(torch.float32)

    def domain_rows(self, places: Sequence[int] | None = None) -> tuple[int, ...]:
        """How many contexts of each domain the segments at these places have, all by default."""
        domains = [self.segments[place].domain for place in (range(len(self.segments)) if places is None else places)]
        return tuple(self.segment_rows * domains.count(domain) for domain in range(max(domains, default=0) + 1))

    def labelled_apart(self) -> int:
        """How many contexts the labelled segments have, where all others follow and are of other domains; else 0."""
        domains = [{self.segments[at].domain for at in places} for places in (self.labelled, self.unlabelled)]
        apart = self.labelled == list(range(len(self.labelled))) and not domains[0] & domains[1]
        return self.segment_rows * len(self.labelled) if apart and self.labelled and self.unlabelled else 0

    def before_step(self) -> None:  # noqa: B027 - batches on the device need nothing
        """What the host does before it starts a step."""

    def after_step(self) -> None:  # noqa: B027
        """What the host does once it has started a step."""

    def at(self, position: torch.Tensor) -> DrawnBatch:
        """The batch of the step at ``position`` (1,), a number on the device."""

        def now(table: torch.Tensor) -> torch.Tensor:
            return table.index_select(0, position).squeeze(0)

        contexts = self._contexts(position).view(len(self._parts), self.n_contexts, *self.shape.context_shape)
        augmented = self._augmented(contexts, position)
        return DrawnBatch(contexts, augmented, now(self._arm), now(self._reward))

    @abstractmethod
    def _contexts(self, position: torch.Tensor) -> torch.Tensor:
        """The stored contexts (runs, rows, ...) of the step at ``position``."""

    def _augmented(self, contexts: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The contexts (runs, R, ...) of the step at ``position``, augmented."""
        return self._augment(contexts, self._augmentation.index_select(0, position).squeeze(0))

    def _augment(self, contexts: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Contexts (a, b, ...) augmented by draws (a, b, draws)."""
        flat = augment(contexts.flatten(0, 1), self.shape.augmentation, draws.flatten(0, 1))
        return flat.view(*contexts.shape[:2], *flat.shape[1:])

    def _gather(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the contexts of ``rows`` (runs, segments, size) to ``out`` (runs, segments * size, ...)."""
        size = self.shape.rounds
        for own, own_rows, place in zip(self._parts, rows.unbind(), out.unbind(), strict=True):
            for part, some, start in zip(own, own_rows.unbind(), range(0, len(place), size), strict=True):
                contexts, there = part.contexts, place[start : start + size]
                if contexts.dtype == there.dtype and contexts.device == there.device:
                    torch.index_select(contexts, 0, some, out=there)
                else:
                    there.copy_(as_float(contexts.index_select(0, some.to(contexts.device))))


class ResidentBatches(Batches):
    """From buffers on the device: a step gathers its own contexts.

    On a GPU, where a step's time goes by the number of its operations, those of all coming steps are gathered and
    augmented at once.
    """

    def __init__(self, buffers: Sequence[ReplayBuffers], shape: BatchShape, generators: Sequence[torch.Generator]):
        super().__init__(buffers, shape, generators)
        self.ahead = self.prepares_ahead()
        lead = (BLOCK,) if self.ahead else ()
        self._gathered = torch.zeros(*lead, *self._stored_shape, dtype=self._type, device=self._device)
        self._prepared = self._gathered[:0]
        if self.ahead and shape.augmentation_draws:
            sizes = (BLOCK, len(buffers), self.n_contexts, *shape.context_shape)
            self._prepared = torch.zeros(sizes, dtype=torch.float32, device=self._device)

    def prepares_ahead(self) -> bool:
        """Whether to, which depends on the device and on how much memory it would take."""
        return self._device.type == "cuda" and BLOCK * math.prod(self._stored_shape) <= _MOST_AHEAD

    def load(self, steps: int) -> None:
        super().load(steps)
        if not self.ahead:
            return
        size = self.shape.rounds
        for run, own in enumerate(self._parts):
            for place, part in enumerate(own):
                rows = self._rows[:steps, run, place]
                contexts = part.contexts.index_select(0, rows.flatten()).view(*rows.shape, *part.contexts.shape[1:])
                columns = slice(place * size, (place + 1) * size)
                self._gathered[:steps, run, columns] = contexts if contexts.dtype == self._type else as_float(contexts)
        at_once = max(1, _MOST_AUGMENTED // math.prod(self._gathered.shape[1:]))
        for start in range(0, steps if len(self._prepared) else 0, at_once):
            block = slice(start, min(start + at_once, steps))
            stored = self._gathered[block].view(-1, self.n_contexts, *self.shape.context_shape)
            augmented = self._augment(stored, self._augmentation[block].flatten(0, 1))
            self._prepared[block] = augmented.view(self._prepared[block].shape)

    def _contexts(self, position: torch.Tensor) -> torch.Tensor:
        if self.ahead:
            return self._gathered.index_select(0, position).squeeze(0)
        self._gather(self._rows.index_select(0, position).squeeze(0), self._gathered)
        return self._gathered

    def _augmented(self, contexts: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        if len(self._prepared):
            return self._prepared.index_select(0, position).squeeze(0)
        return super()._augmented(contexts, position)


class PrefetchedBatches(Batches):
    """From buffers on the host: while the device works on a step, the host sends the contexts of the next ones.

    On a GPU they are gathered in pinned memory and copied on a stream of their own.
    """

    def __init__(self, buffers: Sequence[ReplayBuffers], shape: BatchShape, generators: Sequence[torch.Generator]):
        super().__init__(buffers, shape, generators)
        self._sent = torch.zeros(_SLOTS, *self._stored_shape, dtype=self._type, device=self._device)
        self._cuda = self._device.type == "cuda"
        self._host = self._sent
        if self._cuda:
            self._host = torch.zeros(self._sent.shape, dtype=self._type, pin_memory=True)
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._arrived = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]
            self._used = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]
        self._next = 0

    def load(self, steps: int) -> None:
        super().load(steps)
        self._host_rows = self._rows[:steps].cpu()
        self._next = 0

    def before_step(self) -> None:
        """Gather the contexts of the next step and send them; the current stream waits for them."""
        slot = self._next % _SLOTS
        if self._cuda:
            self._arrived[slot].synchronize()  # the copy from this slot's pinned memory is over
        self._gather(self._host_rows[self._next], self._host[slot])
        if self._cuda:
            self._stream.wait_event(self._used[slot])
            with torch.cuda.stream(self._stream):
                self._sent[slot].copy_(self._host[slot], non_blocking=True)
                self._arrived[slot].record(self._stream)
            torch.cuda.current_stream(self._device).wait_event(self._arrived[slot])
        self._next += 1

    def after_step(self) -> None:
        """Once the device has run the step that was started last, its slot is free."""
        if self._cuda:
            self._used[(self._next - 1) % _SLOTS].record(torch.cuda.current_stream(self._device))

    def _contexts(self, position: torch.Tensor) -> torch.Tensor:
        return self._sent.index_select(0, position % _SLOTS).squeeze(0)


def batches_for(buffers: Sequence[ReplayBuffers], shape: BatchShape, generators: Sequence[torch.Generator]) -> Batches:
    """Prefetched batches where any filled buffer keeps its contexts on the host, else resident ones."""
    on_host = any(part.on_host for own in buffers for part in own.parts().values() if len(part))
    return (PrefetchedBatches if on_host else ResidentBatches)(buffers, shape, generators)


def _by_weight(part: RoundBuffer, evenly: torch.Tensor) -> torch.Tensor:
    """The rows that even draws from [0, 1) pick with probabilities in proportion to the rounds' weights."""
    shares = part.weights[: len(part)].cumsum(0)
    rows = torch.searchsorted(shares, evenly.to(shares.dtype).contiguous() * shares[-1], right=True)
    return rows.clamp(max=len(part) - 1)


def _latest(part: ContextBuffer, size: int) -> torch.Tensor:
    """The rows (size,) of the latest contexts; a buffer that holds fewer repeats its oldest."""
    numbers = torch.arange(part.n_seen - size, part.n_seen).clamp(min=0)
    return numbers % part.capacity  # a full buffer writes over its oldest
