"""``daband``: the command line. It parses, calls and prints; what it does lives in the rooms below."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.markup import escape
from rich.table import Table

import daband
from daband._registry import name_plugins
from daband.bench._assess_runs import assess_runs
from daband.bench._methods import method_names
from daband.bench._records import Records, read_results
from daband.bench._settings import Experiment, RunSpec, load_experiment, preset_names
from daband.bench.report._method_summaries import summarise
from daband.cli import _data as data
from daband.cli._ablate_and_sweep import ablate, sweep
from daband.cli._files import takes_files
from daband.cli._logs import evaluate_log_command, fit_log_command, learn_command
from daband.cli._options import (
    Jobs,
    Name,
    Out,
    Overrides,
    Ray,
    Seeds,
    complete_methods,
    error_text,
    seed_numbers,
    spans,
    stem,
)
from daband.cli._progress_and_tables import console, errors, method_table, say, warnings_on
from daband.cli._run_progress import continue_command, run_all
from daband.cli._serving import decide_command, export_command, export_events_command, serve_command
from daband.cli._trust import assess_command, audit_command, choose_command
from daband.errors import DabandError

app = typer.Typer(
    name="daband",
    help="Cross-domain contextual bandits: learn where feedback is cheap, act where it is expensive.\n\n"
    "Start with: daband demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data.data_app, name="data")

Methods = Annotated[
    str | None, typer.Option(help="Methods to compare, e.g. random,linucb,linucb-p.", autocompletion=complete_methods)
]


def _version(asked: bool) -> None:
    if asked:
        console.print(f"daband {daband.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin", help="A module of yours that registers policies, pairs or terms: mine, my.module or mine.py."
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Options before any command."""
    context.with_resource(warnings_on())
    name_plugins(plugin or ())


@app.command(short_help="Compare four methods on digits over photographs.")
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path("runs/demo"),
    jobs: Jobs = min(3, os.cpu_count() or 1),
    seeds: Seeds = None,
) -> None:
    """See it work: learn from digits, act on digits over photographs, with no reward from there. A few minutes.

    Example: daband demo --out runs/demo
    """
    console.print(
        "A constant arm, LinUCB, Neural-LinUCB and DABand learn from rewards on handwritten digits (MNIST), and"
    )
    console.print("are then judged on digits over photographs (MNIST-M), of which they saw images but never a reward.")
    experiment = load_experiment("demo")
    _compare(experiment, out, None, seed_numbers(seeds), jobs, "demo")
    say(_demo_assessment(out))


@app.command()
@takes_files
def run(
    name: Name,
    method: Annotated[str, typer.Option(help="The method to run.", autocompletion=complete_methods)] = "linucb",
    seed: Annotated[int, typer.Option(min=0, help="The seed.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where the run's folder goes.")] = None,
    overrides: Overrides = None,
) -> None:
    """Train and evaluate one method with one seed. Called again, a finished run is shown, an unfinished one resumes.

    Example: daband run market.toml --method daband --seed 1
    """
    experiment = load_experiment(name, overrides or ())
    folder = out or Path("runs") / f"{stem(name)}-single"
    _compare(experiment, folder, [method], [seed], 1, name, report=False)


@app.command("bench", short_help="Compare methods over seeds on the same rounds.")
@takes_files
def bench_command(
    name: Name,
    methods: Methods = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    ray: Ray = None,
    out: Out = None,
    overrides: Overrides = None,
) -> None:
    """Compare methods over seeds on the same contexts and rewards. Runs that are finished are not repeated.

    Example: daband bench market/daband.toml --methods constant,linucb,daband --seeds 0-4 --out runs/market
    """
    experiment = load_experiment(name, overrides or ())
    chosen = None if methods is None else [method.strip() for method in methods.split(",") if method.strip()]
    folder = out or Path("runs") / stem(name)
    _compare(experiment, folder, chosen, seed_numbers(seeds), jobs, name, ray=ray)


