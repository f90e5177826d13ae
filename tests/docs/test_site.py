"""README is the front page, tutorials say what they answer, and the check of a built site finds
what is broken.
"""

import ast
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]

import browse_site
import check_site
from shared_text import with_shared_text

TUTORIALS = sorted(
    path for path in (ROOT / "examples").glob("*.py") if not path.stem.endswith("_to_decision")
)


def test_the_front_page_is_the_readme():
    page = with_shared_text((DOCS / "index.md").read_text(), "index", ROOT)
    readme = (ROOT / "README.md").read_text()
    without_links = [re.sub(r"\]\([^)]*\)", "]", text) for text in (readme, page)]
    assert without_links[0].strip() in without_links[1]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_pip_install_lines_are_the_same_everywhere():
    """A line names daband or daband-serving, with extras in quotes, or their folders in a clone."""
    allowed = {"daband", "daband-serving", "", "./packaging/serving"}
    for name, file in (
        ("daband", "pyproject.toml"),
        ("daband-serving", "packaging/serving/pyproject.toml"),
    ):
        extras = tomllib.loads((ROOT / file).read_text())["project"]["optional-dependencies"]
        allowed |= {f"'{name}[{extra}]'" for extra in extras}
    folders = [ROOT / name for name in ("docs", "examples", "src", "packaging")]
    for path in [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(file for one in folders for file in one.rglob("*")),
    ]:
        if path.suffix in (".md", ".py", ".toml") and not {"tutorials", "generated"} & set(
            path.parts
        ):
            for given in re.findall(
                r"pip install (\.[^\s`]*|'?daband[^\s`\"),;:]*)", path.read_text()
            ):
                name = given.rstrip(".")
                assert name in allowed, f"{path.relative_to(ROOT)}: pip install {given}"


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere_in_the_repository(name):
    for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", (ROOT / name).read_text()):
        assert (ROOT / link).exists(), link


def test_shared_links_point_into_the_site(tmp_path):
    (tmp_path / "README.md").write_text(
        "[a](docs/guide/data.md#your-own) [b](examples/loop.py) [c](https://x.org/docs/)"
    )
    page = with_shared_text("%% README.md", "project/page", tmp_path)
    assert (
        page == "[a](../guide/data.md#your-own) [b](../tutorials/loop.rst) [c](https://x.org/docs/)"
    )


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_opens_with_its_question_and_a_picture(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    title, _, rest = text.partition("\n")
    assert re.match(r"=+\n", rest), "the first line is the title, underlined"
    assert re.search(r"^\*\*[^*]+\?\*\*", rest, re.MULTILINE), "the question, in bold"
    assert (
        f".. image:: images/sphx_glr_{path.stem}_001.png" in rest or ".. image:: /images/" in rest
    ), "a picture"
    assert len(title) < 70


def test_the_check_of_a_site(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here">x</a><img src="p.png" alt="a picture">')
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path / "p.png").write_text("")
    assert check_site.problems(tmp_path) == []
    (tmp_path / "a.html").write_text(
        '<a href="b.html#gone">x</a><a href="c.html">x</a><img src="p.png"><script'
        ' src="https://cdn.example/x.js">'
    )
    found = "\n".join(check_site.problems(tmp_path))
    for part in (
        "#gone: there is no such place",
        "c.html leads nowhere",
        "has no text",
        "from the network",
    ):
        assert part in found


def test_the_look_in_a_browser(tmp_path):
    browser = next((path for path in map(shutil.which, browse_site.BROWSERS) if path), None)
    if browser is None:
        pytest.skip("no Chromium: install one (apt-get install chromium)")
    (tmp_path / "good.html").write_text(
        '<meta name="viewport" content="width=device-width"><p>words</p>'
    )
    assert browse_site.problems(*browse_site.browse(tmp_path, browser)) == []
    (tmp_path / "bad.html").write_text(
        '<div style="width:700px">wide</div><img src="lost.png"'
        ' alt="x"><script>console.error("oh")</script>'
    )
    found = "\n".join(browse_site.problems(*browse_site.browse(tmp_path, browser)))
    assert "bad.html at 390 pixels" in found
    assert "scrolls sideways" in found
    assert "oh" in found
    assert "lost.png" in found
    assert "good.html" not in found


def test_code_fits_into_88_characters():
    """A tired reader does not scroll sideways; in results the commands are those that were run."""
    for path in (
        ROOT / "README.md",
        *sorted((DOCS / "guide").glob("*.md")),
        *sorted((DOCS / "moving").glob("*.md")),
    ):
        for code in re.findall(
            r"^```[a-z]*\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE
        ):
            wide = [line for line in code.splitlines() if len(line) > 88]
            assert not wide, f"{path.name}: {wide[0]}"
