"""Write the report of a folder of runs, which is one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
import numpy as np

from daband.base._files import read_json, write_text
from daband.base._svg import draw_curve
from daband.bench._records import Record, group_by, read_results
from daband.bench._tables import build_tables
from daband.errors import DataError

#: The files of a run that the page links to.
_FILES = ("result.json", "config.json", "episodes.jsonl", "rounds.npz", "policy.safetensors")
#: Number of points of a learning curve.
_N_POINTS = 50


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into a folder that ``daband bench`` or ``ablate`` wrote, and return its
    path.

    The page has the tables of methods, the learning curve of each method, and the settings,
    versions and files of every run.
    """
    folder = Path(folder)
    listed_records = read_results(folder)
    if not listed_records:
        raise DataError(f"{folder} has no finished run; start runs with `daband bench`")
    records = [read_json(folder / record["folder"] / "result.json") for record in listed_records]
    runs = {
        record["folder"]: {
            "label": f"{record['pair']}, {record['method']} {record['variant']}, seed"
            f" {record['seed']}",
            "settings": json.dumps(read_json(folder / record["folder"] / "config.json")["run"]),
            "environment": json.dumps(read_json(folder / record["folder"] / "environment.json")),
        }
        for record in records
    }
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
    )
    groups = group_by(records, lambda record: (record["pair"], record["method"], record["variant"]))
    page = templates.get_template("report.html").render(
        title=", ".join(dict.fromkeys(record["pair"] for record in records)),
        tables=build_tables(records),
        curves=list(filter(None, (_draw_learning_curve(folder, g) for g in groups.values()))),
        runs=runs,
        files=_FILES,
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _draw_learning_curve(folder: Path, records: Sequence[Record]) -> tuple[str, str] | None:
    """Return the title and the figure of the mean source reward of a method, with the smallest and
    the largest of its seeds; None if it does not play rounds.
    """
    first = records[0]
    if first["source_reward"] is None:
        return None
    parts = []
    for record in records:
        with np.load(folder / record["folder"] / "rounds.npz") as rounds:
            rewards = rounds["reward"]
        n_points = min(_N_POINTS, len(rewards))
        parts.append([part.mean() for part in np.array_split(rewards, n_points)])
    values = np.array(parts)
    ends = first["rounds"] / len(values.T) * np.arange(1, len(values.T) + 1)
    columns = ends, values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    points = list(zip(*(column.tolist() for column in columns), strict=True))
    title = f"{first['pair']}, {first['method']} {first['variant']}: mean source reward"
    return title, draw_curve(points, label=title, line=points[-1][1])
