"""Numbers in running text exist: every substitution of a page is one that the records give."""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_number_that_a_page_asks_for_comes_from_a_record():
    sys.path.insert(0, str(DOCS / "_ext"))
    from record_numbers import numbers

    found = numbers()
    asked = 0
    for page in DOCS.rglob("*.md"):
        for name in re.findall(r"\{\{ ([\w.]+) \}\}", page.read_text()):
            value = found
            for part in name.split("."):
                assert part in value, f"{page.name} asks for {name}"
                value = value[part]
            assert re.fullmatch(r"[+-]?\.\d{3}|1\.000|\d+", value), f"{name} is {value!r}"
            asked += 1
    assert asked
