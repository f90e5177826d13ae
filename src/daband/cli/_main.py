"""Define the command line ``daband``, and its commands that run experiments, write reports and list
data.

Commands parse options, call the library and print results. The commands on logs are in
``_logs.py``, on exported policies in ``_serving.py``, and on the incumbent in ``_trust.py``.
``main`` is the entry point.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape
from rich.table import Table

import daband
from daband.bench._bench import continue_bench
from daband.bench._methods import list_methods
from daband.bench._policy_folders import assess_runs
from daband.bench._records import Records, group_by, read_results
from daband.bench._run import find_finished_runs, read_spec
from daband.bench._settings import Experiment, RunSpec, load_experiment, preset_names
from daband.bench._variants import list_ablation_runs
from daband.bench.report._method_summaries import ABLATION_BASES
from daband.cli._files import add_file_options
from daband.cli._logs import convert_command, evaluate_log_command, fit_log_command, learn_command
from daband.cli._serving import decide_command, export_command, export_events_command, serve_command
from daband.cli._shared import (
    Jobs,
    Name,
    Out,
    Overrides,
    Seeds,
    console,
    error_console,
    name_folder,
    parse_seeds,
    print_line,
    print_tables,
    run_all,
    run_with_progress,
    show_warnings_once,
    suggest_report,
)
from daband.cli._trust import assess_command, audit_command, choose_command
from daband.domains._registry import check_data, get_data_directory, pairs
from daband.errors import DabandError

#: Colour of each state of a data file.
_STATE_COLOURS = {"there": "green", "missing": "yellow", "damaged": "red"}
#: Columns of tables that only the report shows, because a terminal is too narrow.
_REPORT_ONLY_COLUMNS = ("by class", "paper", "rounds", "seeds", "seconds per run")

app = typer.Typer(
    name="daband",
    help=(
        "Cross-domain contextual bandits: learn where feedback is cheap, act where it is"
        " expensive.\n\nStart with: daband demo"
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    name="data",
    help="List pairs of domains, and check their data.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")

Methods = Annotated[
    str | None, typer.Option(help="Methods to compare, e.g. linucb,daband; default: those of NAME.")
]


def _print_version(is_requested: bool) -> None:
    """Print the version and exit if the option is given."""
    if is_requested:
        console.print(f"daband {daband.__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Process the options that precede a command."""
    context.with_resource(show_warnings_once())


@app.command("demo", short_help="Compare four methods on digits over photographs.")
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path(
        "runs/demo"
    ),
    jobs: Jobs = min(3, os.cpu_count() or 1),
    seeds: Seeds = None,
) -> None:
    """Compare four methods: they learn from digits, and act on digits over photographs.

    This takes a few minutes. Runs of an earlier version of daband are replaced.

    Example: daband demo --out runs/demo
    """
    print_line(
        "A constant arm, LinUCB, Neural-LinUCB and DABand learn from rewards on handwritten digits"
        " (MNIST). They are evaluated on digits over photographs (MNIST-M), for which they see"
        " images, but no rewards."
    )
    experiment = load_experiment("demo")
    for spec in experiment.runs(None, parse_seeds(seeds)):
        _remove_unreadable_run(out / spec.folder_name)
    _run_methods(experiment, out, None, parse_seeds(seeds), jobs, "demo")
    print_line(_assess_demo(out))


