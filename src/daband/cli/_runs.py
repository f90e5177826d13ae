"""Run experiments for the command line, and show their progress and results."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as TerminalTable
from rich.text import Text

from daband.bench._bench import BenchError, bench
from daband.bench._executors import RunEvent
from daband.bench._records import Records, choose_metric
from daband.bench._report import write_report
from daband.bench._settings import Experiment, RunSpec
from daband.bench._tables import Table, build_tables
from daband.cli._shared import console, print_line, raise_on_stop, report_stop
from daband.errors import InvalidInput

#: Maximum number of seeds in a range.
_MAX_SEEDS = 10_000
#: Seconds between two printed lines, if the output is not a terminal.
_LINE_INTERVAL_SECONDS = 60.0
#: Columns of tables that only the report shows.
_REPORT_ONLY_COLUMNS = ("paper", "rounds", "seeds", "seconds per run")
#: Maximum number of columns that fit into a terminal.
_MAX_COLUMNS = 5


def print_results(records: Records) -> None:
    """Print the tables of an experiment, without the columns that only the report shows."""
    for table in build_tables(records):
        console.print(to_terminal_table(table))


def to_terminal_table(table: Table) -> TerminalTable:
    """Return a table for the terminal, which is too narrow for the last columns of the report."""
    terminal_table = TerminalTable(caption=escape(table.caption))
    headings = [heading for heading in table.rows[0] if heading not in _REPORT_ONLY_COLUMNS]
    if headings[0] == "method":
        headings = headings[:_MAX_COLUMNS]
    for heading in headings:
        is_first = heading == headings[0]
        min_width = min(20, max(len(row[heading]) for row in table.rows)) if is_first else None
        terminal_table.add_column(
            heading, justify="left" if is_first else "right", min_width=min_width
        )
    for row in table.rows:
        terminal_table.add_row(*(Text(row[heading]) for heading in headings))
    return terminal_table


@contextmanager
def show_progress(specs: Sequence[RunSpec]) -> Iterator[Callable[[RunEvent], None]]:
    """Yield a listener that shows the progress of runs, and prints a line when a run ends.

    On a terminal, a progress bar shows all runs and the latest event. Otherwise, a line a minute is
    printed.
    """
    # The finished fraction of each run by its folder.
    fractions: dict[str, float] = {}
    n_ended = 0
    printed_at = time.monotonic()
    has_several_pairs = len({spec.pair for spec in specs}) > 1
    bar_columns = (
        BarColumn(bar_width=20),
        TextColumn("{task.completed:.1f}/{task.total:.0f} runs"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(
        *bar_columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=float(len(specs)))

        def handle_event(event: RunEvent) -> None:
            nonlocal n_ended, printed_at
            run_folder = event.spec.folder_name
            detail = event.detail
            name = (
                f"{event.spec.pair}  {event.spec.label}" if has_several_pairs else event.spec.label
            )
            if event.kind == "episode":
                n_episodes = detail.get("of", event.spec.episodes)
                progress_text = f"{name}: episode {detail['episode']:.0f}/{n_episodes}"
                fractions[run_folder] = (
                    0.0 if n_episodes == "all" else float(detail["episode"]) / int(n_episodes)
                )
                bar.update(task, description=escape(progress_text))
                now = time.monotonic()
                if not console.is_terminal and now - printed_at >= _LINE_INTERVAL_SECONDS:
                    printed_at = now
                    print_line(f"running   {progress_text}")
            else:
                n_ended += 1
                fractions[run_folder] = 1.0
                result = detail["error"] if event.kind == "failed" else _describe_result(detail)
                print_line(f"{event.kind:<9} [{n_ended}/{len(specs)}] {name}: {result}")
            bar.update(task, completed=sum(fractions.values()))

        yield handle_event


def _describe_result(record: Mapping[str, Any]) -> str:
    """Return the result of a run as text."""
    metric = choose_metric([dict(record)])
    score = record[metric.field]
    return f"{metric.name} {score:.{metric.count_decimals(score)}f}"


def run_all(specs: Sequence[RunSpec], out: Path, *, jobs: int = 1) -> Records:
    """Execute runs, show progress, and return their records.

    Ctrl-C and SIGTERM end the program. If runs fail, the results of the other runs are printed
    before the error is raised.
    """
    try:
        with show_progress(specs) as show_event, raise_on_stop():
            return bench(specs, out, jobs=jobs, on_event=show_event)
    except BenchError as error:
        if error.records:
            print_results(error.records)
        raise
    except KeyboardInterrupt as stop_exception:
        raise report_stop(out, stop_exception) from None


def name_folder(name: str) -> str:
    """Return the folder name of an experiment, from the name of its preset or its TOML file."""
    return (Path(name).stem if name.endswith(".toml") else name).replace("/", "-")


def parse_seeds(seed_list: str | None) -> list[int] | None:
    """Return the seeds in a list such as "0-4,7"; None if there is no list."""
    if seed_list is None:
        return None
    seeds: list[int] = []
    for seed_range in seed_list.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", seed_range)
        added = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not 0 < len(added) <= _MAX_SEEDS:
            raise InvalidInput(f"seeds must look like 0-4 or 0,2,7, got {seed_list!r}")
        seeds.extend(added)
    return list(dict.fromkeys(seeds))


def run_methods(
    experiment: Experiment,
    out: Path,
    method_names: list[str] | None,
    seeds: list[int] | None,
    jobs: int,
    experiment_name: str,
) -> None:
    """Run the methods of an experiment with these seeds, print tables of results, and write the
    report.

    ``experiment_name`` is its name in the output.
    """
    specs = experiment.runs(method_names, seeds)
    print_line(f"{experiment_name} {specs[0].pair_options if specs else ''}: {len(specs)} runs")

    records = run_all(specs, out, jobs=jobs)
    print_results(records)
    for note in dict.fromkeys(record["note"] for record in records if "note" in record):
        print_line(f"Note: {note}.")
    print_line(f"Runs:   {out}\nReport: {write_report(out)}")
