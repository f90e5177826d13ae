"""``daband export``: the policy of a finished run as one file that decides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from daband.cli.lines import say
from daband.errors import DataError, InvalidInput
from daband.files import read_json

__all__ = ["export_command"]


def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, e.g. market.daband.")],
    domain: Annotated[Literal["source", "target"], typer.Option(help="The domain it will act in.")] = "target",
    data: Annotated[
        bool, typer.Option(help="Read the run's data for what monitoring compares with; --no-data does without.")
    ] = True,
) -> None:
    """Write a run's policy to one file that decides on raw rows, without anything that it was trained on."""
    from daband import load
    from daband.domains import load as load_pair
    from daband.experiments.continued import finished_runs
    from daband.experiments.run import read_spec
    from daband.handover import export, load_deployed

    console = Console()
    runs = finished_runs(folder)
    if len(runs) > 1:
        raise InvalidInput(f"{folder} has {len(runs)} finished runs, e.g. {runs[0]}; name the folder of one")
    spec = read_spec(runs[0])
    pair = None
    if data:
        try:
            pair = load_pair(spec.pair, **spec.pair_options)
        except DataError as error:
            raise DataError(f"{error}. With --no-data the policy is exported without what monitoring needs") from None
    assessed = runs[0] / "assessment.json"
    policy = load(runs[0] / "policy.safetensors", device="cpu")
    names = read_json(runs[0] / "result.json").get("class_names")
    export(
        policy,
        file,
        pair=pair,
        domain=domain,
        arm_names=names,
        assessment=read_json(assessed) if assessed.is_file() else None,
    )
    say(console, f"{load_deployed(file)!r}")
    say(console, f"Written: {file} ({file.stat().st_size / 1024:,.0f} KiB)")
