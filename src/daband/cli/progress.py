"""Progress in the terminal: a line for all runs, and one for each under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from daband.experiments import RunEvent, RunSpec, metric_of
from daband.report.summary import UNKNOWN

__all__ = ["CONTINUING", "TRAINING", "Stage", "watch"]

_QUIET = 60.0
"""Seconds between two lines of one run in a log."""


@dataclass(frozen=True)
class Stage:
    """What runs are doing: whose regret is shown on the way, and which result at the end."""

    regret_of: str
    ended: Callable[[Mapping[str, Any]], str]

    def regret(self, value: float | None) -> str:
        """The regret of a run under way."""
        return f"{self.regret_of} regret {_number(value, 0)}"


def _trained(record: Mapping[str, Any]) -> str:
    metric = metric_of([dict(record)])
    score = record[metric.field]
    return f"{metric.name} {_number(score, metric.digits(score, significant=4))}"


def _continued(record: Mapping[str, Any]) -> str:
    return f"target regret {_number(record['continued_regret'], 1)}"


def _number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


TRAINING = Stage("source", _trained)
CONTINUING = Stage("target", _continued)


@contextmanager
def watch(specs: Sequence[RunSpec], console: Console, stage: Stage = TRAINING) -> Iterator[Callable[[RunEvent], None]]:
    """A listener that draws what it hears.

    On a terminal there is a live line for every run under way (episode, source regret, time left) and one for all. In
    a log a run has a line when it ends, and one a minute until then.
    """
    if console.is_terminal:
        with _live(specs, console, stage) as hear:
            yield hear
    else:
        yield _Plain(specs, console, stage).hear


@contextmanager
def _live(specs: Sequence[RunSpec], console: Console, stage: Stage) -> Iterator[Callable[[RunEvent], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[count]}", justify="right"),
        TextColumn("{task.fields[note]}", justify="right"),
        TimeElapsedColumn(),
        TextColumn("ETA", style="dim"),
        TimeRemainingColumn(),
    )
    lines: dict[str, TaskID] = {}
    shares: dict[str, float] = {}
    finished, wanted, failed = 0, len(specs), 0
    with Progress(*columns, console=console, transient=True, speed_estimate_period=120) as bar:
        total = bar.add_task("[bold]all runs[/bold]", total=float(wanted), count=f"0/{wanted}", note="")

        def hear(event: RunEvent) -> None:
            nonlocal finished, wanted, failed
            key, name = event.spec.folder_name, escape(_name(event.spec, specs))
            if event.kind == "episode":
                state = _State.of(event)
                shares[key] = state.share
                if key not in lines:  # what a resumed run has behind it says nothing about its pace
                    lines[key] = bar.add_task(name, total=state.episodes, completed=state.episode, count="", note="")
                line, note = lines[key], stage.regret(state.regret)
                bar.update(line, total=state.episodes, completed=state.episode, count=state.count, note=note)
            elif event.kind == "again":
                console.print(f"[yellow]again[/yellow]  {name}: {escape(event.detail['reason'])}", highlight=False)
            else:
                shares.pop(key, None)
                if key in lines:
                    bar.remove_task(lines.pop(key))
                if event.kind == "failed":
                    failed += 1
                    console.print(f"[red]failed[/red]  {name}: {escape(event.detail['error'])}", highlight=False)
                if event.kind == "found":  # no time was spent on it, so it is no part of the pace
                    wanted -= 1
                else:
                    finished += 1
            ready = len(specs) - wanted + finished
            note = f"[red]{failed} failed[/red]" if failed else ""
            done = finished + sum(shares.values())
            bar.update(total, total=float(wanted), completed=done, count=f"{ready}/{len(specs)}", note=note)

        yield hear


class _Plain:
    """Lines for a log."""

    def __init__(self, specs: Sequence[RunSpec], console: Console, stage: Stage) -> None:
        self._specs, self._console, self._stage = specs, console, stage
        self._began: dict[str, tuple[float, int]] = {}
        self._spoke: dict[str, float] = {}
        self._over = 0

    def hear(self, event: RunEvent) -> None:
        key, name, now = event.spec.folder_name, _name(event.spec, self._specs), time.monotonic()
        if event.kind == "episode":
            state = _State.of(event)
            began, first = self._began.setdefault(key, (now, state.episode))
            if now - self._spoke.setdefault(key, now) >= _QUIET:
                self._spoke[key] = now
                left = ""
                if state.episodes is not None and state.episode > first:
                    pace = (now - began) / (state.episode - first)
                    left = f", about {pace * (state.episodes - state.episode) / 60:.0f} min left"
                self._say(f"running   {name}: episode {state.count}, {self._stage.regret(state.regret)}{left}")
            return
        if event.kind == "again":
            self._say(f"again     {name}: {event.detail['reason']}")
            return
        self._over += 1
        place = f"[{self._over}/{len(self._specs)}]"
        if event.kind == "failed":
            self._say(f"failed    {place} {name}: {event.detail['error']}")
        else:
            self._say(f"{event.kind:<9} {place} {name}: {self._stage.ended(event.detail)}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class _State:
    """Where a run stands."""

    episode: int
    episodes: int | None
    regret: float | None

    @classmethod
    def of(cls, event: RunEvent) -> _State:
        told = event.detail.get("of", event.spec.episodes)
        return cls(int(event.detail["episode"]), None if told == "all" else int(told), event.detail["regret"])

    @property
    def share(self) -> float:
        return self.episode / self.episodes if self.episodes else 0.0

    @property
    def count(self) -> str:
        return f"{self.episode}/{self.episodes or '?'}"


def _name(spec: RunSpec, specs: Sequence[RunSpec]) -> str:
    several = any(other.pair != spec.pair for other in specs)
    return f"{spec.pair}  {spec.label}" if several else spec.label
