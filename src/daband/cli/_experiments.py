"""Define the commands of experiments and research data sets.

``daband.bench`` is imported in the functions, so that other commands do not need it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from daband.cli._shared import console, print_line
from daband.domains._registry import check_data, get_data_directory, pairs
from daband.trust._choose import CHOICE_FILE

if TYPE_CHECKING:
    from daband.bench._records import Records

#: Colour of each state of a data file.
_STATE_COLOURS = {"there": "green", "missing": "yellow", "damaged": "red"}

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
Methods = Annotated[
    str | None, typer.Option(help="Methods to compare, e.g. linucb,daband; default: those of NAME.")
]


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
    from daband.bench._settings import load_experiment
    from daband.cli._runs import assess_demo, parse_seeds, remove_unreadable_run, run_methods

    print_line(
        "A constant arm, LinUCB, Neural-LinUCB and DABand learn from rewards on handwritten digits"
        " (MNIST). They are evaluated on digits over photographs (MNIST-M), for which they see"
        " images, but no rewards."
    )
    experiment = load_experiment("demo")
    seed_list = parse_seeds(seeds)
    for spec in experiment.runs(None, seed_list):
        remove_unreadable_run(out / spec.folder_name)
    run_methods(experiment, out, None, seed_list, jobs, "demo")
    print_line(assess_demo(out))


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
    from daband.bench._settings import load_experiment
    from daband.cli._runs import name_folder, run_methods

    experiment = load_experiment(name, overrides or ())
    folder = out or Path("runs") / f"{name_folder(name)}-single"
    run_methods(experiment, folder, [method], [seed], 1, name, with_report=False)


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
    from daband.bench._settings import load_experiment
    from daband.cli._runs import name_folder, parse_seeds, run_methods

    experiment = load_experiment(name, overrides or ())
    method_names = (
        None
        if methods is None
        else [method.strip() for method in methods.split(",") if method.strip()]
    )
    folder = out or Path("runs") / name_folder(name)
    run_methods(experiment, folder, method_names, parse_seeds(seeds), jobs, name)


def ablate_command(
    name: Name,
    base: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Settings to ablate: paper or default-rpd; by default both.",
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
    from daband.bench._records import group_by
    from daband.bench._settings import load_experiment
    from daband.bench._variants import list_ablation_runs
    from daband.bench.report._method_summaries import ABLATION_BASES
    from daband.cli import _runs

    experiment = load_experiment(name, overrides or ())
    specs = list_ablation_runs(
        experiment,
        bases=tuple(dict.fromkeys(base or ABLATION_BASES)),
        seeds=_runs.parse_seeds(seeds),
    )
    folder = out or Path("runs") / f"{_runs.name_folder(name)}-ablation"

    def print_results(records: Records) -> None:
        from daband.bench.report._sections import build_ablation_tables  # imports matplotlib

        for pair, pair_records in group_by(records, lambda record: record["pair"]).items():
            _runs.print_tables(
                build_ablation_tables(pair, pair_records),
                without=(*_runs.REPORT_ONLY_COLUMNS, "source regret"),
            )

    print_results(_runs.run_all(specs, folder, jobs=jobs, on_failure=print_results))
    print_line(f"Runs and results.json: {folder}")
    print_line(_runs.suggest_report(folder))


def continue_command(
    folder: Annotated[Path, typer.Argument(help="A finished run, or a folder of runs.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play in the target.")] = 1920,
) -> None:
    """Continue finished runs in the target, now with target rewards, and print the regret there.

    Example: daband continue runs/market --rounds 500
    """
    from daband.bench._bench import continue_bench
    from daband.bench._records import group_by
    from daband.bench._run import find_finished_runs, read_spec
    from daband.cli import _runs

    specs = [read_spec(path) for path in find_finished_runs(folder)]

    def print_results(records: Records) -> None:
        from daband.bench.report._sections import build_continued_table  # imports matplotlib

        for pair, pair_records in group_by(records, lambda record: record["pair"]).items():
            _runs.print_tables([build_continued_table(pair, pair_records)])

    def continue_runs(listener: Callable[[Any], None]) -> Records:
        return continue_bench(folder, rounds=rounds, on_event=listener)

    records = _runs.run_with_progress(specs, folder, continue_runs, print_results, domain="target")
    print_results(records)
    print_line(_runs.suggest_report(folder))


def report_command(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder of `daband choose`, `bench`, `ablate` or `run`."),
    ],
    pair: Annotated[
        str | None,
        typer.Option(help="The pair to show in detail if there are several; by default the first."),
    ] = None,
) -> None:
    """Write report.html into the folder of a choice, or with figures into a folder of runs.

    Example: daband report runs/market
    """
    if (folder / CHOICE_FILE).is_file():
        from daband.trust._report import write_choice_report

        print_line(f"Report: {write_choice_report(folder)}")
        return
    from daband.cli._runs import write_report

    report_file = write_report(folder, pair)
    print_line(f"Report:  {report_file}")
    print_line(f"Figures: {report_file.parent / 'report' / 'figures'}")


def presets_command() -> None:
    """List the presets, which commands accept as NAME.

    Example: daband presets
    """
    from daband.bench._settings import load_experiment, preset_names

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


def methods_command() -> None:
    """List the methods that can be compared.

    A name with the ending -p is the same method on principal components.

    Example: daband methods
    """
    from daband.bench._methods import list_methods

    for name in list_methods():
        console.print(name)


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
