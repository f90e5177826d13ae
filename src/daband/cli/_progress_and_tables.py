"""What commands print: progress, a line for all runs and one for each under way; and tables of results."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from daband.bench._executors import RunEvent
from daband.bench._records import TARGET_ACCURACY, decimals, metric_of
from daband.bench._settings import RunSpec
from daband.bench.report._method_summaries import UNKNOWN, Mean, MethodSummary
from daband.cli._options import spans

if TYPE_CHECKING:
    from daband.bench.report import _document as document

console = Console()  # where commands print; it writes to what ``sys.stdout`` is at the time
errors = Console(stderr=True)


def say(text: str, *, style: str | None = None, markup: bool = False, to: Console | None = None) -> None:
    """Print a line: no markup (a folder may be called ``[v2]``), no colours of rich's own, no breaks inside a path."""
    (to or console).print(text, style=style, markup=markup, highlight=False, soft_wrap=True)


def interval_text(estimate: Any, digits: int) -> str:
    """The value of an audit or an estimate, in bold, and its interval."""
    interval = f"{estimate.low:.{digits}f} to {estimate.high:.{digits}f}"
    return f"[bold]{estimate.value:.{digits}f}[/bold], {100 * estimate.confidence:g}% interval {interval}"


def new_table(title: str, *, words: Sequence[str], numbers: Sequence[str] = (), caption: str | None = None) -> Table:
    """A table with columns of words, which fold on a narrow screen, and of numbers flush right, which do not."""
    table = Table(title=escape(title), caption=caption)
    for heading in words:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def report_table(table: document.Table) -> Table:
    """A table of a report for the terminal; on a narrow one its headings and numbers fold."""
    shown = Table(caption=escape(table.caption))
    for at, heading in enumerate(table.headings):
        widest = max((len(row[at].plain()) for row in table.rows), default=0)
        words = table.kind(at) == "t"
        shown.add_column(heading, justify="left" if words else "right", min_width=min(widest, 20) if words else None)
    for row in table.rows:
        shown.add_row(*(Text(cell.plain(), style="bold" if cell.bold else "") for cell in row))
    return shown


@contextmanager
def warnings_on() -> Iterator[None]:
    """Show warnings as a line of their own, once, without the place in the code they come from."""
    shown = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            say(f"warning   {message}", style="yellow")
        shown.add(str(message))

    with warnings.catch_warnings():  # puts the way of showing back as well
        warnings.showwarning = show
        yield


_QUIET = 60.0  # seconds between two lines of one run in a log


def _ended(record: Mapping[str, Any]) -> str:
    """The result of a run, or of its sequel in the target."""
    if "continued_regret" in record:
        return f"target regret {_number(record['continued_regret'], 1)}"
    metric = metric_of([dict(record)])
    score = record[metric.field]
    return f"{metric.name} {_number(score, metric.digits(score, significant=4))}"


def _number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


@contextmanager
def watch(specs: Sequence[RunSpec], where: str = "source") -> Iterator[Callable[[RunEvent], None]]:
    """A listener that draws what it hears of runs in the source, or of runs that are continued in the target.

    On a terminal there is a live line for every run under way (episode, regret, time left) and one for all. In a log a
    run has a line when it ends, and one a minute until then.
    """
    if console.is_terminal:
        with _live(specs, where) as hear:
            yield hear
    else:
        yield _Plain(specs, where).hear


