"""The commands of a practitioner need no module of ``daband.bench``."""

import subprocess
import sys

import numpy as np
import polars as pl

SCRIPT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("daband.bench"):
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Blocked())
from daband.cli._main import main

def call(*arguments):
    sys.argv = ["daband", *arguments]
    try:
        main()
    except SystemExit as left:
        assert not left.code, (arguments, left.code)

files = ["--source", "old.csv", "--target", "new.csv", "--arm", "offer", "--reward", "euros"]
call("choose", *files, "--id", "customer", "--out", "market")
call("assess", "market", "--incumbent", "loan")
call("audit", "market", "--budget", "5", "--out", "questions.csv")
call("report", "market")
call("export", "market", "market.daband", "--epsilon", "0.2")
call("decide", "market.daband", "new.csv", "--out", "log.csv")
import polars as pl
pl.read_csv("log.csv").with_columns(reward=pl.lit(1.0)).write_csv("log.csv")
call("learn", "market", "log.csv")
call("evaluate-log", "market.daband", "log.csv")
call("serve", "--help")
"""


def test_a_choice_from_files_to_a_learned_policy(tmp_path):
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 70, 300).round(1)
    offer = rng.choice(["card", "loan"], 300)
    euros = np.where((offer == "card") == (age > 45), 3.0, 1.0) + rng.normal(size=300)
    columns = {"customer": np.arange(300), "age": age, "offer": offer, "euros": euros}
    rows = pl.DataFrame({**columns, "propensity": np.full(300, 0.5)})
    rows.write_csv(tmp_path / "old.csv")
    rows.select("customer", "age").write_csv(tmp_path / "new.csv")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Learned: 300 rewards, as version 1." in done.stdout
    assert (tmp_path / "market/report.html").is_file()