@app.command("run")
@add_file_options
def run_command(
    name: Name,
    method: Annotated[str, typer.Option(help="The method to run.")] = "linucb",
    seed: Annotated[int, typer.Option(min=0, help="The seed.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run; default: runs/NAME-single.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Train and evaluate one method with one seed.

    An unfinished run is continued, a finished run is only printed.

    Example: daband run market.toml --method daband --seed 1
    """
    experiment = load_experiment(name, overrides or ())
    folder = out or Path("runs") / f"{name_folder(name)}-single"
    _run_methods(experiment, folder, [method], [seed], 1, name, with_report=False)


@app.command("bench", short_help="Compare methods over seeds on the same rounds.")
@add_file_options
def bench_command(
    name: Name,
    methods: Methods = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    out: Out = None,
    overrides: Overrides = None,
) -> None:
    """Compare methods over seeds on the same contexts and rewards.

    Runs that are finished are not repeated.

    Example: daband bench market/daband.toml --methods constant,linucb,daband --seeds 0-4 --out
    runs/market
    """
    experiment = load_experiment(name, overrides or ())
    method_names = (
        None
        if methods is None
        else [method.strip() for method in methods.split(",") if method.strip()]
    )
    folder = out or Path("runs") / name_folder(name)
    _run_methods(experiment, folder, method_names, parse_seeds(seeds), jobs, name)


@app.command("ablate", short_help="Compare all combinations of the loss terms R, P and D.")
def ablate_command(
    name: Name,
    base: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Settings to ablate: {' or '.join(ABLATION_BASES)}; by default both.",
        ),
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    out: Out = None,
    overrides: Overrides = None,
) -> None:
    """Compare all eight combinations of DABand's loss terms, with paired tests against the full
    method.

    The terms are R (regression error), P (predicted reward) and D (divergence of the domains).

    Example: daband ablate market.toml --seeds 0-4
    """
    experiment = load_experiment(name, overrides or ())
    specs = list_ablation_runs(
        experiment, bases=tuple(dict.fromkeys(base or ABLATION_BASES)), seeds=parse_seeds(seeds)
    )
    folder = out or Path("runs") / f"{name_folder(name)}-ablation"

    def print_results(records: Records) -> None:
        from daband.bench.report._sections import build_ablation_tables  # imports matplotlib

        for pair, pair_records in group_by(records, lambda record: record["pair"]).items():
            print_tables(
                build_ablation_tables(pair, pair_records),
                without=(*_REPORT_ONLY_COLUMNS, "source regret"),
            )

    print_results(run_all(specs, folder, jobs=jobs, on_failure=print_results))
    print_line(f"Runs and results.json: {folder}")
    print_line(suggest_report(folder))


@app.command("continue", short_help="Continue finished runs in the target, with its rewards.")
def continue_command(
    folder: Annotated[Path, typer.Argument(help="A finished run, or a folder of runs.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play in the target.")] = 1920,
) -> None:
    """Continue finished runs in the target, now with target rewards, and print the regret there.

    Example: daband continue runs/market --rounds 500
    """
    specs = [read_spec(path) for path in find_finished_runs(folder)]

    def print_results(records: Records) -> None:
        from daband.bench.report._sections import build_continued_table  # imports matplotlib

        for pair, pair_records in group_by(records, lambda record: record["pair"]).items():
            print_tables([build_continued_table(pair, pair_records)])

    def continue_runs(listener: Callable[[Any], None]) -> Records:
        return continue_bench(folder, rounds=rounds, on_event=listener)

    print_results(run_with_progress(specs, folder, continue_runs, print_results, domain="target"))
    print_line(suggest_report(folder))


app.command("audit", short_help="Measure a policy in the target by a few rewards.")(audit_command)
app.command("choose", short_help="Train candidates and choose one for the target.")(
    add_file_options(choose_command)
)
app.command("assess", short_help="Assess a policy in the target without its rewards.")(
    add_file_options(assess_command)
)
app.command("fit-log")(fit_log_command)
app.command("evaluate-log", short_help="Estimate a policy's value from a log.")(
    evaluate_log_command
)
app.command("convert", short_help="Convert logs of other systems.")(convert_command)
app.command("export")(export_command)
app.command("decide")(decide_command)
app.command("learn", short_help="Update a policy from a completed log.")(learn_command)
app.command("serve")(serve_command)
app.command("export-events")(export_events_command)


@app.command("report", short_help="Write a report on a folder of runs.")
def report_command(
    folder: Annotated[
        Path, typer.Argument(help="The folder of `daband bench`, `ablate` or `run`.")
    ],
    pair: Annotated[
        str | None,
        typer.Option(help="The pair to show in detail if there are several; by default the first."),
    ] = None,
) -> None:
    """Write report.html, and figures for a paper, into a folder of runs.

    Example: daband report runs/market
    """
    report_file = _write_report(folder, pair)
    print_line(f"Report:  {report_file}")
    print_line(f"Figures: {report_file.parent / 'report' / 'figures'}")


@app.command("presets")
def presets_command() -> None:
    """List the presets, which commands accept as NAME.

    Example: daband presets
    """
    table = Table(
        "preset", "description", "rounds", "seeds", box=None, pad_edge=False, header_style="bold"
    )
    for name in preset_names():
        if "/" in name:  # one of many ordered pairs; `daband data list --all` shows them
            continue
        experiment = load_experiment(name)
        rounds_text = f"{experiment.episodes} x {experiment.episode_length}"
        table.add_row(name, experiment.describe(), rounds_text, str(len(experiment.seeds)))
    console.print(table)
    console.print("Presets named paper-* have the hyperparameters of the paper.", style="dim")


@app.command("methods")
def methods_command() -> None:
    """List the methods that can be compared.

    A name with the ending -p is the same method on principal components.

    Example: daband methods
    """
    for name in list_methods():
        console.print(name)


@data_app.command("list")
def list_pairs_command(
    all_pairs: Annotated[
        bool,
        typer.Option("--all", help="Also list the ordered pairs of amazon, handwritten and so on."),
    ] = False,
) -> None:
    """List the pairs, and whether their data are available.

    Example: daband data list --all
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("pair", no_wrap=True)
    for heading in ("description", "data", "options"):
        table.add_column(heading, overflow="fold")
    n_hidden = 0
    for name in pairs.names():
        if "/" in name and not all_pairs:
            n_hidden += 1
            continue
        entry = pairs.get(name)
        state_text = "[green]ready[/green]" if entry.is_ready else "[yellow]missing[/yellow]"
        table.add_row(name, entry.about.summary, state_text, ", ".join(entry.list_options()))
    console.print(table)
    if n_hidden:
        console.print(
            f"and {n_hidden} ordered pairs such as amazon/books-dvd, listed with --all", style="dim"
        )
    print_line(f"data directory: {get_data_directory()}", style="dim")


@data_app.command("check")
def check_data_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="The pairs; by default all that read files.")
    ] = None,
) -> None:
    """Check the data files of pairs, and print where to get missing files and under which licence.

    Example: daband data check amazon/books-dvd
    """
    pair_names = names or [
        name for name in pairs.names() if "/" not in name and pairs.get(name).resources
    ]
    has_damage = False
    print_line(f"data directory: {get_data_directory()}", style="dim")
    for name in pair_names:
        statuses = list(check_data(name))
        console.print(f"[bold]{name}[/bold]")
        if not statuses:
            console.print("  needs no data files")
        for status in statuses:
            colour = _STATE_COLOURS[status.state]
            has_damage |= status.state == "damaged"
            optional_text = " (optional)" if status.resource.optional else ""
            licence = f"licence: {status.resource.licence}"
            resource_text = f"{status.resource.description}{optional_text}; {licence}"
            print_line(f"  [{colour}]{status.state:<8}[/{colour}]{resource_text}", markup=True)
            print_line(f"           {status.path}", style="dim")
            if status.state != "there":
                print_line(f"           {status.resource.instructions}")
    if has_damage:
        raise typer.Exit(1)


