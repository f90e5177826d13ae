"""Options that commands share, and their output: lines, tables, and progress that does not lose Ctrl-C or SIGTERM.

Python turns Ctrl-C into an exception wherever it is. A callback of a compiled library (numba loads its kernels
through one) swallows that exception, and the work continues. So the request is stored, and checked again at every
event of the work. SIGTERM is treated in the same way.
"""

from __future__ import annotations

import re
import shlex
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from daband.bench._bench import BenchError, bench
from daband.bench._executors import RunEvent
from daband.bench._records import Records, metric_of
from daband.bench._settings import RunSpec
from daband.domains.readers._columns import Columns
from daband.errors import DabandError, InvalidInput

if TYPE_CHECKING:
    from daband.bench.report._sections import Table as ReportTable

T = TypeVar("T")
#: The console of all commands; it writes to the present ``sys.stdout``.
console = Console()
errors = Console(stderr=True)
_QUIET = 60.0  # seconds between two lines of one run in a log


Name = Annotated[str, typer.Argument(help="A preset (see `daband presets`) or a TOML file.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds, e.g. 0-4 or 0,2,7.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time, each in a process of its own.")]
Out = Annotated[Path | None, typer.Option(help="Where the runs and results.json go.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: key=value, e.g. --set episodes=20.")
]
ArmColumn = Annotated[str, typer.Option("--arm", help="The column with the chosen arm, by name or number.")]
RewardColumn = Annotated[str, typer.Option("--reward", help="The column with its reward; empty where none has come.")]
PropensityColumn = Annotated[str, typer.Option("--propensity", help="The column with its propensity.")]
ContextColumns = Annotated[
    str | None, typer.Option(help="Context columns, e.g. age,weight; by default all but arm, reward, propensity.")
]
WeightColumn = Annotated[
    str | None, typer.Option(help="The column with the weight of a round; by default weights follow from propensities.")
]
SomeLog = Annotated[str, typer.Argument(help="Parquet or CSV: a file, a folder, or a glob in quotes.")]
SomePolicy = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or a choice, or a saved policy.")]
SomePolicyOrExport = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of a run or a choice, a saved policy, or an exported file.")
]

_MOST = 100_000
# The remedies that commands offer, by the argument of the function.
_REMEDIES = {
    "columns": "name the context columns with --context",
    "arm": "if it has another name, give --arm, --reward or --propensity",
}


def say(text: str, *, style: str | None = None, markup: bool = False, to: Console | None = None) -> None:
    """Print a line without markup (a folder may be called ``[v2]``), rich's colours, or breaks inside a path."""
    (to or console).print(text, style=style, markup=markup, highlight=False, soft_wrap=True)


