"""``daband export``: the policy of a finished run or of a choice as one file that decides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from daband.cli.running import say
from daband.errors import DataError
from daband.files import read_json

__all__ = ["export_command"]


def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run or of a choice.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, e.g. market.daband.")],
    domain: Annotated[Literal["source", "target"], typer.Option(help="The domain it will act in.")] = "target",
    data: Annotated[
        bool, typer.Option(help="Read the run's data for what monitoring compares with; --no-data does without.")
    ] = True,
) -> None:
    """Write a run's policy to one file that decides on raw rows, without anything that it was trained on."""
    from daband import load
    from daband.experiments import policy_folder
    from daband.serving import export, load_deployed

    console = Console()
    found = policy_folder(folder)
    pair = None
    if data:
        try:
            pair = found.load_pair()
        except DataError as error:
            raise DataError(f"{error}. With --no-data the policy is exported without what monitoring needs") from None
    export(
        load(found.policy_file, device="cpu"),
        file,
        pair=pair,
        domain=domain,
        arm_names=_arm_names(found.path),
        assessment=None if found.assessment_file is None else read_json(found.assessment_file),
    )
    say(console, f"{load_deployed(file)!r}")
    say(console, f"Written: {file} ({file.stat().st_size / 1024:,.0f} KiB)")


def _arm_names(folder: Path) -> list[str] | None:
    """What the run or the choice wrote down of the arms' names: known without the data."""
    for name in ("result.json", "choice.json"):
        if (folder / name).is_file():
            names: list[str] | None = read_json(folder / name).get("class_names")
            return names
    return None
