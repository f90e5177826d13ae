"""Pages that are files of the repository: the front page is README.md, so the two cannot differ.

A line ``%% README.md`` in a page stands for that file, with its links pointed at pages of the site:
``docs/x.md`` at x, ``examples/name.py`` at the tutorial that it becomes.
"""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path
from typing import Any

__all__ = ["setup", "with_shared_text"]

PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "README.md": "index.md",
    "examples/": "tutorials/index.rst",
}


def with_shared_text(text: str, docname: str, root: Path) -> str:
    """The page's text with every shared file in its place."""
    folder = str(Path(docname).parent)

    def link(match: re.Match[str]) -> str:
        where = match.group(1)
        if where.startswith("examples/") and where.endswith(".py"):
            page = f"tutorials/{where.removeprefix('examples/').removesuffix('.py')}.rst"
        else:
            page = PAGES.get(where, where.removeprefix("docs/"))
            if page == where:
                return match.group(0)
        return f"]({relpath(page, folder)}{match.group(2) or ''})"

    def file(match: re.Match[str]) -> str:
        shared = (root / match.group(1)).read_text(encoding="utf-8")
        return re.sub(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)", link, shared)

    return re.sub(r"^%% (\S+)$", file, text, flags=re.MULTILINE)


def _read(app: Any, docname: str, source: list[str]) -> None:
    root = Path(app.srcdir).parent
    for name in re.findall(r"^%% (\S+)$", source[0], flags=re.MULTILINE):
        app.env.note_dependency(str(root / name), docname=docname)
    source[0] = with_shared_text(source[0], docname, root)


def setup(app: Any) -> dict[str, Any]:
    """Put shared files into pages as they are read."""
    app.connect("source-read", _read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
