"""Define the commands that read logs: ``fit-log``, ``learn``, ``evaluate-log`` and ``convert``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import daband
from daband.base._files import check_writable, make_folder, write_bytes, write_json
from daband.cli import _shared as shared_options
from daband.cli._shared import print_line, show_rows_bar
from daband.domains.readers._columns import Columns
from daband.domains.readers._parquet_log import ParquetLog, open_log
from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.serving._deployed_policy import DeployedPolicy, is_deployed_file
from daband.trust._assessment import format_number
from daband.trust._choice_folder import find_next_version, find_policy_file


def fit_log_command(
    log: Annotated[
        str,
        typer.Argument(help="A folder or glob of Parquet files ('logs/*.parquet')."),
    ],
    out: Annotated[
        Path, typer.Option(help="The file for the fitted policy, e.g. policy.safetensors.")
    ],
    policy: Annotated[
        Path | None, typer.Option(help="A saved policy to continue with; by default a new one.")
    ] = None,
    method: Annotated[str, typer.Option(help="The method of a new policy.")] = "linucb",
    n_arms: Annotated[
        int | None, typer.Option(min=1, help="The number of arms of a new policy.")
    ] = None,
    context: shared_options.ContextColumns = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the state; after an interruption, the same command continues."
        ),
    ] = None,
    weights: shared_options.WeightColumn = None,
) -> None:
    """Fit a policy to a log that may be larger than memory.

    For a table that fits into memory, use `daband choose`.

    Example: daband fit-log 'logs/*.parquet' --n-arms 5 --out policy.safetensors
    """
    check_writable(out)  # before the fit, which may take hours
    columns = shared_options.parse_columns(context)
    fitted_policy = (
        daband.load(policy) if policy is not None else _make_policy(method, n_arms, log, columns)
    )
    with show_rows_bar(fitted_policy.name) as show_rows:
        daband.fit_log(
            fitted_policy,
            log,
            columns=columns,
            directory=state,
            weights=weights,
            progress=show_rows,
        )
    fitted_policy.save(out)
    print_line(f"{fitted_policy!r}\nPolicy: {out}")


def learn_command(
    policy: shared_options.PolicyArgument,
    log: shared_options.LogArgument,
    arm: shared_options.ArmColumn = "arm",
    reward: shared_options.RewardColumn = "reward",
    propensity: shared_options.PropensityColumn = "propensity",
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id", help="The column with a new id for each round, so that none is learned twice."
        ),
    ] = None,
    context: shared_options.ContextColumns = None,
    weights: shared_options.WeightColumn = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file for the policy; by default the next version in DIR, or the same file."
        ),
    ] = None,
) -> None:
    """Update a policy from a target log, such as the one that `daband decide` writes; then export
    it again.

    A log can be given again when more rewards have arrived: rounds that were learned before are
    recognised by --id.

    Example: daband learn market log1.csv --id visit
    """
    learner = _load_policy(policy)
    version, default_path = find_next_version(policy) if policy.is_dir() else (0, policy)
    path = out or default_path
    is_next_version = policy.is_dir() and out is None
    if is_next_version:
        make_folder(path.parent)
    check_writable(path)
    n_rounds_before = learner.rounds_learned
    n_rows = 0
    with show_rows_bar(learner.name) as show_rows:

        def count_rows(record: dict[str, float]) -> None:
            nonlocal n_rows
            n_rows = int(record["rows"])
            show_rows(record)

        daband.learn_log(
            learner,
            log,
            columns=shared_options.parse_columns(
                context, arm=arm, reward=reward, propensity=propensity
            ),
            arm=arm,
            reward=reward,
            propensity=propensity,
            id=id_column,
            weights=weights,
            progress=count_rows,
        )
    n_learned = learner.rounds_learned - n_rounds_before
    if not n_learned:
        print_line("The policy has learned all rounds of this log before. Nothing is written.")
        return
    learner.save(path)
    print_line(f"Learned {n_learned:,} target rounds; {learner.rounds_learned:,} in total.")
    if id_column is not None and n_rows > n_learned:
        print_line(
            f"Ignored: {n_rows - n_learned:,} rows whose {id_column} was learned before; new"
            " decisions need new ids."
        )
    print_line(f"Policy: {path}" + (f" (version {version})" if is_next_version else ""))
    if is_next_version:
        print_line(f"To deploy it: daband export {shlex.quote(str(policy))} FILE --epsilon 0.1")


def _make_policy(method: str, n_arms: int | None, log: str, columns: Columns | None) -> Policy:
    """Return a new policy for the contexts of a log."""
    if n_arms is None:
        raise InvalidInput(
            "--n-arms is needed for a new policy, because a log may lack arms that were never"
            " chosen"
        )
    policy_class = policies.get(method)
    parquet_log = ParquetLog(log, n_arms=n_arms, columns=columns)
    policy_arguments: dict[str, Any] = {
        "context_shape": parquet_log.context_shape,
        "n_arms": n_arms,
    }
    if policy_class.scale_matters:
        policy_arguments["transform"] = daband.Standardise()
    return policy_class(**policy_arguments)


#: The file of estimates in the folder of a choice.
_ESTIMATES_FILE = "log_estimates.json"


def evaluate_log_command(
    policy: shared_options.PolicyOrExportArgument,
    log: shared_options.LogArgument,
    arm: shared_options.ArmColumn = "arm",
    reward: shared_options.RewardColumn = "reward",
    propensity: shared_options.PropensityColumn = "propensity",
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id", help="The column with the id of a round, to recognise learned rounds."
        ),
    ] = None,
    estimators: Annotated[
        str, typer.Option(help="Estimators: dr, snips or ips, or several, e.g. dr,snips.")
    ] = "dr",
    domain: Annotated[
        Literal["source", "target"] | None,
        typer.Option(
            help="The domain of the log; by default the one that the policy is deployed in."
        ),
    ] = None,
    context: shared_options.ContextColumns = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"A JSON file; by default {_ESTIMATES_FILE} in DIR."),
    ] = None,
) -> None:
    """Estimate the mean reward of a policy from the log of another policy.

    Example: daband evaluate-log policy.safetensors week1.parquet --estimators dr,snips
    """
    estimator_names = tuple(
        dict.fromkeys(name.strip() for name in estimators.split(",") if name.strip())
    )
    if not estimator_names:
        raise InvalidInput("--estimators must name at least one of dr, snips and ips")
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
    columns = shared_options.parse_columns(context, arm=arm, reward=reward, propensity=propensity)
    id_role = {"id": id_column} if id_column is not None else {}
    opened_log = open_log(
        log,
        evaluated_policy,
        columns=columns,
        roles=(
            id_role
            if columns is not None
            else {"arm": arm, "reward": reward, "propensity": propensity, **id_role}
        ),
        skip_unrewarded=True,
    )
    with show_rows_bar("pass 1") as show_rows:
        estimates = [
            daband.evaluate_log(
                evaluated_policy, opened_log, name, progress=show_rows, id=id_column
            )
            for name in estimator_names
        ]
    for estimate in estimates:
        value, low, high = map(format_number, (estimate.value, estimate.low, estimate.high))
        print_line(
            f"{estimate.estimator}: mean {reward} {value}, 95% interval {low} to {high}, from"
            f" {estimate.rounds:,} rounds (an effective sample of"
            f" {estimate.effective_sample_size:,.0f}) in the {estimate.domain}"
        )
        for warning in estimate.warnings:
            print_line(f"warning   {warning}", style="yellow")
    if estimates_path is not None:
        records = [estimate.as_dict() for estimate in estimates]
        write_json(estimates_path, {"log": log, "estimates": records})
        print_line(f"Written: {estimates_path}")


def _load_policy(path: Path) -> Policy:
    """Return the saved policy at a path, or the latest version of a choice's policy."""
    file = find_policy_file(path) if path.is_dir() else path
    policy: Policy = daband.load(file, device="cpu")
    return policy


