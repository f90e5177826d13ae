"""``daband ablate``: what R, P and D are worth, alone and together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from daband.cli.options import Jobs, Name, Out, Overrides, Ray, Seeds, stem, whole_numbers
from daband.cli.running import report_hint, run_all, say
from daband.experiments import load_experiment
from daband.experiments.ablation import BASES, AblationRow, ablation_rows, ablation_runs, write_ablation
from daband.experiments.records import Records
from daband.report import Mean

__all__ = ["ablate"]


def ablate(
    name: Name,
    base: Annotated[
        list[str] | None, typer.Option(help=f"The recipe to take apart: {' or '.join(BASES)}; both by default.")
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    ray: Ray = None,
    out: Out = None,
    overrides: Overrides = None,
) -> None:
    """Leave out R, P and D in all eight combinations, with paired tests against the full method."""
    console = Console()
    experiment = load_experiment(name, overrides or ())
    numbers = None if seeds is None else whole_numbers(seeds, "seeds")
    specs = ablation_runs(experiment, bases=tuple(dict.fromkeys(base or BASES)), seeds=numbers)
    folder = out or Path("runs") / f"{stem(name)}-ablation"

    def show(records: Records) -> None:
        rows = ablation_rows(records)
        for pair in dict.fromkeys(row.pair for row in rows):
            for kind in dict.fromkeys(row.base for row in rows):
                console.print(_table(pair, kind, [row for row in rows if (row.pair, row.base) == (pair, kind)]))
        write_ablation(folder, rows)

    show(run_all(specs, folder, console=console, jobs=jobs, ray=ray, on_failure=show))
    say(console, f"Runs, results.json and ablation.json: {folder}")
    say(console, report_hint(folder))


def _table(pair: str, base: str, rows: list[AblationRow]) -> Table:
    table = Table(
        title=f"{escape(pair)}: R, P and D of the recipe {escape(base)}",
        caption="difference: to RPD, the full method, by seed",
    )
    table.add_column("on", no_wrap=True)
    metric = rows[0].metric
    digits = metric.digits(*(row.score for row in rows))
    for heading in (metric.name.removeprefix("target "), "to RPD", "95% interval", "p", "p (Holm)", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    best = max((row.score for row in rows if row.score is not None), default=None)
    for row in rows:
        cells = ["", "", "", ""]
        if row.paired is not None:
            known = row.paired.n > 1
            cells = [
                f"{row.paired.difference:+,.{digits}f}",
                f"{row.paired.low:+,.{digits}f} to {row.paired.high:+,.{digits}f}" if known else "",
                p_text(row.paired.p_value) if known else "",
                "" if row.p_holm is None else p_text(row.p_holm),
            ]
        score = Mean(row.score, row.score_spread, len(row.seeds)).text(digits)
        style = "bold" if best is not None and row.score == best else ""
        table.add_row(row.letters, score, *cells, str(len(row.seeds)), style=style)
    return table


def p_text(value: float) -> str:
    """A p-value as people read it."""
    return "<.0001" if value < 1e-4 else f"{value:.4f}".removeprefix("0") if value < 1 else "1"
