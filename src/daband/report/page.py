"""Writing a report: one HTML page, the same as Markdown, tables for LaTeX, and every figure as a file."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

import daband
from daband.files import write_bytes, write_text
from daband.report.assemble import assemble
from daband.report.document import drawings, tables
from daband.report.rendering import render
from daband.report.sections_results import comparison_table
from daband.report.style import figure_settings
from daband.report.summary import MethodSummary

__all__ = ["markdown_table", "write_report"]

FORMATS = ("svg", "png", "pdf")


def write_report(folder: str | Path, *, pair: str | None = None, formats: Sequence[str] = FORMATS) -> Path:
    """Write a report into a folder of runs and return the path of its page.

    ``report.html`` stands alone; ``report.md`` has the same content; ``report/figures`` holds every figure in
    ``formats``, and ``report/tables`` every table for LaTeX, with all of them in ``report/tables.tex``. What an earlier
    report left in these two folders is replaced.

    Args:
        folder: what ``daband bench``, ``ablate``, ``sweep`` or ``run`` filled.
        pair: of a data set with several pairs, the one that is looked at closely; by default the first.
        formats: of the figures' files, out of "svg", "png" and "pdf".
    """
    folder = Path(folder)
    settings: Any = figure_settings()
    with matplotlib.rc_context(settings):
        document = assemble(folder, pair=pair)
        drawn: dict[str, str] = {}
        files: dict[str, bytes] = {}
        for drawing in drawings(document):
            drawn[drawing.name] = _saved(drawing.figure, "svg").decode()
            drawing.figure.set_layout_engine("none")  # it is laid out now, and the other formats need not do it again
            for ending in formats:
                content = drawn[drawing.name].encode() if ending == "svg" else _saved(drawing.figure, ending)
                files[f"{drawing.name}.{ending}"] = content
    beside = folder / "report"
    for part in ("figures", "tables"):
        shutil.rmtree(beside / part, ignore_errors=True)
        (beside / part).mkdir(parents=True)
    for name, content in files.items():
        (beside / "figures" / name).write_bytes(content)
    everything = []
    for table in tables(document):
        (beside / "tables" / f"{table.name}.tex").write_text(table.latex(), encoding="utf-8")
        everything.append(table.latex())
    preamble = "% Tables of a daband report; they need \\usepackage{booktabs} and \\usepackage{graphicx}.\n\n"
    write_text(beside / "tables.tex", preamble + "\n".join(everything))
    made_by = f"Made by daband {daband.__version__} from the folder {folder.resolve().name}."
    picture = next((ending for ending in ("png", "svg", "pdf") if ending in formats), None)
    write_text(folder / "report.md", render("report.md", document=document, picture=picture, made_by=made_by))
    page = render("report.html", document=document, drawn=drawn, made_by=made_by)
    write_bytes(folder / "report.html", page.encode())
    return folder / "report.html"


def markdown_table(rows: Sequence[MethodSummary]) -> str:
    """The comparison of methods on one pair as Markdown."""
    return comparison_table(rows, name="methods", caption="").markdown()


def _saved(figure: Figure, ending: str) -> bytes:
    content = io.BytesIO()
    # No date in the files: the same runs give the same figures.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[ending]
    figure.savefig(content, format=ending, dpi=200, transparent=ending == "svg", metadata=metadata)
    return content.getvalue()
