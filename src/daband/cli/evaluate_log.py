"""``daband evaluate-log``: what a policy is worth, from a log in Parquet files of any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from daband.cli.options import log_columns, named_as_options
from daband.cli.running import rows_bar, say
from daband.errors import InvalidInput
from daband.experiments.records import decimals
from daband.files import check_writable, write_text
from daband.policies import Policy

__all__ = ["evaluate_log_command"]

_FILE = "log_estimates.json"


def evaluate_log_command(
    policy: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or a choice, or a saved policy.")],
    log: Annotated[str, typer.Argument(help="A folder of Parquet files, or a glob in quotes: 'logs/*.parquet'.")],
    estimators: Annotated[
        str, typer.Option(help="One or several of dr, snips, ips, switch-dr, dm, e.g. dr,snips.")
    ] = "dr",
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    rule: Annotated[
        str | None, typer.Option(help="ucb or greedy, in place of the policy's own way to explore.")
    ] = None,
    domain: Annotated[
        Literal["source", "target"] | None, typer.Option(help="Where the log was written; by default the policy's own.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Context columns, e.g. age,weight; by default all but arm, reward, propensity.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"Where the estimates go as JSON; by default {_FILE} in the run's folder.")
    ] = None,
    skip_damaged: Annotated[bool, typer.Option(help="Leave out files that cannot be read, with a warning.")] = False,
) -> None:
    """What would a policy be paid per round? Estimate it from rounds that another policy played and logged."""
    from daband.evaluation import compare_estimators

    console = Console()
    names = tuple(dict.fromkeys(name.strip() for name in estimators.split(",") if name.strip()))
    if not names:
        raise InvalidInput("--estimators names none")
    valued, folder = _policy(policy)
    place = out if out is not None else None if folder is None else folder / _FILE
    if place is not None:
        check_writable(place)
    if domain is not None:
        valued.deploy(domain)
    with rows_bar(console, "pass 1") as show, named_as_options():
        found = compare_estimators(
            valued,
            log,
            names,
            confidence=confidence,
            rule=rule,
            columns=log_columns(context),
            on_damaged="skip" if skip_damaged else "refuse",
            progress=show,
        )
    for estimate in found.values():
        digits = decimals(estimate.value, estimate.low, estimate.high)
        console.print(
            f"{estimate.estimator}: [bold]{estimate.value:.{digits}f}[/bold], {100 * estimate.confidence:g}% interval "
            f"{estimate.low:.{digits}f} to {estimate.high:.{digits}f}, from {estimate.rounds:,} rounds (an effective "
            f"sample of {estimate.effective_sample_size:,.0f}) in the {estimate.domain}",
            highlight=False,
            soft_wrap=True,
        )
        for warning in estimate.warnings:
            console.print(f"[yellow]warning[/yellow]   {escape(warning)}", highlight=False, soft_wrap=True)
    if place is not None:
        records = [estimate.as_dict() for estimate in found.values()]
        write_text(place, json.dumps({"log": log, "estimates": records}, indent=2) + "\n")
        say(console, f"Written: {place}")


def _policy(path: Path) -> tuple[Policy, Path | None]:
    """The policy of a folder, with the run's folder; or that of a file."""
    from daband import load
    from daband.experiments import policy_folder

    if not path.is_dir():
        return load(path, device="cpu"), None
    found = policy_folder(path)
    return load(found.policy_file, device="cpu"), found.path
