"""``daband continue``: finished runs continued in the target, with its rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from daband.cli.options import Jobs
from daband.cli.progress import CONTINUING, watch
from daband.cli.running import interrupted_exit, interruptible, report_hint, say, warnings_on
from daband.experiments import BenchError, continue_bench, finished_runs
from daband.experiments.records import TARGET_ACCURACY, Records, decimals, metric_of
from daband.experiments.run import read_spec
from daband.report import Mean

__all__ = ["continue_command"]

_CAPTION = "continued: in the rounds played now, with rewards; zero-shot: before, on the evaluation contexts"


def continue_command(
    folder: Annotated[Path, typer.Argument(help="A finished run, or a folder of runs.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play in the target.")] = 1920,
    prior_trust: Annotated[
        str | None,
        typer.Option(help="How much the source's rounds count: a factor from 0 to 1, or adaptive (the default)."),
    ] = None,
    jobs: Jobs = 1,
) -> None:
    """Go on in the target, now with its rewards: how much is the head start worth?"""
    console = Console()
    specs = [read_spec(path) for path in finished_runs(folder)]
    try:
        with warnings_on(console), watch(specs, console, CONTINUING) as drawing, interruptible(drawing) as listener:
            trust = _number_or_name(prior_trust)
            records = continue_bench(folder, rounds=rounds, prior_trust=trust, jobs=jobs, on_event=listener)
    except BenchError as error:
        if error.records:
            console.print(_table(error.records))
        raise
    except KeyboardInterrupt as stopped:
        raise interrupted_exit(folder, stopped) from None
    console.print(_table(records))
    if (folder / "continued.json").is_file():
        say(console, f"Written: {folder / 'continued.json'}")
    say(console, report_hint(folder))


def _number_or_name(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _table(records: Records) -> Table:
    groups: dict[tuple[str, str, str], Records] = {}
    for record in records:
        groups.setdefault((record["pair"], record["method"], record["variant"]), []).append(record)
    several = len({pair for pair, _, _ in groups}) > 1
    fields = {"continued": "continued_regret", "zero-shot": "zero_shot_regret", "total": "total_regret"}
    if metric_of(records) is not TARGET_ACCURACY:  # rewards in the user's unit: what a round pays, too
        fields = {"reward a round": "continued_reward", **fields}
    digits = {
        name: 1 if metric_of(records) is TARGET_ACCURACY else decimals(*(record[field] for record in records))
        for name, field in fields.items()
    }
    table = Table(title="cumulative regret in the target", caption=_CAPTION)
    table.add_column("method", overflow="fold")
    for heading in ("rounds", *fields, "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (pair, method, variant), group in groups.items():
        name = " ".join([*([pair] if several else []), method, *([] if variant == "default" else [variant])])
        cells = [
            Mean.of([record[field] for record in group]).text(digits[heading]) for heading, field in fields.items()
        ]
        table.add_row(escape(name), f"{group[0]['rounds']:,}", *cells, str(len(group)))
    return table
