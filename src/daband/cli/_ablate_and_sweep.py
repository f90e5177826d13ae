"""``daband ablate`` and ``daband sweep``: what R, P and D are worth, and which settings are best."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from daband.bench._ablation import BASES, AblationRow, ablation_rows, ablation_runs, write_ablation
from daband.bench._records import TARGET_ACCURACY, TARGET_VALUE, Metric, Records, group_by
from daband.bench._settings import load_experiment
from daband.bench._sweep import (
    SELECTION_RULES,
    Point,
    SweepChoice,
    choices,
    measure,
    parse_grid,
    sweep_points,
    sweep_runs,
    write_sweep,
)
from daband.bench.report._method_summaries import Mean
from daband.cli._options import Jobs, Name, Out, Overrides, Ray, Seeds, seed_numbers, stem
from daband.cli._progress_and_tables import console, new_table, report_table, say
from daband.cli._run_progress import interrupted_exit, report_hint, run_all
from daband.errors import InvalidInput


def ablate(
    name: Name,
    base: Annotated[
        list[str] | None,
        typer.Option(help=f"The recipe to take apart: {' or '.join(BASES)}; both by default."),
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    ray: Ray = None,
    out: Out = None,
    overrides: Overrides = None,
) -> None:
    """Leave out R, P and D in all eight combinations, with paired tests against the full method.

    Example: daband ablate market.toml --seeds 0-4
    """
    experiment = load_experiment(name, overrides or ())
    specs = ablation_runs(experiment, bases=tuple(dict.fromkeys(base or BASES)), seeds=seed_numbers(seeds))
    folder = out or Path("runs") / f"{stem(name)}-ablation"

    def show(records: Records) -> None:
        rows = ablation_rows(records)
        for (pair, kind), of_recipe in group_by(rows, lambda row: (row.pair, row.base)).items():
            console.print(_table(pair, kind, of_recipe))
        write_ablation(folder, rows)

    show(run_all(specs, folder, jobs=jobs, ray=ray, on_failure=show))
    say(f"Runs, results.json and ablation.json: {folder}")
    say(report_hint(folder))


def _table(pair: str, base: str, rows: list[AblationRow]) -> Table:
    metric = rows[0].metric
    digits = metric.digits(*(row.score for row in rows))
    numbers = (metric.name.removeprefix("target "), "to RPD", "95% interval", "p", "p (Holm)", "seeds")
    title, caption = f"{pair}: R, P and D of the recipe {base}", "difference: to RPD, the full method, by seed"
    table = new_table(title, words=["on"], numbers=numbers, caption=caption)
    best = max((row.score for row in rows if row.score is not None), default=None)
    for row in rows:
        cells = ["", "", "", ""]
        if row.paired is not None:
            several = row.paired.n > 1
            cells = [
                f"{row.paired.difference:+,.{digits}f}",
                f"{row.paired.low:+,.{digits}f} to {row.paired.high:+,.{digits}f}" if several else "",
                p_text(row.paired.p_value) if several else "",
                "" if row.p_holm is None else p_text(row.p_holm),
            ]
        score = Mean(row.score, row.score_deviation, len(row.seeds)).text(digits)
        style = "bold" if best is not None and row.score == best else ""
        table.add_row(row.letters, score, *cells, str(len(row.seeds)), style=style)
    return table


def p_text(value: float) -> str:
    """A p-value as people read it."""
    return "<.0001" if value < 1e-4 else f"{value:.4f}".removeprefix("0") if value < 1 else "1"


# ``daband sweep``: a grid of settings, and which of them each rule of selection picks.


_SHORT = {"source-validation": "source", "mutual-information": "mutual"}


def sweep(
    name: Name,
    grid: Annotated[
        list[str] | None, typer.Option(help="Values of a setting, e.g. lambda=1,5,10; several grids multiply.")
    ] = None,
    select: Annotated[
        str, typer.Option(help=f"The rule that picks: {', '.join(SELECTION_RULES)}.")
    ] = "mutual-information",
    method: Annotated[str, typer.Option(help="The method.")] = "daband",
    seeds: Seeds = None,
    jobs: Jobs = 1,
    ray: Ray = None,
    out: Out = None,
    overrides: Overrides = None,
) -> None:
    """Run a method with a grid of settings, and choose between them by a named rule.

    Example: daband sweep market.toml --grid alpha=0.1,0.5 --method linucb
    """
    if select not in SELECTION_RULES:
        raise InvalidInput(f"unknown rule {select!r} (known: {', '.join(SELECTION_RULES)})")
    experiment = load_experiment(name, overrides or ())
    values = parse_grid(grid) if grid else experiment.grid
    specs = sweep_runs(experiment, grid=values, method=method, seeds=seed_numbers(seeds))
    folder = out or Path("runs") / f"{stem(name)}-sweep"

    def show(records: Records) -> tuple[list[Point], list[SweepChoice]]:
        from daband.bench.report._sections_results import selection_table  # brings matplotlib

        points = sweep_points(records, _measure(records, folder))
        picked = choices(points)
        for pair, of_pair in group_by(points, lambda point: point.pair).items():
            console.print(_points_table(pair, of_pair))
            listed = [asdict(choice) for choice in picked if choice.pair == pair]
            console.print(report_table(selection_table(pair, listed, _metric(of_pair))))
        return points, picked

    points, picked = show(run_all(specs, folder, jobs=jobs, ray=ray, on_failure=show))
    selected = write_sweep(folder, rule=select, grid=values, points=points, picked=picked)
    for variant in dict.fromkeys(record["variant"] for record in selected):
        say(f"Selected by {select}: {variant}")
    say(f"Runs, results.json and sweep.json: {folder}")
    say(report_hint(folder))


def _measure(records: Records, folder: Path) -> dict[str, dict[str, float | None]]:
    try:
        with Progress(console=console, transient=True) as bar:
            line = bar.add_task("measuring", total=len(records))
            return measure(records, folder, progress=lambda _: bar.advance(line))
    except KeyboardInterrupt as stopped:
        raise interrupted_exit(folder, stopped) from None


def _points_table(pair: str, points: list[Point]) -> Table:
    metric = _metric(points)
    digits = metric.digits(*(point.score for point in points))
    rules = list(points[0].criteria)
    numbers = (metric.name.removeprefix("target "), *(_SHORT.get(rule, rule) for rule in rules))
    title = f"{pair}: what the rules see, and the {metric.name} they do not"
    table = new_table(title, words=["settings"], numbers=numbers)
    for point in points:
        score = Mean(point.score, point.score_deviation, len(point.seeds)).text(digits)
        criteria = (point.criteria[rule] for rule in rules)
        table.add_row(escape(point.variant), score, *("" if value is None else f"{value:.3f}" for value in criteria))
    return table


def _metric(points: list[Point]) -> Metric:
    accuracy, value = TARGET_ACCURACY, TARGET_VALUE
    return accuracy if points[0].metric == accuracy.field else value
