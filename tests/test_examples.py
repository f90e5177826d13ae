"""Every example runs as it is, and prints what it promises."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def own_loop(text):
    """The policy learns to get clicks, and an estimate comes with an interval and the truth beside it."""
    first, last = (float(value) for value in re.findall(r"clicks per round.*: +([.\d]+)", text))
    assert min(first, last) > 0.65  # offers at random get half of the people to click
    value, low, high = (float(v) for v in re.search(r"estimated: +([.\d]+) .* ([-.\d]+) to ([.\d]+)\)", text).groups())
    truth = float(re.search(r"in truth: +([.\d]+)", text).group(1))
    assert truth == pytest.approx(0.5, abs=0.01)
    assert low < value < high
    assert abs(value - truth) < high - low  # four standard errors


def bring_arrays(text):
    """DABand reads the new market, LinUCB does not."""
    found = re.findall(r"^(\w+) .* in the new market ([.\d]+)$", text, re.MULTILINE)
    accuracy = {name: float(value) for name, value in found}
    assert accuracy["daband"] > accuracy["linucb"] + 0.1


def table_to_decision(text):
    """Two raw rows get the offers of their kind, and a category that was never seen is named."""
    first, second = text.splitlines()
    assert first.endswith("-> card")
    assert "-> loan" in second
    assert "'nort', a category that training never saw" in second


def photos_to_decision(text):
    """Photographs of the new camera are told apart."""
    found = ast.literal_eval(text)
    assert sum(name == right for name, right in zip(found, ["rows", "columns", "checks"] * 2, strict=True)) >= 5


PROMISES = {
    "own_loop": own_loop,
    "bring_arrays": bring_arrays,
    "table_to_decision": table_to_decision,
    "photos_to_decision": photos_to_decision,
}


@pytest.mark.parametrize("name", ["table_to_decision", "photos_to_decision"])
def test_hand_over_in_thirty_lines(name):
    (path,) = [path for path in EXAMPLES if path.stem == name]
    assert len(path.read_text().splitlines()) <= 30


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    PROMISES[path.stem](done.stdout)
