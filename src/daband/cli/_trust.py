"""``daband assess``, ``audit`` and ``choose``: what can be known of the target, and which policy to take."""

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
from daband.bench._assess_runs import AssessedRun, assess_runs
from daband.bench._records import decimals
from daband.bench._run import AUDIT_FOLDER, begin_audit, finish_choice, policy_folder
from daband.bench._settings import load_experiment
from daband.cli._options import Name, Overrides, stem
from daband.cli._progress_and_tables import console, interval_text, new_table, say
from daband.cli._run_progress import interrupted_exit, interruptible
from daband.domains._registry import load, pairs
from daband.errors import InvalidInput
from daband.training._train_candidates import CandidateProgress
from daband.trust._audit import Audit, answer_audit, read_audit
from daband.trust._choose import Choice, choose

_SCORING = "Scoring contexts of both domains ..."


def assess_command(
    folder: Annotated[
        Path,
        typer.Argument(help="A run, a choice, a folder of runs, or with data a saved policy."),
    ],
    name: Annotated[
        str | None, typer.Option("--on", help="The data of a saved policy: a TOML file or a preset, in place of files.")
    ] = None,
    required: Annotated[
        float | None, typer.Option(help="What the value has to reach; by default that of the best constant arm.")
    ] = None,
) -> None:
    """Estimate how good finished runs are in the target, without a reward from there, and whether to hand them over.

    A tenth of the source's rows stands for rounds that a saved policy never learned from: see to it that it did not.

    Example: daband assess market/ --required 3.5; of a saved policy: daband assess p.safetensors --on market.toml
    """
    if folder.is_file() or name is not None:
        _assess_saved(folder, name, required)
        return
    with console.status(_SCORING):
        runs = assess_runs(folder, required=required)
    if len(runs) > 1:
        console.print(_table_assess(runs))
    for run in _one_per_method(runs):
        if len(runs) > 1:
            console.rule(escape(run.spec.label))
        say(str(run.assessment))
    written = runs[0].path / "assessment.json" if len(runs) == 1 else folder / "*" / "assessment.json"
    say(f"Written: {written}")


def _assess_saved(path: Path, name: str | None, required: float | None) -> None:
    """Assess a policy that ``policy.save`` or ``daband fit-log`` wrote, on data that are named beside it."""
    if name is None:
        raise InvalidInput(f"{path} is a saved policy: name its data, --source old.csv --target new.csv ..., or --on")
    if not path.is_file():
        raise InvalidInput(f"{path} is no saved policy; the data of a folder are known: leave --on and files out")
    experiment = load_experiment(name)
    policy = daband.load(path, device="cpu")
    options = pairs.get(experiment.pairs()[0]).resolved(experiment.pair_options)
    if policy.table is not None:  # the policy reads rows as it learned to
        options["transform"] = policy.table
    with console.status(_SCORING):
        pair = load(experiment.pairs()[0], **options)
        if pair.source_test is None:
            raise InvalidInput(f"{name} keeps no rounds of the source apart (source_test), which assess needs")
        assessment = daband.assess(
            [policy], source=pair.source_test, target=pair.target, required=required, arm_names=pair.class_names
        )
    say(str(assessment))


def assessed_line(run: AssessedRun) -> str:
    """The estimate beside what is true, where that is known."""
    estimated = f"estimated without a label: {_short(run.assessment.value)} (at least {_short(run.assessment.low)})"
    true = run.record.get("target_value")
    return estimated if true is None else f"{estimated}; true: {_short(true)}"


def _one_per_method(runs: list[AssessedRun]) -> list[AssessedRun]:
    """The first run of every method and pair: pages of its other seeds would say the same."""
    firsts = {(run.spec.pair, run.spec.method, run.spec.variant): run for run in reversed(runs)}
    return [run for run in runs if firsts[run.spec.pair, run.spec.method, run.spec.variant] is run]


def _table_assess(runs: list[AssessedRun]) -> Table:
    numbers = ("estimated", "at least", "required")
    table = new_table("in the target, without a reward from there", words=["run"], numbers=numbers)
    table.add_column("verdict")
    for run in runs:
        view = run.assessment
        verdict = f"{view.verdict} {view.audit_rewards} rewards" if view.audit_rewards else view.verdict
        table.add_row(escape(run.spec.label), *(_short(n) for n in (view.value, view.low, view.required)), verdict)
    return table


def _short(value: float) -> str:
    """Two decimals, and no zero before the point where a value is a share."""
    if abs(value) >= 10:
        return f"{value:,.1f}"
    text = f"{value:.2f}"
    return text[1:] if text.startswith("0.") else text


