"""``daband data``: lists pairs, and checks their files."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from daband.cli._output import console, say
from daband.domains._registry import check_data, data_directory, pairs

data_app = typer.Typer(
    name="data",
    help="List pairs of domains, and check their data.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_COLOURS = {"there": "green", "missing": "yellow", "damaged": "red"}


@data_app.command("list")
def list_command(
    everything: Annotated[
        bool, typer.Option("--all", help="Also the ordered pairs of amazon, handwritten and so on, one by one.")
    ] = False,
) -> None:
    """Show every pair, and whether its data are there.

    Example: daband --plugin mine.py data list --all
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("pair", no_wrap=True)
    for heading in ("what", "data", "options"):
        table.add_column(heading, overflow="fold")
    hidden = 0
    for name in pairs.names():
        if "/" in name and not everything:
            hidden += 1
            continue
        entry = pairs.get(name)
        state = "[green]ready[/green]" if entry.ready else "[yellow]missing[/yellow]"
        table.add_row(name, entry.about.summary, state, ", ".join(entry.options()))
    console.print(table)
    if hidden:
        console.print(f"and {hidden} ordered pairs such as amazon/books-dvd: --all shows them", style="dim")
    say(f"data directory: {data_directory()}", style="dim")


@data_app.command("check")
def check_command(
    names: Annotated[list[str] | None, typer.Argument(help="Pairs; without any, every pair that reads files.")] = None,
) -> None:
    """Say what is there, what is missing or damaged, where to get it and under which licence.

    Example: daband data check amazon/books-dvd
    """
    wanted = names or [name for name in pairs.names() if "/" not in name and pairs.get(name).resources]
    damaged = False
    say(f"data directory: {data_directory()}", style="dim")
    for name in wanted:
        statuses = list(check_data(name))
        console.print(f"[bold]{name}[/bold]")
        if not statuses:
            console.print("  needs nothing from outside")
        for status in statuses:
            colour = _COLOURS[status.state]
            damaged |= status.state == "damaged"
            optional = " (only for some forms)" if status.resource.optional else ""
            licence = f"licence: {status.resource.licence}"
            say(f"  [{colour}]{status.state:<8}[/{colour}]{status.resource.what}{optional}; {licence}", markup=True)
            say(f"           {status.path}", style="dim")
            if status.state != "there":
                say(f"           {status.resource.by_hand}")
    if damaged:
        raise typer.Exit(1)
