"""The benchmark of ``LinUCB.for_pair`` runs at a tiny size, and its page is made of what it writes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(*arguments: str) -> None:
    command = [sys.executable, str(BENCHMARKS / "front_door.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_front_door_is_unmoved_by_units_and_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.json"
    arguments = ("--tiny", "--pairs", "synthetic,amazon/books-dvd", "--seeds", "2", "--commit", "c0ffee")
    run("--out", str(path), *arguments)
    records = json.loads(path.read_text())
    assert len(records) == 2 * 9 * 2
    of = {(record["pair"], record["variant"], record["seed"]): record for record in records}
    for (pair, variant, seed), record in of.items():
        assert 0 <= record["target_accuracy"] <= 1
        if variant in ("times 1000", "shifted"):
            plain = of[pair, "default", seed]
            assert record["alpha"] == plain["alpha"]
            assert record["target_accuracy"] == pytest.approx(plain["target_accuracy"], abs=0.1)
    assert of["synthetic", "default x 2", 0]["alpha"] == 2 * of["synthetic", "default", 0]["alpha"]
    before = path.read_text()
    run("--out", str(path), *arguments)  # nothing is left to run
    assert path.read_text() == before
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    page = importlib.import_module("pages.front_door").front_door(records)
    assert "of 2 pairs.**" in page
    assert "| amazon/books-dvd | .100 |" in page
