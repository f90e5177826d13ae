"""Define the commands ``pilot plan``, ``pilot status`` and ``pilot cancel``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from daband.cli._shared import print_line
from daband.errors import InvalidInput
from daband.ledger._market import open_market
from daband.ledger._pilots import PilotLedger
from daband.trust._assessment import DEPLOY, format_number
from daband.trust._pilot import GO_ON, plan_pilot

ChoiceArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a choice.")]


def plan_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="The folder of a choice; without it, a test of two arms is planned."
        ),
    ] = None,
    per_week: Annotated[
        float, typer.Option(metavar="N", help="Rounds, e.g. customers, in a week.")
    ] = 1000.0,
    max_loss: Annotated[
        str, typer.Option(help="Limit of the cost, in percent of what the incumbent earns.")
    ] = "1%",
    weeks: Annotated[int, typer.Option(min=1, help="Number of planned weeks.")] = 12,
    delay: Annotated[int, typer.Option(min=0, help="Weeks until rewards arrive.")] = 0,
    incumbent_mean: Annotated[
        float | None,
        typer.Option(help="Mean reward of the incumbent today; by default that in the source."),
    ] = None,
    reward_deviation: Annotated[
        float | None, typer.Option(help="Standard deviation of rewards; by default the source's.")
    ] = None,
    min_reward: Annotated[
        float | None,
        typer.Option(help="Smallest possible mean reward of an arm; by default the source's."),
    ] = None,
    drift: Annotated[
        str | None,
        typer.Option(
            help="Largest change of the loss between weeks, in percent of incumbent_mean; by default"
            " 50%, but not more than the source's evidence allows."
        ),
    ] = None,
    min_advantage: Annotated[
        float, typer.Option(help="Smallest advantage per round that is worth a deployment.")
    ] = 0.0,
    unit: Annotated[str, typer.Option(help="Unit of the rewards, e.g. euros.")] = "",
) -> None:
    """Plan a pilot: how long it takes, what it costs, and how often it is wrong.

    Example: daband pilot plan market --max-loss 1% --per-week 2000
    """
    options: dict[str, Any] = {
        "max_loss": _parse_percent("--max-loss", max_loss),
        "per_week": per_week,
        "weeks": weeks,
        "delay": delay,
        "incumbent_mean": incumbent_mean,
        "reward_deviation": reward_deviation,
        "min_reward": min_reward,
        "drift": None if drift is None else _parse_percent("--drift", drift),
        "min_advantage": min_advantage,
        "unit": unit,
    }
    if folder is None:
        print_line(str(plan_pilot(**options)))
        return
    with open_market(folder) as market:
        print_line(str(market.plan_pilot(**options)))
    quoted = shlex.quote(str(folder))
    print_line(f"To start it: daband export {quoted} pilot.daband --pilot")
    print_line(f"To give it up: daband pilot cancel {quoted}")


def status_command(folder: ChoiceArgument) -> None:
    """Print a pilot's decision, its cost against the limit, and the next command.

    Example: daband pilot status market
    """
    with open_market(folder) as market:
        if market.pilot is None:
            raise InvalidInput(f"{folder} has no pilot; daband pilot plan {folder} plans one")
        print_status(folder, market.pilot)


def cancel_command(folder: ChoiceArgument) -> None:
    """Give up a pilot, or its plan; its rounds stay in the ledger and are learned.

    Example: daband pilot cancel market
    """
    with open_market(folder) as market:
        market.cancel_pilot()
    print_line("The pilot is given up. Its rounds stay in the ledger.")


def print_status(folder: Path, pilot: PilotLedger) -> None:
    """Print the status of a pilot."""
    plan = pilot.plan
    status = pilot.read_status()
    unit = f" {plan.unit}" if plan.unit else ""
    decision = status.decision[0].upper() + status.decision[1:]
    if status.decision == GO_ON and status.rounds:
        decision += f", about {status.rounds_left:,} more rounds"
    print_line(f"{decision}. {status.reason}")
    print_line(
        f"Rounds: {status.rounds:,} of {plan.planned_rounds:,}; policy and incumbent differ in"
        f" {status.differing_rounds:,}, with {status.rewards[0]:,} and {status.rewards[1]:,} rewards;"
        f" {status.missing:,} rewards are missing."
    )
    if status.advantage is not None:
        low, high = (
            "unknown" if limit is None else format_number(limit, with_sign=True)
            for limit in (status.low, status.high)
        )
        interval = f"{low} to {high}, valid at any time"
        if low == high == "unknown":
            interval = "too few rewards for limits"
        print_line(
            f"Advantage over {plan.incumbent}: {format_number(status.advantage, with_sign=True)}"
            f"{unit} a round ({interval})."
        )
    print_line(
        f"Cost: {format_number(status.cost)}{unit}, at most {format_number(status.cost_limit)} of"
        f" {format_number(plan.largest_cost)}."
    )
    quoted = shlex.quote(str(folder))
    if status.decision == GO_ON:
        print_line(
            f"Next: daband export {quoted} pilot.daband --pilot, in which the policy gets"
            f" {status.fraction:.1%} of the rounds in which it differs."
        )
    elif status.decision == DEPLOY:
        print_line(f"Next: daband export {quoted} market.daband --epsilon 0.1")
    else:
        print_line(f"Next: continue with {plan.incumbent}; daband report {quoted}")


def _parse_percent(option: str, text: str) -> float:
    """Return a fraction from a text such as "1%" or "0.01"."""
    try:
        return float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        raise InvalidInput(f"{option} must be like 1% or 0.01, got {text!r}") from None
