"""Contexts of the log as rows, and the log as a Parquet file for ``fit_log``, ``learn_log`` and ``evaluate_log``."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from daband._files import check_writable, write_bytes
from daband._lazy_polars import pl
from daband.errors import DataError, InvalidInput
from daband.service._event_log import Event, Store
from daband.serving._deployed_policy import DeployedPolicy

_ROUND = ("arm", "reward", "propensity")


def read_rows(contexts: Iterable[str]) -> Any:
    """Return contexts of the log for ``RowReader.read``: mappings, or an array."""
    rows: list[Any] = orjson.loads(f"[{','.join(contexts)}]")
    return rows if isinstance(rows[0], dict) else np.asarray(rows, np.float64)


def can_read(context: str | None, deployed: DeployedPolicy) -> bool:
    """True if a context of the log is a row for this file. Other rows must not stop those after them."""
    if context is None or context.startswith("{") is (deployed.columns is None):
        return False
    try:
        return len(deployed.reader.read(read_rows([context])).contexts) == 1
    except (InvalidInput, ValueError):
        return False


def export_events(
    log: str | Store,
    path: str | Path,
    *,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    defaults: bool = True,
    ids: bool = False,
) -> int:
    """Write the events that have a reward, in the order of the log, to a Parquet file, and return their number.

    Columns of raw rows keep their names. A context that was an array is one column ``context`` of lists. ``arm`` is
    the arm that was played, ``propensity`` its probability, ``reward`` the latest version.

    Args:
        log: the log's address.
        path: the file to write, all or nothing. It is built in memory: export a larger log in several spans.
        since: events from this moment on (ISO 8601; local time if it has no zone).
        until: events before this moment.
        defaults: False to drop events with a default reward.
        ids: True to add columns ``event_id``, ``time``, ``model`` and ``mode``. Readers then need the names of the
            context columns.
    """
    check_writable(path)
    store = Store(log, create=False) if isinstance(log, str) else log
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
    content = io.BytesIO()
    frame.write_parquet(content)
    write_bytes(path, content.getvalue())
    return len(frame)


def _row(event: Event, reward: float, *, ids: bool) -> dict[str, Any]:
    if event.context is None:
        raise DataError("the log has no contexts (--contexts), so it cannot be used to learn or to value policies")
    context = orjson.loads(event.context)
    if isinstance(context, list):
        context = {"context": np.asarray(context, np.float64).reshape(-1).tolist()}
    taken = [name for name in _ROUND if name in context]
    if taken:
        raise DataError(f"the context has a column {taken[0]!r}, which is also a column of the log; rename it")
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
