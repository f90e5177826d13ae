"""``daband choose``: train candidates, and choose the one to hand over without a reward from the target."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from daband.cli.lines import say
from daband.cli.options import Name, Overrides, stem
from daband.cli.running import warnings_on
from daband.domains import load
from daband.domains.registry import pairs
from daband.experiments import load_experiment
from daband.experiments.policy_folder import CHOICE_FILE
from daband.files import make_folder, write_text
from daband.trust import Choice, choose

__all__ = ["choose_command"]


def choose_command(
    name: Name,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the policy.")] = 0,
    budget: Annotated[
        int, typer.Option(min=0, help="Target rewards to decide by: fill in OUT/questions.csv, and call it again.")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Where the policy, choice.json and assessment.json go.")] = None,
    overrides: Overrides = None,
) -> None:
    """Train a constant, linear and neural policies and DABand, and choose one without a reward from the target."""
    console = Console()
    experiment = load_experiment(name, overrides or ())
    folder = out or Path("runs") / f"{stem(name)}-choice"
    names = experiment.pairs()
    for pair_name in names:
        # Before the training: a folder that cannot be made should not cost it.
        place = make_folder(folder / pair_name.replace("/", "-") if len(names) > 1 else folder, "out")
        options = pairs.get(pair_name).resolved(experiment.pair_options)
        pair = load(pair_name, **options)
        episodes = None if experiment.episodes == "all" else experiment.episodes
        if episodes is None:
            episodes = max(1, pair.source.rounds_available // experiment.episode_length)
        with warnings_on(console), console.status(f"Training candidates on {pair_name} ...") as status:

            def tell(candidate: str, done: int, of: int, pair_name: str = pair_name) -> None:
                status.update(f"Training candidates on {pair_name}: {done} of {of} policies ({escape(candidate)})")

            choice = choose(
                pair,
                episodes=episodes,
                episode_length=experiment.episode_length,
                seed=seed,
                budget=budget,
                directory=place if budget else None,
                device=device,
                progress=tell,
            )
        choice.policy.save(place / "policy.safetensors")
        about = {"pair": pair_name, "pair_options": options, "class_names": list(pair.class_names)}
        write_text(place / CHOICE_FILE, json.dumps({**about, **choice.as_dict()}, indent=2) + "\n")
        write_text(place / "assessment.json", json.dumps(choice.assessment.as_dict(), indent=2) + "\n")
        console.print(_table(pair_name, choice))
        say(console, f"Chosen: {choice.candidate} ({choice.rule}).")
        say(console, choice.assessment.sentence)
        say(console, f"Written: {place}")
        folder_name = shlex.quote(str(place))
        if choice.rewards:
            say(
                console,
                f"{choice.rewards} target rewards: value {choice.value:.3g}, {choice.low:.3g} to {choice.high:.3g}.",
            )
        elif choice.questions is not None:
            say(console, f"Fill in the last column of {choice.questions}, and call this again: the rewards decide.")
        else:
            wanted = choice.assessment.audit_rewards or 100
            say(console, f"A few rewards confirm it: daband audit {folder_name} --budget {wanted} --out questions.csv")
        say(console, f"For production: daband export {folder_name} FILE")


def _table(pair: str, choice: Choice) -> Table:
    table = Table(title=escape(f"{pair}: candidates, the simplest first; no reward of the target was used"))
    table.add_column("candidate", overflow="fold")
    table.add_column("held-out source value", justify="right")
    table.add_column("estimated target value", justify="right")
    for row in choice.table:
        cells = (row["candidate"], f"{row['source_value']:.3f}", f"{row['estimated_value']:.3f}")
        table.add_row(*map(escape, cells), style="bold" if row["chosen"] else "")
    return table
