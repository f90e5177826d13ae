"""``daband audit`` as a user calls it: questions out, answers in."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import daband as library
from tests.registries import declare_plugin


def save_choice(folder, name):
    """Save a choice from two files, and return its folder."""
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 70, 200)
    rows = pl.DataFrame({"age": age, "offer": np.where(age > 45, "card", "loan")})
    rows.write_csv(folder / "old.csv")
    rows.drop("offer").write_csv(folder / "new.csv")
    files = {"source": str(folder / "old.csv"), "target": str(folder / "new.csv")}
    pair = library.domains.DataOptions(**files, label="offer").read()
    linucb = library.trust.Candidate("linucb", "linucb")
    choice = library.choose(pair, candidates=[linucb], episodes=2, episode_length=16)
    choice.save(folder / name)
    return folder / name


def test_questions_then_answers(daband, tmp_path):
    run = save_choice(tmp_path, "market")
    refused = daband("audit", str(run))
    assert refused.returncode == 2
    assert "--budget" in refused.stderr
    refused = daband("audit", str(tmp_path), "--budget", "5")
    assert refused.returncode == 2
    assert "not the folder of a choice" in refused.stderr

    begun = daband("audit", str(run), "--budget", "20", "--out", "questions.csv")
    assert begun.returncode == 0, begun.stderr
    assert "0 of 20 questions are answered" in begun.stdout
    with open("questions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    # nothing is filled in
    assert daband("audit", str(run), "--budget", "20", "--out", "questions.csv").returncode == 0
    assert {row["arm_name"] for row in rows} <= {"card", "loan"}
    for number, row in enumerate(rows):
        row["reward"] = str(number % 2)

    def answer(rows):
        with open("answers.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "reward"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        return daband("audit", str(run), "--answers", "answers.csv")

    filled = (tmp_path / "questions.csv").read_text().replace(",\n", ",1\n")
    (tmp_path / "questions.csv").write_text(filled)
    again = daband("audit", str(run), "--budget", "20", "--out", "questions.csv")
    assert again.returncode == 2
    assert "pass it as --answers" in again.stderr
    # rewards that were filled in are not written over
    assert (tmp_path / "questions.csv").read_text() == filled

    part = answer(rows[:7])
    assert part.returncode == 0, part.stderr
    assert part.stdout.startswith("7 target rewards: ")
    assert part.stdout.rstrip().endswith(" --answers answers.csv")
    assert "7 of 20 questions are answered" in daband("audit", str(run)).stdout
    done = answer(rows)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("20 target rewards: ")
    assert "Mean reward in the target: " in daband("audit", str(run)).stdout
    assert json.loads((run / "audit" / "audit.json").read_text())["answered"] == 20
    assert daband("audit", str(run), "--answers", "answers.csv", "--budget", "3").returncode == 2
    assert daband("audit", str(run), "--replace").returncode == 2
    rows[0]["reward"] = "1"
    assert "--replace" in answer(rows).stderr
    assert daband("audit", str(run), "--answers", "answers.csv", "--replace").returncode == 0


PLUGIN = """
import numpy as np
from daband.domains import About, from_arrays, register_pair

@register_pair("names", about=About(summary="arms with letters of many alphabets"))
def names(*, tiny: bool = False):
    arms = ["B\u00fcndel", "\u30ab\u30fc\u30c9"]
    labelled = (np.eye(60, 2), np.arange(60) % 2)
    return from_arrays(source=labelled, target=np.eye(60, 2), target_test=labelled, class_names=arms, name="names")
"""


@pytest.mark.slow
def test_a_terminal_without_the_letters_of_a_name(tmp_path):
    declare_plugin(tmp_path, "names", PLUGIN)
    bare = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    call = [sys.executable, "-c", "from daband.cli._main import main; main()"]
    small = ["--seeds", "0", "--episodes", "1", "--episode-length", "16"]
    command = [*call, "bench", "names", "--methods", "linucb", *small]
    done = subprocess.run(
        command, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (record,) = json.loads((tmp_path / "runs/names/results.json").read_text(encoding="utf-8"))
    assert record["class_names"] == ["B\u00fcndel", "\u30ab\u30fc\u30c9"]


def test_paths_with_brackets_are_printed_as_they_are(daband, tmp_path):
    save_choice(tmp_path, "market [v2]")
    begun = daband("audit", "market [v2]", "--budget", "5", "--out", "[q].csv")
    assert "0 of 5 questions are answered: [q].csv" in begun.stdout
    assert "--answers '[q].csv'" in begun.stdout
    assert "Written: [m].daband" in daband("export", "market [v2]", "[m].daband").stdout
