"""Progress in the terminal: a bar for all runs, and a line for each one under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from daband.experiments import Event, RunSpec

__all__ = ["watch"]


@contextmanager
def watch(specs: Sequence[RunSpec], console: Console) -> Iterator[Callable[[Event], None]]:
    """A listener that draws what it hears. On a terminal lines are live; in a log each run ends with one line."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    lines: dict[str, TaskID] = {}
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True) as bar:
        total = bar.add_task("runs", total=len(specs), note="")

        def hear(event: Event) -> None:
            key = event.spec.folder_name
            name = f"{event.spec.method}, seed {event.spec.seed}"
            if event.kind == "episode":
                if key not in lines:
                    lines[key] = bar.add_task(
                        name, total=None if event.spec.episodes == "all" else event.spec.episodes, note=""
                    )
                regret = event.detail["regret"]
                note = "" if regret is None else f"regret {regret:.0f}"
                bar.update(lines[key], completed=event.detail["episode"], note=note)
                return
            if key in lines:
                bar.remove_task(lines.pop(key))
            bar.advance(total)
            if event.kind == "failed":
                console.print(f"[red]failed[/red]  {name}: {escape(event.detail['error'])}", highlight=False)
            elif not console.is_terminal:
                accuracy = event.detail["target_accuracy"]
                console.print(f"{event.kind}  {event.spec.pair}  {name}: target accuracy {accuracy:.4f}")

        yield hear
