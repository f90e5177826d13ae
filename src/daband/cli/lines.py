"""Lines with names and paths of the user's in them, printed as they are."""

from __future__ import annotations

from rich.console import Console

__all__ = ["say"]


def say(console: Console, text: str, *, style: str | None = None) -> None:
    """Print a line: no markup (a folder may be called ``[v2]``), no colours of rich's own, no breaks inside a path."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
