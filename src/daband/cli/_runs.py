"""Run experiments for the command line, and show their progress and results."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import daband
from daband.bench._bench import BenchError, bench
from daband.bench._executors import RunEvent
from daband.bench._records import Records, choose_metric, group_by, read_results
from daband.bench._run import read_spec
from daband.bench._settings import Experiment, RunSpec
from daband.cli._shared import console, print_line, raise_on_stop, report_stop
from daband.domains._registry import load
from daband.errors import DabandError, InvalidInput

if TYPE_CHECKING:
    from daband.bench.report._sections import Table as ReportTable

#: Seconds between two printed lines of one run, if the output is not a terminal.
_LINE_INTERVAL_SECONDS = 60.0
#: Columns of tables that only the report shows, because a terminal is too narrow.
REPORT_ONLY_COLUMNS = ("by class", "paper", "rounds", "seeds", "seconds per run")
#: Maximum number of seeds in a range.
_MAX_SEEDS = 100_000


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


def run_methods(
    experiment: Experiment,
    out: Path,
    method_names: list[str] | None,
    seeds: list[int] | None,
    jobs: int,
    experiment_name: str,
    *,
    with_report: bool = True,
) -> None:
    """Run the methods of an experiment with these seeds, print tables of results, and write the
    report.

    ``experiment_name`` is its name in the output. Without a report, only the folder of the first
    run is printed.
    """
    specs = experiment.runs(method_names, seeds)
    title = experiment_name + _describe_options(experiment, specs)
    print_line(f"{title}: {len(specs)} runs")

    def print_results(records: Records) -> None:
        # imports matplotlib
        from daband.bench.report._sections import build_comparison_tables, build_pairs_tables

        records_by_pair = group_by(records, lambda record: record["pair"])
        for pair, pair_records in records_by_pair.items():
            print_tables(build_comparison_tables(pair, pair_records), without=REPORT_ONLY_COLUMNS)
        if len(records_by_pair) > 1:
            print_tables(build_pairs_tables(title, records))

    records = run_all(specs, out, jobs=jobs, on_failure=print_results)
    print_results(records)
    for note in dict.fromkeys(record["note"] for record in records if "note" in record):
        print_line(f"Note: {note}.")
    if with_report:
        report_file = write_report(out)
        print_line(f"Runs:   {out}\nReport: {report_file}")
    else:
        print_line(f"Run: {out / records[0]['folder']}")


def remove_unreadable_run(folder: Path) -> None:
    """Remove the folder of a run, and say so, if its policy cannot be loaded."""
    try:
        if (folder / "policy.safetensors").exists():
            daband.load(folder / "policy.safetensors", device="cpu")
    except DabandError as error:
        print_line(f"This run starts again, because it cannot be read: {error}", style="yellow")
        shutil.rmtree(folder)


def assess_demo(out: Path) -> str:
    """Assess DABand's first run in the folder ``out``, and return the verdict in a sentence."""
    record = next(record for record in read_results(out) if record["method"] == "daband")
    folder = out / record["folder"]
    spec = read_spec(folder)
    pair = load(spec.pair, **spec.pair_options)
    assert pair.source_test is not None
    with console.status("Assessing without labels ..."):
        assessment = daband.assess(
            daband.load(folder / "policy.safetensors", device="cpu"),
            source=pair.source_test,
            target=pair.target,
            arm_names=pair.class_names,
        )
    return f"{spec.label}: {assessment.sentence}"


def _describe_options(experiment: Experiment, specs: Sequence[RunSpec]) -> str:
    """Return, as text, the pair options that were not given and whose values depend on the data on
    this machine.
    """
    given_options = experiment.pair_options
    options = {name: value for spec in specs[:1] for name, value in spec.pair_options.items()}
    option_texts = [
        f"{name} = {value}" for name, value in options.items() if given_options.get(name) != value
    ]
    return f" ({', '.join(option_texts)})" if option_texts else ""


def write_report(folder: Path, pair: str | None = None) -> Path:
    """Write the report on a folder of runs, and return its path."""
    # importing matplotlib takes too long for `daband --help`
    from daband.bench.report._page import write_report

    with console.status("Drawing the report ..."):
        return write_report(folder, pair=pair)
