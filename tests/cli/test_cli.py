import json
import os
import subprocess
import sys

import pytest


def daband(*arguments, folder):
    command = [sys.executable, "-m", "daband", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


SMALL = ("--set", "episodes=3", "--set", "episode_length=20", "--set", "pair_options.tiny=true")


def test_help_names_every_command_and_where_to_start(tmp_path):
    done = daband("--help", folder=tmp_path)
    assert done.returncode == 0
    for word in ("demo", "run", "bench", "ablate", "continue", "sweep", "report", "presets", "Start with"):
        assert word in done.stdout


def test_bench_then_report(tmp_path):
    done = daband("bench", "synthetic", "--methods", "random,linucb", "--seeds", "0-1", *SMALL, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "linucb" in done.stdout
    folder = tmp_path / "runs" / "synthetic"
    assert (folder / "results.json").exists()
    (folder / "report.html").unlink()
    assert daband("report", str(folder), folder=tmp_path).returncode == 0
    assert "<table>" in (folder / "report.html").read_text()


def test_run_is_shown_again_without_work(tmp_path):
    command = ("run", "synthetic", "--method", "linucb-p", "--seed", "3", *SMALL)
    first, second = daband(*command, folder=tmp_path), daband(*command, folder=tmp_path)
    assert first.returncode == second.returncode == 0
    assert "finished" in first.stdout
    assert "found" in second.stdout


def test_a_profiled_run_says_where_its_time_went_and_leaves_a_trace(tmp_path):
    command = ("run", "synthetic", "--method", "nlinucb", "--profile", "--out", "runs", *SMALL)
    done = daband(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("step", "features", "head", "host", "Trace:", "target accuracy"):
        assert word in done.stdout
    (trace,) = (tmp_path / "runs").glob("*/trace.json")
    assert json.loads(trace.read_text())["traceEvents"]
    assert (trace.parent / "done").exists()
    again = daband(*command, folder=tmp_path)
    assert again.returncode != 0
    assert "choose another --out" in again.stderr.replace("\n", " ")


def test_presets_and_methods_and_version(tmp_path):
    presets = daband("presets", folder=tmp_path).stdout
    for name in ("demo", "digit", "visda17", "s2rda49", "signs", "amazon", "office_caltech", "warfarin", "paper-digit"):
        assert f"\n{name} " in presets
    methods = daband("methods", folder=tmp_path).stdout.split()
    assert methods == ["daband", "daband-p", "linucb", "linucb-p", "nlinucb", "nlinucb-p", "random"]
    assert daband("--version", folder=tmp_path).stdout.startswith("daband 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "synthetik"), "did you mean 'synthetic'"),
        (("bench", "synthetic", "--methods", "lunicb"), "unknown method 'lunicb'"),
        (("bench", "synthetic", "--seeds", "4-0"), "runs backwards"),
        (("bench", "synthetic", "--seeds", "one"), "must look like"),
        (("bench", "synthetic", "--set", "nothing=1"), "unknown setting"),
        (("ablate", "synthetic", "--base", "papr"), "no ablation of the recipe 'papr' (known: paper, default-rpd)"),
        (("sweep", "synthetic"), "nothing to sweep"),
        (("sweep", "synthetic", "--grid", "lambda=1", "--select", "luck"), "unknown rule 'luck'"),
        (("sweep", "synthetic", "--grid", "lamda=1"), "nothing called 'lamda'"),
        (("continue", "nowhere"), "holds no finished run"),
        (("report", "nowhere"), "no folder nowhere"),
        (("run", "[/foo]"), "unknown preset '[/foo]'"),
        (("run", "synthetic", "--set", "episodes=99999"), "passes"),
    ],
)
def test_errors_are_one_clear_message_without_a_traceback(arguments, message, tmp_path):
    done = daband(*arguments, folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_preset_whose_data_are_not_there_says_how_to_get_them(tmp_path):
    command = [sys.executable, "-m", "daband", "bench", "paper-visda17", "--methods", "linucb", "--seeds", "0"]
    bare = {**os.environ, "DABAND_DATA": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env=bare)
    assert done.returncode == 2
    assert "daband data" in done.stderr
    assert "Traceback" not in done.stderr


def test_ablate_prints_and_writes_its_table(tmp_path):
    quick = ("--set", "methods.daband.recipe.base=paper", "--set", "methods.daband.recipe.learning.steps=2")
    command = ("ablate", "synthetic", "--base", "paper", "--seeds", "0-1", *SMALL, *quick)
    done = daband(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for letters in ("none", "RPD", "p (Holm)"):
        assert letters in done.stdout
    folder = tmp_path / "runs" / "synthetic-ablation"
    assert len(json.loads((folder / "ablation.json").read_text())["rows"]) == 8
    assert len(json.loads((folder / "results.json").read_text())) == 16


def test_sweep_shows_what_each_rule_picks(tmp_path):
    command = ("sweep", "synthetic", "--method", "linucb", "--grid", "alpha=0,0.5", "--seeds", "0-1", *SMALL)
    done = daband(*command, "--select", "mutual-information", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("alpha=0.5", "oracle", "below best", "Selected by mutual-information"):
        assert word in done.stdout
    folder = tmp_path / "runs" / "synthetic-sweep"
    records = json.loads((folder / "results.json").read_text())
    assert sorted(record["selection"] for record in records) == ["mutual-information"] * 2 + ["none"] * 2
    assert len(list(folder.glob("*/criteria.json"))) == 4
    done = daband(*command, "--select", "dev", folder=tmp_path)
    assert done.returncode == 2
    assert "'dev' has no value" in done.stderr


def test_a_whole_bench_is_continued(tmp_path):
    assert (
        daband("bench", "synthetic", "--methods", "random,linucb", "--seeds", "0-1", *SMALL, folder=tmp_path).returncode
        == 0
    )
    done = daband("continue", "runs/synthetic", "--rounds", "50", "--jobs", "2", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("finished", "target regret", "zero-shot", "linucb", "continued.json"):
        assert word in done.stdout
    again = daband("continue", "runs/synthetic", "--rounds", "50", folder=tmp_path)
    assert again.returncode == 0
    assert "finished" not in again.stdout
    assert again.stdout.count("found") == 4
    other = daband("continue", "runs/synthetic", "--rounds", "40", folder=tmp_path)
    assert other.returncode == 2
    assert "remove it" in other.stderr
