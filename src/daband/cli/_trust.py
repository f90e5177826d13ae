"""Define the commands that compare policies with the incumbent in the target: ``assess``, ``audit`` and ``choose``."""

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
    add_answers,
    assess_runs,
    find_policy_folder,
    finish_choice,
    get_reward_unit,
    start_audit,
)
from daband.bench._settings import load_experiment
from daband.cli._shared import Name, Overrides, console, interruptible, make_table, name_folder, print_line, report_stop
from daband.domains._registry import load, pairs
from daband.errors import InvalidInput
from daband.evaluation._learned_logs import has_learned
from daband.training._loop import CandidateProgress
from daband.trust._assess import assess
from daband.trust._assessment import COLLECT, KEEP, format_number
from daband.trust._audit import Audit, read_audit
from daband.trust._choose import Choice, choose

#: Shown while policies decide on contexts of both domains.
_SCORING_TEXT = "Scoring contexts of both domains ..."
#: Fraction of the work that is done between two printed lines, if the output is not a terminal.
_LINE_FRACTION = 0.1
#: Minimum and maximum number of seconds between two lines, if the output is not a terminal.
_LINE_SECONDS = (2.0, 60.0)

Incumbent = Annotated[
    str | None,
    typer.Option(help="Today's decisions: an arm, or a target column that --id names. Default: the source's best arm."),
]
Unit = Annotated[str, typer.Option(help="Unit of the rewards in sentences, e.g. euros. Default: the reward column.")]


