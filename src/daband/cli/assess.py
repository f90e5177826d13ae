"""``daband assess``: how good finished runs are in the target, without a reward from there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from daband.cli.running import say, warnings_on
from daband.experiments import AssessedRun, assess_runs

__all__ = ["assess_command", "assessed_line"]


def assess_command(
    folder: Annotated[Path, typer.Argument(help="A finished run, or a folder of runs; seeds are a committee.")],
    required: Annotated[
        float | None, typer.Option(help="What the value has to reach; by default that of the best constant arm.")
    ] = None,
) -> None:
    """Estimate how good finished runs are in the target, without a reward from there, and whether to hand them over."""
    console = Console()
    with warnings_on(console), console.status("Scoring contexts of both domains ..."):
        runs = assess_runs(folder, required=required)
    if len(runs) > 1:
        console.print(_table(runs))
    for run in _one_per_method(runs):
        if len(runs) > 1:
            console.rule(escape(run.spec.label))
        say(console, str(run.assessment))
    written = runs[0].path / "assessment.json" if len(runs) == 1 else folder / "*" / "assessment.json"
    say(console, f"Written: {written}")


def assessed_line(run: AssessedRun) -> str:
    """The estimate beside what is true, where that is known."""
    estimated = f"estimated without a label: {_short(run.assessment.value)} (at least {_short(run.assessment.low)})"
    true = run.true_value
    return estimated if true is None else f"{estimated}; true: {_short(true)}"


def _one_per_method(runs: list[AssessedRun]) -> list[AssessedRun]:
    """The first run of every method and pair: pages of its other seeds would say the same."""
    firsts = {(run.spec.pair, run.spec.method, run.spec.variant): run for run in reversed(runs)}
    return [run for run in runs if firsts[run.spec.pair, run.spec.method, run.spec.variant] is run]


def _table(runs: list[AssessedRun]) -> Table:
    table = Table(title="in the target, without a reward from there")
    table.add_column("run", overflow="fold")
    for heading in ("estimated", "at least", "required"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for run in runs:
        found = run.assessment
        verdict = f"{found.verdict} {found.audit_rewards} rewards" if found.audit_rewards else found.verdict
        table.add_row(escape(run.spec.label), *(_short(n) for n in (found.value, found.low, found.required)), verdict)
    return table


def _short(value: float) -> str:
    """Two decimals, and no zero before the point where a value is a share."""
    if abs(value) >= 10:
        return f"{value:,.1f}"
    text = f"{value:.2f}"
    return text[1:] if text.startswith("0.") else text
