"""Define the commands on one choice: ``choose``, ``assess``, ``audit`` and ``rules``."""

from __future__ import annotations

import json
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
from typer import Argument, Option

from daband.base._arguments import check_one_of
from daband.base._files import check_writable, write_bytes, write_text
from daband.cli._data import add_data_options, print_images, print_tables_read
from daband.cli._shared import (
    console,
    make_table,
    print_line,
    raise_on_stop,
    report_stop,
)
from daband.domains._data_options import DataOptions
from daband.domains.readers._columns import NOT_IN_TARGET
from daband.errors import InvalidInput
from daband.ledger._market import AUDIT_FOLDER, claim_folder, open_market
from daband.training._candidates import CandidateProgress
from daband.training._zero_shot import evaluate
from daband.trust._answers import QUESTIONS_FILE, Survey
from daband.trust._assessment import COLLECT, DEPLOY, KEEP, Assessment, format_number
from daband.trust._audit import Audit
from daband.trust._choose import Choice, choose
from daband.trust._rules import RULES_FILE, check_rules_folder, rules

#: Shown while policies decide on contexts of both domains.
_SCORING_TEXT = "Scoring contexts of both domains ..."
#: Seconds between two printed lines, if the output is not a terminal.
_LINE_SECONDS = 10.0
#: Exit code of ``assess --fail-unless`` for another verdict. Errors have code 2.
_OTHER_VERDICT_CODE = 1

ChoiceFolder = Annotated[Path, Argument(help="The folder of a choice.", show_default=False)]
Incumbent = Annotated[
    str | None,
    Option(
        help=(
            "Today's decisions: an arm, or a target column that --id names. Default: that of the"
            " choice, or the source's best arm."
        )
    ),
]
Unit = Annotated[
    str,
    Option(help="Unit of the rewards in messages, e.g. euros. Default: the reward column."),
]


def assess_command(
    folder: ChoiceFolder,
    incumbent: Incumbent = None,
    unit: Unit = "",
    fail_unless: Annotated[
        str | None,
        Option(
            metavar="VERDICT",
            help="Exit with code 1 if the verdict is another one, e.g. deploy; for CI.",
        ),
    ] = None,
) -> None:
    """Print the advantage of a choice over the incumbent in the target, and the reasons for the
    verdict.

    With another --incumbent, the advantage is estimated again, without target rewards.

    Example: daband assess market/ --incumbent coupon --fail-unless deploy
    """
    if fail_unless is not None:
        check_one_of("--fail-unless", fail_unless, (DEPLOY, COLLECT, KEEP))
    with console.status(_SCORING_TEXT), open_market(folder) as market:
        assessment = market.assess(incumbent=incumbent, unit=unit)
    print_line(str(assessment))
    if fail_unless not in (None, assessment.verdict):
        raise typer.Exit(_OTHER_VERDICT_CODE)


def audit_command(
    folder: ChoiceFolder,
    budget: Annotated[int | None, Option(min=1, help="Start an audit: rewards to ask for.")] = None,
    out: Annotated[Path | None, Option(help="A CSV file for a copy of the questions.")] = None,
    answers: Annotated[
        Path | None,
        Option(help="The CSV file of questions with the column reward filled in."),
    ] = None,
    replace: Annotated[
        bool,
        Option("--replace", help="With --answers: overwrite earlier answers that differ."),
    ] = False,
    incumbent: Annotated[
        str | None,
        Option(help="An arm, or a column that --id names. Default: the assessment's incumbent."),
    ] = None,
) -> None:
    """Measure the advantage of a policy over the incumbent with a few target rewards.

    Start with `daband audit DIR --budget 100 --out questions.csv`. Fill in the column reward, then
    call `daband audit DIR --answers questions.csv`. Without options, the result so far is printed.

    Example: daband audit market/ --answers questions.csv
    """
    audit_folder = folder / AUDIT_FOLDER
    if budget is None and not audit_folder.is_dir():
        raise InvalidInput(
            f"{folder} has no audit yet; start one with --budget N --out questions.csv"
        )
    if answers is not None and (budget is not None or out is not None):
        raise InvalidInput(
            "--answers cannot be combined with --budget and --out, which start an audit"
        )
    if replace and answers is None:
        raise InvalidInput("--replace needs --answers, whose answers then overwrite earlier ones")
    assessment: Assessment | None = None
    with open_market(folder) as market:
        if budget is None:
            audit, assessment = market.update_audit(answers, replace=replace)
        else:
            audit = market.start_audit(budget=budget, incumbent=incumbent)
    if out is not None and audit.budget:
        _copy_questions(audit, out)
    _print_audit(audit, folder, answers or out, assessment or audit)
    if assessment is not None and assessment.verdict == COLLECT:
        larger_budget = min(audit.budget + assessment.rewards_needed, audit.contexts)
        print_line(
            f"For more: daband audit {shlex.quote(str(folder))} --budget {larger_budget} --out"
            " more.csv"
        )