def assess_command(
    folder: Annotated[
        Path, typer.Argument(help="A folder of a run, of runs, or of a choice; or a saved policy.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Option("--on", help="The data for a saved policy, instead of files: a TOML file or a preset.")
    ] = None,
    incumbent: Incumbent = None,
    unit: Unit = "",
) -> None:
    """Estimate the advantage of policies over the incumbent in the target, without target rewards.

    A saved policy is evaluated on a tenth of the source rows, which daband does not use for training. If it has learned
    them, its advantage is overestimated.

    Example: daband assess market/ --incumbent coupon; for a saved policy: daband assess p.safetensors --on market.toml
    """
    if folder.is_file() or name is not None:
        _assess_saved(folder, name, incumbent, unit)
        return
    with console.status(_SCORING_TEXT):
        runs = assess_runs(folder, incumbent=incumbent, unit=unit)
    if len(runs) > 1:
        console.print(_make_assessment_table(runs))
    first_runs = {(run.spec.pair, run.spec.method, run.spec.variant): run for run in reversed(runs)}
    for run in (run for run in runs if run in first_runs.values()):  # the first seed of each method and pair
        if len(runs) > 1:
            console.rule(escape(run.spec.label))
        print_line(str(run.assessment))
    path = runs[0].path / "assessment.json" if len(runs) == 1 else folder / "*" / "assessment.json"
    print_line(f"Written: {path}")


def _assess_saved(path: Path, name: str | None, incumbent: str | None, unit: str) -> None:
    """Print the assessment of a saved policy on the data that ``name`` describes."""
    if name is None:
        raise InvalidInput(f"{path} is a saved policy, which needs data: --source old.csv --target new.csv, or --on")
    if not path.is_file():
        raise InvalidInput(f"{path} is not a saved policy, so --on and --source cannot be given")
    experiment = load_experiment(name)
    policy = daband.load(path, device="cpu")
    options = pairs.get(experiment.pair_names()[0]).resolve_options(experiment.pair_options)
    if policy.table is not None:  # the policy reads rows as in training
        options["transform"] = policy.table
    source = Path(str(options.get("source")))
    if source.is_file() and has_learned(policy, source):
        print_line(f"warning   the policy has learned {source}, so its source advantage is too high", style="yellow")
    with console.status(_SCORING_TEXT):
        pair = load(experiment.pair_names()[0], **options)
        if pair.source_test is None:
            raise InvalidInput(f"assess needs held-out source rounds, but {name} has source_test = 0")
        assessment = assess(
            policy,
            source=pair.source_test,
            target=pair.target,
            incumbent=incumbent,
            arm_names=pair.class_names,
            unit=get_reward_unit(unit, options),
        )
    print_line(str(assessment))


def _make_assessment_table(runs: list[AssessedRun]) -> Table:
    """Return a table with the advantage and the verdict of each run."""
    numbers = ("advantage", "at least", "in the source")
    table = make_table("advantage over the incumbent in the target", text_headings=["run"], number_headings=numbers)
    table.add_column("verdict")
    for run in runs:
        assessment = run.assessment
        values = assessment.advantage, assessment.low, assessment.source_advantage
        cells = (format_number(value, with_sign=True) for value in values)
        table.add_row(escape(run.spec.label), *cells, assessment.verdict)
    return table


def audit_command(
    folder: Annotated[Path, typer.Argument(help="The folder of one run, or of a choice.", show_default=False)],
    budget: Annotated[int | None, typer.Option(min=1, help="Start an audit: rewards to ask for.")] = None,
    out: Annotated[Path | None, typer.Option(help="A CSV file for a copy of the questions.")] = None,
    answers: Annotated[
        Path | None, typer.Option(help="The CSV file of questions with the column reward filled in.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --answers: overwrite earlier answers that differ.")
    ] = False,
    incumbent: Annotated[
        str | None,
        typer.Option(help="An arm, or a column that --id names. Default: the assessment's incumbent."),
    ] = None,
) -> None:
    """Measure the advantage of a policy over the incumbent with a few target rewards.

    Start with `daband audit DIR --budget 100 --out questions.csv`. Fill in the column reward, then
    call `daband audit DIR --answers questions.csv`. Without options, the result so far is printed.

    Example: daband audit market/ --answers questions.csv
    """
    audit_folder = find_policy_folder(folder).path / AUDIT_FOLDER
    if budget is None and not audit_folder.is_dir():
        raise InvalidInput(f"{folder} has no audit yet; start one with --budget N --out questions.csv")
    if answers is not None:
        if budget is not None or out is not None:
            raise InvalidInput("--answers cannot be combined with --budget and --out, which start an audit")
        audit, assessment = add_answers(folder, answers, replace=replace)
        _print_audit(audit, folder, questions=answers)
        if assessment is not None:
            print_line(f"Verdict of the assessment, which has another rule: {assessment.verdict}.")
            if assessment.verdict == COLLECT:
                larger_budget = min(audit.budget + assessment.rewards_needed, audit.contexts)
                print_line(f"For more: daband audit {shlex.quote(str(folder))} --budget {larger_budget} --out more.csv")
        return
    if replace:
        raise InvalidInput("--replace needs --answers, whose answers then overwrite earlier ones")
    audit = read_audit(audit_folder) if budget is None else start_audit(folder, budget=budget, incumbent=incumbent)
    if out is not None and audit.budget:
        _copy_questions(audit, out)
    _print_audit(audit, folder, questions=out)


def _copy_questions(audit: Audit, out: Path) -> None:
    """Copy the questions to a file. Raise an error if it may hold answers."""
    assert audit.questions is not None
    content = audit.questions.read_bytes()
    if out.is_file() and out.read_bytes() != content:  # it may have rewards that were filled in
        raise InvalidInput(
            f"--out: {out} exists and differs from the questions. If it has answers, pass it as --answers; "
            "otherwise choose another name or remove it"
        )
    write_bytes(out, content)


def _print_audit(audit: Audit, folder: Path, questions: Path | None = None) -> None:
    """Print the result of an audit so far, and the next step."""
    if audit.answered or not audit.budget:
        print_line(audit.sentence)
    if audit.answered:
        limits = f"{format_number(audit.value)} [{format_number(audit.value_low)}, {format_number(audit.value_high)}]"
        unit = audit.unit or "reward"
        print_line(f"Mean {unit} in the target: {limits}, over {audit.contexts:,} contexts.", style="dim")
    if audit.answered < audit.budget:
        file = questions or audit.questions
        print_line(f"{audit.answered} of {audit.budget} questions are answered: {file}")
        command = f"daband audit {shlex.quote(str(folder))} --answers {shlex.quote(str(file))}"
        print_line(f"Fill in the column reward, in the order of ids, then: {command}")


def choose_command(
    name: Name,
    incumbent: Incumbent = None,
    budget: Annotated[
        int, typer.Option(min=0, help="Target rewards to use: fill in OUT/questions.csv, then run this again.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the policy.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Use fewer candidates and a smaller network.")] = False,
    unit: Unit = "",
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default a folder in runs/.")] = None,
    overrides: Overrides = None,
) -> None:
    """Train candidates and choose one for the target, without target rewards or with a few (--budget).

    After Ctrl-C, the same command continues.

    Example: daband choose --source old.csv --target new.csv --arm offer --reward euros --incumbent coupon --out market
    """
    experiment = load_experiment(name, overrides or ())
    folder = out or Path("runs") / f"{name_folder(name)}-choice"
    # Candidates have their own settings instead of these.
    unused_settings = {"policy": {}, "methods": {}, "rule": "ucb", "selection": "choose"}
    specs = experiment.model_copy(update=unused_settings).runs(["constant"], [seed])
    for spec in specs:
        # Before training, so that a folder that cannot be created is an error at once.
        out_folder = make_folder(folder / spec.pair.replace("/", "-") if len(specs) > 1 else folder, "out")
        pair = load(spec.pair, **spec.pair_options)
        n_available = max(1, pair.source.rounds_available // experiment.episode_length)
        episodes = {"auto": None, "all": n_available}.get(str(experiment.episodes), experiment.episodes)
        try:
            with show_candidates_bar() as show_progress, interruptible(show_progress) as progress:
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
                    unit=get_reward_unit(unit, spec.pair_options),
                    progress=progress,
                )
        except KeyboardInterrupt as stopped:
            raise report_stop(out_folder, stopped) from None
        finish_choice(choice, pair, spec, out_folder)
        print_line(choice.assessment.sentence)
        if incumbent is None:
            print_line("The incumbent is the source's best arm; to compare with what you do today, use --incumbent.")
        print_line(f"Chosen: {choice.candidate} ({choice.rule}).")
        if choice.assessment.disagreement:
            print_line(choice.assessment.reference, style="dim")
        console.print(_make_candidate_table(spec.pair, choice))
        if pair.target_test is not None:
            result = read_json(out_folder / "result.json")
            value, rows = result["target_value"], result["target_contexts"]
            print_line(f"Mean reward on {rows:,} labelled target rows that were held out: {format_number(value)}.")
        print_line(f"Written: {out_folder}")
        _print_next_steps(choice, out_folder, budget, len(pair.target))


def _print_next_steps(choice: Choice, out_folder: Path, budget: int, contexts: int) -> None:
    """Print the commands that a user may call next."""
    quoted_folder = shlex.quote(str(out_folder))
    if choice.questions is not None:
        print_line(
            f"Fill in the column reward of {choice.questions} in the order of ids ({budget - choice.rewards} to go), "
            "and run the same command again."
        )
    elif choice.assessment.verdict == COLLECT:
        budget_needed = min(choice.assessment.rewards_needed, contexts)
        print_line(f"To collect rewards: daband audit {quoted_folder} --budget {budget_needed} --out questions.csv")
    print_line(f"Reasons: daband assess {quoted_folder}")
    is_worse = choice.assessment.verdict == KEEP and choice.assessment.disagreement
    purpose = "To deploy it anyway" if is_worse else "For production"
    print_line(f"{purpose}: daband export {quoted_folder} FILE --epsilon 0.1")


@contextmanager
def show_candidates_bar() -> Iterator[Callable[[CandidateProgress], None]]:
    """Yield a function that shows the progress of training: a bar on a terminal, otherwise occasional lines."""
    last_fraction, last_time, note, had_time_left = 0.0, time.monotonic(), "", False
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("candidates", total=1.0)

        def show_progress(progress: CandidateProgress) -> None:
            nonlocal last_fraction, last_time, note, had_time_left
            if progress.note != note:
                note = progress.note
                print_line(f"Note: {note}.")
            has_time_left = progress.seconds_left is not None
            minutes, seconds = divmod(math.ceil(progress.seconds_left or 0), 60)
            time_left = f", {minutes}:{seconds:02d} left" if has_time_left else ""
            text = f"{progress.policies_done} of {progress.policies} policies, {progress.candidate}{time_left}"
            is_trained = progress.policies_done == progress.policies
            bar.update(task, completed=progress.fraction, description=_SCORING_TEXT if is_trained else escape(text))
            elapsed = time.monotonic() - last_time
            has_advanced = progress.fraction - last_fraction >= _LINE_FRACTION and elapsed >= _LINE_SECONDS[0]
            is_due = has_advanced or elapsed >= _LINE_SECONDS[1] or (has_time_left and not had_time_left)
            if console.is_terminal or not (is_due or is_trained):
                return
            last_fraction, last_time, had_time_left = progress.fraction, time.monotonic(), has_time_left
            print_line(f"training  {text}")
            if is_trained:
                print_line(_SCORING_TEXT)

        yield show_progress


def _make_candidate_table(pair: str, choice: Choice) -> Table:
    """Return a table with the advantage of each candidate."""
    columns = {"source_advantage": "in the source", "source_error": "standard error"}
    title = f"advantage over {choice.assessment.incumbent}, greedy choices"
    title = title if pair == "files" else f"{pair}: {title}"
    if choice.rewards:
        columns |= {"advantage": "in the target", "low": "at least", "high": "at most"}
        title += f"; {choice.rewards} target rewards"
    table = make_table(title, text_headings=["candidate"], number_headings=list(columns.values()))
    for row in choice.table:
        cells = (format_number(row[column], with_sign=column != "source_error") for column in columns)
        table.add_row(escape(row["candidate"]), *cells, style="bold" if row["chosen"] else "")
    return table
