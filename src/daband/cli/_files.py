"""Add options for user files to commands, such as ``--source old.csv --target new.csv`` instead of
a preset's name.

``add_file_options`` adds these options to a command. If they are used, the roles of the columns are
printed and written to a TOML file, and the command is called with that file as NAME. Later commands
accept this file as NAME, too.
"""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table
from typer.models import ArgumentInfo

from daband.base._files import make_folder, write_text
from daband.cli._shared import console, print_line
from daband.domains._contract import LoggedDomain, Pair
from daband.domains.readers._columns import (
    Columns,
    Notice,
    StatedRoles,
    find_notices,
    read_catalogue,
)
from daband.domains.readers._tables import from_table
from daband.domains.readers._user_files import (
    IMAGE_SIDE,
    UserTables,
    read_arm_tables,
    read_user_tables,
)
from daband.errors import InvalidInput


def _option(help: str, metavar: str | None = None) -> Any:
    """Return an option with this help text. ``metavar`` is the name of its value in the help."""
    return typer.Option(help=help, metavar=metavar)


#: Returns an option for the names of columns.
_columns = partial(_option, metavar="COLUMNS")


def _declare_file_options(
    *,
    source: Annotated[
        str | None, _option("The source data: a CSV or Parquet file, or a folder of images.")
    ] = None,
    target: Annotated[
        str | None, _option("The target data, in the same format; training ignores its rewards.")
    ] = None,
    domain: Annotated[
        str | None,
        _option(
            "The column of --source with the domain of each row; --target is then one of its"
            " values."
        ),
    ] = None,
    label: Annotated[
        str | None, _option("The column with the right arm, instead of --arm and --reward.")
    ] = None,
    arm: Annotated[str | None, _option("The column with the chosen arm of a log.")] = None,
    reward: Annotated[
        str | None, _option("The column with the reward of a log, in any unit.")
    ] = None,
    propensity: Annotated[
        str | None,
        _option("The column with the probability of the chosen arm; estimated by default."),
    ] = None,
    offered: Annotated[
        str | None,
        _option("The column with the arms that could be chosen, separated by |; default: all."),
    ] = None,
    id: Annotated[
        list[str] | None, _columns("Columns with ids, not used as context, e.g. customer,order.")
    ] = None,
    category: Annotated[
        list[str] | None, _columns("Columns to read as categories, e.g. city,channel.")
    ] = None,
    number: Annotated[list[str] | None, _columns("Columns to read as numbers.")] = None,
    date: Annotated[list[str] | None, _columns("Columns to read as dates.")] = None,
    drop: Annotated[list[str] | None, _columns("Columns to ignore.")] = None,
    text: Annotated[list[str] | None, _columns("Columns of texts for --encoder.")] = None,
    encoder: Annotated[
        str | None,
        _option(
            "Encode images or texts by a frozen encoder: timm:NAME, sentence-transformers:NAME,"
            " model.onnx."
        ),
    ] = None,
    arms: Annotated[
        list[str] | None,
        _option(
            "A table of arms with features; one per domain if they differ: old.csv,new.csv.",
            "FILES",
        ),
    ] = None,
    side: Annotated[int, _option("Side of images in pixels; larger takes longer.")] = IMAGE_SIDE,
    shift: Annotated[
        str | None, _option("The assumed shift: covariate, units, style, labels, or several.")
    ] = None,
    units: Annotated[
        list[str] | None, _columns("Columns whose unit differs in the target, e.g. price.")
    ] = None,
    settings: Annotated[
        Path | None, _option("Store the data options in this file, instead of daband.toml.")
    ] = None,
) -> None:
    """Declare the options of every command that accepts files.

    It is never called. ``add_file_options`` copies its parameters to commands. Several columns are
    given as --drop one --drop two, or as --drop one,two.
    """


#: Options that take several names.
_LIST_OPTIONS = ("id", "category", "number", "date", "drop", "text", "units", "arms")