def _copy_questions(audit: Audit, copy_path: Path) -> None:
    """Copy the questions to a file. Raise an error if this file may hold answers."""
    assert audit.questions is not None
    content = audit.questions.read_bytes()
    # it may have rewards that were filled in
    if copy_path.is_file() and copy_path.read_bytes() != content:
        raise InvalidInput(
            f"--out: {copy_path} exists and differs from the questions. If it has answers, pass it"
            " as --answers; otherwise choose another name or remove it"
        )
    write_bytes(copy_path, content)


def _print_audit(
    audit: Audit, folder: Path, questions_path: Path | None, result: Audit | Assessment
) -> None:
    """Print the result of an audit so far, and the next step.

    ``questions_path`` is the user's copy of the questions; None if there is none. ``result`` is the
    audit, or the assessment that it has updated.
    """
    if audit.answered or not audit.budget:
        print_line(result.sentence)
    if audit.answered:
        mean, low, high = (
            format_number(number) for number in (audit.value, audit.value_low, audit.value_high)
        )
        unit = audit.unit or "reward"
        print_line(
            f"Mean {unit} in the target: {mean} [{low}, {high}], over {audit.contexts:,} contexts.",
            style="dim",
        )
    if audit.answered < audit.budget:
        path = questions_path or audit.questions
        print_line(f"{audit.answered} of {audit.budget} questions are answered: {path}")
        command = f"daband audit {shlex.quote(str(folder))} --answers {shlex.quote(str(path))}"
        print_line(f"Fill in the column reward, in the order of ids, then: {command}")


def rules_command(
    folder: ChoiceFolder,
    depth: Annotated[int, Option(min=1, max=3, help="Maximum number of conditions of a row.")] = 2,
    sql: Annotated[bool, Option("--sql", help="Write a CASE expression of SQL.")] = False,
    as_json: Annotated[
        bool, Option("--json", help="Write a JSON tree; to --out with the policy.")
    ] = False,
    growthbook: Annotated[
        bool, Option("--growthbook", help="Write rules of a feature of GrowthBook.")
    ] = False,
    text: Annotated[bool, Option("--text", help="Write text; the default.")] = False,
    out: Annotated[Path | None, Option(help="The file to write; default: print.")] = None,
    table: Annotated[
        str | None, Option(help="With --sql: the table of a query with arm and propensity.")
    ] = None,
    min_rounds: Annotated[
        int, Option(min=1, help="Minimum number of rounds of an arm where it is chosen.")
    ] = 50,
) -> None:
    """Find the best small tree over raw columns, and write it as SQL, JSON, GrowthBook's conditions
    or text.

    It is one arm if the data do not prove that the tree is better. DIR gets rules.json, which
    `daband decide`, `daband learn` and `daband export` take.

    Example: daband rules market --depth 2 --sql --table customers --out rules.sql
    """
    if sum((sql, as_json, growthbook, text)) > 1:
        raise InvalidInput("use only one of --sql, --json, --growthbook and --text")
    if as_json and out is not None and out.suffix != ".json":
        raise InvalidInput(f"--out must end in .json with --json, got {out}")
    choice = Choice.load(folder)
    if out is not None:
        check_writable(out)
    check_rules_folder(folder)
    with console.status("Searching trees ..."):
        result = rules(
            choice,
            max_depth=depth,
            min_rounds=min_rounds,
        )
    result.save(folder)
    if sql:
        content = result.rule.to_sql(table) + "\n"
    elif as_json or growthbook:
        rule = result.rule.to_json() if as_json else result.rule.to_growthbook()
        content = json.dumps(rule, indent=2, ensure_ascii=False) + "\n"
    else:
        content = result.to_text()
    if out is None:
        typer.echo(content, nl=False)
        if result.assessment.sentence not in content:  # the output may be a program
            typer.echo(result.assessment.sentence, err=True)
        return
    if as_json:  # with the policy, so that decide, learn and export read it
        result.policy.save(out)
    else:
        write_text(out, content)
    print_line(f"{result.sentence}\n{result.assessment.sentence}")
    print_line(f"Written: {out} and {folder / RULES_FILE}")


