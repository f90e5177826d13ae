"""A table as data, and as HTML, Markdown and LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from daband.report.rendering import render

__all__ = ["Cell", "Table"]


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

    def kind(self, column: int) -> str:
        """Whether a column holds words, "t", or numbers, "n"."""
        return "t" if column < self.text_columns else "n"

    def html(self) -> str:
        """The table in a box of its own, which scrolls where the page is too narrow for it."""
        return render("table.html", table=self).strip()

    def markdown(self) -> str:
        """The table as Markdown."""
        return render("table.md", table=self)

    def latex(self) -> str:
        """A ``table`` for a paper that uses booktabs and graphicx; wider ones are scaled to the line."""
        return render("table.tex", table=self)
