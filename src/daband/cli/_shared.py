"""Define what commands share: options, and the output of lines, tables and progress bars."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer import Argument, Option

from daband.domains.readers._columns import Columns
from daband.errors import InvalidInput

#: The console of all commands; it writes to the current ``sys.stdout``.
console = Console()
#: The console of error messages; it writes to the current ``sys.stderr``.
error_console = Console(stderr=True)
ArmColumn = Annotated[
    str, Option("--arm", help="The column with the chosen arm, by name or index.")
]
RewardColumn = Annotated[
    str, Option("--reward", help="The column with its reward; empty if unknown.")
]
PropensityColumn = Annotated[str, Option("--propensity", help="The column with its probability.")]
ContextColumns = Annotated[
    str | None,
    Option(help="Context columns, e.g. age,weight; by default all but arm, reward, propensity."),
]
ClusterColumn = Annotated[
    str | None,
    Option(help="The column that arms were drawn for, e.g. school; default: for each row."),
]
LogArgument = Annotated[
    str, Argument(help="Parquet or CSV: a file, a folder, or a glob in quotes.")
]
PolicyArgument = Annotated[
    Path, Argument(metavar="DIR", help="The folder of a choice, or a saved policy.")
]
PolicyOrExportArgument = Annotated[
    Path,
    Argument(metavar="DIR", help="The folder of a choice, a saved policy, or an exported file."),
]


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


@contextmanager
def raise_on_stop() -> Iterator[None]:
    """Let SIGTERM raise ``Terminated`` in this block, as Ctrl-C raises ``KeyboardInterrupt``."""
    # only the main thread gets signals
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle_signal(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    previous_handler = signal.signal(signal.SIGTERM, handle_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


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
            rows_text = (
                f"{record['rows']:,.0f} rows  {record['rows_per_second']:,.0f} rows/s "
                f" {record['seconds_left']:,.0f} s left"
            )
            bar.update(task, total=record["rows_total"], completed=record["rows"], rows=rows_text)

        yield show_rows


def parse_columns(
    context: str | None, *, arm: str = "arm", reward: str = "reward", propensity: str = "propensity"
) -> Columns:
    """Return the roles of a log's columns, with context columns such as "age,weight"; by default
    all columns without another role are the context.
    """
    names = tuple(name.strip() for name in (context or "").split(",") if name.strip())
    if context is not None and not names:
        raise InvalidInput("--context must name at least one column")
    return Columns(names, arm=arm, reward=reward, propensity=propensity)
