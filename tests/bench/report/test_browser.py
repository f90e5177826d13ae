"""The page in a real browser: no error, no broken figure, and nothing wider than a phone."""

import html
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from daband.bench.report._page import write_report

pytestmark = pytest.mark.slow
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PHONE = 390
_DESK = 1280

# What only a browser knows. Each figure must have a size and ink in it, and nothing may stick out
# of the page: what is wider scrolls in a box of its own.
_PROBE = """
<script>
addEventListener("load", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const wide = document.documentElement.clientWidth;
  const scrolls = element => element.closest(".scroll") !== null;
  const sticking = [...document.querySelectorAll("body *")].filter(
    e => !scrolls(e) && e.getBoundingClientRect().right > wide + 1);
  const found = {
    wide, page: document.documentElement.scrollWidth,
    sticking: sticking.map(e => e.tagName + "." + e.className + " " + (e.textContent || "").slice(0, 30)),
    empty: [...document.images].filter(i => {
      const box = i.getBoundingClientRect();
      return !i.complete || i.naturalWidth === 0 || box.width < 100 || box.height < 50;
    }).map(i => i.parentElement.id),
    drawings: document.querySelectorAll("figure.drawing img").length,
    hidden: [...document.querySelectorAll("figcaption")].filter(c => c.getBoundingClientRect().height === 0).length,
  };
  parent.postMessage("FOUND" + JSON.stringify(found) + "END", "*");
});
</script>
"""
# A browser's window has a least width, which is more than a phone's; a frame in it has none.
_FRAME = """<!doctype html><link rel="icon" href="data:,">
<script>addEventListener("message", event => { document.getElementById("found").textContent = event.data })</script>
<pre id="found"></pre><iframe src="probed.html" style="width:WIDTHpx;height:1200px;border:0"></iframe>
"""


@pytest.fixture(scope="module")
def chromium():
    named = os.environ.get("DABAND_CHROMIUM")
    program = named or next((path for path in map(shutil.which, _NAMES) if path), None)
    if program is None:
        pytest.skip(
            "no Chromium: install one (apt-get install chromium), or name it in DABAND_CHROMIUM"
        )
    return program


@pytest.fixture(scope="module")
def page(images):
    return write_report(images, formats=())


def opened(chromium, page, folder, *options, width):
    """Run the browser on a page; returns what it printed and what it complained of."""
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--disable-extensions",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},1600",
        "--virtual-time-budget=10000",
        "--enable-logging=stderr",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def probed(chromium, text, folder, *, width):
    """What the probe finds on a page in a frame of this width, and what the browser
    complained of.
    """
    (folder / "probed.html").write_text(text.replace("</body>", f"{_PROBE}</body>"))
    frame = folder / "frame.html"
    frame.write_text(_FRAME.replace("WIDTH", str(width)))
    shown, complaints = opened(chromium, frame, folder, "--dump-dom", width=width + 100)
    match = re.search(r"FOUND(\{.*?\})END", html.unescape(shown), flags=re.DOTALL)
    assert match, "the page did not load to its end"
    return json.loads(match.group(1)), complaints


@pytest.mark.parametrize("width", [_PHONE, _DESK], ids=["phone", "desk"])
def test_the_page_is_whole_in_a_browser(chromium, page, tmp_path, width):
    found, complaints = probed(chromium, page.read_text(), tmp_path, width=width)
    assert complaints == []
    assert found["wide"] == width
    assert found["page"] <= width, "the page scrolls sideways"
    assert found["sticking"] == []
    assert found["drawings"] >= 3
    assert found["empty"] == []
    assert found["hidden"] == 0


def test_the_probe_finds_what_is_wrong(chromium, page, tmp_path):
    """The test above can fail: a wide element, a lost image and an error are all seen."""
    bad = '<div style="width:2000px">wide</div><script>console.error("oh")</script>'
    broken = page.read_text().replace("data:image/svg+xml;base64,", "data:image/svg+xml;base64,x")
    found, complaints = probed(
        chromium, broken.replace("</body>", f"{bad}</body>"), tmp_path, width=_PHONE
    )
    assert any("oh" in line for line in complaints)
    assert found["page"] > _PHONE
    assert any(text.startswith("DIV") for text in found["sticking"])
    assert found["empty"]


def test_a_screenshot_shows_figures(chromium, page, tmp_path):
    picture = tmp_path / "page.png"
    opened(chromium, page, tmp_path, f"--screenshot={picture}", width=_DESK)
    pixels = np.asarray(Image.open(picture).convert("RGB"), np.float64)
    # the bars of the first figures
    assert (pixels.max(axis=2) - pixels.min(axis=2) > 40).mean() > 0.005
