"""Define the commands that read logs: ``fit-log``, ``learn`` and ``evaluate-log``."""

from __future__ import annotations

import copy
import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from typer import Argument, Option

import daband
from daband.base._files import check_writable, lock_folder, make_folder, write_json
from daband.cli import _shared as shared_options
from daband.cli._pilot import print_status
from daband.cli._shared import print_line, show_rows_bar
from daband.domains._data_options import DataOptions
from daband.domains.readers._parquet_log import ParquetLog, open_log
from daband.domains.readers._reading import TARGET_PREFIX, compute_digests
from daband.errors import InvalidInput
from daband.logs._mean_estimates import estimate_mean
from daband.policies._log_policy import LogPolicy
from daband.policies._policy import Policy
from daband.rounds._rounds import Rounds
from daband.serving._deployed_policy import DeployedPolicy, is_deployed_file
from daband.trust._assess import compute_arm_fractions
from daband.trust._assessment import format_number
from daband.trust._choice_folder import find_next_file, find_policy_file, update_verdict
from daband.trust._pilot import Pilot

#: The number of rounds of a log from which ``learn`` describes changes.
_MAX_SHOWN_ROUNDS = 65_536
#: The number of arms that ``learn`` shows.
_MAX_SHOWN_ARMS = 8


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
    policy: shared_options.PolicyArgument,
    log: shared_options.LogArgument,
    arm: shared_options.ArmColumn = "arm",
    reward: shared_options.RewardColumn = "reward",
    propensity: shared_options.PropensityColumn = "propensity",
    id_column: Annotated[
        str | None,
        Option(
            "--id", help="The column with a new id for each round, so that none is learned twice."
        ),
    ] = None,
    context: shared_options.ContextColumns = None,
    cluster: shared_options.ClusterColumn = None,
    out: Annotated[
        Path | None,
        Option(
            help="The file for the policy; by default the next version in DIR, or the same file."
        ),
    ] = None,
) -> None:
    """Update a policy from a target log, such as the one that `daband decide` writes; then export
    it again.

    A log can be given again when more rewards have arrived: rounds that were learned before are
    recognised by --id. During a pilot, the log is also added to its evidence, and the decision is
    printed.

    Example: daband learn market log1.csv --id decision
    """
    is_folder = policy.is_dir()
    folder = policy if is_folder else policy.parent
    # two processes would write the same version, each without the rounds of the other
    with lock_folder(folder, wait=True, lock_file=".learn.lock"):
        pilot = Pilot(policy) if Pilot.exists(policy) else None
        if pilot is not None and pilot.find_decision() is None:
            status = pilot.add_log(
                log, arm=arm, reward=reward, propensity=propensity, id_column=id_column
            )
            print_status(policy, pilot, status)
        learner = _load_policy(policy)
        path = out or (find_next_file(policy) if is_folder else policy)
        is_next_version = is_folder and out is None
        if is_next_version:
            make_folder(path.parent)
        check_writable(path)
        policy_before = copy.deepcopy(learner)
        names = {"arm": arm, "reward": reward, "propensity": propensity}
        parquet_log = _open_log(log, learner, context, names, {"id": id_column, "cluster": cluster})
        with show_rows_bar(learner.name) as show_rows:
            daband.learn_log(learner, parquet_log, id=id_column, progress=show_rows)
        n_learned = learner.rounds_learned - policy_before.rounds_learned
        if not n_learned:
            print_line("The policy has learned all rounds of this log before. Nothing is written.")
            return
        learner.save(path)
        print_line(f"Learned {n_learned:,} target rounds; {learner.rounds_learned:,} in total.")
        rounds = _read_rounds(parquet_log, policy_before, id_column)
        for text in _describe_changes(policy_before, learner, rounds):
            print_line(text)
        n_ignored = len(parquet_log) - n_learned
        if id_column is not None and n_ignored:
            print_line(
                f"Ignored: {n_ignored:,} rows whose {id_column} was learned before; new"
                " decisions need new ids."
            )
        print_line(f"Policy: {path} (version {learner.version})")
        if is_next_version:
            print_line(update_verdict(policy, policy_before, learner, rounds, n_learned))
            if pilot is None or pilot.find_decision() is not None:
                print_line(
                    f"To deploy it: daband export {shlex.quote(str(policy))} FILE --epsilon 0.1"
                )


def _read_rounds(log: ParquetLog, before: Policy, id_column: str | None) -> Rounds:
    """Return the first rounds of a log, without rounds that a policy has learned."""
    batches: list[Rounds] = []
    for part, digest in compute_digests(log.parts()).items():
        if TARGET_PREFIX + digest in before.log_parts:
            continue
        ids = log.read_values(part, id_column)
        for batch in log.batches(part):
            # empty without ids
            is_new = [i not in before._round_ids for i in itertools.islice(ids, len(batch))]
            batches.append(batch.select(np.flatnonzero(is_new)) if is_new else batch)
            if sum(map(len, batches)) >= _MAX_SHOWN_ROUNDS:
                return Rounds.join(batches)
    return Rounds.join(batches)


def _describe_changes(before: Policy, after: Policy, rounds: Rounds) -> Iterator[str]:
    """Yield lines on the rewards of rounds that were learned, and on the changes of the policy's
    decisions for their contexts.
    """
    is_usual = rounds.known_propensities >= 0.5
    for label, rows in (("a likely", is_usual), ("an unlikely", ~is_usual)):
        if rows.sum() > 1:
            estimate = estimate_mean(rounds.rewards[rows])
            low, high = estimate.compute_interval(0.95)
            yield (
                f"Mean reward: {estimate.value:.4g} ({low:.4g} to {high:.4g}) in"
                f" {rows.sum():,} rounds with {label} arm."
            )
    fractions = [
        compute_arm_fractions(
            policy.decide(rounds.contexts, "target", rule="greedy").arm, after.n_arms
        )
        for policy in (before, after)
    ]
    names = after.arm_names or tuple(map(str, range(after.n_arms)))
    shown_arms = np.argsort(-np.max(fractions, axis=0), kind="stable")[:_MAX_SHOWN_ARMS]
    changes = [
        f"{names[arm]} {fractions[0][arm]:.0%} -> {fractions[1][arm]:.0%}" for arm in shown_arms
    ]
    yield f"Arms for these contexts, before and after: {', '.join(changes)}."
    if after.source_worth is not None:
        yield f"Worth of the source: {after.source_worth}."
    if isinstance(before, LogPolicy) and isinstance(after, LogPolicy):
        rules = [
            "by context" if log_policy.personalises else f"always {names[log_policy.evidence.arm]}"
            for log_policy in (before, after)
        ]
        yield f"Rule: {rules[0]} -> {rules[1]}."


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
    roles = other_names if columns else {**names, **other_names}
    return open_log(log, policy, columns=columns, skip_unrewarded=True, **roles)


def _load_policy(path: Path) -> Policy:
    """Return the saved policy at a path, or the latest version of a choice's policy."""
    file = find_policy_file(path) if path.is_dir() else path
    policy: Policy = daband.load(file, device="cpu")
    return policy
