"""Read the small data sets that ``daband example`` writes.

Each is a folder of ``examples/`` in this package, so a new example needs no code. ``commands.txt``
starts with a line about the data, followed by the commands to run on them. ``rewards.csv``, if it
exists, has the reward of every arm for the ids in its first column, and is not written. A zip file
is written as the files in it.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from daband.base._arguments import check_one_of
from daband.base._lazy_polars import pl
from daband.domains.readers._reading import read_table
from daband.errors import InvalidInput

#: The folder of the examples.
_FOLDER = Path(__file__).with_name("examples")
#: The file with the description and the commands of an example.
_COMMANDS_FILE = "commands.txt"
#: The file with the reward of every arm.
_REWARDS_FILE = "rewards.csv"


@dataclass(frozen=True)
class Example:
    """A small data set, and the commands to run on it."""

    #: A noun phrase that describes the data.
    summary: str
    #: Shell commands.
    commands: str
    #: The content of each file by its path, in which "/" separates folders.
    files: dict[str, bytes]


def list_examples() -> list[str]:
    """Return the names of all examples."""
    return sorted(path.parent.name for path in _FOLDER.glob(f"*/{_COMMANDS_FILE}"))


def read_example(name: str) -> Example:
    """Return the example with this name."""
    check_one_of("the example", name, tuple(list_examples()))
    text = (_FOLDER / name / _COMMANDS_FILE).read_text(encoding="utf-8")
    files: dict[str, bytes] = {}
    for path in sorted((_FOLDER / name).iterdir()):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                files |= {inner: archive.read(inner) for inner in archive.namelist()}
        elif path.name not in (_COMMANDS_FILE, _REWARDS_FILE):
            files[path.name] = path.read_bytes()
    summary, _, commands = text.partition("\n")
    return Example(summary, commands.strip(), files)


def fill_rewards(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return a log or questions with the column reward filled in from an example's rewards."""
    path = _FOLDER / name / _REWARDS_FILE
    if not path.is_file():
        raise InvalidInput(f"the example {name!r} has no rewards to fill in")
    rewards = read_table(path)
    key = rewards.columns[0]
    id_columns = [
        name
        for name, dtype in rows.schema.items()
        if dtype == rewards[key].dtype and rows[name].is_in(rewards[key].implode()).all()
    ]
    arm_column = "arm_name" if "arm_name" in rows.columns else "arm"
    if not id_columns or arm_column not in rows.columns:
        raise InvalidInput(
            f"the file is not a log or questions on the data of the example {name!r}"
        )
    long = rewards.unpivot(index=key, variable_name=arm_column, value_name="reward")
    return rows.drop("reward", strict=False).join(
        long.rename({key: id_columns[0]}),
        on=[id_columns[0], arm_column],
        how="left",
        maintain_order="left",
    )
