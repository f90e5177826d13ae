"""The page of the command line, written from the commands themselves."""

from __future__ import annotations

import re
from typing import Any

import typer

from daband.cli._main import app

__all__ = ["command_page", "commands"]


def commands() -> list[tuple[str, Any]]:
    """Every command with its full name, groups before their members."""
    found: list[tuple[str, Any]] = []

    def walk(name: str, command: Any) -> None:
        found.append((name, command))
        for child, member in getattr(command, "commands", {}).items():
            walk(f"{name} {child}", member)

    walk("daband", typer.main.get_command(app))
    return found


def command_page() -> str:
    """The page of all commands, Markdown."""
    lines = [
        "# Command line",
        "",
        "Written from the code: this is what `daband COMMAND --help` says.",
        "",
    ]
    for name, command in commands():
        lines += [f"## {name}", "", *_body(name, command)]
    return "\n".join(lines)


def _body(name: str, command: Any) -> list[str]:
    shown = [parameter for parameter in command.params if _is_shown(parameter)]
    options = any(_is_option(parameter) for parameter in shown)
    members = getattr(command, "commands", {})
    arguments = [parameter.name.upper() for parameter in shown if not _is_option(parameter)]
    usage = [
        name,
        *(["[OPTIONS]"] if options else []),
        *arguments,
        *(["COMMAND ..."] if members else []),
    ]
    lines = [_plain(command.help or ""), "", "```text", " ".join(usage), "```", ""]
    if shown:
        lines += [
            "| argument or option | default | what it does |",
            "| --- | --- | --- |",
            *map(_row, shown),
            "",
        ]
    for child, member in members.items():
        full = f"{name} {child}"
        lines.append(
            f"- [`{full}`](#{full.replace(' ', '-')}): {_first(_plain(member.help or ''))}"
        )
    return [*lines, ""] if members else lines


def _is_shown(parameter: Any) -> bool:
    return parameter.name not in ("install_completion", "show_completion") and not getattr(
        parameter, "hidden", False
    )


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _row(parameter: Any) -> str:
    what = parameter.name.upper()
    if _is_option(parameter):
        takes = "" if parameter.is_flag else f" {parameter.opts[0].lstrip('-').upper()}"
        what = ", ".join([*parameter.opts, *parameter.secondary_opts]) + takes
    default = parameter.default
    said = (
        ""
        if default is None or default is False or default == [] or callable(default)
        else f"`{default}`"
    )
    more = " May be given several times." if parameter.multiple else ""
    text = _plain(parameter.help or "").replace("\n", " ").replace("|", "\\|")
    return f"| `{what}` | {'required' if parameter.required else said} | {text}{more} |"


def _plain(text: str) -> str:
    return re.sub(r"\[/?(?:bold|italic|dim|cyan|yellow|green|red)\]", "`", text).strip()


def _first(text: str) -> str:
    return text.partition("\n\n")[0].replace("\n", " ")
