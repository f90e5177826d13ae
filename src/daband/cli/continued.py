"""``daband continue``: what finished runs do once the target pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from daband.cli.interrupts import interruptible
from daband.cli.options import Jobs
from daband.cli.progress import CONTINUING, watch
from daband.cli.running import Records, interrupted_exit, report_hint, warnings_on
from daband.experiments import BenchError, continue_bench, finished_runs
from daband.experiments.run import read_spec
from daband.report import with_spread

__all__ = ["continue_command"]

_CAPTION = "continued: in the rounds played now, with rewards; zero-shot: before, on the contexts it was judged by"


def continue_command(
    folder: Annotated[Path, typer.Argument(help="A finished run, or a folder of runs.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play in the target.")] = 1920,
    jobs: Jobs = 1,
) -> None:
    """Go on in the target, now with its rewards: how much is the head start worth?"""
    console = Console()
    specs = [read_spec(path) for path in finished_runs(folder)]
    try:
        with warnings_on(console), watch(specs, console, CONTINUING) as drawing, interruptible(drawing) as listener:
            records = continue_bench(folder, rounds=rounds, jobs=jobs, on_event=listener)
    except BenchError as error:
        if error.records:
            console.print(_table(error.records))
        raise
    except KeyboardInterrupt as stopped:
        raise interrupted_exit(folder, stopped) from None
    console.print(_table(records))
    if (folder / "continued.json").is_file():
        console.print(f"Written: {folder / 'continued.json'}", soft_wrap=True, highlight=False)
    console.print(report_hint(folder), soft_wrap=True, highlight=False)


def _table(records: Records) -> Table:
    groups: dict[tuple[str, str, str], Records] = {}
    for record in records:
        groups.setdefault((record["pair"], record["method"], record["variant"]), []).append(record)
    table = Table(title="cumulative regret in the target", caption=_CAPTION)
    table.add_column("method", overflow="fold")
    for heading in ("rounds", "continued", "zero-shot", "total", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    several = len({pair for pair, _, _ in groups}) > 1
    for (pair, method, variant), group in groups.items():
        name = " ".join([*([pair] if several else []), method, *([] if variant == "default" else [variant])])
        cells = [_cell(group, field) for field in ("continued_regret", "zero_shot_regret", "total_regret")]
        table.add_row(name, f"{group[0]['rounds']:,}", *cells, str(len(group)))
    return table


def _cell(records: Records, field: str) -> str:
    values = [record[field] for record in records]
    if None in values:
        return "unknown"
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return with_spread(float(np.mean(values)), spread, len(values), 1)
