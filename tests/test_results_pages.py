"""Pages of results are what their records say."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]


def test_pages_are_what_their_records_say():
    command = [sys.executable, str(ROOT / "benchmarks" / "results_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_the_readme_says_of_digit_is_what_the_records_say():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from pages.text import digit_runs

    digit, attribution, paper = (
        json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text())
        for name in ("digit", "attribution", "paper-digit")
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    runs = digit_runs(digit, attribution)
    shown = {name: _mean([run for run in runs if run["method"] == name]) for name in ("daband", "nlinucb", "linucb")}
    own = [run for run in paper if run["study"] == "ablation" and run["variant"] == "RPD"]
    for words in (
        f"DABand {shown['daband']}, Neural-LinUCB {shown['nlinucb']}, LinUCB {shown['linucb']}",
        f"target accuracy of {shown['daband']}",
        f"normalisation statistics, has {shown['nlinucb']}",
        f"own settings reach {_mean(own)}",
    ):
        assert words in readme, words


def _mean(records):
    return f"{np.mean([record['target_accuracy'] for record in records]):.3f}".lstrip("0")
