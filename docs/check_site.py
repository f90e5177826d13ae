"""Check a built site: every local link and anchor leads somewhere, and no page asks the network for
anything.

python docs/check_site.py build/docs
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["Page", "problems"]

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class Page(HTMLParser):
    """What a page offers (``ids``), points at (``links``) and loads (``loads``)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.without_text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names, links or loads."""
        found = {name: value or "" for name, value in attrs}
        self.ids.update(value for name, value in found.items() if name in ("id", "name"))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(found.get("href", ""))
        if tag in LOADED and found.get(LOADED[tag]):
            self.loads.append(found[LOADED[tag]])
        if tag == "img" and "alt" not in found:  # an empty one marks decoration
            self.without_text.append(found.get("src", ""))


def problems(root: Path) -> list[str]:
    """What is wrong with the pages below ``root``, a line each."""
    pages = {
        path: Page(path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.html"))
        if "_static" not in path.parts
    }
    found = [] if pages else [f"{root}: no page"]
    for path, page in pages.items():
        where = path.relative_to(root)
        found += [
            f"{where}: loads {url} from the network" for url in page.loads if urlsplit(url).netloc
        ]
        found += [f"{where}: the picture {source} has no text" for source in page.without_text]
        for url in [*page.links, *page.loads]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.exists():
                found.append(f"{where}: {url} leads nowhere")
            elif (
                parts.fragment and goal in pages and unquote(parts.fragment) not in pages[goal].ids
            ):
                found.append(f"{where}: {url}: there is no such place on that page")
    return found


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]).resolve())
    sys.exit("\n".join(wrong) if wrong else None)
