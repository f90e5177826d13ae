"""What a report consists of, before it is a page: sections of text, tables and drawings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from daband.report.tables import Table

__all__ = ["Block", "Document", "Drawing", "Folded", "Section", "SideBySide", "Text", "Tile", "drawings", "tables"]


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


def drawings(document: Document) -> Iterator[Drawing]:
    """All drawings in the order in which they stand."""
    for block in _flat([block for section in document.sections for block in section.blocks]):
        if isinstance(block, Drawing):
            yield block


def tables(document: Document) -> Iterator[Table]:
    """All tables in the order in which they stand."""
    for block in _flat([block for section in document.sections for block in section.blocks]):
        if isinstance(block, Table):
            yield block


def _flat(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Folded):
            yield from _flat(block.blocks)
        elif isinstance(block, SideBySide):
            yield from block.drawings
        else:
            yield block
