"""Define the commands that read logs: ``fit-log``, ``learn`` and ``evaluate-log``."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

import daband
from daband.base._files import check_writable, write_json
from daband.cli import _shared as shared_options
from daband.cli._pilot import print_status
from daband.cli._shared import console, print_line, show_rows_bar
from daband.domains._data_options import DataOptions
from daband.domains.readers._parquet_log import ParquetLog, open_log
from daband.errors import InvalidInput
from daband.ledger._log_import import LogNames
from daband.ledger._market import EXPORT, GO_BACK, Lesson, Market, open_market
from daband.logs._mean_estimates import MeanEstimate
from daband.policies._policy import Policy
from daband.serving._deployed_policy import DeployedPolicy, is_deployed_file
from daband.trust._assessment import VERDICT_CONFIDENCE, format_number


def fit_log_command(
    log: Annotated[
        str,
        Argument(help="A folder or glob of Parquet files ('logs/*.parquet')."),
    ],
    out: Annotated[Path, Option(help="The file for the fitted policy, e.g. policy.safetensors.")],
    n_arms: Annotated[int, Option(min=1, help="The number of arms.")],
    context: shared_options.ContextColumns = None,
    state: Annotated[
        Path | None,
        Option(help="A folder for the state; after an interruption, the same command continues."),
    ] = None,
) -> None:
    """Fit LinUCB to a log that may be larger than memory.

    For a table that fits into memory, use `daband choose`.

    Example: daband fit-log 'logs/*.parquet' --n-arms 5 --out policy.safetensors
    """
    check_writable(out)  # before the fit, which may take hours
    columns = shared_options.parse_columns(context)
    parquet_log = ParquetLog(log, n_arms=n_arms, columns=columns)
    policy = daband.LinUCB(
        context_shape=parquet_log.context_shape, n_arms=n_arms, transform=daband.Standardise()
    )
    with show_rows_bar(policy.name) as show_rows:
        daband.fit_log(policy, log, columns=columns, directory=state, progress=show_rows)
    policy.save(out)
    print_line(f"{policy!r}\nPolicy: {out}")


def learn_command(
    folder: shared_options.PolicyArgument,
    log: Annotated[
        str | None,
        Argument(help="The completed log: CSV or Parquet. Default: the rewards of a service."),
    ] = None,
    arm: shared_options.ArmColumn = "arm",
    reward: shared_options.RewardColumn = "reward",
    propensity: shared_options.PropensityColumn = "propensity",
    id_column: Annotated[
        str | None,
        Option("--id", help="The column with the id of each decision; default: decision_id."),
    ] = None,
    context: shared_options.ContextColumns = None,
    cluster: shared_options.ClusterColumn = None,
    correct: Annotated[
        bool, Option("--correct", help="Replace rewards of the ledger that differ in the log.")
    ] = False,
    external: Annotated[
        bool, Option("--external", help="The log is of another system, not of `daband decide`.")
    ] = False,
    out: Annotated[
        Path | None, Option(help="For a saved policy: the file to write; default: the same file.")
    ] = None,
) -> None:
    """Enter a completed log into the ledger, learn it, and print what ran and what to do next.

    The log is checked completely first: an exported file of the market must have made its
    decisions. It can be given again when more rewards have arrived. During a pilot, the decision is
    printed, too.

    Example: daband learn market log1.csv
    """
    names = LogNames(arm, reward, propensity, id_column or "decision_id")
    if not folder.is_dir():
        columns = {"arm": arm, "reward": reward, "propensity": propensity}
        _learn_file(
            folder, out or folder, log, context, columns, {"id": id_column, "cluster": cluster}
        )
        return
    with open_market(folder) as market, console.status("Learning ..."):
        lesson = market.learn(log, names=names, cluster=cluster, correct=correct, external=external)
        for text in describe_lesson(lesson, market):
            print_line(text)
        pilot = market.pilot
        if pilot is not None:
            print_status(folder, pilot)


def _learn_file(
    path: Path,
    out: Path,
    log: str | None,
    context: str | None,
    names: dict[str, str],
    other_names: dict[str, str | None],
) -> None:
    """Update a saved policy, which has no market, from a log."""
    policy = _load_policy(path)
    check_writable(out)
    if log is None:
        raise InvalidInput("a saved policy needs a LOG to learn")
    opened_log = _open_log(log, policy, context, names, other_names)
    n_before = policy.rounds_learned
    with show_rows_bar(policy.name) as show_rows:
        daband.learn_log(policy, opened_log, id=other_names["id"], progress=show_rows)
    policy.save(out)
    n_learned = policy.rounds_learned - n_before
    print_line(
        f"Learned {n_learned:,} target rounds; {policy.rounds_learned:,} in total.\n"
        f"Policy: {out} (version {policy.version})"
    )


def describe_lesson(lesson: Lesson, market: Market) -> Iterator[str]:
    """Yield lines on what ran, on what the newest version is expected to add, and on what to do."""
    entered = lesson.entered
    if entered is not None:
        corrected = f", {entered.corrected:,} corrected" if entered.corrected else ""
        yield (
            f"Entered: {entered.rewards:,} rewards{corrected} and {entered.decisions:,} decisions;"
            f" {entered.missing:,} of {entered.rows:,} rows have no reward yet."
        )
    assessment = lesson.assessment
    unit = f" {assessment.unit}" if assessment is not None and assessment.unit else ""
    incumbent = "the incumbent" if assessment is None else assessment.incumbent
    for record in lesson.history:
        text = f"Version {record.version} ran: {record.decisions:,} rounds"
        if record.mean is not None:
            text += f", mean reward {_format_estimate(record.mean)}{unit}"
        if record.control_mean is not None:
            text += (
                f"; control group: {record.control_rewards:,} rounds,"
                f" {_format_estimate(record.control_mean)}"
            )
        yield f"{text}."
        if record.lift is not None:
            yield f"  Lift over {incumbent}: {_format_estimate(record.lift, with_sign=True)}{unit}."
    if lesson.learned:
        yield f"Learned: {lesson.learned:,} rewards, as version {lesson.newest}."
    else:
        yield "There are no rewards to learn."
    if lesson.gain is not None:
        low = lesson.gain.compute_interval(VERDICT_CONFIDENCE)[0]
        limit = format_number(low, with_sign=True) if math.isfinite(low) else "unknown"
        yield (
            f"Version {lesson.newest} is expected to add"
            f" {format_number(lesson.gain.value, with_sign=True)}{unit} to version"
            f" {lesson.running}, at least {limit} (one-sided 90% limit)."
        )
    if assessment is not None:
        yield assessment.sentence
    pilot = market.pilot
    if pilot is not None and pilot.decision is None:
        return  # the status of the pilot has the next command
    folder = shlex.quote(str(market.folder))
    if lesson.action == GO_BACK:
        yield f"To do: go back to {incumbent}; daband report {folder} has the reasons."
    elif lesson.action == EXPORT:
        yield f"To do: export version {lesson.version}: daband export {folder} FILE --epsilon 0.1"
    else:
        yield f"To do: go on with version {lesson.version}."


def _format_estimate(estimate: MeanEstimate, *, with_sign: bool = False) -> str:
    """Return an estimate with its 95% interval."""
    value = format_number(estimate.value, with_sign=with_sign)
    low, high = estimate.compute_interval(0.95)
    if not math.isfinite(low):
        return value
    limits = (format_number(limit, with_sign=with_sign) for limit in (low, high))
    return f"{value} ({' to '.join(limits)})"


#: The file of estimates in the folder of a choice.
_ESTIMATES_FILE = "log_estimates.json"


def check_log_command(
    log: Annotated[str, Argument(help="A table: CSV, Parquet, TSV or Arrow.")],
    arm: Annotated[str, Option(help="The column with the chosen arm.")],
    reward: Annotated[str, Option(help="The column with its reward.")],
    propensity: Annotated[
        str | None, Option(help="The column with its probability; default: frequencies.")
    ] = None,
    ids: Annotated[
        list[str] | None, Option("--id", metavar="COLUMN", help="A column with ids.")
    ] = None,
    cluster: shared_options.ClusterColumn = None,
    drop: Annotated[list[str] | None, Option(metavar="COLUMN", help="A column to ignore.")] = None,
) -> None:
    """Check a log: arms with their means and intervals, and what is wrong with it.

    Example: daband check-log norway.csv --arm offer --reward euros --propensity p --id customer
    """
    options = DataOptions(
        source=log,
        target=log,
        arm=arm,
        reward=reward,
        propensity=propensity,
        cluster=cluster,
        id=tuple(ids or ()),
        drop=tuple(drop or ()),
    )
    tables = options.read_tables()
    for text in tables.describe_mistakes():
        print_line(text, style="yellow")
    print_line(str(daband.check_log(tables.source, tables.columns)))


def evaluate_log_command(
    policy: shared_options.PolicyOrExportArgument,
    log: shared_options.LogArgument,
    arm: shared_options.ArmColumn = "arm",
    reward: shared_options.RewardColumn = "reward",
    propensity: shared_options.PropensityColumn = "propensity",
    id_column: Annotated[
        str | None,
        Option("--id", help="The column with the id of a round, to recognise learned rounds."),
    ] = None,
    domain: Annotated[
        Literal["source", "target"] | None,
        Option(help="The domain of the log; by default the one that the policy is deployed in."),
    ] = None,
    context: shared_options.ContextColumns = None,
    out: Annotated[
        Path | None,
        Option(help=f"A JSON file; by default {_ESTIMATES_FILE} in DIR."),
    ] = None,
) -> None:
    """Estimate the mean reward of a policy from the log of another policy.

    Example: daband evaluate-log policy.safetensors week1.parquet
    """
    if policy.is_dir():
        with open_market(policy) as market:
            market.check_not_learned(log, id_column)
    evaluated_policy = (
        daband.load_deployed(policy)
        if policy.is_file() and is_deployed_file(policy)
        else _load_policy(policy)
    )
    estimates_path = out or (policy / _ESTIMATES_FILE if policy.is_dir() else None)
    if estimates_path is not None:
        check_writable(estimates_path)
    if isinstance(evaluated_policy, DeployedPolicy):
        if domain not in (None, evaluated_policy.domain):
            raise InvalidInput(
                f"{policy} was exported for the {evaluated_policy.domain}, not for the {domain}"
            )
    elif domain is not None:
        evaluated_policy.deploy(domain)
    names = {"arm": arm, "reward": reward, "propensity": propensity}
    opened_log = _open_log(log, evaluated_policy, context, names, {"id": id_column})
    estimate = daband.evaluate_log(evaluated_policy, opened_log, id=id_column)
    value, low, high = map(format_number, (estimate.value, estimate.low, estimate.high))
    print_line(
        f"Mean {reward} {value}, 95% interval {low} to {high}, from {estimate.rounds:,} rounds"
        f" (an effective sample of {estimate.effective_sample_size:,.0f}) in the {estimate.domain}"
    )
    for warning in estimate.warnings:
        print_line(f"warning   {warning}", style="yellow")
    if estimates_path is not None:
        write_json(estimates_path, {"log": log, "estimate": estimate.as_dict()})
        print_line(f"Written: {estimates_path}")


def _open_log(
    log: str,
    policy: Policy | DeployedPolicy,
    context: str | None,
    names: dict[str, str],
    other_names: dict[str, str | None],
) -> ParquetLog:
    """Return a log with the columns ``names``, by role, and with those of ``other_names`` that are
    not None.
    """
    columns = shared_options.parse_columns(context, **names)
    return open_log(log, policy, columns=columns, skip_unrewarded=True, **other_names)


def _load_policy(path: Path) -> Policy:
    """Return the saved policy at a path, or the recommended version of a market."""
    if path.is_dir():
        with open_market(path) as market:
            return market.versions.load(market.recommended)
    policy: Policy = daband.load(path, device="cpu")
    return policy