# ``daband audit``: questions about a policy's rewards in the target as CSV, answers as CSV, and an interval.


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

    Example: daband audit market/ --answers questions.csv
    """
    place = policy_folder(folder).path / AUDIT_FOLDER
    if answers is not None:
        if budget is not None or out is not None:
            raise InvalidInput("--answers goes without --budget and --out: the audit was begun before")
        answered = answer_audit(place, answers, replace=replace)
        _show(answered, folder)
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
    _show(begun, folder, questions=out)


def _copy_questions(begun: Audit, out: Path) -> None:
    assert begun.questions is not None
    text = begun.questions.read_bytes()
    if out.is_file() and out.read_bytes() != text:  # rewards that somebody filled in may stand there
        raise InvalidInput(
            f"--out: {out} is there already and is not the list of open questions. Where it holds answers, give it as "
            "--answers; else choose another name or remove it"
        )
    write_bytes(out, text)


def _show(audit: Audit, folder: Path, questions: Path | None = None) -> None:
    if audit.answered < audit.budget:
        written = questions or audit.questions
        say(f"{audit.answered} of {audit.budget} questions are answered.")
        say(f"Questions: {written}")
        command = f"daband audit {shlex.quote(str(folder))} --answers {shlex.quote(str(written))}"
        say(f"Fill in the column reward, then: {command}")
    if audit.finished and audit.answered:
        digits = decimals(audit.value, audit.low, audit.high)
        say(
            f"value in the target: {interval_text(audit, digits)}, from {audit.answered} rewards of "
            f"{audit.contexts:,} contexts",
            markup=True,
        )
        say(f"predicted before the first reward: {audit.predicted:.{digits}f}", style="dim")


# ``daband choose``: train candidates, and choose the one to hand over without a reward from the target.


_AUDIT_BUDGET = 100
_QUIET_SHARE, _QUIET_SECONDS = 0.1, 60.0  # in a log a line is printed after every so much of the work, and of time


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

    Example: daband choose --source old.csv --target new.csv --arm offer --reward euros --id customer --out market
    """
    experiment = load_experiment(name, overrides or ())
    folder = out or Path("runs") / f"{stem(name)}-choice"
    # Candidates have settings of their own.
    neutral = {"policy": {}, "methods": {}, "rule": "ucb", "selection": "choose"}
    specs = experiment.model_copy(update=neutral).runs(["constant"], [seed])
    for spec in specs:
        # Before the training: a folder that cannot be made should not cost it.
        place = make_folder(folder / spec.pair.replace("/", "-") if len(specs) > 1 else folder, "out")
        pair = load(spec.pair, **spec.pair_options)
        whole = max(1, pair.source.rounds_available // experiment.episode_length)
        episodes = {"auto": None, "all": whole}.get(str(experiment.episodes), experiment.episodes)
        try:
            with candidates_bar() as draw, interruptible(draw) as progress:
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
        finish_choice(choice, pair, spec, place)
        console.print(_table_choose(spec.pair, choice))
        say(f"Chosen: {choice.candidate} ({choice.rule}).")
        if choice.rewards:
            limits = f"value {choice.value:.3g}, {choice.low:.3g} to {choice.high:.3g}"
            say(f"By {choice.rewards} target rewards: {limits} before it learned from them.")
        say(f"Without these rewards: {choice.assessment.sentence}" if choice.rewards else choice.assessment.sentence)
        bonus = (
            "The table is of greedy choices, as with export --epsilon; the verdict of the policy with its bonus (ucb)."
        )
        reasons = choice.assessment.reasons
        say(next((reason for reason in reasons if reason.startswith("This is of its greedy choices")), bonus))
        say(next(reason for reason in reasons if reason.startswith("Required is ")))
        if pair.target_test is not None:
            measured = read_json(place / "result.json")
            value, rows = measured["target_value"], measured["target_contexts"]
            say(f"Measured on {rows:,} target rows with labels, which played no part in this: value {value:.3g}.")
        say(f"Written: {place}")
        folder_name = shlex.quote(str(place))
        if choice.questions is not None:
            say(
                f"Fill in the column reward of {choice.questions} (up to 25 rows at a time, {budget - choice.rewards} "
                "to go), and call this again: the rewards decide."
            )
        else:
            wanted = min(choice.assessment.audit_rewards or _AUDIT_BUDGET, len(pair.target))
            tell = {"do not": "could change that", "ask": "tell"}.get(choice.assessment.verdict, "confirm it")
            tell = "give a narrower interval" if choice.rewards else tell
            say(f"Rewards of the target {tell}: daband audit {folder_name} --budget {wanted} --out questions.csv")
        say(f"Why: daband assess {folder_name}")
        use = "To deploy it all the same" if choice.assessment.verdict == "do not" else "For production"
        say(f"{use}: daband export {folder_name} FILE --epsilon 0.1")


@contextmanager
def candidates_bar() -> Iterator[Callable[[CandidateProgress], None]]:
    """A bar on a terminal, a line now and then in a log; both with the time left."""
    printed, printed_at, note, timed = 0.0, time.monotonic(), "", False

    def say_note(now: CandidateProgress) -> None:
        nonlocal note
        if now.note != note:
            note = now.note
            say(f"Note: {note}.")

    def line(now: CandidateProgress) -> None:
        nonlocal printed, printed_at, timed
        say_note(now)
        due = now.share - printed >= _QUIET_SHARE or time.monotonic() - printed_at >= _QUIET_SECONDS
        trained = now.policies_done == now.policies
        if due or trained or (now.seconds_left is not None and not timed):
            printed, printed_at, timed = now.share, time.monotonic(), now.seconds_left is not None
            left = "" if now.seconds_left is None else f", {_duration(now.seconds_left)} left"
            say(f"training  {now.policies_done} of {now.policies} policies, {now.candidate}{left}")
            if trained:
                say(_SCORING)

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
            left = _SCORING if now.policies_done == now.policies else left
            count = f"{now.policies_done}/{now.policies} policies"
            name = f"{escape(now.candidate)}, episode {now.episode}/{now.episodes}"
            drawing.update(task, completed=now.share, description=name, count=count, left=left)

        yield draw


def _duration(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _table_choose(pair: str, choice: Choice) -> Table:
    used = f"{choice.rewards} rewards" if choice.rewards else "no reward"
    columns = {"source_value": "held-out source value", "estimated_value": "estimated target value"}
    columns |= {"value": "by rewards"} if choice.rewards else {}
    title = f"{pair}: candidates, the simplest first, greedy; {used} of the target used"
    table = new_table(title, words=["candidate"], numbers=list(columns.values()))
    for row in choice.table:
        cells = (f"{row[column]:.3f}" for column in columns)
        table.add_row(escape(row["candidate"]), *cells, style="bold" if row["chosen"] else "")
    return table
