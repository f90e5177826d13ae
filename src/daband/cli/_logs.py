"""``daband fit-log``, ``learn``, ``evaluate-log`` and ``convert``: policies from logs, and their value on logs."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import daband
from daband._files import check_writable, make_folder, write_bytes, write_json
from daband.bench._methods import checked_method, policy_class
from daband.bench._policy_folders import PolicyFolder, policy_folder
from daband.bench._records import decimals
from daband.cli import _shared as options
from daband.cli._files import table_as_log
from daband.cli._shared import rows_bar, say
from daband.domains.readers._columns import Columns
from daband.domains.readers._parquet_log import ParquetLog, open_log
from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.serving._deployed_policy import DeployedPolicy, is_deployed_file

Format = Literal["vw", "dsjson", "personalizer"]


def fit_log_command(
    log: Annotated[
        str, typer.Argument(help="A folder or glob of Parquet files ('logs/*.parquet'), or with --arm one table.")
    ],
    out: Annotated[Path, typer.Option(help="Where the fitted policy goes, e.g. policy.safetensors.")],
    arm: Annotated[str | None, typer.Option(help="Of a CSV or Parquet file, the column that names the arm.")] = None,
    reward: Annotated[str | None, typer.Option(help="Its column of rewards, in any unit.")] = None,
    propensity: Annotated[str | None, typer.Option(help="Its column of propensities; else they are estimated.")] = None,
    id: Annotated[list[str] | None, typer.Option(help="A column that names a row; it is left out.")] = None,
    policy: Annotated[Path | None, typer.Option(help="A saved policy to go on with; else a new one is made.")] = None,
    method: Annotated[str, typer.Option(help="The method of a new policy.")] = "linucb",
    arms: Annotated[int | None, typer.Option(min=1, help="The number of arms of a new policy.")] = None,
    context: options.ContextColumns = None,
    state: Annotated[
        Path | None, typer.Option(help="A folder for what is learned so far: killed and started again, it goes on.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str, typer.Option(help="The cluster's address; local starts one on this machine.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Workers of a local cluster.")] = None,
    weights: options.WeightColumn = None,
) -> None:
    """Fit a policy to a log that may be larger than memory.

    Of a table: daband fit-log log.csv --arm offer --reward euros --propensity p --id customer --out p.safetensors

    Example: daband fit-log 'logs/*.parquet' --arms 5 --out policy.safetensors
    """
    check_writable(out)  # before the fit, which may take hours
    if arm is not None:
        if (policy, context, weights) != (None, None, None):
            raise InvalidInput("--arm makes a new policy of a table: leave --policy, --context and --weights out")
        named = {"arm": arm, "reward": reward, "propensity": propensity, "id": id or []}
        _save(_fit_table(log, method, named), out)
        return
    columns = options.log_columns(context)
    fitted = daband.load(policy) if policy is not None else _new(method, arms, log, columns)
    with rows_bar(fitted.name) as show:
        daband.fit_log(
            fitted,
            log,
            columns=columns,
            engine=engine,
            ray_address=address,
            workers=workers,
            directory=state,
            weights=weights,
            progress=show,
        )
    _save(fitted, out)


def _save(policy: Policy, out: Path) -> None:
    policy.save(out)
    say(f"{policy!r}\nPolicy: {out}")


def learn_command(
    policy: options.SomePolicy,
    log: options.SomeLog,
    arm: options.ArmColumn = "arm",
    reward: options.RewardColumn = "reward",
    propensity: options.PropensityColumn = "propensity",
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column with the id of a round: a round is counted once.")
    ] = None,
    context: options.ContextColumns = None,
    weights: options.WeightColumn = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the policy goes; by default the next version in the folder, or the file.")
    ] = None,
) -> None:
    """Learn from a log of the target that the exported policy wrote: every round once, then export again.

    A log names arms as `daband decide` does. Given again with rewards that came late, rounds that it knows by --id
    are not counted again.

    Example: daband learn market log1.csv --id customer
    """
    learner, folder = open_policy(policy)
    version, path = (0, policy) if folder is None else folder.next_version()
    path = out or path
    if folder is not None and out is None:
        make_folder(path.parent)
    check_writable(path)
    before, rows = learner.rounds_learned, 0
    with rows_bar(learner.name) as show:

        def count(record: dict[str, float]) -> None:
            nonlocal rows
            rows = int(record["rows"])
            show(record)

        daband.learn_log(
            learner,
            log,
            columns=options.log_columns(context, arm=arm, reward=reward, propensity=propensity),
            arm=arm,
            reward=reward,
            propensity=propensity,
            id=id_column,
            weights=weights,
            progress=count,
        )
    learned = learner.rounds_learned - before
    if not learned:
        say("Nothing new: the policy has learned every round of this log before. Nothing is written.")
        return
    learner.save(path)
    say(f"Learned {learned:,} rounds of the target; {learner.rounds_learned:,} in all.")
    if id_column is not None and rows > learned:
        say(f"Left out: {rows - learned:,} rows with a {id_column} learned before. An id names one round.")
    say(f"Policy: {path}" + (f" (version {version})" if folder is not None and out is None else ""))
    if folder is not None and out is None:
        say(f"For production: daband export {shlex.quote(str(policy))} FILE --epsilon 0.1")


def _fit_table(log: str, method: str, named: dict[str, Any]) -> Policy:
    """Fit a new policy to one table, whose columns are inferred and shown."""
    checked_method(method)
    with tempfile.TemporaryDirectory() as folder:
        pair, columns = table_as_log(log, Path(folder) / "log.parquet", named)
        settings = {"transform": daband.PCA(min(64, pair.context_shape[0]))} if method.endswith("-p") else {}
        fitted = policy_class(method).for_pair(pair, seed=0, **settings)
        with rows_bar(fitted.name) as show:
            daband.fit_log(fitted, folder, columns=columns, progress=show)
    return fitted


def _new(method: str, arms: int | None, log: str, columns: Columns | None) -> Policy:
    if arms is None:
        raise InvalidInput("--arms is needed for a new policy: a log may have arms that were never chosen")
    checked_method(method)
    rounds = ParquetLog(log, n_arms=arms, columns=columns)
    settings: dict[str, Any] = {"context_shape": rounds.context_shape, "n_arms": arms}
    kind = policy_class(method)
    if method.endswith("-p"):
        settings["transform"] = daband.PCA(min(64, rounds.context_shape[0]))
    elif kind.scale_matters:
        settings["transform"] = daband.Standardise()
    return kind(**settings)


# ``daband evaluate-log``: the value of a policy, from a log in Parquet files of any size.


_FILE = "log_estimates.json"


def evaluate_log_command(
    policy: options.SomePolicyOrExport,
    log: options.SomeLog,
    arm: options.ArmColumn = "arm",
    reward: options.RewardColumn = "reward",
    propensity: options.PropensityColumn = "propensity",
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column with the id of a round: learned rounds are recognised by it.")
    ] = None,
    estimators: Annotated[str, typer.Option(help="One or several of dr, snips and ips, e.g. dr,snips.")] = "dr",
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    rule: Annotated[
        str | None, typer.Option(help="ucb or greedy, in place of the policy's own way to explore.")
    ] = None,
    domain: Annotated[
        Literal["source", "target"] | None,
        typer.Option(help="Where the log was written; by default where the policy is deployed."),
    ] = None,
    context: options.ContextColumns = None,
    out: Annotated[
        Path | None, typer.Option(help=f"Where the estimates go as JSON; by default {_FILE} in the run's folder.")
    ] = None,
) -> None:
    """Estimate the mean reward of a policy from rounds that another policy played and logged.

    Example: daband evaluate-log policy.safetensors week1.parquet --estimators dr,snips
    """
    names = tuple(dict.fromkeys(name.strip() for name in estimators.split(",") if name.strip()))
    if not names:
        raise InvalidInput("--estimators names none")
    valued, folder = _open_exported_or_saved(policy)
    path = out or (None if folder is None else folder.path / _FILE)
    if path is not None:
        check_writable(path)
    if isinstance(valued, DeployedPolicy):
        if domain not in (None, valued.domain):
            raise InvalidInput(f"{policy} was exported for the {valued.domain}: leave --domain out")
    elif domain is not None:
        valued.deploy(domain)
    columns = options.log_columns(context, arm=arm, reward=reward, propensity=propensity)
    named = {"id": id_column} if id_column is not None else {}
    opened = open_log(
        log,
        valued,
        columns=columns,
        roles=named if columns is not None else {"arm": arm, "reward": reward, "propensity": propensity, **named},
        skip_unrewarded=True,
    )
    with rows_bar("pass 1") as show:
        given: dict[str, Any] = {"confidence": confidence, "rule": rule, "progress": show, "id": id_column}
        estimates = [daband.evaluate_log(valued, opened, name, **given) for name in names]
    for estimate in estimates:
        value, low, high = (
            f"{number:.{decimals(number)}f}" for number in (estimate.value, estimate.low, estimate.high)
        )
        say(
            f"{estimate.estimator}: {value}, {100 * confidence:g}% interval {low} to {high}, from "
            f"{estimate.rounds:,} rounds (an effective sample of {estimate.effective_sample_size:,.0f}) in the "
            f"{estimate.domain}"
        )
        for warning in estimate.warnings:
            say(f"warning   {warning}", style="yellow")
    if path is not None:
        records = [estimate.as_dict() for estimate in estimates]
        write_json(path, {"log": log, "estimates": records})
        say(f"Written: {path}")


def _open_exported_or_saved(path: Path) -> tuple[Policy | DeployedPolicy, PolicyFolder | None]:
    """Open a policy as ``open_policy`` does, or an exported file."""
    if path.is_file() and is_deployed_file(path):
        return daband.load_deployed(path), None
    return open_policy(path)


def open_policy(path: Path) -> tuple[Policy, PolicyFolder | None]:
    """Return the policy of a file or folder, and the folder if it is one. The folder's arm names are used."""
    folder = policy_folder(path) if path.is_dir() else None
    policy = daband.load(path if folder is None else folder.policy_file, device="cpu")
    if folder is not None and policy.arm_names is None:
        policy.arm_names = folder.arm_names
    return policy, folder


