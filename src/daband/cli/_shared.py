"""Define what commands share: options, and the output of lines, tables and progress bars.

``raise_on_stop`` handles Ctrl-C. Python raises ``KeyboardInterrupt`` at any point of the program.
If this point is in a callback of a compiled library, the
exception is lost, and the work continues. Therefore the request to stop is stored, and checked
again at every event of the work. SIGTERM is handled in the same way.
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
from daband.bench._records import Records, choose_metric
from daband.bench._settings import RunSpec
from daband.domains.readers._columns import Columns
from daband.errors import InvalidInput

if TYPE_CHECKING:
    from daband.bench.report._sections import Table as ReportTable

T = TypeVar("T")
#: The console of all commands; it writes to the current ``sys.stdout``.
console = Console()
#: The console of error messages; it writes to the current ``sys.stderr``.
error_console = Console(stderr=True)
#: Seconds between two printed lines of one run, if the output is not a terminal.
_LINE_INTERVAL_SECONDS = 60.0


Name = Annotated[str, typer.Argument(help="A preset (see `daband presets`) or a TOML file.")]
Seeds = Annotated[
    str | None, typer.Option(help="Seeds, e.g. 0-4 or 0,2,7; default: the seeds of the preset.")
]
Jobs = Annotated[
    int, typer.Option(min=1, help="Number of parallel runs, each in a separate process.")
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the runs and results.json; default: in runs/, by NAME."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. --set episodes=20."),
]
ArmColumn = Annotated[
    str, typer.Option("--arm", help="The column with the chosen arm, by name or index.")
]
RewardColumn = Annotated[
    str, typer.Option("--reward", help="The column with its reward; empty if unknown.")
]
PropensityColumn = Annotated[
    str, typer.Option("--propensity", help="The column with its probability.")
]
ContextColumns = Annotated[
    str | None,
    typer.Option(
        help="Context columns, e.g. age,weight; by default all but arm, reward, propensity."
    ),
]
WeightColumn = Annotated[
    str | None,
    typer.Option(help="The column with the weight of a round, 1 by default."),
]
LogArgument = Annotated[
    str, typer.Argument(help="Parquet or CSV: a file, a folder, or a glob in quotes.")
]
PolicyArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of a run or a choice, or a saved policy.")
]
PolicyOrExportArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="The folder of a run or a choice, a saved policy, or an exported file."
    ),
]

#: Maximum number of seeds in a range.
_MAX_SEEDS = 100_000


def print_line(
    text: str, *, style: str | None = None, markup: bool = False, to: Console | None = None
) -> None:
    """Print text without wrapping and highlighting.

    Markup is off by default, because a path may contain brackets.
    """
    (to or console).print(text, style=style, markup=markup, highlight=False, soft_wrap=True)


def make_table(
    title: str, *, text_headings: Sequence[str], number_headings: Sequence[str] = ()
) -> Table:
    """Return an empty table with columns of texts and of numbers.

    On a narrow terminal, columns of texts wrap, and columns of numbers do not.
    """
    table = Table(title=escape(title))
    for heading in text_headings:
        table.add_column(heading, overflow="fold")
    for heading in number_headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def print_tables(tables: Sequence[ReportTable], *, without: Sequence[str] = ()) -> None:
    """Print tables of a report without the columns that have these headings."""
    for table in tables:
        console.print(to_terminal_table(table, without=without))


def to_terminal_table(table: ReportTable, *, without: Sequence[str] = ()) -> Table:
    """Return a table of a report for the terminal, without the columns that have these headings."""
    terminal_table = Table(caption=escape(table.caption))
    shown_columns = [
        index for index, heading in enumerate(table.headings) if heading not in without
    ]
    for index in shown_columns:
        max_length = max((len(row[index]) for row in table.rows), default=0)
        is_text = index == 0
        min_width = min(max_length, 20) if is_text else None
        terminal_table.add_column(
            table.headings[index], justify="left" if is_text else "right", min_width=min_width
        )
    for row in table.rows:
        cells = [row[index] for index in shown_columns]
        terminal_table.add_row(
            *(Text(cell, style="bold" if table.is_bold(cell) else "") for cell in cells)
        )
    return terminal_table


@contextmanager
def show_warnings_once() -> Iterator[None]:
    """Print each warning once while the context is open, as one line without its location in the
    code.
    """
    shown_messages = set()

    def show_once(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown_messages:
            print_line(f"warning   {message}", style="yellow")
        shown_messages.add(str(message))

    with warnings.catch_warnings():  # restores ``showwarning`` as well
        warnings.showwarning = show_once
        yield


@contextmanager
def show_progress(
    specs: Sequence[RunSpec], domain: str = "source"
) -> Iterator[Callable[[RunEvent], None]]:
    """Yield a listener that shows the progress of runs, and prints a line when a run ends.

    On a terminal, a progress bar shows all runs and the latest event. Otherwise, a line per run and
    minute is printed. ``domain`` is the domain in which the rounds are played.
    """
    # The time of the last printed line, and the finished fraction, of each run by its folder.
    printed_at: dict[str, float] = {}
    fractions: dict[str, float] = {}
    n_ended = 0
    has_several_pairs = len({spec.pair for spec in specs}) > 1
    bar_columns = (
        BarColumn(bar_width=20),
        TextColumn("{task.completed:.1f}/{task.total:.0f} runs"),
        TimeElapsedColumn(),
        TextColumn("ETA", style="dim"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(
        *bar_columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=float(len(specs)))

        def handle_event(event: RunEvent) -> None:
            nonlocal n_ended
            run_folder = event.spec.folder_name
            detail = event.detail
            now = time.monotonic()
            name = (
                f"{event.spec.pair}  {event.spec.label}" if has_several_pairs else event.spec.label
            )
            if event.kind == "episode":
                n_episodes = detail.get("of", event.spec.episodes)
                regret = "unknown" if detail["regret"] is None else f"{detail['regret']:.0f}"
                progress_text = (
                    f"{name}: episode {detail['episode']:.0f}/{n_episodes}, {domain} regret"
                    f" {regret}"
                )
                fractions[run_folder] = (
                    0.0 if n_episodes == "all" else float(detail["episode"]) / int(n_episodes)
                )
                bar.update(task, description=escape(progress_text))
                if (
                    not console.is_terminal
                    and now - printed_at.setdefault(run_folder, now) >= _LINE_INTERVAL_SECONDS
                ):
                    printed_at[run_folder] = now
                    print_line(f"running   {progress_text}")
            else:
                n_ended += 1
                fractions[run_folder] = 1.0
                result = detail["error"] if event.kind == "failed" else _describe_result(detail)
                style = "red" if event.kind == "failed" else None
                print_line(
                    f"{event.kind:<9} [{n_ended}/{len(specs)}] {name}: {result}", style=style
                )
            bar.update(task, completed=sum(fractions.values()))

        yield handle_event


def _describe_result(record: Mapping[str, Any]) -> str:
    """Return the result of a run, or of its continuation in the target, as text."""
    if "continued_regret" in record:
        name = "target regret"
        score = record["continued_regret"]
        decimals = 1
    else:
        metric = choose_metric([dict(record)])
        name = metric.name
        score = record[metric.field]
        decimals = metric.count_decimals(score, n_digits=4)
    return f"{name} unknown" if score is None else f"{name} {score:.{decimals}f}"


def run_all(
    specs: Sequence[RunSpec], out: Path, *, jobs: int = 1, on_failure: Callable[[Records], object]
) -> Records:
    """Execute runs, show progress, and return their records.

    If runs fail, ``on_failure`` is called with the records of the other runs before the error is
    raised.
    """
    # raises an error before the runs if matplotlib is missing
    import_module("daband.bench.report._sections")

    def execute(listener: Callable[[RunEvent], None]) -> Records:
        return bench(specs, out, jobs=jobs, on_event=listener)

    return run_with_progress(specs, out, execute, on_failure)


def run_with_progress(
    specs: Sequence[RunSpec],
    out: Path,
    execute: Callable[[Callable[[RunEvent], None]], Records],
    on_failure: Callable[[Records], object],
    domain: str = "source",
) -> Records:
    """Call ``execute`` with a listener that shows progress, and return its records.

    Ctrl-C and SIGTERM end the program.

    ``on_failure`` is as in ``run_all``, and ``domain`` as in ``show_progress``.
    """
    try:
        with show_progress(specs, domain) as show_event, raise_on_stop(show_event) as listener:
            return execute(listener)
    except BenchError as error:
        if error.records:
            on_failure(error.records)
        raise
    except KeyboardInterrupt as stop_exception:
        raise report_stop(out, stop_exception) from None


def suggest_report(folder: Path) -> str:
    """Return a line with the command that writes a report on the folder."""
    return f"For a report with figures: daband report {shlex.quote(str(folder))}"


def report_stop(out: Path, stop_exception: KeyboardInterrupt) -> typer.Exit:
    """Print that finished work is stored, and return the exception that ends the command.

    The exit code is 130 after Ctrl-C, and 143 after SIGTERM.
    """
    is_terminated = isinstance(stop_exception, Terminated)
    outcome = "Terminated" if is_terminated else "Interrupted"
    print_line(
        f"{outcome}. Finished work is stored in {out}; the same command continues from there.",
        to=error_console,
    )
    return typer.Exit(143 if is_terminated else 130)


class Terminated(KeyboardInterrupt):
    """Raised when the process receives SIGTERM."""


#: The exception that each signal raises.
_SIGNAL_EXCEPTIONS: dict[int, type[KeyboardInterrupt]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
}


@contextmanager
def raise_on_stop(listener: Callable[[T], None]) -> Iterator[Callable[[T], None]]:
    """Yield a listener that raises an exception at the next event after Ctrl-C or SIGTERM.

    Ctrl-C raises ``KeyboardInterrupt``, and SIGTERM raises ``Terminated``. The signal handler also
    raises the exception immediately, but a compiled library may swallow it.
    """
    # only the main thread gets signals
    if threading.current_thread() is not threading.main_thread():
        yield listener
        return
    stop_request: type[KeyboardInterrupt] | None = None

    def handle_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal stop_request
        stop_request = _SIGNAL_EXCEPTIONS[number]
        raise stop_request

    def handle_event(event: T) -> None:
        if stop_request is not None:
            raise stop_request
        listener(event)

    previous_handlers = {
        number: signal.signal(number, handle_signal) for number in _SIGNAL_EXCEPTIONS
    }
    try:
        yield handle_event
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def show_rows_bar(name: str) -> Iterator[Callable[[dict[str, float]], None]]:
    """Show a progress bar over the rows of a log.

    Yield the function that updates it from a progress record.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(name, rows="0 rows")

        def show_rows(record: dict[str, float]) -> None:
            rows_text = f"{record['rows']:,.0f} rows"
            if "rows_per_second" in record:
                rows_text += (
                    f"  {record['rows_per_second']:,.0f} rows/s  {record['seconds_left']:,.0f} s"
                    " left"
                )
            title = f"pass {record['pass']:.0f}" if "pass" in record else name
            bar.update(
                task,
                description=title,
                total=record["rows_total"],
                completed=record["rows"],
                rows=rows_text,
            )

        yield show_rows