app.command(short_help="Compare all combinations of the terms R, P and D.")(ablate)
app.command(short_help="Run a grid of settings and select one by a rule.")(sweep)
app.command("continue", short_help="Continue finished runs in the target, with its rewards.")(continue_command)
app.command("audit", short_help="Measure a policy in the target by a few rewards.")(audit_command)
app.command("choose", short_help="Train candidates and choose one for the target.")(takes_files(choose_command))
app.command("assess", short_help="Assess a policy in the target without its rewards.")(takes_files(assess_command))
app.command("fit-log")(fit_log_command)
app.command("evaluate-log", short_help="Estimate a policy's value from a log.")(evaluate_log_command)
app.command("export")(export_command)
app.command("decide")(decide_command)
app.command("learn", short_help="Update a policy from a completed log.")(learn_command)
app.command("serve")(serve_command)
app.command("export-events")(export_events_command)


@app.command(short_help="Write a report on a folder of runs.")
def report(
    folder: Annotated[Path, typer.Argument(help="What `daband bench`, `ablate`, `sweep` or `run` filled.")],
    pair: Annotated[
        str | None, typer.Option(help="Of several pairs, the one to look at closely; by default the first.")
    ] = None,
) -> None:
    """Write report.html, and figures for a paper, into a folder of runs.

    Example: daband report runs/market
    """
    page = _write_page(folder, pair)
    say(f"Report:  {page}")
    say(f"Figures: {page.parent / 'report' / 'figures'}")


@app.command()
def presets() -> None:
    """List the presets: what `run` and `bench` take as NAME.

    Example: daband presets
    """
    table = Table("preset", "what", "rounds", "seeds", box=None, pad_edge=False, header_style="bold")
    for name in preset_names():
        if "/" in name:  # one of several ordered pairs; they are many, and `daband data list --all` shows them
            continue
        experiment = load_experiment(name)
        rounds = f"{experiment.episodes} x {experiment.episode_length}"
        table.add_row(name, experiment.describe(), rounds, spans(experiment.seeds))
    console.print(table)
    console.print("Presets named paper-* have the paper's own hyperparameters.", style="dim")


@app.command()
def methods() -> None:
    """List the methods that can be compared.

    Example: daband methods
    """
    for name in method_names():
        console.print(name)


def _compare(
    experiment: Experiment,
    out: Path,
    chosen: list[str] | None,
    seeds: list[int] | None,
    jobs: int,
    title: str,
    *,
    ray: str | None = None,
    report: bool = True,
) -> None:
    """Run the methods, print the table and write the report."""
    specs = experiment.runs(chosen, seeds)
    title += _describe_resolved(experiment, specs)

    def show(records: Records) -> None:
        console.print(method_table(title, summarise(records), arms=records[0].get("class_names") or ()))

    records = run_all(specs, out, jobs=jobs, ray=ray, on_failure=show)
    show(records)
    for note in dict.fromkeys(record["note"] for record in records if "note" in record):
        say(f"Note: {note}.")
    if report:
        page = _write_page(out)
        say(f"Runs:   {out}\nReport: {page}")
    else:
        say(f"Run: {out / records[0]['folder']}")


def _demo_assessment(out: Path) -> str:
    """Assess DABand's run and return the estimate next to the true value."""
    records = [record for record in read_results(out) if record["method"] == "daband"]
    with console.status("Assessing without labels ..."):
        (run,) = assess_runs(out / records[0]["folder"])
    return f"{run.spec.label}: {run.assessment.sentence}"


def _describe_resolved(experiment: Experiment, specs: Sequence[RunSpec]) -> str:
    """The options of the pair that were resolved by which data this machine has."""
    given = experiment.pair_options
    options = {key: value for spec in specs[:1] for key, value in spec.pair_options.items() if key != "digest"}
    differing = [f"{key} = {value}" for key, value in options.items() if given.get(key) != value]
    return f" ({', '.join(differing)})" if differing else ""


def _write_page(folder: Path, pair: str | None = None) -> Path:
    from daband.bench.report._page import write_report  # brings matplotlib, for which `daband --help` should not wait

    with console.status("Drawing the report ..."):
        return write_report(folder, pair=pair)


def _leave(message: str) -> NoReturn:
    say(f"[bold red]Error:[/bold red] {escape(message)}", markup=True, to=errors)
    sys.exit(2)


def main() -> None:
    """The entry point: an error of ours is a message and exit code 2, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of arms may have letters that the terminal's encoding has not
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except DabandError as error:
        _leave(error_text(error))
    except OSError as error:  # a folder that cannot be written, a full disk: nothing a traceback would help with
        place = f"{error.filename}: " if error.filename else ""
        _leave(f"{place}{error.strerror or error}")