def convert_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The log to read.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The log to write; an existing file is an error.")],
    arms: Annotated[Path, typer.Option(help="The catalogue of arms: a CSV file that is written, or read with --to.")],
    to: Annotated[Format | None, typer.Option(help="Write OUT in this format, from a log and a catalogue.")] = None,
) -> None:
    """Convert logs of Vowpal Wabbit and Personalizer to a log and a catalogue of arms, or back with --to.

    Formats are text of --cb_explore_adf (vw), dsjson, and JSON lines of Personalizer's calls. A log has the columns
    arm, reward and propensity, and the context.

    Example: daband convert events.dsjson log.csv --arms offers.csv
    """
    from daband.domains.readers._foreign_logs import guess_format, read_foreign_log, write_foreign_log
    from daband.domains.readers._reading import read_table

    for path in (out,) if to else (out, arms):
        check_writable(path)
        if path.exists():
            raise InvalidInput(f"{path} exists already: move it away, or write another file")
    if to is not None:
        log = read_table(file)
        write_foreign_log(log, read_table(arms), out, to)
        say(f"Written: {out} ({len(log):,} events as {to})")
        return
    kind = guess_format(file)
    log, catalogue = read_foreign_log(file, kind)
    for path, frame in ((out, log), (arms, catalogue)):
        write_bytes(path, frame.write_csv().encode())
    say(f"Written: {out} ({len(log):,} events of {kind}) and {arms} ({len(catalogue):,} arms)")
    columns = "--arm arm --reward reward --propensity propensity"
    columns += " --offered offered" if "offered" in log.columns else ""
    say(f"Next: daband choose --source {out} --target NEW.csv {columns} --arms {arms}")