@add_data_options
def choose_command(
    data: DataOptions,
    incumbent: Incumbent = None,
    budget: Annotated[
        int,
        Option(
            min=0, help="Target rewards to use: fill in OUT/questions.csv, then run this again."
        ),
    ] = 0,
    seed: Annotated[int, Option(min=0, help="Seed of the policy.")] = 0,
    episodes: Annotated[
        int | None, Option(min=1, help="Episodes of training; by default enough.")
    ] = None,
    device: Annotated[str, Option(help="auto, cpu, cuda, ...")] = "auto",
    quick: Annotated[
        bool, Option("--quick", help="Use fewer candidates and a smaller network.")
    ] = False,
    unit: Unit = "",
    out: Annotated[
        Path | None, Option(help="Folder for the results; by default a folder in runs/.")
    ] = None,
) -> None:
    """Train candidates and choose one for the target, without target rewards or with a few
    (--budget).

    After Ctrl-C, the same command continues.

    Example: daband choose --source old.csv --target new.csv --arm offer --reward euros --incumbent
    coupon --out market
    """
    folder = out or Path("runs") / data.name
    tables = None
    if data.resolve().has_images:
        print_images(data)
    else:
        tables = data.read_tables()
        print_tables_read(data, tables)
    pair = data.read(tables)
    assert pair.options is not None
    claim_folder(folder, pair.options)
    if (folder / QUESTIONS_FILE).is_file():
        budget = max(budget, Survey.read(folder).budget)
    try:
        with show_candidates_bar() as show_progress, raise_on_stop():
            choice = choose(
                pair,
                incumbent=incumbent,
                episodes=episodes,
                seed=seed,
                budget=budget,
                device=device,
                quick=quick,
                directory=folder,
                unit=unit or data.reward or "",
                progress=show_progress,
            )
    except KeyboardInterrupt as stop_exception:
        raise report_stop(folder, stop_exception) from None
    choice.save(folder)
    print_line(choice.assessment.sentence)
    if incumbent is None:
        print_line(
            "The incumbent is the source's best arm; to compare with what you do today, use"
            " --incumbent."
        )
    print_line(f"Chosen: {choice.candidate} ({choice.rule}).")
    if choice.assessment.disagreement:
        print_line(choice.assessment.reference, style="dim")
    console.print(_make_candidate_table(choice))
    if pair.target_test is not None:
        mean = format_number(evaluate(choice.policy, pair.target_test).value)
        print_line(
            f"Mean reward on {len(pair.target_test):,} labelled target rows that were held out:"
            f" {mean}."
        )
    print_line(f"Written: {folder}")
    # exploring costs rewards, and the source has the rewards of all arms
    exploration = "" if pair.full_feedback else " --epsilon 0.1"
    _print_next_steps(choice, folder, budget, len(pair.target), exploration)
    for notice in [] if tables is None else tables.notices:
        if notice.needs_decision:  # printed again, because training prints much
            print_line(f"Please check: {notice}", style="yellow")
    roles = [] if tables is None else tables.column_roles
    source_only_columns = [role.name for role in roles if role.reason.startswith(NOT_IN_TARGET)]
    if source_only_columns:
        print_line(
            "Please check: no decision depends on columns that only the source has"
            f" ({', '.join(source_only_columns)}). If they are known before a decision, add them"
            " to the target.",
            style="yellow",
        )


