"""What a report consists of, before it is a page: sections of text, tables and drawings.

A table is data, and HTML, Markdown or LaTeX (booktabs) by a template.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from matplotlib.figure import Figure

from daband.bench.report._rendering import render


@dataclass(frozen=True)
class Cell:
    """One cell: its text, a deviation that stands small behind it, and whether it stands out or back."""

    text: str
    deviation: str = ""
    bold: bool = False
    muted: bool = False

    def plain(self) -> str:
        """As one text."""
        return f"{self.text} ± {self.deviation}" if self.deviation else self.text


@dataclass(frozen=True)
class Table:
    """Columns with headings and rows of cells. ``name`` is what files and links call it."""

    name: str
    caption: str
    headings: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    text_columns: int = 1
    """How many columns on the left hold words; the others hold numbers and are set flush right."""

    @classmethod
    def of_columns(
        cls, name: str, caption: str, *columns: tuple[str, Sequence[Cell | str]] | None, text_columns: int = 1
    ) -> Table:
        """A table from its columns, each a heading and its cells; a column that is None is left out."""
        present = [column for column in columns if column is not None]
        table = cls(name, caption, [heading for heading, _ in present], text_columns=text_columns)
        for row in zip(*(cells for _, cells in present), strict=True):
            table.add(*row)
        return table

    def add(self, *cells: Cell | str) -> None:
        """Add a row."""
        row = [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]
        if len(row) != len(self.headings):
            raise ValueError(f"table {self.name} has {len(self.headings)} columns, the row has {len(row)}")
        self.rows.append(row)

    def transposed(self, heading: str) -> Table:
        """Rows as columns, for tables that would be too wide; ``heading`` stands above what were headings."""
        headings = [heading, *(row[0].plain() for row in self.rows)]
        rows = [[Cell(name), *(row[at] for row in self.rows)] for at, name in enumerate(self.headings) if at > 0]
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


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Drawing:
    """A figure: the name of its files, what stands below it, and what it shows in words for those who cannot see it."""

    name: str
    figure: Figure
    caption: str
    alt: str


@dataclass(frozen=True)
class SideBySide:
    """Drawings next to each other where there is room."""

    drawings: Sequence[Drawing]


@dataclass(frozen=True)
class Folded:
    """Blocks that open on a click."""

    title: str
    blocks: Sequence[Block]


Block = Text | Drawing | SideBySide | Table | Folded
KindT = TypeVar("KindT", Drawing, Table)


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; ``level`` 2 for a data set, 3 for a part of it."""

    title: str
    blocks: list[Block]
    level: int = 3


@dataclass(frozen=True)
class Tile:
    """A number that is to be seen first, and what it is."""

    value: str
    text: str


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    headline: str
    lead: str
    tiles: list[Tile] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)

    def each(self, kind: type[KindT]) -> Iterator[KindT]:
        """All drawings, or all tables, in the order in which they stand."""
        for block in _flatten(block for section in self.sections for block in section.blocks):
            if isinstance(block, kind):
                yield block


def _flatten(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Folded):
            yield from _flatten(block.blocks)
        elif isinstance(block, SideBySide):
            yield from block.drawings
        else:
            yield block
