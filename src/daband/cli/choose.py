"""``daband choose``: train candidates, and choose the one to hand over without a reward from the target."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from daband.cli.options import Name, Overrides, stem
from daband.cli.running import interrupted_exit, interruptible, say, warnings_on
from daband.domains import load
from daband.domains.registry import pairs
from daband.experiments import RunSpec, finish_choice, load_experiment
from daband.files import make_folder
from daband.training import CandidateProgress
from daband.trust import Choice, choose

__all__ = ["choose_command"]

_AUDIT_BUDGET = 100
_QUIET_SHARE = 0.1
"""In a log a line is printed after every so much of the work."""


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
    """Train candidates across assumptions, and choose one: without a reward from the target, or by a few (--budget).

    Stopped by Ctrl-C, the same command goes on where it was.
    """
    console = Console()
    experiment = load_experiment(name, overrides or ())
    folder = out or Path("runs") / f"{stem(name)}-choice"
    names = experiment.pairs()
    for pair_name in names:
        # Before the training: a folder that cannot be made should not cost it.
        place = make_folder(folder / pair_name.replace("/", "-") if len(names) > 1 else folder, "out")
        options = pairs.get(pair_name).resolved(experiment.pair_options)
        with warnings_on(console):
            pair = load(pair_name, **options)
        whole = max(1, pair.source.rounds_available // experiment.episode_length)
        episodes = {"auto": None, "all": whole}.get(str(experiment.episodes), experiment.episodes)
        try:
            with warnings_on(console), _bar(console) as draw, interruptible(draw) as progress:
                choice = choose(
                    pair,
                    episodes=None if episodes is None else int(episodes),
                    episode_length=experiment.episode_length,
                    seed=seed,
                    budget=budget,
                    device=device,
                    directory=place,
                    progress=progress,
                )
        except KeyboardInterrupt as stopped:
            raise interrupted_exit(place, stopped) from None
        spec = RunSpec(
            pair=pair_name,
            pair_options=options,
            method="constant",
            variant="default",
            policy={},
            components=experiment.components,
            episodes=experiment.episodes,
            episode_length=experiment.episode_length,
            seed=seed,
            rule="ucb",
            selection="choose",
        )
        finish_choice(choice, pair, spec, place)
        console.print(_table(pair_name, choice))
        say(console, f"Chosen: {choice.candidate} ({choice.rule}).")
        say(console, choice.assessment.sentence)
        say(console, f"Written: {place}")
        folder_name = shlex.quote(str(place))
        if choice.rewards:
            limits = f"value {choice.value:.3g}, {choice.low:.3g} to {choice.high:.3g}"
            say(console, f"Decided by {choice.rewards} target rewards: {limits} before it learned from them.")
        elif choice.questions is not None:
            say(console, f"Fill in the last column of {choice.questions}, and call this again: the rewards decide.")
        else:
            wanted = min(choice.assessment.audit_rewards or _AUDIT_BUDGET, len(pair.target))
            say(console, f"A few rewards confirm it: daband audit {folder_name} --budget {wanted} --out questions.csv")
        say(console, f"For production: daband export {folder_name} FILE")


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[CandidateProgress], None]]:
    """A bar on a terminal, a line now and then in a log; both with the time left."""
    told, note = 0.0, ""

    def say_note(now: CandidateProgress) -> None:
        nonlocal note
        if now.note != note:
            note = now.note
            say(console, f"Note: {note}.")

    def line(now: CandidateProgress) -> None:
        nonlocal told
        say_note(now)
        if now.share - told >= _QUIET_SHARE:
            told = now.share
            left = "" if now.seconds_left is None else f", {_duration(now.seconds_left)} left"
            say(console, f"training  {now.policies_done} of {now.policies} policies, {now.candidate}{left}")

    if not console.is_terminal:
        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", style="dim"),
    )
    with Progress(*columns, console=console, transient=True) as drawing:
        task = drawing.add_task("candidates", total=1.0, count="", left="")

        def draw(now: CandidateProgress) -> None:
            say_note(now)
            left = "measuring the candidates" if now.seconds_left is None else f"ETA {_duration(now.seconds_left)}"
            count = f"{now.policies_done}/{now.policies} policies"
            name = f"{escape(now.candidate)}, episode {now.episode}/{now.episodes}"
            drawing.update(task, completed=now.share, description=name, count=count, left=left)

        yield draw


def _duration(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _table(pair: str, choice: Choice) -> Table:
    used = f"{choice.rewards} rewards" if choice.rewards else "no reward"
    table = Table(title=escape(f"{pair}: candidates, the simplest first; {used} of the target used"))
    table.add_column("candidate", overflow="fold")
    table.add_column("held-out source value", justify="right")
    table.add_column("estimated target value", justify="right")
    for row in choice.table:
        cells = (row["candidate"], f"{row['source_value']:.3f}", f"{row['estimated_value']:.3f}")
        table.add_row(*map(escape, cells), style="bold" if row["chosen"] else "")
    return table
