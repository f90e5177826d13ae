"""Define the command ``example``, which writes small data sets, and the part of ``demo`` that needs
no extra packages.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import daband
from daband.base._files import make_folder, write_bytes
from daband.cli._shared import console, print_line
from daband.domains._data_options import DataOptions
from daband.domains._examples import Example, fill_rewards, list_examples, read_example
from daband.domains.readers._reading import read_table
from daband.errors import InvalidInput
from daband.ledger._market import open_market


def example_command(
    name: Annotated[str | None, Argument(help="The example; without it, all are listed.")] = None,
    out: Annotated[Path, Option(help="The folder for the files.")] = Path(),
    fill: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Instead, fill in the column reward of this log or these questions.",
        ),
    ] = None,
) -> None:
    """Write a small data set, and print the commands to run on it.

    Existing files are never overwritten.

    Example: daband example ab-test --out ab-test/
    """
    if name is None:
        for known_name in list_examples():
            print_line(f"{known_name:<10}{read_example(known_name).summary}")
        return
    if fill is not None:
        if fill.suffix.lower() != ".csv":
            raise InvalidInput(f"--fill must be a .csv file, got {fill}")
        rows = fill_rewards(name, read_table(fill))
        write_bytes(fill, rows.write_csv().encode())
        mean = float(rows.select("reward").mean().item())
        print_line(f"Written: {len(rows):,} rewards in {fill}, {mean:.2f} on average")
        return
    example = write_example(name, out)
    print_line("")
    if out != Path():
        print_line(f"cd {shlex.quote(str(out))}")
    print_line(example.commands)


def write_example(name: str, folder: Path) -> Example:
    """Write the files of an example, and print their names.

    Raise an error if a file exists with another content.
    """
    example = read_example(name)
    paths = {folder / file_name: content for file_name, content in example.files.items()}
    for path, content in paths.items():
        if path.exists() and (not path.is_file() or path.read_bytes() != content):
            raise InvalidInput(f"{path} exists and differs; choose another folder by --out")
    for path, content in paths.items():
        make_folder(path.parent)
        write_bytes(path, content)
    names = sorted({file_name.partition("/")[0] for file_name in example.files})
    print_line(f"Written to {folder.resolve()}: {', '.join(names)} ({example.summary}).")
    return example


def choose_for_ab_test(folder: Path) -> None:
    """Write the example ab-test into a folder, choose a policy for it, and print the verdict."""
    write_example("ab-test", folder)
    options = DataOptions(
        source=str(folder / "norway.csv"),
        target=str(folder / "sweden.csv"),
        arm="offer",
        reward="euros",
        propensity="p",
        id=("customer",),
    )
    with console.status("Learning from the test ..."):
        choice = daband.choose(options.read(), incumbent="letter", unit="euros")
        choice.save(folder / "market")
        with open_market(folder / "market") as market:
            report = market.report()
    print_line(choice.assessment.sentence)
    print_line(f"Chosen: {choice.candidate} ({choice.rule}).")
    print_line(f"Report: {report}")
