"""Arguments and options that several commands share, and how lists of numbers are read and written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from daband.domains.readers._columns import Columns
from daband.errors import DabandError, InvalidInput

Name = Annotated[str, typer.Argument(help="A preset (see `daband presets`) or a TOML file.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds, e.g. 0-4 or 0,2,7.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time, each in a process of its own.")]
Out = Annotated[Path | None, typer.Option(help="Where the runs and results.json go.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: key=value, e.g. --set episodes=20.")
]
ArmColumn = Annotated[str, typer.Option("--arm", help="The column with the chosen arm, by name or number.")]
RewardColumn = Annotated[str, typer.Option("--reward", help="The column with its reward; empty where none has come.")]
PropensityColumn = Annotated[str, typer.Option("--propensity", help="The column with its propensity.")]
ContextColumns = Annotated[
    str | None, typer.Option(help="Context columns, e.g. age,weight; by default all but arm, reward, propensity.")
]
WeightColumn = Annotated[
    str | None, typer.Option(help="The column with the weight of a round; by default weights follow from propensities.")
]
SkipDamaged = Annotated[bool, typer.Option(help="Leave out files that cannot be read, with a warning.")]
SomeLog = Annotated[str, typer.Argument(help="Parquet or CSV: a file, a folder, or a glob in quotes.")]
SomePolicy = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or a choice, or a saved policy.")]
SomePolicyOrExport = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of a run or a choice, a saved policy, or an exported file.")
]

_MOST = 100_000
# The remedies that commands offer, by the argument of the function.
_REMEDIES = {
    "on_damaged": "--skip-damaged leaves it out",
    "columns": "name the context columns with --context",
    "arm": "if it has another name, give --arm, --reward or --propensity",
    "before": "",
}


def stem(name: str) -> str:
    """What an experiment's folder is called: the preset's name, or the file's without its ending."""
    return (Path(name).stem if name.endswith(".toml") else name).replace("/", "-")


def log_columns(
    context: str | None, *, arm: str = "arm", reward: str = "reward", propensity: str = "propensity"
) -> Columns | None:
    """The columns of a log whose context columns are named, separated by commas; None where they are not."""
    if context is None:
        return None
    names = tuple(name.strip() for name in context.split(",") if name.strip())
    if not names:
        raise InvalidInput("--context names no column")
    return Columns(names, arm=arm, reward=reward, propensity=propensity)


def error_text(error: DabandError) -> str:
    """Return an error with the remedies that commands offer."""
    remedies = (_REMEDIES.get(argument, text) for argument, text in error.remedies.items())
    return "; ".join([error.message, *filter(None, remedies)])


def seed_numbers(text: str | None) -> list[int] | None:
    """Turn "0-4,7" into [0, 1, 2, 3, 4, 7]; None where no seeds are named."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise InvalidInput(f"seeds must look like 0-4 or 0,2,7, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InvalidInput(f"seeds: the range {part.strip()!r} runs backwards")
        if last - first >= _MOST:
            raise InvalidInput(f"seeds: the range {part.strip()!r} has more than {_MOST:,} numbers")
        numbers.extend(range(first, last + 1))
    return list(dict.fromkeys(numbers))


def spans(numbers: Sequence[int]) -> str:
    """Turn [0, 1, 2, 3, 4, 7] into "0-4, 7"; the other way round of ``seed_numbers``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