def convert_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The log to read.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The log to write; an existing file is an error.")
    ],
    arms: Annotated[
        Path, typer.Option(help="The arm catalogue to write (CSV); an existing file is an error.")
    ],
) -> None:
    """Convert logs of Vowpal Wabbit and Personalizer to a log and a catalogue of arms.

    Formats are text of --cb_explore_adf (vw), and dsjson. A log has the columns arm, reward and
    propensity, and the context.

    Example: daband convert events.dsjson log.csv --arms offers.csv
    """
    from daband.domains.readers._foreign_logs import guess_format, read_foreign_log

    for path in (out, arms):
        check_writable(path)
        if path.exists():
            raise InvalidInput(f"{path} exists already: move it away, or write another file")
    log_format = guess_format(file)
    log, catalogue = read_foreign_log(file, log_format)
    for path, frame in ((out, log), (arms, catalogue)):
        write_bytes(path, frame.write_csv().encode())
    print_line(
        f"Written: {out} ({len(log):,} events of {log_format}) and {arms} ({len(catalogue):,} arms)"
    )
    column_options = "--arm arm --reward reward --propensity propensity"
    column_options += " --offered offered" if "offered" in log.columns else ""
    print_line(
        f"Next: daband choose --source {out} --target NEW.csv {column_options} --arms {arms}"
    )
