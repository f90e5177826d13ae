"""User files on the command line: ``--source old.csv --target new.csv`` instead of a preset's name.

``takes_files`` adds the options to a command. If they are used, it shows the roles of the columns, writes them to a
TOML file, and calls the command with that file as NAME. Later commands take the file as well.
"""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from daband._files import make_folder, write_text
from daband.cli._shared import console, say
from daband.domains._contract import LoggedDomain, Pair
from daband.domains.datasets._user_files import PICTURE_SIDE, FilesRead, arm_tables, read_files
from daband.domains.readers._columns import ColumnRoles, Columns, Notice, column_notices, read_catalogue
from daband.domains.readers._tables import from_table
from daband.errors import InvalidInput


def _option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help)


def _file_options(
    *,
    source: Annotated[str | None, _option("The old market: a CSV or Parquet file, or a folder of pictures.")] = None,
    target: Annotated[str | None, _option("The new market; its rewards or labels are not used.")] = None,
    domain: Annotated[
        str | None, _option("A column of the one table --source that names a row's market; --target is then its value.")
    ] = None,
    label: Annotated[str | None, _option("The column that names the right arm.")] = None,
    arm: Annotated[str | None, _option("Column of a log with the chosen arm.")] = None,
    reward: Annotated[str | None, _option("Column of a log with the reward, in any unit.")] = None,
    propensity: Annotated[
        str | None, _option("Column of a log with the probability of the chosen arm; estimated if not given.")
    ] = None,
    offered: Annotated[
        str | None, _option("Column of a log with the arms that could be chosen, separated by |; default: all.")
    ] = None,
    id: Annotated[list[str] | None, _option("A column that names a row; it is left out.")] = None,
    category: Annotated[list[str] | None, _option("A column to read as a category.")] = None,
    number: Annotated[list[str] | None, _option("A column to read as a number.")] = None,
    date: Annotated[list[str] | None, _option("A column to read as a date.")] = None,
    drop: Annotated[list[str] | None, _option("A column to leave out.")] = None,
    text: Annotated[list[str] | None, _option("A column of texts, which --encoder reads.")] = None,
    encoder: Annotated[
        str | None,
        _option("Read pictures or texts by a frozen encoder: timm:NAME, sentence-transformers:NAME, model.onnx."),
    ] = None,
    arms: Annotated[
        list[str] | None, _option("A table of arms with features; give two if the target has other arms.")
    ] = None,
    side: Annotated[int, _option("Of pictures, pixels a side; more take longer.")] = PICTURE_SIDE,
    shift: Annotated[str | None, _option("What may differ: covariate, units, style, labels, or several.")] = None,
    units: Annotated[list[str] | None, _option("A column in other units in the target, e.g. a price.")] = None,
    settings: Annotated[Path | None, _option("Where the choices go; by default daband.toml in --out.")] = None,
) -> None:
    """Options of every command that takes files; several columns: --drop one --drop two, or --drop one,two."""


_LISTS = ("id", "category", "number", "date", "drop", "text", "units", "arms")


