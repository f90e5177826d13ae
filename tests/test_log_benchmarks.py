"""The studies of large logs and of prior trust run, and their pages say what their records say."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script, *arguments):
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def page(name, function, records, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return getattr(importlib.import_module(name), function)(records)


def test_large_logs(tmp_path, monkeypatch):
    pytest.importorskip("polars")
    path = tmp_path / "record.json"
    arguments = ["--data", str(tmp_path / "log"), "--out", str(path), "--repeats", "1", "--no-ray"]
    run("fit_log.py", "--rows", "1280", *arguments)
    records = json.loads(path.read_text())
    (record,) = records
    assert (record["rows"], record["files"]) == (1280, 64)
    assert set(record["results"]) == {"product float32", "product float64", "fit_log"}
    text = page("pages.fit_log", "fit_log_page", records, monkeypatch)
    assert "## 1,280 rounds" in text


@pytest.mark.parametrize("method", ["linucb", "daband"])
def test_prior_trust(tmp_path, monkeypatch, method):
    runs = tmp_path / "runs"
    pair = ["--pairs", "synthetic", "--methods", method, "--seeds", "2", "--tiny"]
    options = [*pair, "--recipe", "small", "--rounds", "64", "--out", str(runs)]
    run("prior_trust.py", *options, "--part", "1/2")
    assert not list(runs.iterdir())  # the only pair and method is part 0
    run("prior_trust.py", *options)
    assert run("prior_trust.py", *options) == ""  # nothing is repeated
    assert {path.name for path in runs.iterdir()} == {f"synthetic-{method}-{seed}.json" for seed in range(2)}
    run("prior_trust.py", "--join", str(runs), "--record", str(tmp_path / "record.json"))
    records = json.loads((tmp_path / "record.json").read_text())
    assert [record["seed"] for record in records] == [0, 1]
    assert set(records[0]["regret"]["relabelled"]) == {"full", "adaptive", "none", "nothing"}
    assert records[0]["discount"].keys() == {"as it is", "relabelled"}
    assert f"| synthetic | {method} | 2 |" in page("pages.prior_trust", "prior_trust_page", records, monkeypatch)
