"""Decide on the rows of a table with an exported file, and return a log of the decisions."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daband.base._files import write_bytes
from daband.base._lazy_polars import pl
from daband.domains.readers._reading import read_table
from daband.errors import InvalidInput, did_you_mean
from daband.ledger._log_import import DECISION_COLUMNS, read_ids
from daband.serving._deployed_policy import DeployedDecision, DeployedPolicy
from daband.serving._monitor import MonitorReport

#: Suffixes of image files.
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
#: Number of random bytes of an id.
_ID_BYTES = 8


class Decisions(NamedTuple):
    """The decisions on the rows of a table."""

    #: The rows with the columns that ``learn`` needs; ``reward`` is empty.
    frame: pl.DataFrame
    #: The decisions.
    decision: DeployedDecision
    #: The comparison of the rows with the training; None if the file has no reference.
    report: MonitorReport | None


def decide_rows(
    deployed: DeployedPolicy,
    rows: Any,
    *,
    id_column: str | None = None,
    control: float | None = None,
) -> Decisions:
    """Decide on every row of a table, or on every image of a folder.

    Args:
        deployed: the exported policy.
        rows: a frame, a file, or a folder of images.
        id_column: the column with an id for each decision. A row with the same id gets the same arm
            again. By default ids are drawn.
        control: the fraction of rows that get the incumbent's arm; in a pilot, its limit of the
            cost determines the fraction.
    """
    if deployed.pilot is not None and control is not None:
        raise InvalidInput(
            "the file is for a pilot, whose limit of the cost determines the fraction of the"
            " incumbent; leave out --control"
        )
    frame, contexts = _read_rows(deployed, rows)
    for name in DECISION_COLUMNS:
        if name in frame.columns and name != id_column:
            raise InvalidInput(
                f"{rows if isinstance(rows, str | Path) else 'the table'} has a column {name!r},"
                " which is needed for the decisions; rename or drop it"
            )
    if id_column is None:
        ids = [os.urandom(_ID_BYTES).hex() for _ in range(len(frame))]
    elif id_column in frame.columns:
        ids = read_ids(frame[id_column], "the table")
    else:
        raise InvalidInput(
            f"the table has no column {id_column!r}{did_you_mean(id_column, frame.columns)}"
        )
    monitor = None if deployed.reference is None else deployed.monitor()
    decision = (monitor or deployed).decide(contexts, control=control, ids=ids)
    decided = frame.with_columns(
        decision_id=pl.Series(ids),
        arm=pl.Series(decision.arm_name),
        propensity=pl.Series(np.asarray(decision.propensity)),
        reward=pl.lit(None, pl.Float64),
        version=pl.lit(deployed.version),
        role=pl.Series(find_roles(deployed, decision)),
        control=pl.Series(np.asarray(decision.control)),
    )
    return Decisions(decided, decision, None if monitor is None else monitor.report())


def append_decisions(path: Path, decisions: pl.DataFrame, *, has_ids: bool) -> int:
    """Write decisions to a log, after those that it has, and return the number of new decisions.

    A decision whose id the log has is not written again, because it may have been acted on.

    Args:
        path: a CSV, TSV or Parquet file, which may exist.
        decisions: the decisions.
        has_ids: True if the ids are those of the rows. Otherwise an existing log is an error.
    """
    n_new = len(decisions)
    if path.is_file():
        if not has_ids:
            raise InvalidInput(
                f"{path} has decisions, which may have been acted on; choose another --out, or name"
                " the column of ids (--id), so that only new rows are added"
            )
        earlier = read_table(path)
        if set(earlier.columns) != set(decisions.columns):
            raise InvalidInput(f"{path} has other columns than the decisions; choose another --out")
        earlier = earlier.with_columns(
            decision_id=pl.Series(read_ids(earlier["decision_id"], str(path)))
        )
        new = decisions.join(earlier, on="decision_id", how="anti").select(earlier.columns)
        n_new, decisions = len(new), pl.concat([earlier, new], how="vertical_relaxed")
    # the file is replaced at once, so that a crash cannot leave a part of the log
    content = io.BytesIO()
    if path.suffix.lower() == ".parquet":
        decisions.write_parquet(content)
    else:
        separator = "\t" if path.suffix.lower() == ".tsv" else ","
        decisions.write_csv(content, separator=separator)
    write_bytes(path, content.getvalue())
    return n_new


def find_roles(deployed: DeployedPolicy, decision: DeployedDecision) -> list[str]:
    """Return the role of each decision of a batch."""
    exploration = deployed.frozen.exploration
    scores = decision.mean + exploration.bonus_factor * decision.bonus
    chosen = scores[np.arange(len(scores)), decision.arm]
    is_drawn = (chosen < scores.max(axis=1)) & (not exploration.is_deterministic)
    is_pilot = deployed.pilot is not None
    usual = np.where(is_pilot, "pilot", np.where(is_drawn, "exploration", "policy"))
    roles: list[str] = np.where(decision.in_control, "control", usual).tolist()
    return roles


def _read_rows(deployed: DeployedPolicy, rows: Any) -> tuple[pl.DataFrame, Any]:
    """Return the rows as a frame, and what ``DeployedPolicy.decide`` takes."""
    if isinstance(rows, str | Path) and Path(rows).is_dir():
        image_paths = sorted(
            path for path in Path(rows).iterdir() if path.suffix.lower() in _IMAGE_SUFFIXES
        )
        if not image_paths:
            raise InvalidInput(f"{rows} has no image ({', '.join(_IMAGE_SUFFIXES)})")
        encoded_columns = {} if deployed.reader.table is None else deployed.reader.table.encoded
        path_column = next(
            (name for name, kind in encoded_columns.items() if kind == "image"), "file"
        )
        return pl.DataFrame({path_column: [str(path) for path in image_paths]}), image_paths
    if deployed.columns is None:
        raise InvalidInput(
            "the file does not take rows of a table; ROWS must be a folder of images, or use"
            " daband.load_deployed(FILE).decide in Python"
        )
    frame = read_table(rows)
    for name in deployed.columns:
        if name not in frame.columns:
            hint = did_you_mean(name, frame.columns)
            raise InvalidInput(
                f"{rows if isinstance(rows, str | Path) else 'the table'} has no column"
                f" {name!r}{hint} (its columns: {', '.join(frame.columns)})"
            )
    if not len(frame):
        raise InvalidInput(f"{rows} has no rows")
    return frame, frame.select(deployed.columns)