def takes_files(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with options for files; its first argument, NAME, is then optional."""
    command_parameters, file_parameters = (
        inspect.signature(function, eval_str=True).parameters for function in (command, _file_options)
    )

    @wraps(command)
    def with_files(**given: Any) -> None:
        files = {name: given.pop(name) for name in file_parameters}
        named = {name: value for name, value in files.items() if value not in (None, [], PICTURE_SIDE)}
        if not named:
            if given["name"] is None and command_parameters["name"].default is inspect.Parameter.empty:
                raise InvalidInput("give a preset's NAME, a TOML file, or --source old.csv --target new.csv")
            command(**given)
            return
        if given["name"] is not None:
            raise InvalidInput(f"{given['name']!r} and --{next(iter(named))} are both given: NAME, or files")
        if not (files["source"] and files["target"]):
            missing = "target" if files["source"] else "source"
            raise InvalidInput(f"--{missing} is needed as well: --source old.csv --target new.csv")
        out = given.get("out") or Path("runs") / _label(files["source"], files["target"])
        if "out" in command_parameters:
            given["out"] = out
        file, open_questions = _settle(files, out, command.__name__.removesuffix("_command"))
        command(**{**given, "name": str(file)})
        for line in open_questions:  # repeated, because the training output may have scrolled the questions away
            say(f"Still open: {line}", style="yellow")

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in command_parameters.values()]
    index = list(command_parameters).index("name")
    annotation = Annotated[(str | None, *parameters[index].annotation.__metadata__)]
    parameters[index] = parameters[index].replace(default=None, annotation=annotation)
    parameters += [each for name, each in file_parameters.items() if name not in command_parameters]
    with_files.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_files.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_files


def table_as_log(path: str, file: Path, named: dict[str, Any]) -> tuple[Pair, Columns]:
    """Write one table as a log to a Parquet file, and show its types. Return its pair, and the columns of the file."""
    read = read_files(path, path, ColumnRoles(**named))
    _show(read, {"source": path, "target": None, "shift": "covariate", "units": []})
    pair = from_table(source=read.source, target=read.target, columns=read.columns, source_test=None)
    assert isinstance(pair.source, LoggedDomain)
    logged = pair.source.read_log(np.arange(len(pair.source)))
    names = [f"logged {role}" for role in ("arm", "reward", "propensity")]  # names that no column of the table has
    frame = read.source.select(read.columns.context).with_columns(**dict(zip(names, logged, strict=True)))
    frame.write_parquet(file)
    return pair, Columns(read.columns.context, arm=names[0], reward=names[1], propensity=names[2])


def _label(source: str, target: str) -> str:
    return "-to-".join(Path(path).name.partition(".")[0] or "files" for path in (source, target))


def _settle(files: dict[str, Any], out: Path, command: str) -> tuple[Path, list[str]]:
    """Show the roles of columns, and write them to a TOML file. Return that file and the open questions."""
    options: dict[str, Any] = {}
    open_questions: list[str] = []
    for name, value in files.items():
        if name == "settings" or not value:
            continue
        options[name] = _split_names(value) if name in _LISTS else value
    paths = ("source",) if options.get("domain") else ("source", "target")
    for name in paths:
        options[name] = str(Path(options[name]).expanduser().resolve())
    if Path(options.get("encoder", "")).exists() and "encoder" in options:
        options["encoder"] = str(Path(options["encoder"]).resolve())
    if "arms" in options:
        options["arms"] = [str(Path(path).expanduser().resolve()) for path in options["arms"]]
    if all(Path(options[name]).is_dir() for name in paths):
        say(f"Pictures of {options['source']}, a sub-folder a class; target: {options['target']}")
        side = options["side"]
        shown = (
            f"Read as {side} x {side} pixels. --side {2 * side} shows more, and takes four times as long. Without a "
            "GPU a network takes minutes. --encoder NAME reads them by a pretrained model."
        )
        if "encoder" in options:
            del options["side"]
            shown = f"Read by {options['encoder']}. Its features are kept in the cache folder."
        say(shown)
    else:
        options.pop("side", None)
        taken = ("source", "target", "domain", "shift", "units", "arms")
        roles = ColumnRoles(**{name: value for name, value in options.items() if name not in taken})
        read = read_files(options["source"], options["target"], roles, domain=options.get("domain", ""))
        if "arms" in options:
            listed = arm_tables(options["arms"])
            catalogue = read_catalogue(listed, str(read.columns.arm or read.columns.label))
            assert catalogue.table is not None
            say(f"Arms: {len(catalogue.names):,}, with the features {', '.join(catalogue.table.names)}.")
        open_questions = [str(notice) for notice in _show(read, files) if notice.is_open]
        _check_units(read, options.get("units", []))
    settings = files["settings"] or make_folder(out, "out") / "daband.toml"
    text = _toml(options)
    if (
        settings.is_file()
        and settings.read_text() != text
        and any(path != settings for path in settings.parent.iterdir())
    ):
        raise InvalidInput(
            f"{settings.parent} holds results of other settings ({settings.name}); choose another --out, or "
            "remove the folder"
        )
    write_text(settings, text)
    quoted = shlex.quote(str(settings))
    again = f"assess POLICY --on {quoted}" if command == "assess" else f"{command} {quoted}"
    say(f"Settings: {settings} (edit the file and continue with `daband {again}`)")
    return Path(settings), open_questions


def _split_names(values: list[str] | None) -> list[str]:
    return [part.strip() for one in values or () for part in one.split(",")]


def _check_units(read: FilesRead, units: list[str]) -> None:
    numeric = [column.name for column in read.types if column.role == "number"]
    for name in units:
        if name not in numeric:
            raise InvalidInput(f"--units {name} is no column of numbers (those are: {', '.join(numeric) or 'none'})")


def _show(read: FilesRead, files: dict[str, Any]) -> list[Notice]:
    """Print the types of columns. Return the differences between the files."""
    target = f"; {files['target']}: {len(read.target):,}" if files["target"] else ""
    table = Table(title=escape(f"{files['source']}: {len(read.source):,} rows{target}"))
    for heading in ("column", "read as", "why"):
        table.add_column(heading, overflow="fold")
    for column in read.types:
        style = "dim" if column.role == "left out" else ""
        table.add_row(escape(column.name), column.role, escape(column.why), style=style)
    console.print(table)
    extra = [name for name in read.target.columns if name not in read.source.columns]
    if extra:
        say(f"Only the target has {', '.join(extra)}: left out.")
    label, reward = read.columns.label, read.columns.reward
    if label in read.target.columns and not read.target[label].null_count():
        say(f"The target has labels in {label}: half of its rows are kept to measure by, no other label is used.")
    elif reward in read.target.columns and read.target is not read.source:
        say(f"The target has rewards in {reward}: they are not used here, `daband learn` takes them later.")
    notices = column_notices(read.source, read.target, read.types, units=_split_names(files["units"]))
    for notice in notices:
        say(str(notice), style="yellow")
    say("Another type: --category, --number, --date, --drop COLUMN, or --text COLUMN --encoder NAME.")
    if files["shift"] is None and not files["units"]:
        say(
            "No shift was stated: a number means the same in both domains (--shift covariate). For amounts in another "
            "currency: --units price. For other looks or sensors: --shift style."
        )
    return notices


def _toml(options: dict[str, Any]) -> str:
    lines = ["# Written by daband from the files named below; every command takes this file as NAME.", 'pair = "files"']
    lines += ['episodes = "auto"', "seeds = [0, 1, 2]", "", "[pair_options]"]
    lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in options.items()]
    return "\n".join(lines) + "\n"
