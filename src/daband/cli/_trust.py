"""``daband assess``, ``audit`` and ``choose``: compare policies with the incumbent in the target."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import daband
from daband._files import make_folder, read_json, write_bytes
from daband.bench._policy_folders import (
    AUDIT_FOLDER,
    AssessedRun,
    assess_runs,
    begin_audit,
    finish_audit,
    finish_choice,
    policy_folder,
)
from daband.bench._settings import load_experiment
from daband.cli._shared import Name, Overrides, console, interrupted_exit, interruptible, new_table, say, stem
from daband.domains._registry import load, pairs
from daband.errors import InvalidInput
from daband.training._loop import CandidateProgress
from daband.trust._assess import assess
from daband.trust._assessment import COLLECT, KEEP, short
from daband.trust._audit import Audit, read_audit
from daband.trust._choose import Choice, choose

_SCORING = "Scoring contexts of both domains ..."
#: Fraction of the work after which a log gets a line.
_QUIET_FRACTION = 0.1
#: Seconds after which a log gets a line.
_QUIET_SECONDS = 60.0

Incumbent = Annotated[
    str | None,
    typer.Option(help="What you do today: an arm, or a column of the target (--id). Default: the source's best arm."),
]
Unit = Annotated[str, typer.Option(help="Unit of the rewards, for the sentences, e.g. euros.")]


def assess_command(
    folder: Annotated[
        Path, typer.Argument(help="A run, a choice, a folder of runs, or with data a saved policy.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Option("--on", help="The data of a saved policy: a TOML file or a preset, instead of files.")
    ] = None,
    incumbent: Incumbent = None,
    unit: Unit = "",
) -> None:
    """Estimate how much better than the incumbent finished runs are in the target, without a target reward.

    For a saved policy, a tenth of the source's rows is used as held-out rounds: the policy must not have learned them.

    Example: daband assess market/ --incumbent coupon; for a saved policy: daband assess p.safetensors --on market.toml
    """
    if folder.is_file() or name is not None:
        _assess_saved(folder, name, incumbent, unit)
        return
    with console.status(_SCORING):
        runs = assess_runs(folder, incumbent=incumbent)
    if len(runs) > 1:
        console.print(_table_assess(runs))
    firsts = {(run.spec.pair, run.spec.method, run.spec.variant): run for run in reversed(runs)}
    for run in (run for run in runs if run in firsts.values()):  # one page per method and pair
        if len(runs) > 1:
            console.rule(escape(run.spec.label))
        say(str(run.assessment))
    written = runs[0].path / "assessment.json" if len(runs) == 1 else folder / "*" / "assessment.json"
    say(f"Written: {written}")


def _assess_saved(path: Path, name: str | None, incumbent: str | None, unit: str) -> None:
    """Assess a policy that ``policy.save`` or ``daband fit-log`` wrote, on data that the command names."""
    if name is None:
        raise InvalidInput(f"{path} is a saved policy: name its data, --source old.csv --target new.csv ..., or --on")
    if not path.is_file():
        raise InvalidInput(f"{path} is not a saved policy; the data of a folder are known: drop --on and files")
    experiment = load_experiment(name)
    policy = daband.load(path, device="cpu")
    options = pairs.get(experiment.pairs()[0]).resolved(experiment.pair_options)
    if policy.table is not None:  # the policy reads rows as in training
        options["transform"] = policy.table
    with console.status(_SCORING):
        pair = load(experiment.pairs()[0], **options)
        if pair.source_test is None:
            raise InvalidInput(f"{name} holds out no source rounds (source_test), which assess needs")
        assessment = assess(
            policy,
            source=pair.source_test,
            target=pair.target,
            incumbent=incumbent,
            arm_names=pair.class_names,
            unit=unit,
        )
    say(str(assessment))


def _table_assess(runs: list[AssessedRun]) -> Table:
    numbers = ("advantage", "at least", "in the source")
    table = new_table("advantage over the incumbent in the target", words=["run"], numbers=numbers)
    table.add_column("verdict")
    for run in runs:
        view = run.assessment
        cells = (short(number, sign=True) for number in (view.advantage, view.low, view.source_advantage))
        table.add_row(escape(run.spec.label), *cells, view.verdict)
    return table


def audit_command(
    folder: Annotated[Path, typer.Argument(help="The folder of one run, or of a choice.", show_default=False)],
    budget: Annotated[int | None, typer.Option(min=1, help="Start: number of rewards to ask for.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where a copy of the questions goes, as CSV.")] = None,
    answers: Annotated[
        Path | None, typer.Option(help="A CSV with columns id and reward: the questions with rewards filled in.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --answers: an answer that differs from an earlier one replaces it.")
    ] = False,
    incumbent: Incumbent = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the two-sided interval.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the questions.")] = 0,
) -> None:
    """Measure with a few target rewards how much better than the incumbent a policy is.

    Start with `daband audit DIR --budget 100 --out questions.csv`. Fill in the column reward, then
    `daband audit DIR --answers questions.csv`. Without options, the state of the audit is shown.

    Example: daband audit market/ --answers questions.csv
    """
    audit_folder = policy_folder(folder).path / AUDIT_FOLDER
    if answers is not None:
        if budget is not None or out is not None:
            raise InvalidInput("--answers goes without --budget and --out: the audit was started before")
        answered, assessment = finish_audit(folder, answers, replace=replace)
        _show(answered, folder)
        if assessment is not None:
            say(f"With everything known before: {assessment.verdict} ({folder / 'assessment.json'} is up to date).")
        return
    if replace:
        raise InvalidInput("--replace goes with --answers: these answers then replace earlier ones")
    if budget is None:
        if not audit_folder.is_dir():
            raise InvalidInput(f"{folder} has no audit yet; start one with --budget N --out questions.csv")
        started = read_audit(audit_folder)
    else:
        started = begin_audit(folder, budget=budget, seed=seed, confidence=confidence, incumbent=incumbent)
    if out is not None:
        _copy_questions(started, out)
    _show(started, folder, questions=out)


def _copy_questions(audit: Audit, out: Path) -> None:
    assert audit.questions is not None
    text = audit.questions.read_bytes()
    if out.is_file() and out.read_bytes() != text:  # it may hold rewards that were filled in
        raise InvalidInput(
            f"--out: {out} exists and is not the list of open questions. If it holds answers, give it as --answers; "
            "otherwise choose another name or remove it"
        )
    write_bytes(out, text)


def _show(audit: Audit, folder: Path, questions: Path | None = None) -> None:
    say(audit.sentence)
    if audit.answered:
        limits = f"{short(audit.value)} [{short(audit.value_low)}, {short(audit.value_high)}]"
        say(f"Mean reward in the target: {limits}, from {audit.contexts:,} contexts.", style="dim")
    if audit.answered < audit.budget:
        written = questions or audit.questions
        say(f"{audit.answered} of {audit.budget} questions are answered: {written}")
        command = f"daband audit {shlex.quote(str(folder))} --answers {shlex.quote(str(written))}"
        say(f"Fill in the column reward, in the order of ids, then: {command}")


def choose_command(
    name: Name,
    incumbent: Incumbent = None,
    budget: Annotated[
        int, typer.Option(min=0, help="Target rewards to decide by: fill in OUT/questions.csv, and call this again.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the policy.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer candidates and a smaller network, in minutes.")] = False,
    unit: Unit = "",
    out: Annotated[Path | None, typer.Option(help="Where the policy, choice.json and assessment.json go.")] = None,
    overrides: Overrides = None,
) -> None:
    """Train candidates, and choose the one to deploy: without target rewards, or by a few (--budget).

    Interrupted by Ctrl-C, the same command continues.

    Example: daband choose --source old.csv --target new.csv --arm offer --reward euros --incumbent coupon --out market
    """
    experiment = load_experiment(name, overrides or ())
    folder = out or Path("runs") / f"{stem(name)}-choice"
    # Candidates have their own settings.
    neutral = {"policy": {}, "methods": {}, "rule": "ucb", "selection": "choose"}
    specs = experiment.model_copy(update=neutral).runs(["constant"], [seed])
    for spec in specs:
        # Before the training, so that a folder that cannot be made does not waste it.
        out_folder = make_folder(folder / spec.pair.replace("/", "-") if len(specs) > 1 else folder, "out")
        pair = load(spec.pair, **spec.pair_options)
        available = max(1, pair.source.rounds_available // experiment.episode_length)
        episodes = {"auto": None, "all": available}.get(str(experiment.episodes), experiment.episodes)
        try:
            with candidates_bar() as draw, interruptible(draw) as progress:
                choice = choose(
                    pair,
                    incumbent=incumbent,
                    episodes=None if episodes is None else int(episodes),
                    episode_length=experiment.episode_length,
                    seed=seed,
                    budget=budget,
                    device=device,
                    quick=quick,
                    directory=out_folder,
                    unit=unit,
                    progress=progress,
                )
        except KeyboardInterrupt as stopped:
            raise interrupted_exit(out_folder, stopped) from None
        finish_choice(choice, pair, spec, out_folder)
        say(choice.assessment.sentence)
        say(f"Chosen: {choice.candidate} ({choice.rule}).")
        say(choice.assessment.reference, style="dim")
        console.print(_table_choose(spec.pair, choice))
        if pair.target_test is not None:
            measured = read_json(out_folder / "result.json")
            value, rows = measured["target_value"], measured["target_contexts"]
            say(f"Measured on {rows:,} labelled target rows, which were not used here: mean reward {short(value)}.")
        say(f"Written: {out_folder}")
        _next_steps(choice, out_folder, budget, len(pair.target))


def _next_steps(choice: Choice, out_folder: Path, budget: int, contexts: int) -> None:
    quoted = shlex.quote(str(out_folder))
    if choice.questions is not None:
        say(
            f"Fill in the column reward of {choice.questions} in the order of ids ({budget - choice.rewards} to go), "
            "and call this again."
        )
    elif choice.assessment.verdict == COLLECT:
        wanted = min(choice.assessment.needed, contexts)
        say(f"Rewards decide: daband audit {quoted} --budget {wanted} --out questions.csv")
    say(f"Why: daband assess {quoted}")
    use = "To deploy it anyway" if choice.assessment.verdict == KEEP else "For production"
    say(f"{use}: daband export {quoted} FILE --epsilon 0.1")


@contextmanager
def candidates_bar() -> Iterator[Callable[[CandidateProgress], None]]:
    """Show progress with the time left: a bar on a terminal, occasional lines in a log."""
    printed, printed_at, note, timed = 0.0, time.monotonic(), "", False
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("candidates", total=1.0)

        def show(now: CandidateProgress) -> None:
            nonlocal printed, printed_at, note, timed
            if now.note != note:
                note = now.note
                say(f"Note: {note}.")
            left = "" if now.seconds_left is None else f", {_duration(now.seconds_left)} left"
            text = f"{now.policies_done} of {now.policies} policies, {now.candidate}{left}"
            trained = now.policies_done == now.policies
            bar.update(task, completed=now.fraction, description=_SCORING if trained else escape(text))
            due = now.fraction - printed >= _QUIET_FRACTION or time.monotonic() - printed_at >= _QUIET_SECONDS
            if console.is_terminal or not (due or trained or timed < (now.seconds_left is not None)):
                return
            printed, printed_at, timed = now.fraction, time.monotonic(), now.seconds_left is not None
            say(f"training  {text}")
            if trained:
                say(_SCORING)

        yield show


def _duration(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _table_choose(pair: str, choice: Choice) -> Table:
    columns = {"source_advantage": "in the source"}
    title = f"{pair}: advantage over {choice.assessment.incumbent}, greedy choices"
    if choice.rewards:
        columns |= {"advantage": "in the target", "low": "at least", "high": "at most"}
        title += f"; {choice.rewards} target rewards"
    table = new_table(title, words=["candidate"], numbers=list(columns.values()))
    for row in choice.table:
        cells = (short(row[column], sign=True) for column in columns)
        table.add_row(escape(row["candidate"]), *cells, style="bold" if row["chosen"] else "")
    return table
