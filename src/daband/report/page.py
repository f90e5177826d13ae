"""One HTML page that opens from disk: the table, the figure, and what was run."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from daband.files import write_text
from daband.report.figures import comparison_figure, save_figure
from daband.report.summary import MethodSummary, read_records, regret_curves, summarise, with_spread

__all__ = ["markdown_table", "write_report"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid #8886; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; background: white; border-radius: .3rem; }
.wide { overflow-x: auto; }
code { font-size: .9em; }
"""
_HEADINGS = ("method", "target accuracy", "mean over classes", "source regret", "rounds", "seeds", "seconds a run")


def markdown_table(rows: Sequence[MethodSummary]) -> str:
    """The comparison as Markdown."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "| --- |" + " ---: |" * (len(_HEADINGS) - 1)]
    lines += ["| " + " | ".join(cells) + " |" for cells in map(_cells, rows)]
    return "\n".join(lines) + "\n"


def write_report(folder: str | Path) -> Path:
    """Write ``report.html``, ``report.md`` and ``comparison.png`` into a folder of runs; returns the page's path."""
    folder = Path(folder)
    records = read_records(folder)
    blocks: list[str] = []
    text: list[str] = []
    for pair in dict.fromkeys(record["pair"] for record in records):
        mine = [record for record in records if record["pair"] == pair]
        rows = summarise(mine)
        figure = comparison_figure(rows, mine, regret_curves(folder, mine))
        picture = io.BytesIO()
        save_figure(figure, picture)  # type: ignore[arg-type]
        name = "comparison.png" if not blocks else f"comparison-{len(blocks) + 1}.png"
        (folder / name).write_bytes(picture.getvalue())
        blocks.append(_block(pair, rows, picture.getvalue()))
        text.append(f"## {pair}\n\n{markdown_table(rows)}\n![comparison]({name})\n")
    write_text(folder / "report.md", "# Comparison\n\n" + "\n".join(text) + f"\n{_explanation()}\n")
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>daband: comparison</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>Comparison</h1>{''.join(blocks)}"
        f"<p>{html.escape(_explanation())}</p></body></html>\n"
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _block(pair: str, rows: Sequence[MethodSummary], picture: bytes) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in _HEADINGS)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row)) + "</tr>" for row in rows)
    data = base64.b64encode(picture).decode()
    described = "; ".join(f"{row.method}: target accuracy {row.accuracy:.3f}" for row in rows)
    return (
        f'<h2>{html.escape(pair)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        f'</table></div><p><img alt="{html.escape(described)}" src="data:image/png;base64,{data}"></p>'
    )


def _cells(row: MethodSummary) -> tuple[str, ...]:
    name = row.method if row.variant == "default" else f"{row.method} ({row.variant})"
    return (
        name,
        with_spread(row.accuracy, row.accuracy_spread, len(row.seeds), 4),
        f"{row.accuracy_macro:.4f}",
        with_spread(row.source_regret, row.source_regret_spread, len(row.seeds), 1),
        f"{row.rounds:,}",
        str(len(row.seeds)),
        f"{row.seconds:.1f}",
    )


def _explanation() -> str:
    return (
        "Every method learned from source rewards alone and was then held fixed. Target accuracy is 1 - regret / N "
        "over target contexts that no method saw; ± is the sample standard deviation over seeds. Dots are seeds, bands "
        "the range over seeds."
    )
