"""Look at every page of a built site in a headless browser, as wide as a desk and as wide as a
phone.

python docs/browse_site.py build/docs

A page must not complain on the console, scroll sideways, or lack a picture. Without a Chromium
nothing is looked at.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["browse", "problems"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = (1280, 390)
HARMLESS = ("[PST]:",)
"""What the theme tells about itself on the console."""

# A window has a least width, which is more than a phone's; a frame in it has none. Pages are opened
# in turn.
LOOK = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<pre id="found"></pre><iframe id="frame"></iframe>
<script>
const pages = PAGES, widths = WIDTHS, found = [], frame = document.getElementById("frame");
frame.style.height = "900px";
const views = pages.flatMap(page => widths.map(width => [page, width]));
function next(number) {
  if (number == views.length) {
    document.getElementById("found").textContent = "FOUND" + JSON.stringify(found) + "END";
    return;
  }
  const [page, width] = views[number];
  frame.style.width = width + "px";
  frame.onload = () => setTimeout(() => {
    const inside = frame.contentDocument, root = inside.documentElement;
    inside.querySelectorAll("img[loading=lazy]").forEach(image => image.loading = "eager");
    found.push({page, width, wide: root.scrollWidth, shown: root.clientWidth,
      lost: [...inside.images].filter(i => i.complete && i.naturalWidth === 0).map(i => i.getAttribute("src"))});
    next(number + 1);
  }, 50);
  frame.src = "/" + page;
}
next(0);
</script>"""


class _Site(SimpleHTTPRequestHandler):
    """The site, and the page that looks at it."""

    look = b""

    def do_GET(self) -> None:
        if self.path != "/look":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.look)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def browse(
    root: Path, browser: str, *, most: int = 100
) -> tuple[list[dict[str, object]], list[str]]:
    """What was found on each page at each width, and what the browser complained of; ``most`` pages
    at a time.
    """
    pages = [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*.html"))
        if "_static" not in path.parts
    ]
    views: list[dict[str, object]] = []
    complaints: list[str] = []
    for start in range(0, len(pages), most):
        text = LOOK.replace("PAGES", json.dumps(pages[start : start + most])).replace(
            "WIDTHS", json.dumps(WIDTHS)
        )
        handler = type("Site", (_Site,), {"look": text.encode()})
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(root)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with tempfile.TemporaryDirectory() as profile:
                command = [
                    browser,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--no-first-run",
                    "--hide-scrollbars",
                    "--disable-background-networking",
                    "--disable-sync",
                    "--disable-extensions",
                    f"--user-data-dir={profile}",
                    "--window-size=1500,1000",
                    "--virtual-time-budget=600000",
                    "--enable-logging=stderr",
                    "--dump-dom",
                    f"http://127.0.0.1:{server.server_port}/look",
                ]
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=900, check=False
                )
        finally:
            server.shutdown()
            server.server_close()
        match = re.search(r"FOUND(\[.*\])END", html.unescape(done.stdout), flags=re.DOTALL)
        if match is None:
            raise RuntimeError(f"the browser did not come to the end: {done.stderr[-2000:]}")
        views += json.loads(match.group(1))
        complaints += [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return views, [line for line in complaints if not any(words in line for words in HARMLESS)]


def problems(views: list[dict[str, object]], complaints: list[str]) -> list[str]:
    """What is wrong, a line each."""
    found = [f"console: {line}" for line in complaints]
    for view in views:
        where = f"{view['page']} at {view['width']} pixels"
        if int(str(view["wide"])) > int(str(view["shown"])) + 1:
            found.append(f"{where}: {view['wide']} pixels wide, it scrolls sideways")
        if view["lost"]:
            found.append(f"{where}: pictures are lost: {view['lost']}")
    return found


if __name__ == "__main__":
    program = os.environ.get("DABAND_CHROMIUM") or next(
        (path for path in map(shutil.which, BROWSERS) if path), None
    )
    if program is None:
        sys.exit(print("No Chromium here: the site was not looked at in a browser."))
    seen, told = browse(Path(sys.argv[1]).resolve(), program)
    wrong = problems(seen, told)
    print(f"{len(seen)} views of {len(seen) // len(WIDTHS)} pages in {program}")
    sys.exit("\n".join(wrong) if wrong else None)
