"""The examples of the hand-over run as they are, and print what they promise; the others run with
the docs.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def table_to_decision(text):
    """Two raw rows get the offers of their kind, and a category that was never seen is named."""
    first, second = text.splitlines()
    assert first.endswith("-> card")
    assert "-> loan" in second
    assert "'nort', a category that training never saw" in second


def photos_to_decision(text):
    """Photographs of the new camera are told apart."""
    found = ast.literal_eval(text)
    assert (
        sum(
            name == right
            for name, right in zip(found, ["rows", "columns", "checks"] * 2, strict=True)
        )
        >= 5
    )


def ab_test(text):
    """One product gets one offer for everybody, the other is personalised and gains in the next
    market.
    """
    assert re.search(r"^shoes: .*always coupon is chosen$", text, re.MULTILINE)
    assert "over always visit: arms are chosen by context" in text
    gain = re.search(r"tents: in Sweden the policy really gains \+(\S+) euros", text)
    assert float(gain[1]) > 1.0
    assert text.splitlines()[-1].endswith("-> visit")


PROMISES = {
    "ab_test": ab_test,
    "table_to_decision": table_to_decision,
    "photos_to_decision": photos_to_decision,
}


@pytest.mark.parametrize("name", ["table_to_decision", "photos_to_decision"])
def test_hand_over_in_forty_lines(name):
    (path,) = [path for path in EXAMPLES if path.stem == name]
    assert len(path.read_text().splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.stem in PROMISES], ids=lambda path: path.stem
)
def test_example(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    PROMISES[path.stem](done.stdout)


def test_the_readme_and_its_complete_example_have_the_same_columns():
    (example,) = [path for path in EXAMPLES if path.stem == "ab_test"]
    readme = Path(__file__).parents[1] / "README.md"
    declared = [
        re.search(r"Columns\(\s*(?:context=)?(\[[^]]*\])", path.read_text()).groups()
        for path in (readme, example)
    ]
    assert declared[0] == declared[1]
