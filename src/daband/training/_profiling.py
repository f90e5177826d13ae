"""Where the time of a run goes: seconds in each part of a policy, and a trace of one episode that a person can open.

A part is timed at its borders, and a part inside another is taken out of it: what the parts and the rest, the host,
took adds up to the wall time. Nothing is timed unless it is asked for, and the policy is as it was afterwards.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from daband._files import write_text
from daband.policies._policy import Policy

PARTS = ("step", "features", "head", "host")
"""Gradient steps; encoding contexts; choosing, learning and refitting in the head; all the rest."""
_SKIPPED = 2
_LARGEST = 40_000_000
"""Bytes of a trace: what a browser opens without effort. The first events that fit are kept."""


class Stopwatch:
    """Wall seconds in the parts of a policy, while it is entered.

    The parts of a policy wait for the device at their ends, so that the seconds are right on a GPU, too. ``label`` is
    entered with the name of each part that runs.
    """

    def __init__(self, policy: Policy, label: Callable[[str], AbstractContextManager[object]] = nullcontext) -> None:
        self._policy = policy
        self._label = label
        self._inside: list[str] = []
        self._hooked: list[tuple[object, str]] = []
        self._mark = 0.0
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    def __enter__(self) -> Stopwatch:
        for part, holder, method in self._policy.timed_parts():
            setattr(holder, method, self._wrapped(part, getattr(holder, method)))
            self._hooked.append((holder, method))
        self._mark = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._charge()
        while self._hooked:
            delattr(*self._hooked.pop())

    def restart(self) -> None:
        """Forget what was measured so far."""
        self._mark = time.perf_counter()
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def _charge(self) -> None:
        """Put the time since the last border down to whoever was running."""
        now = time.perf_counter()
        self.seconds[self._inside[-1] if self._inside else "host"] += now - self._mark
        self._mark = now

    def _wrapped(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            self._charge()
            self._inside.append(part)
            try:
                with self._label(f"daband: {part}"):
                    return call(*arguments, **keywords)
            finally:
                self._charge()
                self._inside.pop()

        return timed


class Profile:
    """A stopwatch over a whole run, and a trace of one episode of it in the format of Chrome and Perfetto.

    The first episodes are let pass (libraries load, graphs are recorded), the next is traced into ``path``; a run that
    is shorter is traced in its last episode.
    """

    def __init__(self, policy: Policy, path: Path) -> None:
        from daband.neural._devices import record_function

        self.stopwatch = Stopwatch(policy, label=record_function)
        self.path = path
        self._profiler: Any = None

    @contextmanager
    def running(self, episodes: int) -> Iterator[Profile]:
        """Watch a run of so many episodes; ``episode_done`` is to be called after each."""
        from daband.neural._devices import episode_profiler

        with warnings.catch_warnings():
            # That nothing is traced to warm up, and that a next cycle would clear the trace: there is a single one.
            warnings.filterwarnings("ignore", "(Warning: )?Profiler", UserWarning)
            self._profiler = episode_profiler(min(_SKIPPED, episodes - 1), self._write)
            with self.stopwatch, self._profiler:
                yield self

    def episode_done(self) -> None:
        """An episode is over."""
        self._profiler.step()

    def _write(self, profiler: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.path))
        _shorten(self.path, _LARGEST)


def _shorten(path: Path, largest: int) -> None:
    """Keep the first events of a trace, as many as fit in ``largest`` bytes; those that name things stay."""
    if path.stat().st_size <= largest:
        return
    trace = json.loads(path.read_text(encoding="utf-8"))
    events = trace["traceEvents"]
    names = [event for event in events if event.get("ph") == "M"]
    timed = sorted((event for event in events if event.get("ph") != "M"), key=lambda event: float(event.get("ts", 0)))
    lengths = itertools.accumulate(len(json.dumps(event)) + 2 for event in names + timed)
    kept = sum(length <= largest - 10_000 for length in lengths)
    write_text(path, json.dumps({**trace, "traceEvents": (names + timed)[:kept]}))
