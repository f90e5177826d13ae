"""A table as data, and as HTML, Markdown and LaTeX (booktabs)."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Cell", "Table", "html_text", "latex_text", "markdown_text"]

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "…": r"\ldots{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "λ": r"$\lambda$", "·": r"$\cdot$",
    "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}", "*": "{*}",  # after a line's end, [ and * would belong to it
}  # fmt: skip
_MARKDOWN = re.compile(r"([\\`*_\[\]|$~]|<(?=[A-Za-z/!?])|&(?=#?\w+;))")
_MARKDOWN_START = re.compile(r"^(\d*)(>|[#+.)=-](?=[#=-]*(?:\s|$)))")


@dataclass(frozen=True)
class Cell:
    """One cell: its text, a spread that stands small behind it, and whether it stands out or back."""

    text: str
    spread: str = ""
    bold: bool = False
    muted: bool = False

    def plain(self) -> str:
        """As one text."""
        return f"{self.text} ± {self.spread}" if self.spread else self.text


@dataclass(frozen=True)
class Table:
    """Columns with headings and rows of cells. ``name`` is what files and links call it."""

    name: str
    caption: str
    headings: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    text_columns: int = 1
    """How many columns on the left hold words; the others hold numbers and are set flush right."""

    def add(self, *cells: Cell | str) -> None:
        """Add a row."""
        row = [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]
        if len(row) != len(self.headings):
            raise ValueError(f"table {self.name} has {len(self.headings)} columns, the row has {len(row)}")
        self.rows.append(row)

    def transposed(self, heading: str) -> Table:
        """Rows as columns, for tables that would be too wide; ``heading`` stands above what were headings."""
        headings = [heading, *(row[0].plain() for row in self.rows)]
        rows = [
            [Cell(name), *(row[column] for row in self.rows)] for column, name in enumerate(self.headings) if column > 0
        ]
        return Table(self.name, self.caption, headings, rows)

    def html(self) -> str:
        """The table in a box of its own, which scrolls where the page is too narrow for it."""
        kind = ["t" if column < self.text_columns else "n" for column in range(len(self.headings))]
        head = "".join(
            f'<th scope="col" class="{k}">{html_text(h)}</th>' for h, k in zip(self.headings, kind, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(_html_cell(cell, k, i) for i, (cell, k) in enumerate(zip(row, kind, strict=True)))
            + "</tr>"
            for row in self.rows
        )
        return (
            f'<figure class="table" id="table-{self.name}"><div class="scroll" tabindex="0" role="region" '
            f'aria-label="{html_text(_first_sentence(self.caption))}"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div><figcaption>{html_text(self.caption)}</figcaption></figure>"
        )

    def markdown(self) -> str:
        """The table as Markdown."""
        sides = " --- |" * self.text_columns + " ---: |" * (len(self.headings) - self.text_columns)
        lines = ["| " + " | ".join(map(markdown_text, self.headings)) + " |", "|" + sides]
        for row in self.rows:
            cells = [f"**{markdown_text(c.plain())}**" if c.bold else markdown_text(c.plain()) for c in row]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A ``table`` for a paper that uses booktabs and graphicx; wider ones are scaled to the line."""
        sides = "l" * self.text_columns + "r" * (len(self.headings) - self.text_columns)
        lines = [" & ".join(map(latex_text, self.headings)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(_latex_cell, row)) + r" \\" for row in self.rows]
        body = "\n".join([rf"\begin{{tabular}}{{{sides}}}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"])
        if len(self.headings) > 7:
            body = "\\resizebox{\\linewidth}{!}{%\n" + body + "}"
        return (
            "\\begin{table}[t]\n\\centering\n\\small\n"
            f"\\caption{{{latex_text(self.caption)}}}\n\\label{{tab:{self.name}}}\n{body}\n\\end{{table}}\n"
        )


def one_line(text: str) -> str:
    """Text without line breaks and control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def latex_text(text: str) -> str:
    """Plain text as LaTeX prints it."""
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text))


def markdown_text(text: str) -> str:
    """Plain text as Markdown prints it: nothing in it is markup, in a table or at the start of a line either."""
    return _MARKDOWN_START.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", one_line(text)))


def html_text(text: str) -> str:
    """Plain text as HTML prints it."""
    return html.escape(one_line(text))


def _html_cell(cell: Cell, kind: str, column: int) -> str:
    text = html_text(cell.text)
    if cell.spread:
        text += f" <small>± {html_text(cell.spread)}</small>"
    if cell.bold:
        text = f"<strong>{text}</strong>"
    classes = f"{kind} muted" if cell.muted else kind
    return f'<th scope="row" class="{classes}">{text}</th>' if column == 0 else f'<td class="{classes}">{text}</td>'


def _latex_cell(cell: Cell) -> str:
    text = re.sub(r"(?<![\w.])-(?=[\d.])", "$-$", latex_text(cell.text))  # a minus sign; a hyphen is half as long
    if cell.bold:
        text = rf"\textbf{{{text}}}"
    if cell.spread:
        text += rf"\,{{\scriptsize$\pm$\,{latex_text(cell.spread)}}}"
    return text


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0]
