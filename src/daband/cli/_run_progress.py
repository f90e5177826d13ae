"""Running a list of runs from a command: live progress, Ctrl-C and SIGTERM that are not lost, and lines about it.

Python turns Ctrl-C into an exception wherever it is. Inside a callback of a compiled library (numba loads its kernels
through such) that exception is swallowed, and the work goes on. So the request is noted, and looked at again at every
event of the work. SIGTERM is treated in the same way.
"""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, TypeVar

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from daband.bench._bench import BenchError, bench, continue_bench
from daband.bench._ray_executor import on_ray
from daband.bench._records import Records, group_by
from daband.bench._run import finished_runs, read_spec
from daband.bench._settings import RunSpec
from daband.cli._options import Jobs
from daband.cli._progress_and_tables import console, errors, report_table, say, watch

T = TypeVar("T")


def run_all(
    specs: Sequence[RunSpec],
    out: Path,
    *,
    jobs: int = 1,
    ray: str | None = None,
    on_failure: Callable[[Records], object],
) -> Records:
    """Execute the runs with progress on the console. Where some fail, ``on_failure`` shows those that did not.

    ``ray`` is the address of a cluster to run on, or "local"; ``jobs`` is then the number of workers of a local one.
    """
    executor = None if ray is None else on_ray(ray, workers=jobs if jobs > 1 else None)
    try:
        with watch(specs) as drawing, interruptible(drawing) as listener:
            return bench(specs, out, jobs=jobs, executor=executor, on_event=listener)
    except BenchError as error:
        if error.records:
            on_failure(error.records)
        raise
    except KeyboardInterrupt as stopped:
        raise interrupted_exit(out, stopped) from None


def report_hint(folder: Path) -> str:
    """How to get a page out of what was done, for commands that do not end with one."""
    return f"For a page with figures: daband report {shlex.quote(str(folder))}"


def interrupted_exit(out: Path, stopped: KeyboardInterrupt) -> typer.Exit:
    """Print that what is done is kept; the exit code is the shell's: 130 for Ctrl-C, 143 for SIGTERM."""
    terminated = isinstance(stopped, Terminated)
    word = "Terminated" if terminated else "Interrupted"
    say(f"{word}. What is done is kept in {out}; the same command resumes from there.", to=errors)
    return typer.Exit(143 if terminated else 130)


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; it stops the work as Ctrl-C does."""


_MEANING: dict[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


@contextmanager
def interruptible(listener: Callable[[T], None]) -> Iterator[Callable[[T], None]]:
    """A listener that raises at the next event where a stop was requested and the exception got lost.

    Ctrl-C raises ``KeyboardInterrupt``, SIGTERM ``Terminated``.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's alone
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
    """A bar over the rows of a log, and warnings as lines above it."""
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


# ``daband continue``: finished runs continued in the target, with its rewards.


def continue_command(
    folder: Annotated[Path, typer.Argument(help="A finished run, or a folder of runs.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play in the target.")] = 1920,
    jobs: Jobs = 1,
) -> None:
    """Go on in the target, now with its rewards: how much is the head start worth?

    Example: daband continue runs/market --rounds 500
    """
    specs = [read_spec(path) for path in finished_runs(folder)]
    try:
        with watch(specs, "target") as drawing, interruptible(drawing) as listener:
            records = continue_bench(folder, rounds=rounds, jobs=jobs, on_event=listener)
    except BenchError as error:
        _show_continued(error.records)
        raise
    except KeyboardInterrupt as stopped:
        raise interrupted_exit(folder, stopped) from None
    _show_continued(records)
    if (folder / "continued.json").is_file():
        say(f"Written: {folder / 'continued.json'}")
    say(report_hint(folder))


def _show_continued(records: Records) -> None:
    from daband.bench.report._sections_runs import continued_table  # brings matplotlib

    for pair, of_pair in group_by(records, lambda record: record["pair"]).items():
        console.print(report_table(continued_table(pair, of_pair)))
