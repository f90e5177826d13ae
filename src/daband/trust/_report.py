"""Write the report on a choice, which is one HTML page."""

from __future__ import annotations

from pathlib import Path

import jinja2

from daband.base._files import write_text
from daband.trust._assessment import format_number
from daband.trust._choose import Choice

#: File of the page in the folder of the choice.
_REPORT_FILE = "report.html"


def write_choice_report(folder: Path) -> Path:
    """Write a page with the verdict, its reasons and the candidates, and return its path.

    Args:
        folder: the folder of a choice.
    """
    template = jinja2.Template(
        Path(__file__).with_name(_REPORT_FILE).read_text(encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = template.render(choice=Choice.load(folder), folder=folder, format_number=format_number)
    write_text(folder / _REPORT_FILE, page)
    return folder / _REPORT_FILE