def _print_next_steps(
    choice: Choice, out_folder: Path, budget: int, n_contexts: int, exploration: str
) -> None:
    """Print the commands that a user may call next.

    ``n_contexts`` is the number of target contexts, and ``exploration`` the options of ``daband
    export`` for exploration.
    """
    quoted_folder = shlex.quote(str(out_folder))
    if choice.questions is not None:
        print_line(
            f"Fill in the column reward of {choice.questions} in the order of ids"
            f" ({budget - choice.rewards} to go), and run the same command again. The limits"
            f" hold after any number of these {budget} rewards, so they are wide until most arrive."
        )
    elif choice.assessment.verdict == COLLECT:
        needed = choice.assessment.rewards_needed
        command = f"daband audit {quoted_folder} --budget {needed} --out questions.csv"
        print_line(
            f"To collect rewards: {command}"
            if needed <= n_contexts
            else f"The target has only {n_contexts:,} rows, too few to collect the rewards there."
        )
        print_line(
            "To collect them from live traffic, with a limit of the cost: daband pilot plan"
            f" {quoted_folder} --max-loss 1% --per-week N"
        )
    print_line(f"Reasons: daband assess {quoted_folder}")
    keeps_incumbent = choice.assessment.verdict == KEEP and choice.assessment.disagreement
    purpose = "To deploy it anyway" if keeps_incumbent else "For production"
    print_line(f"{purpose}: daband export {quoted_folder} FILE{exploration}")


@contextmanager
def show_candidates_bar() -> Iterator[Callable[[CandidateProgress], None]]:
    """Yield a function that shows the progress of training: a bar on a terminal, otherwise
    occasional lines.
    """
    last_time = time.monotonic()
    last_note = ""
    bar_columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(
        *bar_columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("candidates", total=1.0)

        def show_progress(progress: CandidateProgress) -> None:
            nonlocal last_time, last_note
            if progress.note != last_note:
                last_note = progress.note
                print_line(f"Note: {last_note}.")
            has_time_left = progress.seconds_left is not None
            minutes, seconds = divmod(math.ceil(progress.seconds_left or 0), 60)
            time_left = f", {minutes}:{seconds:02d} left" if has_time_left else ""
            status = (
                f"{progress.policies_done} of {progress.policies} policies,"
                f" {progress.candidate}{time_left}"
            )
            is_trained = progress.policies_done == progress.policies
            bar.update(
                task,
                completed=progress.fraction,
                description=_SCORING_TEXT if is_trained else escape(status),
            )
            is_due = time.monotonic() - last_time >= _LINE_SECONDS
            if console.is_terminal or not (is_due or is_trained):
                return
            last_time = time.monotonic()
            print_line(f"training  {status}")
            if is_trained:
                print_line(_SCORING_TEXT)

        yield show_progress


def _make_candidate_table(choice: Choice) -> Table:
    """Return a table with the advantage of each candidate."""
    # The headings of number columns, by the field of a candidate.
    headings = {"source_advantage": "in the source", "source_error": "standard error"}
    title = f"advantage over {choice.assessment.incumbent}, greedy choices"
    if any(row["advantage"] is not None for row in choice.table):
        headings |= {"advantage": "in the target", "low": "at least"}
    if choice.rewards:
        # six columns fit into 80 characters
        headings |= {
            "source_error": "standard\nerror",
            "advantage": "in the\ntarget",
            "high": "at most",
        }
        title += f"; {choice.rewards} target rewards"
    table = make_table(title, text_headings=["candidate"], number_headings=list(headings.values()))
    for row in choice.table:
        cells = (
            ""
            if row[field] is None
            else format_number(row[field], with_sign=field != "source_error")
            for field in headings
        )
        table.add_row(escape(row["candidate"]), *cells, style="bold" if row["chosen"] else "")
    return table