def new_table(title: str, *, words: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Return a table whose columns of words fold on a narrow screen; columns of numbers do not."""
    table = Table(title=escape(title))
    for heading in words:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def show_tables(tables: Sequence[ReportTable], *, without: Sequence[str] = ()) -> None:
    """Print tables of a report, except for columns with the headings ``without``."""
    for table in tables:
        console.print(report_table(table, without=without))


def report_table(table: ReportTable, *, without: Sequence[str] = ()) -> Table:
    """Return a table of a report for the terminal; on a narrow terminal its headings and numbers fold."""
    shown = Table(caption=escape(table.caption))
    columns = [at for at, heading in enumerate(table.headings) if heading not in without]
    for at in columns:
        widest = max((len(row[at]) for row in table.rows), default=0)
        words = at < table.text_columns
        least = min(widest, 20) if words else None
        shown.add_column(table.headings[at], justify="left" if words else "right", min_width=least)
    for row in table.rows:
        shown.add_row(*(Text(row[at], style="bold" if table.is_bold(row[at]) else "") for at in columns))
    return shown


@contextmanager
def warnings_on() -> Iterator[None]:
    """Show each warning once, as one line without its location in the code."""
    shown = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            say(f"warning   {message}", style="yellow")
        shown.add(str(message))

    with warnings.catch_warnings():  # restores ``showwarning`` as well
        warnings.showwarning = show
        yield


@contextmanager
def watch(specs: Sequence[RunSpec], where: str = "source") -> Iterator[Callable[[RunEvent], None]]:
    """Yield a listener that prints a line when a run ends, and shows the progress of the runs.

    On a terminal a bar shows all runs and the latest event. In a log each run has a line a minute. ``where`` is the
    domain of the rounds that are played.
    """
    started: dict[str, float] = {}
    fractions: dict[str, float] = {}
    over = 0
    several = len({spec.pair for spec in specs}) > 1
    columns = (
        BarColumn(bar_width=20),
        TextColumn("{task.completed:.1f}/{task.total:.0f} runs"),
        TimeElapsedColumn(),
        TextColumn("ETA", style="dim"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=float(len(specs)))

        def hear(event: RunEvent) -> None:
            nonlocal over
            key, detail, now = event.spec.folder_name, event.detail, time.monotonic()
            name = f"{event.spec.pair}  {event.spec.label}" if several else event.spec.label
            if event.kind == "episode":
                episodes = detail.get("of", event.spec.episodes)
                regret = "unknown" if detail["regret"] is None else f"{detail['regret']:.0f}"
                text = f"{name}: episode {detail['episode']:.0f}/{episodes}, {where} regret {regret}"
                fractions[key] = 0.0 if episodes == "all" else float(detail["episode"]) / int(episodes)
                bar.update(task, description=escape(text))
                if not console.is_terminal and now - started.setdefault(key, now) >= _QUIET:
                    started[key] = now
                    say(f"running   {text}")
            else:
                over += 1
                fractions[key] = 1.0
                result = detail["error"] if event.kind == "failed" else _result(detail)
                style = "red" if event.kind == "failed" else None
                say(f"{event.kind:<9} [{over}/{len(specs)}] {name}: {result}", style=style)
            bar.update(task, completed=sum(fractions.values()))

        yield hear


def _result(record: Mapping[str, Any]) -> str:
    """Return the result of a run, or of its continuation in the target, as text."""
    if "continued_regret" in record:
        name, score, digits = "target regret", record["continued_regret"], 1
    else:
        metric = metric_of([dict(record)])
        name, score = metric.name, record[metric.field]
        digits = metric.digits(score, significant=4)
    return f"{name} unknown" if score is None else f"{name} {score:.{digits}f}"


def run_all(
    specs: Sequence[RunSpec],
    out: Path,
    *,
    jobs: int = 1,
    on_failure: Callable[[Records], object],
) -> Records:
    """Execute runs with progress on the console. If some fail, ``on_failure`` shows the others."""
    import_module("daband.bench.report._sections")  # an error before the runs if matplotlib is missing

    def work(listener: Callable[[RunEvent], None]) -> Records:
        return bench(specs, out, jobs=jobs, on_event=listener)

    return watched_runs(specs, out, work, on_failure)


def watched_runs(
    specs: Sequence[RunSpec],
    out: Path,
    work: Callable[[Callable[[RunEvent], None]], Records],
    on_failure: Callable[[Records], object],
    where: str = "source",
) -> Records:
    """Call ``work`` with a listener that shows progress, and turn a signal into an exit code."""
    try:
        with watch(specs, where) as drawing, interruptible(drawing) as listener:
            return work(listener)
    except BenchError as error:
        if error.records:
            on_failure(error.records)
        raise
    except KeyboardInterrupt as stopped:
        raise interrupted_exit(out, stopped) from None


def report_hint(folder: Path) -> str:
    """Return the command that writes a page, for commands that do not end with one."""
    return f"For a page with figures: daband report {shlex.quote(str(folder))}"


def interrupted_exit(out: Path, stopped: KeyboardInterrupt) -> typer.Exit:
    """Print that finished work is kept. Return the shell's exit code: 130 for Ctrl-C, 143 for SIGTERM."""
    terminated = isinstance(stopped, Terminated)
    word = "Terminated" if terminated else "Interrupted"
    say(f"{word}. What is done is kept in {out}; the same command resumes from there.", to=errors)
    return typer.Exit(143 if terminated else 130)


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; it stops the work as Ctrl-C does."""


_MEANING: dict[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


@contextmanager
def interruptible(listener: Callable[[T], None]) -> Iterator[Callable[[T], None]]:
    """Yield a listener that raises at the next event if a stop was requested and its exception was lost.

    Ctrl-C raises ``KeyboardInterrupt``, SIGTERM ``Terminated``.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield listener
        return
    requested: type[KeyboardInterrupt] | None = None

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal requested
        requested = _MEANING[number]
        raise requested

    def hear(event: T) -> None:
        if requested is not None:
            raise requested
        listener(event)

    before = {number: signal.signal(number, note) for number in _MEANING}
    try:
        yield hear
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def rows_bar(name: str) -> Iterator[Callable[[dict[str, float]], None]]:
    """Show a bar over the rows of a log, and warnings as lines above it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rows]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as drawing:
        task = drawing.add_task(name, rows="0 rows")

        def show(record: dict[str, float]) -> None:
            rows = f"{record['rows']:,.0f} rows"
            if "rows_per_second" in record:
                rows += f"  {record['rows_per_second']:,.0f} rows/s  {record['seconds_left']:,.0f} s left"
            title = f"pass {record['pass']:.0f}" if "pass" in record else name
            drawing.update(task, description=title, total=record["rows_total"], completed=record["rows"], rows=rows)

        yield show


def stem(name: str) -> str:
    """Return the folder name of an experiment: the preset's name, or the file name without its suffix."""
    return (Path(name).stem if name.endswith(".toml") else name).replace("/", "-")


def log_columns(
    context: str | None, *, arm: str = "arm", reward: str = "reward", propensity: str = "propensity"
) -> Columns | None:
    """Return the columns of a log from comma-separated context columns; None if they are not named."""
    if context is None:
        return None
    names = tuple(name.strip() for name in context.split(",") if name.strip())
    if not names:
        raise InvalidInput("--context names no column")
    return Columns(names, arm=arm, reward=reward, propensity=propensity)


def error_text(error: DabandError) -> str:
    """Return an error with the remedies that commands offer."""
    remedies = (_REMEDIES.get(argument, text) for argument, text in error.remedies.items())
    return "; ".join([error.message, *filter(None, remedies)])


def seed_numbers(text: str | None) -> list[int] | None:
    """Turn "0-4,7" into [0, 1, 2, 3, 4, 7]; None if no seeds are named."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise InvalidInput(f"seeds must look like 0-4 or 0,2,7, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InvalidInput(f"seeds: the range {part.strip()!r} runs backwards")
        if last - first >= _MOST:
            raise InvalidInput(f"seeds: the range {part.strip()!r} has more than {_MOST:,} numbers")
        numbers.extend(range(first, last + 1))
    return list(dict.fromkeys(numbers))
