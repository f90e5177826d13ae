"""The commands as a user calls them, in this process: importing torch anew for each would take most
of the time.
"""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from daband.bench._tables import build_tables
from daband.cli._runs import to_terminal_table

SMALL = ("--episodes", "3", "--episode-length", "20")


@pytest.mark.slow
def test_help_names_every_command_and_where_to_start_without_importing_what_is_slow():
    script = (
        "import atexit, sys\nfrom daband.cli._main import main\nslow = ('torch', 'matplotlib',"
        " 'polars', 'sklearn', 'scipy.stats', 'ray')\natexit.register(lambda: print('imported:',"
        " [name for name in slow if name in sys.modules]))\nsys.argv = ['daband',"
        " '--help']\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    for word in ("demo", "bench", "ablate", "report", "presets", "Start with"):
        assert word in done.stdout
    assert "imported: []" in done.stdout


def test_bench_then_report(daband, tmp_path):
    done = daband("bench", "synthetic", "--methods", "random,linucb", "--seeds", "0-1", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "linucb" in done.stdout
    folder = tmp_path / "runs" / "synthetic"
    assert (folder / "results.json").exists()
    (folder / "report.html").unlink()
    assert daband("report", str(folder)).returncode == 0
    assert "<table>" in (folder / "report.html").read_text()


def record(**changes):
    """What a run leaves in results.json, as far as tables show it."""
    return {
        "pair": "digit",
        "method": "linucb",
        "variant": "default",
        "seed": 0,
        "selection": "none",
        "feedback": "one_hot",
        "target_accuracy": 0.5,
        "target_accuracy_macro": 0.5,
        "target_value": 0.5,
        "target_best_value": 1.0,
        "target_constant_value": 0.25,
        "target_regret": 1000.5,
        "target_arm_counts": [1, 3],
        "source_regret": 1234.5,
        "source_reward": 0.75,
        "rounds": 19200,
        "wall_seconds": 3600.0,
        "class_names": ["a", "b"],
        **changes,
    }


@pytest.mark.parametrize(
    ("feedback", "unit"), [("one_hot", 1.0), ("bandit", 0.01), ("bandit", 1000.0)]
)
def test_a_table_of_all_methods_fits_eighty_columns(feedback, unit):
    methods = ("constant", "random", "linucb", "linucb-p", "nlinucb", "nlinucb-p", "daband")
    records = [
        record(
            method=method,
            seed=seed,
            feedback=feedback,
            target_accuracy=0.5 + 0.1 * seed,
            target_value=unit * (0.5 + 0.1 * seed),
            target_regret=unit * (1000.0 + seed),
            source_regret=unit * (1234.5 + 17 * seed),
            source_reward=unit * 0.7,
            target_best_value=unit,
            target_constant_value=0.3 * unit,
        )
        for method in methods
        for seed in range(5)
    ]
    console = Console(width=80, file=io.StringIO())
    (table,) = build_tables(records)
    console.print(to_terminal_table(table))
    shown = console.file.getvalue()
    assert "…" not in shown
    assert all(f"│ {method} " in shown for method in methods)
    assert ("0.7000 ± 0.1581" in shown) == (unit == 1.0)


def test_run_is_shown_again_without_work(daband):
    command = ("bench", "synthetic", "--methods", "linucb-p", "--seeds", "3", *SMALL)
    first = daband(*command)
    second = daband(*command)
    assert first.returncode == second.returncode == 0
    assert "finished" in first.stdout
    assert "found" in second.stdout


def test_presets_and_methods_and_version(daband):
    presets = daband("presets").stdout
    for name in (
        "demo",
        "digit",
        "visda17",
        "s2rda49",
        "paper-digit",
    ):
        assert f"\n{name} " in presets
    for name in ("constant", "daband-p", "log", "rules", "supervised", "trees-p"):
        assert name in presets.partition("Methods:")[2]
    assert daband("--version").stdout.startswith("daband 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "synthetik"), "did you mean 'synthetic'"),
        (("bench", "synthetic", "--methods", "lunicb"), "unknown method 'lunicb'"),
        (("bench", "synthetic", "--seeds", "4-0"), "seeds must look like"),
        (("bench", "synthetic", "--seeds", "one"), "must look like"),
        (
            ("ablate", "synthetic", "--base", "papr"),
            "no ablation of the recipe 'papr' (known: paper, default-rpd)",
        ),
        (("report", "nowhere"), "nowhere does not exist"),
        (("bench", "[/foo]"), "unknown preset '[/foo]'"),
    ],
)
def test_errors_are_one_clear_message_without_a_traceback(arguments, message, daband):
    done = daband(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in " ".join(done.stderr.split())
    assert "failed" not in done.stdout  # a typing error is told before anything runs


def test_a_preset_whose_data_are_not_there_says_how_to_get_them(daband, tmp_path, monkeypatch):
    monkeypatch.setenv("DABAND_DATA", str(tmp_path))
    done = daband("bench", "paper-visda17", "--methods", "linucb", "--seeds", "0")
    assert done.returncode == 2
    assert "daband data" in done.stderr


def test_a_table_says_which_form_of_the_data_was_found(daband, tmp_path, monkeypatch):
    monkeypatch.setenv("DABAND_DATA", str(tmp_path))
    done = daband("bench", "digit", "--methods", "random", "--seeds", "0", "--episodes", "1")
    assert done.returncode == 0, done.stderr
    assert "digit {'form': 'embedded'}: 1 runs" in done.stdout


def test_a_folder_that_cannot_be_written_is_named(daband, tmp_path):
    (tmp_path / "taken").write_text("")
    done = daband(
        "bench", "synthetic", "--methods", "random", "--seeds", "0", "--out", "taken", *SMALL
    )
    assert done.returncode == 2
    assert "Error: out taken is a file, not a folder" in done.stderr


def test_damaged_files_of_a_bench_are_named(daband, tmp_path):
    command = ("bench", "synthetic", "--methods", "random", "--seeds", "0", *SMALL)
    assert daband(*command).returncode == 0
    folder = tmp_path / "runs" / "synthetic"
    (folder / "results.json").write_text("[{")
    done = daband("report", str(folder))
    assert done.returncode == 2
    assert "results.json is not JSON" in done.stderr
    (result,) = folder.glob("*/result.json")
    result.write_text('{"pair":')
    done = daband(*command)
    assert done.returncode == 2
    assert "result.json is not JSON" in done.stderr
    assert "remove the folder to run it again" in done.stderr


def test_ablate_prints_its_table(daband, tmp_path):
    command = ("ablate", "synthetic", "--base", "paper", "--seeds", "0-1", *SMALL)
    done = daband(*command)
    assert done.returncode == 0, done.stderr
    for letters in ("none", "RPD", "p (Holm)"):
        assert letters in done.stdout
    folder = tmp_path / "runs" / "synthetic-ablation"
    assert len(json.loads((folder / "results.json").read_text())) == 16
