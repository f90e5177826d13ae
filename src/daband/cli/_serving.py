"""``daband export``, ``decide``, ``serve``, ``export-events``: a policy as a file, on rows, over HTTP, and its log."""

from __future__ import annotations

import io
import os
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from daband._files import check_writable, read_json, write_bytes
from daband._lazy_polars import pl
from daband.errors import DabandError, DataError, InvalidInput, did_you_mean


def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run or of a choice.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, e.g. market.daband.")],
    domain: Annotated[Literal["source", "target"], typer.Option(help="The domain it will act in.")] = "target",
    epsilon: Annotated[
        float | None,
        typer.Option(help="Probability of a uniformly drawn arm, so that the log can be learned from; e.g. 0.1."),
    ] = None,
    explore: Annotated[
        Literal["ucb", "thompson", "greedy"] | None,
        typer.Option(help="The exploration rule; by default greedy with --epsilon, or else the policy's."),
    ] = None,
    incumbent: Annotated[
        str | None, typer.Option(help="The arm that is always played today; default: the assessment's.")
    ] = None,
    new_arms: Annotated[float, typer.Option(help="Largest fraction of decisions for arms without any reward.")] = 1.0,
    least_rounds: Annotated[
        int, typer.Option(min=0, help="Fail if an arm has fewer rounds, which could reveal individual rounds.")
    ] = 0,
    data: Annotated[
        bool, typer.Option(help="Read the run's data for the contexts that monitoring compares with.")
    ] = True,
    student: Annotated[
        bool,
        typer.Option("--student", help="Train one network to decide as the members of a mixture do, and export that."),
    ] = False,
) -> None:
    """Write a policy to one file that decides on raw rows.

    The file holds no row of the training data. It is loaded and compared with the policy before it is written.

    Example: daband export market market.daband --epsilon 0.1
    """
    from daband import Mixture, load
    from daband.bench._policy_folders import policy_folder
    from daband.cli._shared import say
    from daband.serving._deployed_policy import load_deployed
    from daband.serving._export import export

    stored = policy_folder(folder)
    pair = None
    if data:
        try:
            pair = stored.load_pair()
        except DataError as error:
            raise DataError(f"{error}. With --no-data the policy is exported without what monitoring needs") from None
    policy = load(stored.policy_file, device="cpu")
    if student:
        if not isinstance(policy, Mixture):
            raise InvalidInput(f"--student needs a mixture of networks; the policy of {folder} is {policy.name}")
        policy = policy.student()
    assessment = None if stored.assessment_file is None else read_json(stored.assessment_file)
    export(
        policy,
        file,
        pair=pair,
        domain=domain,
        arm_names=policy.arm_names or stored.arm_names,
        assessment=assessment,
        incumbent=incumbent,
        epsilon=epsilon,
        explore=explore,
        least_rounds=least_rounds,
        new_arms=new_arms,
    )
    deployed = load_deployed(file)
    say(f"{deployed!r}")
    size, quoted = file.stat().st_size / 1024, shlex.quote(str(file))
    say(f"Written: {file} ({size:,.0f} KiB, version {policy.version})")
    if assessment is not None and assessment.get("verdict") != "deploy":
        say(f"Its assessment: {assessment.get('verdict')} (daband assess has the reasons).", style="yellow")
    if deployed.columns is not None:
        say(f"It decides on rows of a file: daband decide {quoted} ROWS.csv --out log.csv")
    if deployed.incumbent is not None:
        name = deployed.arm_names[deployed.incumbent]
        say(f"A service that keeps {name} for a tenth of the events: daband serve {quoted} --control 0.1")
    exploration = deployed.frozen.exploration
    if exploration.rule != "thompson" and not exploration.epsilon:
        tries = {"ucb": "It tries uncertain arms (ucb), the same one for the same row"}.get(exploration.rule)
        tell = "with --epsilon 0.1 its log can tell what other arms would have paid."
        say(f"{tries or 'It does not explore'}: {tell}")


_SHOWN = 5
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")