def add_file_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of ``_declare_file_options``, and with NAME optional."""
    command_parameters, file_parameters = (
        inspect.signature(function, eval_str=True).parameters
        for function in (command, _declare_file_options)
    )

    @wraps(command)
    def run_with_files(**arguments: Any) -> None:
        file_options = {name: arguments.pop(name) for name in file_parameters}
        given_options = [
            name for name, value in file_options.items() if value not in (None, [], IMAGE_SIDE)
        ]
        if not given_options:
            if (
                arguments["name"] is None
                and command_parameters["name"].default is inspect.Parameter.empty
            ):
                raise InvalidInput(
                    "missing NAME (a preset or a TOML file), or --source old.csv --target new.csv"
                )
            command(**arguments)
            return
        if arguments["name"] is not None:
            raise InvalidInput(f"{arguments['name']!r} and --{given_options[0]} cannot be combined")
        if not (file_options["source"] and file_options["target"]):
            missing_option = "target" if file_options["source"] else "source"
            raise InvalidInput(f"--{missing_option} is missing: --source old.csv --target new.csv")
        run_name = _get_run_name(file_options["source"], file_options["target"])
        out_folder = arguments.get("out") or Path("runs") / run_name
        if "out" in command_parameters:
            arguments["out"] = out_folder
        settings_path, open_notices = _write_settings(file_options, out_folder)
        arguments["name"] = str(settings_path)
        repeated_command = _format_command(
            command, command_parameters, {**arguments, "out": f"{out_folder}-2"}
        )
        print_line(
            f"Settings: {settings_path} (to change them, edit the file and call"
            f" `{repeated_command}`)"
        )
        command(**arguments)
        for notice in open_notices:  # printed again, because training prints much
            print_line(f"Please check: {notice}", style="yellow")

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in command_parameters.values()
    ]
    name_index = list(command_parameters).index("name")
    annotation = Annotated[(str | None, *parameters[name_index].annotation.__metadata__)]
    parameters[name_index] = parameters[name_index].replace(default=None, annotation=annotation)
    parameters += [
        parameter for name, parameter in file_parameters.items() if name not in command_parameters
    ]
    run_with_files.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_with_files.__annotations__ = {
        parameter.name: parameter.annotation for parameter in parameters
    }
    return run_with_files


def _format_command(
    command: Callable[..., None],
    parameters: Mapping[str, inspect.Parameter],
    arguments: Mapping[str, Any],
) -> str:
    """Return the command line that calls a command with these arguments, without options that have
    their default.
    """
    words = ["daband", command.__name__.removesuffix("_command")]
    for name, parameter in parameters.items():
        value, (declaration, *_) = arguments[name], parameter.annotation.__metadata__
        if isinstance(declaration, ArgumentInfo):
            words.append(str(value))
        elif value != parameter.default:
            option = (
                declaration.default
                if isinstance(declaration.default, str)
                else f"--{name.replace('_', '-')}"
            )
            values = value if isinstance(value, list) else [value]
            words += (
                [option]
                if value is True
                else [word for item in values for word in (option, str(item))]
            )
    return shlex.join(words)


def write_table_as_log(
    table_path: str, log_path: Path, roles: dict[str, Any]
) -> tuple[Pair, Columns]:
    """Write the table at ``table_path`` as a log to the Parquet file ``log_path``, and print the
    roles of its columns.

    Return the pair that is read from the table, and the roles of the columns in the Parquet file.
    """
    tables = read_user_tables(table_path, table_path, StatedRoles(**roles))
    _print_columns(
        tables, {"source": table_path, "target": None, "shift": "covariate", "units": []}
    )
    pair = from_table(
        source=tables.source, target=tables.target, columns=tables.columns, source_test=None
    )
    assert isinstance(pair.source, LoggedDomain)
    # The names of these columns must differ from those of the table.
    arm, reward, propensity = (f"logged {role}" for role in ("arm", "reward", "propensity"))
    log_columns = dict(
        zip(
            (arm, reward, propensity),
            pair.source.read_log(np.arange(len(pair.source))),
            strict=True,
        )
    )
    tables.source.select(tables.columns.context).with_columns(**log_columns).write_parquet(log_path)
    return pair, Columns(tables.columns.context, arm=arm, reward=reward, propensity=propensity)


def _get_run_name(source: str, target: str) -> str:
    """Return the name of the folder for results on these files."""
    return "-to-".join(Path(path).name.partition(".")[0] or "files" for path in (source, target))


def _write_settings(file_options: dict[str, Any], out_folder: Path) -> tuple[Path, list[Notice]]:
    """Print the roles of columns, and write the options to a TOML file.

    Return the path of this file, and the notices on which the user must decide.
    """
    options: dict[str, Any] = {}
    open_notices: list[Notice] = []
    for name, value in file_options.items():
        if name == "settings" or not value:
            continue
        options[name] = _split_names(value) if name in _LIST_OPTIONS else value
    path_options = ("source",) if options.get("domain") else ("source", "target")
    for name in path_options:
        options[name] = str(Path(options[name]).expanduser().resolve())
    if Path(options.get("encoder", "")).exists() and "encoder" in options:
        options["encoder"] = str(Path(options["encoder"]).resolve())
    if "arms" in options:
        options["arms"] = [str(Path(path).expanduser().resolve()) for path in options["arms"]]
    if all(Path(options[name]).is_dir() for name in path_options):
        print_line(
            f"Images in {options['source']}, one sub-folder per class; target: {options['target']}"
        )
        side = options["side"]
        message = (
            f"Images are resized to {side} x {side} pixels; --side {2 * side} takes four times as"
            " long. Without a GPU, training a network takes minutes. --encoder NAME uses the"
            " features of a pretrained model instead."
        )
        if "encoder" in options:
            del options["side"]
            message = (
                f"Images are encoded by {options['encoder']}. The features are stored in the cache"
                " folder."
            )
        print_line(message)
    else:
        options.pop("side", None)
        non_roles = ("source", "target", "domain", "shift", "units", "arms")
        roles = StatedRoles(
            **{name: value for name, value in options.items() if name not in non_roles}
        )
        tables = read_user_tables(
            options["source"], options["target"], roles, domain=options.get("domain", "")
        )
        if "arms" in options:
            arm_tables = read_arm_tables(options["arms"])
            catalogue = read_catalogue(arm_tables, str(tables.columns.arm or tables.columns.label))
            assert catalogue.table is not None
            print_line(
                f"Arms: {len(catalogue.names):,}, with the features"
                f" {', '.join(catalogue.table.names)}."
            )
        open_notices = [
            notice for notice in _print_columns(tables, file_options) if notice.needs_decision
        ]
        _check_units(tables, options.get("units", []))
    settings_path = file_options["settings"] or make_folder(out_folder, "out") / "daband.toml"
    toml_text = _format_toml(options)
    has_other_settings = settings_path.is_file() and settings_path.read_text() != toml_text
    if has_other_settings and any(path != settings_path for path in settings_path.parent.iterdir()):
        raise InvalidInput(
            f"{settings_path.parent} has results of other settings ({settings_path.name}); choose"
            " another --out, or remove the folder"
        )
    write_text(settings_path, toml_text)
    return Path(settings_path), open_notices


def _split_names(texts: list[str] | None) -> list[str]:
    """Return the names in these texts. A text may have several names, separated by commas."""
    return [name.strip() for text in texts or () for name in text.split(",")]


def _check_units(tables: UserTables, unit_columns: list[str]) -> None:
    """Raise an error if a column whose unit differs in the target is not numeric."""
    numeric_columns = [column.name for column in tables.column_roles if column.role == "number"]
    for name in unit_columns:
        if name not in numeric_columns:
            raise InvalidInput(
                f"--units {name} is not a numeric column ({', '.join(numeric_columns) or 'none'})"
            )


def _print_columns(tables: UserTables, file_options: dict[str, Any]) -> list[Notice]:
    """Print the roles of columns. Return notices about possible mistakes."""
    target_text = (
        f"; {file_options['target']}: {len(tables.target):,}" if file_options["target"] else ""
    )
    table = Table(
        title=escape(f"{file_options['source']}: {len(tables.source):,} rows{target_text}")
    )
    for heading in ("column", "role", "reason"):
        table.add_column(heading, overflow="fold")
    for column in tables.column_roles:
        style = "dim" if column.role == "ignored" else ""
        table.add_row(escape(column.name), column.role, escape(column.reason), style=style)
    console.print(table)
    used_names = {*tables.source.columns, *_split_names(file_options.get("id"))}
    target_only_columns = [name for name in tables.target.columns if name not in used_names]
    if target_only_columns:
        print_line(
            "Not used as contexts, because only the target has them:"
            f" {', '.join(target_only_columns)}. A column of today's choices may be the"
            " --incumbent."
        )
    label = tables.columns.label
    reward = tables.columns.reward
    if label in tables.target.columns and not tables.target[label].null_count():
        print_line(
            f"The target has labels in {label}: half of the rows are held out for evaluation."
        )
    elif reward in tables.target.columns and tables.target is not tables.source:
        print_line(
            f"The target has rewards in {reward}, which are not used here; `daband learn` can use"
            " them later."
        )
    units = _split_names(file_options["units"])
    domain = file_options.get("domain")
    notices = find_notices(
        tables.source, tables.target, tables.column_roles, units=units, domain=domain
    )
    for notice in notices:
        print_line(str(notice), style="yellow")
    print_line(
        "To change roles: --category, --number, --date, --drop COLUMN, or --text COLUMN --encoder"
        " NAME."
    )
    if file_options["shift"] is None and not file_options["units"]:
        print_line(
            "No shift was stated, so numbers are assumed to mean the same in both domains (--shift"
            " covariate). For amounts in another currency, use --units price; for another"
            " appearance or sensor, --shift style."
        )
    return notices


def _format_toml(options: dict[str, Any]) -> str:
    """Return the settings as TOML."""
    lines = [
        "# Written by daband for the files below; every command accepts this file as NAME.",
        'pair = "files"',
    ]
    lines += ['episodes = "auto"', "seeds = [0, 1, 2]", "", "[pair_options]"]
    lines += [
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in options.items()
    ]
    return "\n".join(lines) + "\n"
