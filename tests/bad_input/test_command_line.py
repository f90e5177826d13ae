"""Bad input to the command line: one message on stderr, exit code 1 or 2, no traceback, and nothing
written.
"""

import re
import sys

import pytest

from daband.cli._main import main

SMALL = ["--episodes", "2", "--episode-length", "8"]


@pytest.fixture
def refused(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DABAND_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")

    def check(arguments, leaves=()):
        monkeypatch.setattr(sys, "argv", ["daband", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        assert left.value.code in (1, 2), (left.value.code, shown)
        errors = shown.err + shown.out
        assert "Traceback" not in errors
        assert re.sub(r"\W+", "", shown.err), "there is no message"
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(leaves)

    return check


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "syntetic"],
        ["bench", ""],
        ["bench", "none.toml"],
        ["bench", "synthetic", "--episodes", "0"],
        ["bench", "synthetic", "--episode-length", "x"],
        ["bench", "../synthetic"],
        ["bench"],
        ["bench", "synthetic", "--methods", "lincub"],
        ["bench", "synthetic", "--methods", "linucb,,lincub"],
        ["bench", "synthetic", "--methods", "random-p"],
        ["bench", "synthetic", "--methods", "constant-p"],
        ["bench", "synthetic", "--methods", "linucb-p-p"],
        ["bench", "synthetic", "--methods", "-p"],
        ["bench", "synthetic", "--methods", ","],
        ["bench", "synthetic", "--methods", ""],
        ["bench", "synthetic", "--seeds", "x"],
        ["bench", "synthetic", "--seeds", ""],
        ["bench", "synthetic", "--seeds", "-1"],
        ["bench", "synthetic", "--seeds", "4-0"],
        ["bench", "synthetic", "--seeds", "1.5"],
        ["bench", "synthetic", "--seeds", "0-999999999999"],
        ["bench", "synthetic", "--jobs", "0"],
        ["bench", "synthetic", "--jobs", "x"],
        ["bench", "synthetic", "--job", "1"],
        ["demo", "--seeds", "x"],
        ["demo", "--jobs", "-1"],
        ["ablate", "syntetic"],
        ["ablate", "synthetic", "--seeds", "x"],
        ["report", "nowhere"],
        ["report", "."],
        ["data", "check", "syntetic"],
        ["data", "get", "syntetic"],
        ["data", "get"],
        ["data", "show", "syntetic"],
        ["data", "show", "synthetic", "--out", "picture.doc"],
        ["data", "show", "synthetic", "--set", "n_arm=3"],
        ["data", "show", "synthetic", "--set", "n_arms"],
        ["data", "show", "synthetic", "--set", "n_arms=0"],
        ["nothing"],
        ["--nothing"],
        ["methods", "linucb"],
    ],
    ids=" ".join,
)
def test_arguments(arguments, refused):
    refused(arguments)


@pytest.mark.parametrize("place", ["file", "file/below", "link"])
def test_where_runs_go(place, refused, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    refused(
        ["bench", "synthetic", "--methods", "random", *SMALL, "--out", place],
        leaves=["file", "link"],
    )


@pytest.mark.parametrize("content", ["", "{", "3", "[3]", '[{"folder": 3}]', "null", '"text"'])
@pytest.mark.parametrize("command", ["report"])
def test_folders_with_damaged_results(command, content, refused, tmp_path):
    (tmp_path / "results.json").write_text(content)
    refused([command, "."], leaves=["results.json"])
