"""Define the parts of a report: sections of text, tables and drawings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, a standard deviation in small type, and its weight."""

    text: str
    deviation: str = ""
    bold: bool = False
    muted: bool = False

    def plain(self) -> str:
        """Return the cell as one text."""
        return f"{self.text} ± {self.deviation}" if self.deviation else self.text


@dataclass(frozen=True)
class Table:
    """Columns with headings and rows of cells. ``name`` is the id of the table on the page."""

    name: str
    caption: str
    headings: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    #: Number of text columns on the left; the others hold numbers and are right-aligned.
    text_columns: int = 1

    @classmethod
    def of_columns(
        cls, name: str, caption: str, *columns: tuple[str, Sequence[Cell | str]] | None, text_columns: int = 1
    ) -> Table:
        """Build a table from its columns, each a heading and its cells; None is skipped."""
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
        """Return the table with rows as columns; ``heading`` is the heading of the first column."""
        headings = [heading, *(row[0].plain() for row in self.rows)]
        rows = [[Cell(name), *(row[at] for row in self.rows)] for at, name in enumerate(self.headings) if at > 0]
        return Table(self.name, self.caption, headings, rows)

    def kind(self, column: int) -> str:
        """Return "t" for a text column, "n" for a column of numbers."""
        return "t" if column < self.text_columns else "n"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Drawing:
    """A figure: its file name, its caption, and a description for screen readers."""

    name: str
    figure: Figure
    caption: str
    alt: str


@dataclass(frozen=True)
class SideBySide:
    """Drawings next to each other if the page is wide enough."""

    drawings: Sequence[Drawing]


@dataclass(frozen=True)
class Folded:
    """Blocks that open on a click."""

    title: str
    blocks: Sequence[Block]


Block = Text | Drawing | SideBySide | Table | Folded


@dataclass(frozen=True)
class Section:
    """A heading and its blocks; ``level`` 2 for a data set, 3 for a part of it."""

    title: str
    blocks: list[Block]
    level: int = 3


@dataclass(frozen=True)
class Document:
    """A report."""

    title: str
    headline: str
    lead: str
    sections: list[Section] = field(default_factory=list)

    def drawings(self) -> Iterator[Drawing]:
        """Return all drawings in the order of the page."""
        return _drawings(block for section in self.sections for block in section.blocks)


def _drawings(blocks: Iterable[Block]) -> Iterator[Drawing]:
    for block in blocks:
        if isinstance(block, Folded):
            yield from _drawings(block.blocks)
        elif isinstance(block, SideBySide):
            yield from block.drawings
        elif isinstance(block, Drawing):
            yield block