@contextmanager
def _live(specs: Sequence[RunSpec], where: str) -> Iterator[Callable[[RunEvent], None]]:
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
            key, name = event.spec.folder_name, escape(_run_name(event.spec, specs))
            if event.kind == "episode":
                state = _State.of(event)
                shares[key] = state.share
                if key not in lines:  # what a resumed run has behind it says nothing about its pace
                    lines[key] = bar.add_task(name, total=state.episodes, completed=state.episode, count="", note="")
                line, note = lines[key], f"{where} regret {state.regret}"
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

    def __init__(self, specs: Sequence[RunSpec], where: str) -> None:
        self._specs, self._where = specs, where
        self._began: dict[str, tuple[float, int]] = {}
        self._spoke: dict[str, float] = {}
        self._over = 0

    def hear(self, event: RunEvent) -> None:
        key, name, now = event.spec.folder_name, _run_name(event.spec, self._specs), time.monotonic()
        if event.kind == "episode":
            state = _State.of(event)
            began, first = self._began.setdefault(key, (now, state.episode))
            if now - self._spoke.setdefault(key, now) >= _QUIET:
                self._spoke[key] = now
                left = ""
                if state.episodes is not None and state.episode > first:
                    pace = (now - began) / (state.episode - first)
                    left = f", about {pace * (state.episodes - state.episode) / 60:.0f} min left"
                say(f"running   {name}: episode {state.count}, {self._where} regret {state.regret}{left}")
            return
        if event.kind == "again":
            say(f"again     {name}: {event.detail['reason']}")
            return
        self._over += 1
        place = f"[{self._over}/{len(self._specs)}]"
        if event.kind == "failed":
            say(f"failed    {place} {name}: {event.detail['error']}")
        else:
            say(f"{event.kind:<9} {place} {name}: {_ended(event.detail)}")


@dataclass(frozen=True)
class _State:
    """Where a run stands."""

    episode: int
    episodes: int | None
    regret: str

    @classmethod
    def of(cls, event: RunEvent) -> _State:
        episodes = event.detail.get("of", event.spec.episodes)
        regret = _number(event.detail["regret"], 0)
        return cls(int(event.detail["episode"]), None if episodes == "all" else int(episodes), regret)

    @property
    def share(self) -> float:
        return self.episode / self.episodes if self.episodes else 0.0

    @property
    def count(self) -> str:
        return f"{self.episode}/{self.episodes or '?'}"


def _run_name(spec: RunSpec, specs: Sequence[RunSpec]) -> str:
    several = any(other.pair != spec.pair for other in specs)
    return f"{spec.pair}  {spec.label}" if several else spec.label


# Tables: methods on one pair or several, in 80 columns.


_Column = tuple[str, Callable[[MethodSummary], str]]


def method_table(title: str, rows: Sequence[MethodSummary], *, arms: Sequence[str] = ()) -> Table:
    """Methods by pair, the best of each pair in bold.

    Where exactly one arm pays 1 the table shows the accuracy, else value and regret in the rewards' unit; where the
    target has no labels, the source's reward and the arm that is chosen most, by its name in ``arms``. Several pairs
    take the room of some columns; the report and results.json have them.
    """
    names = _short_names([row.pair for row in rows])
    several, scored = len(names) > 1, any(row.score.value is not None for row in rows)
    unit = any(row.metric is not TARGET_ACCURACY for row in rows)
    table = Table(
        title=escape(f"{title}: target, zero-shot, after source rewards alone"),
        caption=escape(_caption(rows, scored=scored, unit=unit)),
    )
    if several:
        table.add_column("pair", overflow="fold", min_width=min(20, max(map(len, names.values()))))
    table.add_column("method", no_wrap=True)
    columns = _columns(rows, scored=scored, unit=unit, several=several, arms=arms)
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for pair in names:
        mine = [row for row in rows if row.pair == pair]
        best = max(row.rank for row in mine)
        for row in mine:
            wins = scored and len(mine) > 1 and row.rank == best
            first = [escape(names[pair])] if several else []
            cells = (escape(text(row)) for _, text in columns)
            table.add_row(*first, escape(_method_name(row)), *cells, style="bold" if wins else "")
        table.add_section()
    if several and scored:
        digits = _digits(rows)
        for method in dict.fromkeys(_method_name(row) for row in rows):
            mean = Mean.of([row.score.value for row in rows if _method_name(row) == method])
            rest = [""] * (len(columns) - 1)
            table.add_row("mean of pairs", escape(method), Mean(mean.value, 0.0, 1).text(digits), *rest)
    return table


