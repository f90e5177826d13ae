"""The page in a real browser: no error, no broken figure, nothing wider than a phone, and a dark page that is dark."""

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
_PHONE, _DESK = 390, 1280

# What only a browser knows. Each figure must have a size and ink in it, and nothing may stick out of the page: what is
# wider scrolls in a box of its own.
_PROBE = """
<script>
addEventListener("load", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const wide = document.documentElement.clientWidth;
  const scrolls = element => element.closest(".scroll") !== null;
  const sticking = [...document.querySelectorAll("body *")].filter(
    e => !scrolls(e) && !e.closest("svg") && e.getBoundingClientRect().right > wide + 1);
  const found = {
    wide, page: document.documentElement.scrollWidth,
    sticking: sticking.map(e => e.tagName + "." + e.className + " " + (e.textContent || "").slice(0, 30)),
    empty: [...document.querySelectorAll("figure.drawing svg")].filter(s => {
      const box = s.getBoundingClientRect(), ink = s.getBBox();
      return box.width < 100 || box.height < 50 || ink.width < 50 || ink.height < 30;
    }).map(s => s.parentElement.id),
    drawings: document.querySelectorAll("figure.drawing svg").length,
    broken: [...document.querySelectorAll("use")].filter(
      u => !document.getElementById((u.getAttribute("href") || u.getAttribute("xlink:href")).slice(1))).length,
    images: [...document.images].filter(i => !i.complete || i.naturalWidth === 0).length,
    hidden: [...document.querySelectorAll("figcaption")].filter(c => c.getBoundingClientRect().height === 0).length,
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
  };
  parent.postMessage("FOUND" + JSON.stringify(found) + "END", "*");
});
</script>
"""
# A browser's window has a least width, which is more than a phone's; a frame in it has none.
_FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<script>addEventListener("message", event => { document.getElementById("found").textContent = event.data })</script>
<pre id="found"></pre><iframe src="probed.html" style="width:WIDTHpx;height:1200px;border:0"></iframe>
"""


@pytest.fixture(scope="module")
def chromium():
    named = os.environ.get("DABAND_CHROMIUM")
    program = named or next((path for path in map(shutil.which, _NAMES) if path), None)
    if program is None:
        pytest.skip("no Chromium: install one (apt-get install chromium), or name it in DABAND_CHROMIUM")
    return program


@pytest.fixture(scope="module")
def page(images):
    return write_report(images, formats=())


def opened(chromium, page, folder, *options, width, dark):
    """Run the browser on a page; returns what it printed and what it complained of."""
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
        "--disable-extensions", f"--user-data-dir={folder / 'profile'}", f"--window-size={width},1600",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=10000",
        "--enable-logging=stderr", *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def probed(chromium, text, folder, *, width, dark):
    """What the probe finds on a page in a frame of this width, and what the browser complained of."""
    (folder / "probed.html").write_text(text.replace("</body>", f"{_PROBE}</body>"))
    frame = folder / "frame.html"
    frame.write_text(_FRAME.replace("WIDTH", str(width)))
    shown, complaints = opened(chromium, frame, folder, "--dump-dom", width=width + 100, dark=dark)
    match = re.search(r"FOUND(\{.*?\})END", html.unescape(shown), flags=re.DOTALL)
    assert match, "the page did not load to its end"
    return json.loads(match.group(1)), complaints


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [_PHONE, _DESK], ids=["phone", "desk"])
def test_the_page_is_whole_in_a_browser(chromium, page, tmp_path, width, dark):
    found, complaints = probed(chromium, page.read_text(), tmp_path, width=width, dark=dark)
    assert complaints == []
    assert found["wide"] == width
    assert found["page"] <= width, "the page scrolls sideways"
    assert found["sticking"] == []
    assert found["drawings"] >= 6
    assert found["empty"] == []
    assert (found["broken"], found["images"], found["hidden"]) == (0, 0, 0)
    assert found["dark"] is dark
    paper, ink = (sum(map(int, re.findall(r"\d+", found[name])[:3])) / 3 for name in ("paper", "ink"))
    assert (paper < 60 and ink > 180) if dark else (ink < 60 and paper > 180)


def test_the_probe_finds_what_is_wrong(chromium, page, tmp_path):
    """The test above can fail: a wide element, a lost reference and an error are all seen."""
    bad = '<div style="width:2000px">wide</div><script>console.error("oh")</script>'
    broken = page.read_text().replace('href="#digit-accuracy-', 'href="#lost-').replace("</body>", f"{bad}</body>")
    found, complaints = probed(chromium, broken, tmp_path, width=_PHONE, dark=False)
    assert any("oh" in line for line in complaints)
    assert found["page"] > _PHONE
    assert any(text.startswith("DIV") for text in found["sticking"])
    assert found["broken"] > 0


def test_a_screenshot_shows_figures_in_both_schemes(chromium, page, tmp_path):
    shades = {}
    for dark in (False, True):
        picture = tmp_path / f"{dark}.png"
        opened(chromium, page, tmp_path, f"--screenshot={picture}", width=_DESK, dark=dark)
        pixels = np.asarray(Image.open(picture).convert("RGB"), np.float64)
        shades[dark] = float(np.median(pixels.mean(axis=2)))
        colourful = (pixels.max(axis=2) - pixels.min(axis=2) > 40).mean()
        assert colourful > 0.005  # the bars of the first figures
    assert shades[False] > 230
    assert shades[True] < 60
