"""Run experiments for the command line, and show their progress and results."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table as TerminalTable
from rich.text import Text

from daband.bench._bench import BenchError, bench
from daband.bench._executors import RunEvent
from daband.bench._records import Records, choose_metric
from daband.bench._report import write_report
from daband.bench._settings import RunSpec
from daband.bench._tables import Table, build_tables
from daband.cli._shared import console, print_line, raise_on_stop, report_stop
from daband.errors import InvalidInput

#: Maximum number of seeds in a range.
_MAX_SEEDS = 10_000
#: Seconds between two lines about episodes.
_LINE_INTERVAL_SECONDS = 60.0
#: Columns of tables that only the report shows.
_REPORT_ONLY_COLUMNS = ("paper", "rounds", "seeds", "seconds per run")
#: Maximum number of columns that fit into a terminal.
_MAX_COLUMNS = 5


def to_terminal_table(table: Table) -> TerminalTable:
    """Return a table for the terminal, which is too narrow for the last columns of the report."""
    terminal_table = TerminalTable(caption=escape(table.caption))
    headings = [heading for heading in table.rows[0] if heading not in _REPORT_ONLY_COLUMNS]
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


def make_listener(n_runs: int) -> Callable[[RunEvent], None]:
    """Return a function that prints a line when a run ends, and a line a minute about episodes."""
    n_ended = 0
    printed_at = time.monotonic()

    def handle_event(event: RunEvent) -> None:
        nonlocal n_ended, printed_at
        detail = event.detail
        if event.kind == "episode":
            now = time.monotonic()
            if now - printed_at >= _LINE_INTERVAL_SECONDS:
                printed_at = now
                progress = f"{detail['episode']:.0f}/{event.spec.episodes}"
                print_line(f"running   {event.spec.label}: episode {progress}")
            return
        n_ended += 1
        result = detail["error"] if event.kind == "failed" else _describe_result(detail)
        print_line(f"{event.kind:<9} [{n_ended}/{n_runs}] {event.spec.label}: {result}")

    return handle_event


def _describe_result(record: Mapping[str, Any]) -> str:
    """Return the result of a run as text."""
    metric = choose_metric([dict(record)])
    score = record[metric.field]
    return f"{metric.name} {score:.{metric.count_decimals(score)}f}"


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


def run_all(specs: Sequence[RunSpec], out: Path, *, jobs: int) -> None:
    """Execute runs, show progress, print tables of results, and write the report.

    Ctrl-C and SIGTERM end the program. If runs fail, the results of the other runs are printed
    before the error is raised.
    """
    if specs:
        print_line(f"{specs[0].pair} {specs[0].pair_options}: {len(specs)} runs")
    try:
        with raise_on_stop():
            records = bench(specs, out, jobs=jobs, on_event=make_listener(len(specs)))
    except BenchError as error:
        _print_results(error.records)
        raise
    except KeyboardInterrupt as stop_exception:
        raise report_stop(out, stop_exception) from None
    _print_results(records)
    for note in dict.fromkeys(record["note"] for record in records if "note" in record):
        print_line(f"Note: {note}.")
    print_line(f"Runs:   {out}\nReport: {write_report(out)}")


def _print_results(records: Records) -> None:
    """Print the tables of an experiment, without the columns that only the report shows."""
    for table in build_tables(records):
        console.print(to_terminal_table(table))