def _columns(
    rows: Sequence[MethodSummary], *, scored: bool, unit: bool, several: bool, arms: Sequence[str]
) -> list[_Column]:
    digits = _digits(rows)
    source_digits = decimals(*(row.source_regret.value for row in rows)) if unit else 0
    source: _Column = ("source regret", lambda row: row.source_regret.text(source_digits))
    seconds: _Column = ("s", lambda row: f"{row.seconds:.1f}")
    columns: list[_Column] = []
    if not scored and any(row.logger_value.value is not None for row in rows):
        columns = [("chosen most", lambda row: _chosen_most(row, arms))]
    elif not scored:
        reward_digits = decimals(*(row.source_reward.value for row in rows))
        columns = [
            ("source reward", lambda row: row.source_reward.text(reward_digits)),
            source,
            ("chosen most", lambda row: _chosen_most(row, arms)),
        ]
    elif unit:
        regret_digits = decimals(*(row.regret.value for row in rows))
        columns = [
            ("target value", lambda row: row.score.text(digits)),
            ("target regret", lambda row: row.regret.text(regret_digits)),
        ]
        if not several:
            columns.append(("accuracy", lambda row: Mean(row.accuracy.value, 0.0, 1).text(3)))
        columns.append(source)
    else:
        columns = [("target accuracy", lambda row: row.score.text(digits))]
        if not several:
            columns.append(("by class", lambda row: Mean(row.accuracy_macro.value, 0.0, 1).text(3)))
        fits = not several and _same(rows, "rounds") and _same(rows, "seeds")
        columns += [source, seconds] if fits else [source]
    if not _same(rows, "rounds"):
        columns.append(("rounds", lambda row: f"{row.rounds:,}"))
    if not _same(rows, "seeds"):
        columns.append(("seeds", lambda row: str(len(row.seeds))))
    return columns


def _caption(rows: Sequence[MethodSummary], *, scored: bool, unit: bool) -> str:
    parts = []
    if _same(rows, "rounds"):
        parts.append(f"{rows[0].rounds:,} rounds")
    if _same(rows, "seeds"):
        seeds = rows[0].seeds
        parts.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {spans(seeds)}")
    logged = [row.logger_value.value for row in rows if row.logger_value.value is not None]
    if logged and _same(rows, "pair"):
        parts.append(f"the logging policy's mean reward in the source is {logged[0]:,.{decimals(logged[0])}f}")
    if not scored:
        parts.append("the target has no labels: how good a method is there is not known")
    elif unit and _same(rows, "pair"):
        for name, value in (("best arm", rows[0].best_value), ("best constant arm", rows[0].constant_value)):
            if value is not None:
                parts.append(f"value of the {name} {value:,.{decimals(value)}f}")
    return "; ".join(parts)


def _digits(rows: Sequence[MethodSummary]) -> int:
    unit = [row.metric for row in rows if row.metric is not TARGET_ACCURACY]
    metric = unit[0] if unit else TARGET_ACCURACY
    return metric.digits(*(row.score.value for row in rows))


def _chosen_most(row: MethodSummary, arms: Sequence[str]) -> str:
    if not row.arm_shares:
        return ""
    share = max(row.arm_shares)
    arm = row.arm_shares.index(share)
    name = arms[arm] if len(arms) == len(row.arm_shares) else f"arm {arm}"
    return f"{name[:16]} ({share:.0%})"


def _method_name(row: MethodSummary) -> str:
    return row.method if row.variant == "default" else f"{row.method} {row.variant}"


def _same(rows: Sequence[MethodSummary], field: str) -> bool:
    return len({getattr(row, field) for row in rows}) == 1


def _short_names(pairs: Sequence[str]) -> dict[str, str]:
    """Pairs by the name that a table has for them: without the data set's where all are of one."""
    of_one = len({pair.partition("/")[0] for pair in pairs}) == 1 and len(set(pairs)) > 1
    return {pair: pair.partition("/")[2] or pair if of_one else pair for pair in pairs}
