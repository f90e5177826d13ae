"""The log as a Parquet file, with the columns that ``fit_log``, ``learn_log`` and ``evaluate_log`` read."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from daband.errors import DataError, InvalidInput
from daband.files import checked_path
from daband.service.store import Event, Store

__all__ = ["export_events"]

_ROUND = ("arm", "reward", "propensity")


def export_events(
    log: str | Store,
    path: str | Path,
    *,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    defaults: bool = True,
    ids: bool = False,
) -> int:
    """Write the events that have a reward, in the order of the log, to a Parquet file; returns how many.

    Columns of raw rows keep their names; a context that came as an array is one column ``context`` of lists. ``arm`` is
    the arm that was played, ``propensity`` its probability, ``reward`` the latest version.

    Args:
        log: the log's address.
        path: the file to write, whole or not at all. It is made in memory: take a span of a log that is larger.
        since: events from this moment on (ISO 8601; local time where no zone is given).
        until: events before this moment.
        defaults: whether events with a default reward are taken.
        ids: whether columns ``event_id``, ``time``, ``model`` and ``mode`` are added; readers that take all other
            columns for the context must then be told which are.
    """
    import polars as pl

    file = checked_path(path)
    store = Store(log) if isinstance(log, str) else log
    frames = []
    try:
        for rows in store.rounds(_moment(since, -math.inf), _moment(until, math.inf)):
            kept = [(event, reward) for event, reward, kind in rows if defaults or kind != "default"]
            if kept:
                frames.append(pl.DataFrame([_row(*one, ids=ids) for one in kept], infer_schema_length=None))
    finally:
        if isinstance(log, str):
            store.close()
    if not frames:
        raise DataError("the log has no event with a reward in that span")
    frame = pl.concat(frames, how="diagonal_relaxed")
    partial = file.with_name(f".{file.name}.partial")
    frame.write_parquet(partial)
    partial.replace(file)
    return len(frame)


def _row(event: Event, reward: float, *, ids: bool) -> dict[str, Any]:
    if event.context is None:
        raise DataError(
            "the log was written without contexts, so there is nothing to learn from or to value policies by"
        )
    context = orjson.loads(event.context)
    if isinstance(context, list):
        context = {"context": np.asarray(context, np.float64).reshape(-1).tolist()}
    taken = [name for name in _ROUND if name in context]
    if taken:
        raise DataError(f"the context has a column {taken[0]!r}, which the log's own column would hide; rename it")
    row = {**context, "arm": event.arm, "reward": reward, "propensity": event.propensity}
    if ids:
        row |= {"event_id": event.event_id, "time": event.time, "model": event.model, "mode": event.mode}
    return row


def _moment(given: str | datetime | None, otherwise: float) -> float:
    if given is None:
        return otherwise
    try:
        return (datetime.fromisoformat(given) if isinstance(given, str) else given).timestamp()
    except ValueError:
        raise InvalidInput(f"a moment is written 2026-11-02 or 2026-11-02T12:00:00+01:00, got {given!r}") from None
