"""``daband audit``: questions about a policy's rewards in the target as CSV, answers as CSV, and an interval."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from daband.cli.running import say, warnings_on
from daband.errors import InvalidInput
from daband.experiments import AUDIT_FOLDER, begin_audit, policy_folder
from daband.experiments.records import decimals
from daband.files import write_bytes
from daband.trust import Audit, answer_audit, read_audit

__all__ = ["audit_command"]


def audit_command(
    folder: Annotated[Path, typer.Argument(help="The folder of one run, or of a choice.")],
    budget: Annotated[int | None, typer.Option(min=1, help="Begin: how many rewards will be asked for.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where a copy of the questions goes, as CSV.")] = None,
    answers: Annotated[
        Path | None, typer.Option(help="A CSV with columns id and reward: the questions with rewards filled in.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --answers: an answer that differs from an earlier one replaces it.")
    ] = False,
    confidence: Annotated[float, typer.Option(help="Of the two-sided interval.")] = 0.95,
    anytime: Annotated[
        bool, typer.Option("--anytime", help="An interval that may be read, and the audit stopped, after any answer.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Which contexts are drawn.")] = 0,
) -> None:
    """What is the policy worth in the target? Ask for a few rewards there, and get an interval that holds.

    First `daband audit DIR --budget 200 --out questions.csv`; with the column reward filled in, some time later,
    `daband audit DIR --answers questions.csv`. Without options, how far the audit has come.
    """
    console = Console()
    place = policy_folder(folder).path / AUDIT_FOLDER
    if answers is not None:
        if budget is not None or out is not None:
            raise InvalidInput("--answers goes without --budget and --out: the audit was begun before")
        with warnings_on(console):
            found = answer_audit(place, answers, replace=replace)
        _show(console, found, folder)
        return
    if replace:
        raise InvalidInput("--replace goes with --answers: it says that these answers count, not earlier ones")
    if budget is None:
        if not place.is_dir():
            raise InvalidInput(f"{folder} has no audit yet; begin one with --budget N --out questions.csv")
        begun = read_audit(place)
    else:
        begun = begin_audit(folder, budget=budget, seed=seed, confidence=confidence, anytime=anytime)
    if out is not None:
        _copy_questions(begun, out)
    _show(console, begun, folder, questions=out)


def _copy_questions(begun: Audit, out: Path) -> None:
    assert begun.questions is not None
    text = begun.questions.read_bytes()
    if out.is_file() and out.read_bytes() != text:  # rewards that somebody filled in may stand there
        raise InvalidInput(
            f"--out: {out} is there already and is not the list of open questions. Where it holds answers, give it as "
            "--answers; else choose another name or remove it"
        )
    write_bytes(out, text)


def _show(console: Console, audit: Audit, folder: Path, questions: Path | None = None) -> None:
    if audit.answered < audit.budget:
        written = questions or audit.questions
        console.print(f"{audit.answered} of {audit.budget} questions are answered.", highlight=False)
        say(console, f"Questions: {written}")
        command = f"daband audit {shlex.quote(str(folder))} --answers {shlex.quote(str(written))}"
        say(console, f"Fill in the column reward, then: {command}")
    if audit.finished and audit.answered:
        digits = decimals(audit.value, audit.low, audit.high)
        console.print(
            f"value in the target: [bold]{audit.value:.{digits}f}[/bold], {100 * audit.confidence:g}% interval "
            f"{audit.low:.{digits}f} to {audit.high:.{digits}f}, from {audit.answered} rewards of "
            f"{audit.contexts:,} contexts",
            highlight=False,
            soft_wrap=True,
        )
        console.print(f"predicted before the first reward: {audit.predicted:.{digits}f}", style="dim", highlight=False)