def decide_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An exported policy, e.g. market.daband.")],
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS", help="A CSV or Parquet file with the columns it takes, or a folder of pictures."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write the rows with arm, propensity and an empty reward to this .csv or .parquet file."),
    ] = None,
    among: Annotated[str | None, typer.Option(help="The arms that may be chosen, e.g. card,loan.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings on a row as errors.")] = False,
    false_alarms: Annotated[
        float, typer.Option(help="Probability of an alarm while nothing has changed, for the whole file.")
    ] = 0.01,
) -> None:
    """Decide on every row of a file, and check them for drift.

    --out is written as a log: fill in the rewards as they arrive, and `daband learn` reads it. Without --out, the
    decisions on the first rows are printed.

    Example: daband decide market.daband week1.csv --out log1.csv
    """
    import numpy as np

    from daband.cli._shared import say
    from daband.domains.readers._reading import read_table
    from daband.serving._deployed_policy import load_deployed

    deployed = load_deployed(file)
    contexts: Any
    if rows.is_dir():
        pictures = sorted(path for path in rows.iterdir() if path.suffix.lower() in _PICTURES)
        if not pictures:
            raise InvalidInput(f"{rows} has no picture ({', '.join(_PICTURES)})")
        encoded = {} if deployed.reader.table is None else deployed.reader.table.encoded
        name = next((column for column, takes in encoded.items() if takes == "image"), "file")
        frame, contexts = pl.DataFrame({name: [str(path) for path in pictures]}), pictures
    elif deployed.columns is None:
        raise InvalidInput(
            f"{file} does not decide on rows of a table; give a folder of pictures, or pass arrays to "
            "daband.load_deployed(FILE).decide in Python"
        )
    else:
        frame = read_table(rows)
        for name in deployed.columns:
            if name not in frame.columns:
                hint = did_you_mean(name, frame.columns)
                raise InvalidInput(f"{rows} has no column {name!r}{hint} (its columns: {', '.join(frame.columns)})")
        contexts = frame.select(deployed.columns)
    taken = [name for name in ("arm", "propensity", "reward", "version") if name in frame.columns]
    if taken:
        raise InvalidInput(
            f"{rows} has a column {taken[0]!r} already, which decisions are written to; rename or drop it"
        )
    if out is not None:
        check_writable(out)
        before = read_table(out) if out.is_file() else frame
        if "reward" in before.columns and before["reward"].null_count() < len(before):
            raise InvalidInput(f"{out} has rewards that somebody filled in; give another --out, or move it away")
    arms = None if among is None else [name.strip() for name in among.split(",")]
    watched = None if deployed.reference is None else deployed.monitor(false_alarms=false_alarms)
    decision = (watched or deployed).decide(contexts, among=arms, strict=strict)
    decided = frame.with_columns(
        arm=pl.Series(decision.arm_name),
        propensity=pl.Series(np.asarray(decision.propensity)),
        reward=pl.lit(None, pl.Float64),
        version=pl.lit(deployed.version),
    )
    if out is None:
        for number, (name, propensity) in enumerate(decided.select("arm", "propensity").head(_SHOWN).iter_rows()):
            say(f"row {number}: {name} (propensity {propensity:.3g})")
        if len(decided) > _SHOWN:
            say(f"... {len(decided):,} rows in all")
    else:  # all or nothing: learning depends on the log of decisions
        content = io.BytesIO()
        if out.suffix.lower() == ".parquet":
            decided.write_parquet(content)
        else:
            decided.write_csv(content, separator="\t" if out.suffix.lower() == ".tsv" else ",")
        write_bytes(out, content.getvalue())
    alike: dict[tuple[str, str], list[str]] = {}
    for warning in (warning for each in decision.warnings for warning in each):
        alike.setdefault((warning.kind, warning.column), []).append(warning.message)
    for first, *others in list(alike.values())[:_SHOWN]:
        say(f"warning   {first}" + (f" (and {len(others):,} more rows)" if others else ""), style="yellow")
    if watched is not None:
        say(f"{watched.report()!r}")
    if out is None:
        say("Nothing is written: --out log.csv keeps the decisions, to fill in rewards and to learn.")
        return
    say(f"Written: {out} ({len(decided):,} decisions of version {deployed.version})")
    if rows.is_dir():
        say(f"Fill in the column reward, then: daband learn DIR {shlex.quote(str(out))} --id {frame.columns[0]}")
    else:
        ids = () if deployed.frozen.table is None else deployed.frozen.table.ids
        column = next((shlex.quote(name) for name in ids if name in frame.columns), "COLUMN")
        say(f"Fill in the column reward, then: daband learn DIR {shlex.quote(str(out))} --id {column}")


# ``daband serve``: decisions and rewards over HTTP, with a log that loses nothing.


