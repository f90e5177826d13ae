"""``daband fit-log``: a policy fitted to a log in Parquet files, of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import daband
from daband.cli.options import log_columns, named_as_options
from daband.cli.running import say, warnings_on
from daband.domains import Columns
from daband.domains.readers.parquet_log import ParquetLog
from daband.errors import InvalidInput
from daband.experiments.methods import checked_method, policy_class
from daband.files import check_writable
from daband.policies import Policy

__all__ = ["fit_log_command"]


def fit_log_command(
    log: Annotated[str, typer.Argument(help="A folder of Parquet files, or a glob in quotes: 'logs/*.parquet'.")],
    out: Annotated[Path, typer.Option(help="Where the fitted policy goes, e.g. policy.safetensors.")],
    policy: Annotated[Path | None, typer.Option(help="A saved policy to go on with; else a new one is made.")] = None,
    method: Annotated[str, typer.Option(help="The method of a new policy.")] = "linucb",
    arms: Annotated[int | None, typer.Option(min=1, help="The number of arms of a new policy.")] = None,
    context: Annotated[
        str | None, typer.Option(help="Context columns, e.g. age,weight; by default all but arm, reward, propensity.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="A folder for what is learned so far: killed and started again, it goes on.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str, typer.Option(help="The cluster's address; local starts one on this machine.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Workers of a local cluster.")] = None,
    skip_damaged: Annotated[bool, typer.Option(help="Leave out files that cannot be read, with a warning.")] = False,
) -> None:
    """Fit a policy to a log that may be larger than memory."""
    console = Console()
    check_writable(out)  # before the fit, which may take hours
    on_damaged = "skip" if skip_damaged else "refuse"
    with named_as_options():
        columns = log_columns(context)
        fitted = daband.load(policy) if policy is not None else _new(method, arms, log, columns, on_damaged)
    parts = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]} rows"),
        TextColumn("{task.fields[rate]} rows/s"),
        TextColumn("{task.fields[left]} left"),
        TimeElapsedColumn(),
    )
    with warnings_on(console), Progress(*parts, console=console, transient=True) as drawing:
        task = drawing.add_task(fitted.name, rows="0", rate="-", left="-")

        def show(record: dict[str, float]) -> None:
            drawing.update(
                task,
                total=record["rows_total"],
                completed=record["rows"],
                rows=f"{record['rows']:,.0f}",
                rate=f"{record['rows_per_second']:,.0f}",
                left=f"{record['seconds_left']:,.0f} s",
            )

        with named_as_options():
            daband.fit_log(
                fitted,
                log,
                columns=columns,
                engine=engine,
                ray_address=address,
                workers=workers,
                on_damaged=on_damaged,
                directory=state,
                progress=show,
            )
    fitted.save(out)
    say(console, f"{fitted!r}\nPolicy: {out}")


def _new(method: str, arms: int | None, log: str, columns: Columns | None, on_damaged: str) -> Policy:
    if arms is None:
        raise InvalidInput("--arms is needed for a new policy: a log may have arms that were never pulled")
    checked_method(method)
    found = ParquetLog(log, n_arms=arms, columns=columns, on_damaged=on_damaged)
    settings: dict[str, Any] = {"context_shape": found.context_shape, "n_arms": arms, "reward_range": "auto"}
    kind = policy_class(method)
    if method.endswith("-p"):
        settings["transform"] = daband.PCA(min(64, found.context_shape[0]))
    elif kind.scale_matters:
        settings["transform"] = daband.Standardise()
    return kind(**settings)
