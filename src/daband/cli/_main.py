"""Define the command line ``daband``. ``main`` is the entry point.

Commands parse options, call the library and print results. The commands on one choice are in
``_choose.py``, on logs in ``_logs.py``, on exported policies in ``_serving.py``, and on experiments
in ``_experiments.py``. Pilots are in ``_pilot.py``.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer
from rich.markup import escape
from typer import Option

import daband
from daband.cli import _experiments as experiments
from daband.cli._choose import assess_command, audit_command, choose_command, rules_command
from daband.cli._examples import example_command
from daband.cli._logs import (
    check_log_command,
    evaluate_log_command,
    fit_log_command,
    learn_command,
)
from daband.cli._pilot import cancel_command, plan_command, status_command
from daband.cli._serving import decide_command, export_command, export_events_command, serve_command
from daband.cli._shared import console, error_console, print_line, show_warnings_once
from daband.errors import DabandError

app = typer.Typer(
    name="daband",
    help=(
        "Cross-domain contextual bandits: learn where feedback is cheap, act where it is"
        " expensive.\n\nStart with: daband example ab-test"
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    name="data",
    help="List pairs of domains, and check their data.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
pilot_app = typer.Typer(
    name="pilot",
    help="Plan a pilot with a limited cost, and read its decision.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(pilot_app, name="pilot")


def _print_version(is_requested: bool) -> None:
    """Print the version and exit if the option is given."""
    if is_requested:
        console.print(f"daband {daband.__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Process the options that precede a command."""
    context.with_resource(show_warnings_once())


#: The function and the short help of each command; "" is the first sentence of its help.
_COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "choose": (choose_command, "Train candidates and choose one for the target."),
    "assess": (assess_command, "Print a choice's advantage and its reasons."),
    "audit": (audit_command, "Measure a policy in the target by a few rewards."),
    "rules": (rules_command, "Write the best small tree as SQL, JSON or Python."),
    "report": (experiments.report_command, "Write a report on a choice or runs."),
    "export": (export_command, ""),
    "decide": (decide_command, ""),
    "learn": (learn_command, "Learn a completed log, and print what to do next."),
    "serve": (serve_command, ""),
    "export-events": (export_events_command, ""),
    "check-log": (check_log_command, "Check a log for mistakes."),
    "fit-log": (fit_log_command, ""),
    "evaluate-log": (evaluate_log_command, "Estimate a policy's value from a log."),
    "example": (example_command, "Write example data and the commands to run."),
    "demo": (experiments.demo_command, "Choose from an A/B test, and compare methods on digits."),
    "bench": (experiments.bench_command, "Compare methods over seeds on the same rounds."),
    "ablate": (
        experiments.ablate_command,
        "Compare all combinations of the loss terms R, P and D.",
    ),
    "presets": (experiments.presets_command, "List the presets and the methods."),
}
for _name, (_command, _short_help) in _COMMANDS.items():
    app.command(_name, short_help=_short_help or None)(_command)
data_app.command("list")(experiments.list_pairs_command)
data_app.command("check")(experiments.check_data_command)
pilot_app.command("plan")(plan_command)
pilot_app.command("status")(status_command)
pilot_app.command("cancel")(cancel_command)


def _exit_with_error(message: str) -> NoReturn:
    """Print an error and exit with code 2."""
    print_line(f"[bold red]Error:[/bold red] {escape(message)}", markup=True, to=error_console)
    sys.exit(2)


def main() -> None:
    """Run the command line. Expected errors are printed as a message, with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        # arm names may have characters that the terminal's encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except DabandError as error:
        _exit_with_error(str(error))
    except OSError as error:  # for example a full disk, for which a traceback does not help
        path = f"{error.filename}: " if error.filename else ""
        _exit_with_error(f"{path}{error.strerror or error}")
