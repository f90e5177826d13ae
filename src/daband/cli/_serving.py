"""Define the commands on exported policies: ``export``, ``decide``, ``serve`` and
``export-events``.

Most imports are in the functions, because the package daband-serving, whose only command is
``serve``, lacks the modules of the other commands.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from daband.base._files import check_writable
from daband.errors import DabandError, InvalidInput


def export_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a choice, or a saved policy.")
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write, e.g. market.daband.")
    ],
    domain: Annotated[
        Literal["source", "target"], typer.Option(help="The domain in which it will decide.")
    ] = "target",
    epsilon: Annotated[
        float | None,
        typer.Option(
            help=(
                "Fraction of rows that get a randomly drawn arm, e.g. 0.1, so that the log can be"
                " used to learn."
            )
        ),
    ] = None,
    explore: Annotated[
        Literal["ucb", "greedy", "igw"] | None,
        typer.Option(
            help="The exploration rule; by default the policy's, or greedy with --epsilon. With igw,"
            " arms with lower predicted rewards are drawn less often."
        ),
    ] = None,
    incumbent: Annotated[
        str | None,
        typer.Option(
            help="The arm that is always chosen today; default: the assessment's incumbent."
        ),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option(metavar="ARM=FRACTION", help="Largest fraction of an arm, e.g. call=0.05."),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(help="Largest mean cost per decision, by the --cost of daband choose."),
    ] = None,
    with_data: Annotated[
        bool,
        typer.Option(
            "--data/--no-data", help="Read the data, whose contexts monitoring compares with."
        ),
    ] = True,
    version: Annotated[
        int | None,
        typer.Option(min=0, help="The version to export; by default the recommended one."),
    ] = None,
    is_pilot: Annotated[
        bool,
        typer.Option("--pilot", help="For the next rounds of the pilot that was planned for DIR."),
    ] = False,
) -> None:
    """Write a policy to one file that decides on raw rows.

    The file has no training data. Its decisions are compared with the policy's before it is
    written.

    Example: daband export market market.daband --epsilon 0.1
    """
    from daband import load
    from daband.cli._shared import print_line
    from daband.ledger._market import open_market, write_export
    from daband.trust._assessment import DEPLOY
    from daband.trust._choose import POLICY_FILE, Choice
    from daband.trust._rules import RULES_FILE

    options: dict[str, Any] = {
        "domain": domain,
        "epsilon": epsilon,
        "explore": explore,
        "incumbent": incumbent,
        "at_most": _parse_fractions(at_most or ()),
        "max_cost": max_cost,
        "with_data": with_data,
    }
    if folder.is_dir():
        with open_market(folder) as market:
            deployed, _, assessment, is_limited = market.export(
                file, version=version, pilot=is_pilot, **options
            )
    else:
        is_rule = folder.name == RULES_FILE and (folder.parent / POLICY_FILE).is_file()
        choice = Choice.load(folder.parent) if is_rule else None
        policy = load(folder, device="cpu")
        deployed, assessment, is_limited = write_export(
            policy, file, choice=choice, assessment=None, **options
        )
    print_line(f"{deployed!r}")
    kibibytes = file.stat().st_size / 1024
    quoted_file = shlex.quote(str(file))
    print_line(f"Written: {file} ({kibibytes:,.0f} KiB, version {deployed.version})")
    if assessment is not None and is_limited:
        print_line(f"With the limits: {assessment.sentence}")
    elif assessment is not None and assessment.verdict != DEPLOY:
        print_line(
            f"Its verdict is: {assessment.verdict} (daband assess prints the reasons).",
            style="yellow",
        )
    if deployed.limiter and assessment and not is_limited:
        print_line(
            "The verdict is for the policy without limits: it has target rewards or no data."
        )
    control = share = ""
    differs = incumbent or assessment is None or assessment.disagreement > 0.0
    is_usual = deployed.pilot is None and not deployed.limiter
    if deployed.incumbent is not None and differs and is_usual:
        control = " --control 0.1"
        share = f", with {deployed.arm_names[deployed.incumbent]} for a tenth of them"
    if deployed.columns is not None:
        print_line(
            f"To decide on the rows of a file{share}: daband decide {quoted_file} ROWS.csv --out"
            f" log.csv{control}"
        )
    if deployed.pilot is not None:
        print_line(
            "If the policy and the incumbent choose different arms, the policy gets"
            f" {1.0 - deployed.control:.1%} of the rounds."
        )
        print_line(
            f"To run the pilot online, until it decides: daband serve {quoted_file} --wait SECONDS"
        )
        return
    if control:
        print_line(f"To serve events{share}: daband serve {quoted_file}{control}")
    if deployed.exploration is not None:
        print_line(deployed.describe_exploration())


def _parse_fractions(texts: Sequence[str]) -> dict[str, float]:
    """Return the fractions by arm in texts such as "call=0.05"."""
    pairs = [text.rpartition("=") for text in texts]
    try:
        return {arm: float(fraction) for arm, _, fraction in pairs}
    except ValueError:
        raise InvalidInput(f"--at-most must be ARM=FRACTION, got {', '.join(texts)}") from None


#: Maximum number of decisions and of warnings that are printed.
_MAX_PRINTED_LINES = 5


def decide_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="An exported policy, e.g. market.daband, or rules.json."
        ),
    ],
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS",
            help="A CSV or Parquet file with the policy's columns, or a folder of images.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Write the rows with arm, propensity and an empty reward to this .csv or .parquet"
                " file."
            )
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="The column with a new id for each decision. Rows that are decided again keep their"
            " arms. Default: ids are drawn.",
        ),
    ] = None,
    control_fraction: Annotated[
        float | None,
        typer.Option(
            "--control",
            help="Fraction of rows that get the incumbent's arm, so that the log compares with it;"
            " not for a pilot, which has its own.",
        ),
    ] = None,
) -> None:
    """Decide on every row of a file, and check them for drift.

    The file --out is a log: fill in the column reward as rewards arrive, then use `daband learn`.
    Decisions in the file are never replaced; with --id, new ones are added. Without --out, the
    decisions on the first rows are printed.

    Example: daband decide market.daband week1.csv --id visit --out log1.csv --control 0.1
    """
    import daband
    from daband.cli._shared import print_line
    from daband.ledger._decisions import append_decisions, decide_rows
    from daband.serving._deployed_policy import load_deployed

    deployed = daband.load(file).as_deployed() if file.suffix == ".json" else load_deployed(file)
    if out is not None:
        check_writable(out)
    decided = decide_rows(deployed, rows, id_column=id_column, control=control_fraction)
    decisions, decision = decided.frame, decided.decision
    if out is None:
        printed_rows = decisions.select("arm", "propensity").head(_MAX_PRINTED_LINES)
        for index, (arm_name, propensity) in enumerate(printed_rows.iter_rows()):
            print_line(f"row {index}: {arm_name} (propensity {propensity:.3g})")
        if len(decisions) > _MAX_PRINTED_LINES:
            print_line(f"... {len(decisions):,} rows in total")
    else:
        n_new = append_decisions(out, decisions, has_ids=id_column is not None)
    messages: dict[tuple[str, str], list[str]] = {}  # of all rows, by kind and column
    for warning in (warning for row_warnings in decision.warnings for warning in row_warnings):
        messages.setdefault((warning.kind, warning.column), []).append(warning.message)
    for message, *others in list(messages.values())[:_MAX_PRINTED_LINES]:
        print_line(
            f"warning   {message}" + (f" (and {len(others):,} more rows)" if others else ""),
            style="yellow",
        )
    if decided.report is not None:
        print_line(f"{decided.report!r}")
    if out is None:
        print_line(
            "Nothing was written; use --out log.csv to store the decisions, fill in rewards and"
            " learn."
        )
        return
    n_old = len(decisions) - n_new
    repeated = f"; {n_old:,} were in the file before" if n_old else ""
    print_line(f"Written: {out} ({n_new:,} decisions of version {deployed.version}{repeated})")
    if deployed.exploration is not None:
        print_line(deployed.describe_exploration(len(decisions)))
    print_line(f"Fill in the column reward, then: daband learn DIR {shlex.quote(str(out))}")


#: Addresses that only this machine can reach.
_LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


def serve_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="An exported policy, or the folder of a market: its newest export is served.",
        ),
    ],
    log: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The event log: sqlite:///FILE or postgresql://...; by default the ledger of the"
            " market, or sqlite:///events.db.",
        ),
    ] = None,
    policy_path: Annotated[
        Path | None,
        typer.Option(
            "--learn",
            metavar="POLICY",
            help=(
                "Learn from the log: the policy that FILE was exported from, a saved file or its"
                " folder."
            ),
        ),
    ] = None,
    learn_every: Annotated[
        int, typer.Option(min=1, help="Number of rewards after which the policy is updated.")
    ] = 100,
    wait_seconds: Annotated[
        float | None,
        typer.Option(
            "--wait", help="Seconds after which an event without a reward gets the default reward."
        ),
    ] = None,
    default_reward: Annotated[float, typer.Option(help="The reward after --wait seconds.")] = 0.0,
    max_reward: Annotated[
        float, typer.Option(help="Reject rewards that are larger, in absolute value.")
    ] = 1e100,
    incumbent: Annotated[
        str | None,
        typer.Option(help="The arm that was always played before; by default the file's."),
    ] = None,
    control_fraction: Annotated[
        float,
        typer.Option(
            "--control",
            help=(
                "Fraction of events that get the incumbent's arm; all do once the policy is proven"
                " worse."
            ),
        ),
    ] = 0.0,
    contexts: Annotated[
        Literal["keep", "drop"], typer.Option(help="Whether the log stores contexts.")
    ] = "keep",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="A further host name that requests may use; * allows any.",
        ),
    ] = None,
    body_bytes: Annotated[int, typer.Option(min=1, help="The largest request body, in bytes.")] = 1
    << 20,
    is_open_to_all: Annotated[
        bool,
        typer.Option("--open-to-all", help="Accept requests of other machines without tokens."),
    ] = False,
) -> None:
    """Serve an exported policy over HTTP.

    It decides, logs every decision, accepts rewards at any time, and can continue to learn. Tokens
    are read from the environment variables DABAND_DECIDE_TOKEN, DABAND_REWARD_TOKEN,
    DABAND_WATCH_TOKEN, DABAND_ADMIN_TOKEN.

    Example: daband serve market.daband --log sqlite:///events.db --learn market --wait 86400
    """
    try:
        from daband.ledger._store import hide_password
        from daband.service._server import serve
        from daband.service._settings import ROLES, Settings, Tokens
        from daband.serving._deployed_policy import load_deployed

        for folder in (file, policy_path):
            if folder is not None and folder.is_dir():
                from daband.ledger._market import open_market

                with open_market(folder, log) as market:
                    log = market.store.address
                    if folder == file:
                        file = market.write_newest_export()
                    if folder == policy_path:
                        version = load_deployed(file).version
                        market.versions.load(version)  # makes its file again if it is missing
                        policy_path = market.versions.find_file(version)
        log = log or "sqlite:///events.db"
    except ModuleNotFoundError as error:
        raise InvalidInput(f"the service needs {error.name}: pip install 'daband[serve]'") from None
    tokens = Tokens(**{role: os.environ.get(f"DABAND_{role.upper()}_TOKEN", "") for role in ROLES})
    if host not in _LOOPBACK_HOSTS and not tokens.is_complete and not is_open_to_all:
        raise InvalidInput(
            f"--host {host} is open to other machines, but not every role has a token; set"
            " DABAND_DECIDE_TOKEN, DABAND_REWARD_TOKEN and DABAND_ADMIN_TOKEN, or use"
            " --open-to-all"
        )
    settings = Settings(
        contexts=contexts,
        wait=wait_seconds,
        default_reward=default_reward,
        max_reward=max_reward,
        incumbent=incumbent,
        control=control_fraction,
        hosts=tuple(allowed_hosts or ()),
        tokens=tokens,
        body_bytes=body_bytes,
    )
    # raises an error for a damaged file before addresses are printed
    deployed = load_deployed(file)
    if deployed.pilot is not None and policy_path is not None:
        raise InvalidInput(
            f"{file} is for a pilot, which tries a policy that does not change: remove --learn, and"
            " learn the exported events afterwards"
        )
    typer.echo(f"Page:    http://{host}:{port}/\nCalls:   http://{host}:{port}/openapi.json")
    typer.echo(f"Log:     {hide_password(log)}")
    if deployed.exploration is not None:
        typer.echo(deployed.describe_exploration())
    serve(file, log, settings, learn=policy_path, learn_every=learn_every, host=host, port=port)


def export_events_command(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="The log: sqlite:///FILE or postgresql://...")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The Parquet file to write.")],
    since: Annotated[
        str | None, typer.Option(help="First day or time, e.g. 2026-11-02 or 2026-11-02T12:00.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Day or time before which events are written.")
    ] = None,
    with_ids: Annotated[
        bool, typer.Option("--ids/--no-ids", help="Add columns event_id, time, model and mode.")
    ] = False,
) -> None:
    """Write the rewarded events of a service's log to Parquet.

    The commands fit-log, learn and evaluate-log read this file.

    Example: daband export-events sqlite:///events.db week1.parquet --since 2026-11-02 --until
    2026-11-09
    """
    try:
        from daband.service._log_readers import export_events
    except ModuleNotFoundError as error:
        raise InvalidInput(f"the service needs {error.name}: pip install 'daband[serve]'") from None
    n_events = export_events(log, file, since=since, until=until, ids=with_ids)
    typer.echo(f"Written: {file} ({n_events:,} events)")


def main() -> None:
    """Run the command line of the package daband-serving, which has only the command ``serve``."""
    app = typer.Typer(
        add_completion=False, help="Serve an exported policy over HTTP; daband has more commands."
    )
    app.callback()(lambda: None)
    app.command("serve")(serve_command)
    try:
        app()
    except DabandError as error:
        typer.echo(f"Error: {error}", err=True)
        raise SystemExit(2) from None
