"""Make the options of ``DataOptions`` options of a command, and print what is read from files."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

from rich.markup import escape
from typer import Option

import daband
from daband.cli._shared import console, make_table, print_line
from daband.domains._data_options import DataOptions, UserTables
from daband.domains.readers._columns import read_catalogue


def add_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of ``DataOptions`` instead of its parameter
    ``data``.

    Options with several names are given as --drop one --drop two, or as --drop one,two.
    """
    option_fields = [field for field in fields(DataOptions) if "help" in field.metadata]
    option_fields.sort(key=lambda field: field.name not in ("source", "target"))
    types = get_type_hints(DataOptions)
    parameters = {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "data"
    }
    for field in option_fields:
        takes_names = field.default == ()
        value_type = list[str] | None if takes_names else types[field.name]
        option = Option(help=field.metadata["help"], metavar="NAMES" if takes_names else None)
        parameters[field.name] = inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=(
                inspect.Parameter.empty
                if field.default == ""
                else None
                if takes_names
                else field.default
            ),
            annotation=Annotated[value_type, option],
        )

    @wraps(command)
    def run_command(**arguments: Any) -> None:
        options = {field.name: arguments.pop(field.name) for field in option_fields}
        for field in option_fields:
            if field.default == ():
                options[field.name] = split_names(options[field.name])
        command(data=DataOptions(**options), **arguments)

    run_command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run_command.__annotations__ = {
        name: parameter.annotation for name, parameter in parameters.items()
    }
    return run_command


def split_names(texts: list[str] | None) -> list[str]:
    """Return the names in these texts. A text may have several names, separated by commas."""
    return [name.strip() for text in texts or () for name in text.split(",")]


def print_images(data: DataOptions) -> None:
    """Print how folders of images are read."""
    print_line(f"Images in {data.source}, one sub-folder per class; target: {data.target}")
    if data.encoder:
        print_line(
            f"Images are encoded by {data.encoder}. The features are stored in the cache folder."
        )
        return
    print_line(
        f"Images are resized to {data.side} x {data.side} pixels; --side {2 * data.side} takes four"
        " times as long. Without a GPU, training a network takes minutes. --encoder NAME uses the"
        " features of a pretrained model instead."
    )


def print_tables_read(data: DataOptions, tables: UserTables) -> None:
    """Print the roles of columns and possible mistakes."""
    if data.arms:
        catalogue = read_catalogue(
            data.read_arms(), str(tables.columns.arm or tables.columns.label)
        )
        assert catalogue.table is not None
        print_line(
            f"Arms: {len(catalogue.names):,}, with the features {', '.join(catalogue.table.names)}."
        )
    table = make_table(
        f"{data.source}: {len(tables.source):,} rows; {data.target}: {len(tables.target):,}",
        text_headings=["column", "role", "reason"],
    )
    for column in tables.column_roles:
        style = "dim" if column.role == "ignored" else ""
        table.add_row(escape(column.name), column.role, escape(column.reason), style=style)
    console.print(table)
    used_names = {*tables.source.columns, *data.id}
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
    for notice in tables.notices:
        print_line(str(notice), style="yellow")
    if tables.columns.arm is not None and not tables.columns.encoders:
        for finding in daband.check_log(tables.source, tables.columns).findings:
            print_line(finding, style="yellow")
    print_line(
        "To change roles: --category, --number, --date, --drop COLUMN, or --text COLUMN --encoder"
        " NAME."
    )
    if data.shift is None and not data.units:
        print_line(
            "No shift was stated, so numbers are assumed to mean the same in both domains (--shift"
            " covariate). For amounts in another currency, use --units price; for another"
            " appearance or sensor, --shift style."
        )