_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An exported policy, e.g. market.daband.")],
    log: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The event log: sqlite:///FILE or postgresql://...")
    ] = "sqlite:///events.db",
    learn: Annotated[
        Path | None,
        typer.Option(metavar="POLICY", help="Continue learning from the log, with the policy that FILE came from."),
    ] = None,
    learn_every: Annotated[int, typer.Option(min=1, help="Rewards that are learned at a time.")] = 100,
    mode: Annotated[
        Literal["online", "apprentice"],
        typer.Option(help="Play the model's arm, or the incumbent's and log the model's."),
    ] = "online",
    wait: Annotated[
        float | None, typer.Option(help="Seconds after which an event without a reward gets the default reward.")
    ] = None,
    default_reward: Annotated[float, typer.Option(help="The reward of events that get none in time.")] = 0.0,
    incumbent: Annotated[
        str | None, typer.Option(help="The arm that was played before, to compare with; default: the file's.")
    ] = None,
    control: Annotated[
        float, typer.Option(help="Fraction of events that keep the incumbent; all of them if the policy is worse.")
    ] = 0.0,
    widen: Annotated[
        float | None, typer.Option(help="The fraction that keeps it once the policy is proven to be better.")
    ] = None,
    new_arms: Annotated[
        float | None, typer.Option(help="Largest fraction of events for arms without any reward; default: the file's.")
    ] = None,
    contexts: Annotated[Literal["keep", "drop"], typer.Option(help="Store contexts in the log, or not.")] = "keep",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name of the service in requests; * allows any."),
    ] = None,
    body_bytes: Annotated[int, typer.Option(min=1, help="The largest request body, in bytes.")] = 1 << 20,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Start the process that counts, learns and sets defaults.")
    ] = True,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Print a line per request: path and status, no context.")
    ] = False,
    open_to_all: Annotated[
        bool, typer.Option("--open-to-all", help="Listen to other machines although tokens are missing.")
    ] = False,
) -> None:
    """Serve an exported policy over HTTP.

    It decides, logs every decision, takes rewards at any time, and can continue learning. Tokens come from the
    environment: DABAND_DECIDE_TOKEN, DABAND_REWARD_TOKEN, DABAND_WATCH_TOKEN, DABAND_ADMIN_TOKEN.

    Example: daband serve market.daband --log sqlite:///events.db --learn policy.safetensors --wait 86400
    """
    try:
        from daband.service._server import serve
        from daband.service._settings import Limits, Settings, Tokens
        from daband.serving._deployed_policy import load_deployed
    except ModuleNotFoundError as error:
        raise InvalidInput(f"the service needs {error.name}: pip install 'daband[serve]'") from None
    tokens = Tokens(
        **{name: os.environ.get(f"DABAND_{name.upper()}_TOKEN", "") for name in ("decide", "reward", "watch", "admin")}
    )
    if host not in _LOOPBACK and not tokens.complete and not open_to_all:
        raise InvalidInput(
            f"--host {host} is open to other machines, and not every role has a token; set DABAND_DECIDE_TOKEN, "
            "DABAND_REWARD_TOKEN and DABAND_ADMIN_TOKEN, or give --open-to-all"
        )
    settings = Settings(
        mode=mode,
        contexts=contexts,
        wait=wait,
        default_reward=default_reward,
        incumbent=incumbent,
        control=control,
        widen=widen,
        new_arms=new_arms,
        hosts=tuple(allow_host or ()),
        tokens=tokens,
        limits=Limits(body_bytes=body_bytes),
    )
    load_deployed(file)  # a damaged file is an error before addresses are printed
    typer.echo(f"Page:    http://{host}:{port}/\nCalls:   http://{host}:{port}/openapi.json")
    typer.echo(f"Log:     {log.split('@')[-1]}")
    serve(
        file,
        log,
        settings,
        learn=learn,
        learn_every=learn_every,
        host=host,
        port=port,
        worker=worker,
        access_log=access_log,
    )


def export_events_command(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log: sqlite:///FILE or postgresql://...")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The Parquet file to write.")],
    since: Annotated[str | None, typer.Option(help="First day or moment, e.g. 2026-11-02 or 2026-11-02T12:00.")] = None,
    until: Annotated[str | None, typer.Option(help="The day or moment before which events are written.")] = None,
    defaults: Annotated[bool, typer.Option(help="Include events with a default reward.")] = True,
    ids: Annotated[bool, typer.Option(help="Add columns event_id, time, model and mode.")] = False,
) -> None:
    """Write the rewarded events of a service's log to Parquet.

    fit-log, learn and evaluate-log read the file.

    Example: daband export-events sqlite:///events.db week1.parquet --since 2026-11-02 --until 2026-11-09
    """
    try:
        from daband.service._log_readers import export_events
    except ModuleNotFoundError as error:
        raise InvalidInput(f"the service needs {error.name}: pip install 'daband[serve]'") from None
    written = export_events(log, file, since=since, until=until, defaults=defaults, ids=ids)
    typer.echo(f"Written: {file} ({written:,} events)")


def main() -> None:
    """Run ``daband serve`` where only daband-serving is installed, which has no other command."""
    app = typer.Typer(add_completion=False, help="Decide over HTTP with an exported policy; all of daband has more.")
    app.callback()(lambda: None)
    app.command("serve")(serve_command)
    try:
        app()
    except DabandError as error:
        typer.echo(f"Error: {error}", err=True)
        raise SystemExit(2) from None
