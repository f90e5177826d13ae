"""What ``daband run --profile`` shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from daband.cli.lines import say
from daband.experiments import RunSpec, profile_run

__all__ = ["profiled"]

_MEANING = {
    "step": "gradient steps",
    "features": "encoding contexts for the head",
    "head": "choosing, learning and refitting",
    "host": "everything else: data, bookkeeping, files",
}


def profiled(specs: Sequence[RunSpec], out: Path, *, console: Console) -> None:
    """Do these runs one after the other, each with a stopwatch; say where the time went and where the trace lies."""
    for spec in specs:
        with console.status(f"Profiling {spec.method} on {spec.pair} ..."):
            found = profile_run(spec, out)
        total = sum(found.seconds.values())
        table = Table(title=f"{spec.method} on {spec.pair}: where {total:.1f} s of training went")
        for heading in ("part", "seconds", "share"):
            table.add_column(heading, justify="left" if heading == "part" else "right")
        table.add_column("which is")
        for part, seconds in found.seconds.items():
            table.add_row(part, f"{seconds:.2f}", f"{seconds / total:.1%}", _MEANING[part])
        console.print(table)
        say(console, f"Trace: {found.trace}")
        console.print("Open it at ui.perfetto.dev or in chrome://tracing; it stays on your machine.")
