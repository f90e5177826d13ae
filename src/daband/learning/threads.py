"""How many threads gradient steps take on the CPU: chosen by timing a few passes, where the user chose nothing.

More threads are not always faster. Small networks leave them nothing to share, and on a machine that is busy, or in a
container that may use fewer cores than it sees, threads spin while they wait for one another and a step takes ten
times as long. The number of threads changes the last bits of sums, so the choice is part of a saved policy: a run that
is gone on with goes on with the same number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["Threads"]

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_AT_IMPORT = torch.get_num_threads()
_WORTH = 0.9
"""Twice the threads must take at most this share of the time, or fewer are kept for whoever else needs the cores."""
_PASSES = 3
_CHOSEN: dict[str, int] = {}
"""What was chosen in this process, by the kind of work."""
_LONG = 0.5
"""Seconds of a pass after which one is enough."""


class Threads:
    """The threads of one learner. ``count`` 0 means what torch has been told: nothing was chosen here, or not yet."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def settled(self) -> bool:
        """Whether nothing is left to choose."""
        return self.count > 0 or torch.get_num_threads() == 1 or _chosen_by_user()

    def choose(
        self, work: Callable[[], None], *, like: str | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Time ``work`` with 1, 2, 4, ... threads, and keep the last number that was worth it.

        Done once, and never above what torch would take. A number that the user set, here or in the environment, is
        left alone. Work that is ``like`` other work of this process gets that one's number: two policies of one seed
        are then the same to the last bit.
        """
        if self.settled:
            return
        most = torch.get_num_threads()
        if like is not None and like in _CHOSEN:
            self.count = _CHOSEN[like]
            return
        best, seconds, tried = 1, _timed(work, 1, clock), 1
        while tried < most:
            tried = min(2 * tried, most)
            taken = _timed(work, tried, clock)
            if taken > _WORTH * seconds:
                break
            best, seconds = tried, taken
        torch.set_num_threads(most)
        self.count = best
        if like is not None:
            _CHOSEN[like] = best

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within this block torch uses the chosen number of threads; afterwards what it used before."""
        before = torch.get_num_threads()
        wanted = before if _chosen_by_user() else min(self.count or before, before)
        if wanted != before:
            torch.set_num_threads(wanted)
        try:
            yield
        finally:
            if wanted != before:
                torch.set_num_threads(before)


def _chosen_by_user() -> bool:
    return any(os.environ.get(name) for name in _VARIABLES) or torch.get_num_threads() != _AT_IMPORT


def _timed(work: Callable[[], None], threads: int, clock: Callable[[], float]) -> float:
    """The shortest of a few passes: whatever else the machine does can only make one longer."""
    torch.set_num_threads(threads)
    fastest = float("inf")
    work()  # threads are started and kernels chosen here
    for _ in range(_PASSES):
        started = clock()
        work()
        fastest = min(fastest, clock() - started)
        if fastest > _LONG:
            break
    return fastest