def _run_methods(
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
            print_tables(build_comparison_tables(pair, pair_records), without=_REPORT_ONLY_COLUMNS)
        if len(records_by_pair) > 1:
            print_tables(build_pairs_tables(title, records))

    records = run_all(specs, out, jobs=jobs, on_failure=print_results)
    print_results(records)
    for note in dict.fromkeys(record["note"] for record in records if "note" in record):
        print_line(f"Note: {note}.")
    if with_report:
        report_file = _write_report(out)
        print_line(f"Runs:   {out}\nReport: {report_file}")
    else:
        print_line(f"Run: {out / records[0]['folder']}")


def _remove_unreadable_run(folder: Path) -> None:
    """Remove the folder of a run, and say so, if its policy cannot be loaded."""
    try:
        if (folder / "policy.safetensors").exists():
            daband.load(folder / "policy.safetensors", device="cpu")
    except DabandError as error:
        print_line(f"This run starts again, because it cannot be read: {error}", style="yellow")
        shutil.rmtree(folder)


def _assess_demo(out: Path) -> str:
    """Assess DABand's run in the folder ``out``, and return the verdict in a sentence."""
    records = [record for record in read_results(out) if record["method"] == "daband"]
    with console.status("Assessing without labels ..."):
        (assessed_run,) = assess_runs(out / records[0]["folder"])
    return f"{assessed_run.spec.label}: {assessed_run.assessment.sentence}"


def _describe_options(experiment: Experiment, specs: Sequence[RunSpec]) -> str:
    """Return, as text, the pair options that were not given and whose values depend on the data on
    this machine.
    """
    given_options = experiment.pair_options
    options = {
        name: value
        for spec in specs[:1]
        for name, value in spec.pair_options.items()
        if name != "digest"
    }
    option_texts = [
        f"{name} = {value}" for name, value in options.items() if given_options.get(name) != value
    ]
    return f" ({', '.join(option_texts)})" if option_texts else ""


def _write_report(folder: Path, pair: str | None = None) -> Path:
    """Write the report on a folder of runs, and return its path."""
    # importing matplotlib takes too long for `daband --help`
    from daband.bench.report._page import write_report

    with console.status("Drawing the report ..."):
        return write_report(folder, pair=pair)


def _exit_with_error(message: str) -> NoReturn:
    """Print an error and exit with code 2."""
    print_line(f"[bold red]Error:[/bold red] {escape(message)}", markup=True, to=error_console)
    sys.exit(2)


def main() -> None:
    """Run the command line. Expected errors are printed as a message, with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        # arm names may have characters that the terminal's encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except DabandError as error:
        _exit_with_error(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        _exit_with_error("this command needs matplotlib: pip install 'daband[bench]'")
    except OSError as error:  # for example a full disk, for which a traceback does not help
        path = f"{error.filename}: " if error.filename else ""
        _exit_with_error(f"{path}{error.strerror or error}")
