"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Jobs", "Name", "Out", "Overrides", "Ray", "Seeds", "stem"]

Name = Annotated[str, typer.Argument(help="A preset (see `daband presets`) or a TOML file.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds, e.g. 0-4 or 0,2,7.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time, each in a process of its own.")]
Ray = Annotated[
    str | None,
    typer.Option(help="Run on a Ray cluster: its address, or local for one on this machine with --jobs workers."),
]
Out = Annotated[Path | None, typer.Option(help="Where the runs and results.json go.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: key=value, e.g. --set episodes=20.")
]


def stem(name: str) -> str:
    """What an experiment's folder is called: the preset's name, or the file's without its ending."""
    return (Path(name).stem if name.endswith(".toml") else name).replace("/", "-")
