"""Write the report of a folder of runs, which is one HTML page."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2

from daband.base._files import read_json, write_text
from daband.bench._run import find_finished_runs, read_spec
from daband.bench._tables import build_tables

#: The files of a run that the page links to.
_FILES = ("result.json", "config.json", "episodes.jsonl", "rounds.npz", "policy.safetensors")


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into a folder of runs, and return its path.

    The page has the tables of methods, and the settings, versions and files of every run.

    Args:
        folder: a folder that ``daband bench``, ``ablate`` or ``run`` wrote, or the folder of a run.
    """
    folder = Path(folder)
    specs = {path: read_spec(path) for path in find_finished_runs(folder)}
    records = [read_json(path / "result.json") for path in specs]
    runs = {
        path.relative_to(folder).as_posix(): {
            "label": f"{spec.pair}, {spec.label}",
            "settings": json.dumps(spec.model_dump(mode="json")),
            "environment": json.dumps(read_json(path / "environment.json")),
        }
        for path, spec in specs.items()
    }
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
    )
    page = templates.get_template("report.html").render(
        title=", ".join(dict.fromkeys(spec.pair for spec in specs.values())),
        tables=build_tables(records),
        runs=runs,
        files=_FILES,
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"