def name_folder(name: str) -> str:
    """Return the folder name of an experiment, from the name of its preset or its TOML file."""
    return (Path(name).stem if name.endswith(".toml") else name).replace("/", "-")


def parse_columns(
    context: str | None, *, arm: str = "arm", reward: str = "reward", propensity: str = "propensity"
) -> Columns | None:
    """Return the roles of a log's columns, with context columns such as "age,weight"; None if
    ``context`` is None.
    """
    if context is None:
        return None
    names = tuple(name.strip() for name in context.split(",") if name.strip())
    if not names:
        raise InvalidInput("--context must name at least one column")
    return Columns(names, arm=arm, reward=reward, propensity=propensity)


def parse_seeds(seed_list: str | None) -> list[int] | None:
    """Return the seeds in a list such as "0-4,7"; None if there is no list."""
    if seed_list is None:
        return None
    seeds: list[int] = []
    for seed_range in seed_list.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", seed_range)
        if match is None:
            raise InvalidInput(f"seeds must look like 0-4 or 0,2,7, got {seed_list!r}")
        first = int(match[1])
        last = int(match[2] or match[1])
        if last < first:
            raise InvalidInput(
                f"seeds: the end of the range {seed_range.strip()!r} is below its start"
            )
        if last - first >= _MAX_SEEDS:
            raise InvalidInput(
                f"seeds: the range {seed_range.strip()!r} has more than {_MAX_SEEDS:,} numbers"
            )
        seeds.extend(range(first, last + 1))
    return list(dict.fromkeys(seeds))
