"""Define the commands of experiments and research data sets.

``daband.bench`` is imported in the functions, so that other commands do not need it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from typer import Argument, Option

from daband.cli._data import split_names
from daband.cli._shared import console, print_line
from daband.domains._registry import check_data, get_data_directory, pairs
from daband.trust._choose import CHOICE_FILE

#: Packages that the demo on digits needs.
_DIGIT_PACKAGES = ("torch", "skimage", "PIL")

Name = Annotated[str, Argument(help="A preset or a pair (see `daband presets`).")]
Seeds = Annotated[
    str | None, Option(help="Seeds, e.g. 0-4 or 0,2,7; default: the seeds of the preset.")
]
Jobs = Annotated[int, Option(min=1, help="Number of parallel runs, each in a separate process.")]
Out = Annotated[
    Path | None,
    Option(help="Folder for the runs and results.json; default: in runs/, by NAME."),
]
Episodes = Annotated[int | None, Option(min=1, help="Episodes of each run; default: of NAME.")]
EpisodeLength = Annotated[int | None, Option(min=1, help="Rounds of an episode; default: of NAME.")]
Methods = Annotated[
    str | None, Option(help="Methods to compare, e.g. linucb,daband; default: those of NAME.")
]


def demo_command(
    out: Annotated[Path, Option(help="Folder for the runs and the reports.")] = Path("runs/demo"),
    jobs: Jobs = min(3, os.cpu_count() or 1),
    seeds: Seeds = None,
) -> None:
    """Choose a policy from a small A/B test, then compare four methods on digits.

    The A/B test takes seconds. The digits need the extras deep and bench and a few minutes: the
    methods learn from digits, and act on digits over photographs.

    Example: daband demo --out runs/demo
    """
    from daband.cli._examples import choose_for_ab_test
    from daband.cli._runs import parse_seeds, run_all

    seed_list = parse_seeds(seeds)
    choose_for_ab_test(out / "ab-test")
    if not all(map(find_spec, _DIGIT_PACKAGES)):
        print_line(
            "For the demo on images: pip install 'daband[deep]' 'daband[bench]', then `daband demo`."
        )
        return
    from daband.bench._settings import load_experiment

    print_line(
        "A constant arm, LinUCB, Neural-LinUCB and DABand learn from rewards on handwritten digits"
        " (MNIST). They are evaluated on digits over photographs (MNIST-M), for which they see"
        " images, but no rewards."
    )
    run_all(load_experiment("demo").runs(seeds=seed_list), out, jobs=jobs)


def bench_command(
    name: Name,
    methods: Methods = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    out: Out = None,
    episodes: Episodes = None,
    episode_length: EpisodeLength = None,
) -> None:
    """Compare methods over seeds on the same contexts and rewards.

    Runs that are finished are not repeated. Other settings of methods are arguments of
    daband.bench.Experiment in Python.

    Example: daband bench synthetic --methods constant,linucb,daband --seeds 0-4
    """
    from daband.cli._runs import parse_seeds, run_all

    experiment = _load(name, episodes, episode_length)
    method_names = None if methods is None else split_names([methods])
    specs = experiment.runs(method_names, parse_seeds(seeds))
    run_all(specs, out or Path("runs") / name.replace("/", "-"), jobs=jobs)


def _load(name: str, episodes: int | None, episode_length: int | None) -> Any:
    """Return the experiment of a name with these numbers, if they are given."""
    from daband.bench._settings import load_experiment

    changes = {"episodes": episodes, "episode_length": episode_length}
    given: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    return replace(load_experiment(name), **given)


def ablate_command(
    name: Name,
    base: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Settings to ablate: paper or default-rpd; by default both.",
        ),
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    out: Out = None,
    episodes: Episodes = None,
    episode_length: EpisodeLength = None,
) -> None:
    """Compare all eight combinations of DABand's loss terms, with paired tests against the full
    method.

    The terms are R (regression error), P (predicted reward) and D (divergence of the domains).

    Example: daband ablate paper-digit --seeds 0-4
    """
    from daband.bench._ablation import ABLATION_BASES, list_ablation_runs
    from daband.cli._runs import parse_seeds, run_all

    specs = list_ablation_runs(
        _load(name, episodes, episode_length),
        bases=tuple(dict.fromkeys(base or ABLATION_BASES)),
        seeds=parse_seeds(seeds),
    )
    run_all(specs, out or Path("runs") / f"{name.replace('/', '-')}-ablation", jobs=jobs)


def report_command(
    folder: Annotated[
        Path,
        Argument(help="The folder of `daband choose`, `bench`, `ablate` or `demo`."),
    ],
) -> None:
    """Write report.html into the folder of a choice or of runs.

    Example: daband report runs/market
    """
    if (folder / CHOICE_FILE).is_file():
        from daband.ledger._market import open_market

        with open_market(folder) as market:
            print_line(f"Report: {market.report()}")
        return
    from daband.bench._report import write_report

    print_line(f"Report: {write_report(folder)}")


def presets_command() -> None:
    """List the presets, which commands accept as NAME, and the methods.

    Example: daband presets
    """
    from daband.bench._methods import list_methods
    from daband.bench._settings import load_experiment, preset_names

    table = Table(
        "preset", "description", "rounds", "seeds", box=None, pad_edge=False, header_style="bold"
    )
    for name in preset_names():
        experiment = load_experiment(name)
        rounds_text = f"{experiment.episodes} x {experiment.episode_length}"
        table.add_row(name, experiment.summary, rounds_text, str(len(experiment.seeds)))
    console.print(table)
    print_line(f"Methods: {', '.join(list_methods())}; -p adds principal components.")


def list_pairs_command() -> None:
    """List the pairs, and whether their data are available.

    Example: daband data list
    """
    table = Table(box=None, header_style="bold")
    table.add_column("pair", no_wrap=True)
    for heading in ("description", "data"):
        table.add_column(heading, overflow="fold")
    for name in pairs.names():
        entry = pairs.get(name)
        state_text = "[green]ready[/green]" if entry.is_ready else "[yellow]missing[/yellow]"
        table.add_row(name, entry.about.summary, state_text)
    console.print(table)


def check_data_command(
    names: Annotated[
        list[str] | None, Argument(help="The pairs; by default all that read files.")
    ] = None,
) -> None:
    """Check the data files of pairs, and print where to get them and under which licence.

    Example: daband data check visda17
    """
    pair_names = names or [name for name in pairs.names() if pairs.get(name).resources]
    print_line(f"data directory: {get_data_directory()}")
    for name in pair_names:
        resources = list(check_data(name))
        console.print(f"[bold]{name}[/bold]")
        if not resources:
            console.print("  needs no data files")
        for resource, path in resources:
            state = "[yellow]missing[/yellow]" if path is None else "[green]there  [/green]"
            text = f"{resource.description}; licence: {resource.licence}"
            print_line(f"  {state} {text}", markup=True)
            print_line(f"          {path or resource.paths[0]}")
            print_line(f"          {resource.instructions}")
