"""Decisions from a shell, and files from the command line."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import daband
from daband.cli._main import app
from daband.serving.__main__ import main
from tests.serving import kinds


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An exported policy on a table."""
    policy, pair = kinds.table_policy()
    path = tmp_path_factory.mktemp("table") / "p.daband"
    daband.export(policy, path, pair=pair)
    return path


def lines(rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def decided(file, monkeypatch, capsys, rows, *options):
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines(rows)))
    code = main([str(file), *options])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_rows_in_decisions_out(file):
    """As a shell does it: one line of JSON in, one out."""
    command = [sys.executable, "-m", "daband.serving", str(file)]
    done = subprocess.run(command, input=lines(kinds.ROWS), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    deployed = daband.load_deployed(file)
    expected = deployed.decide(kinds.ROWS)
    assert [one["arm"] for one in found] == expected.arm.tolist()
    assert [one["arm_name"] for one in found] == list(expected.arm_name)
    assert [one["mean"] for one in found] == [pytest.approx(mean) for mean in expected.mean]
    assert [odd["kind"] for odd in found[2]["warnings"]] == ["far_outside", "unseen_category", "missing_value"] or {
        odd["kind"] for odd in found[2]["warnings"]
    } == {"far_outside", "unseen_category", "missing_value"}


def test_a_bad_row_costs_no_other(file, monkeypatch, capsys):
    rows = [kinds.ROWS[0], {"age": 3}, "not json", "", kinds.ROWS[1]]
    code, found = decided(file, monkeypatch, capsys, rows)
    assert code == 1
    assert ["arm" in one for one in found] == [True, False, False, True]
    assert found[1]["line"] == 2
    assert "'income'" in found[1]["error"]
    assert found[2]["line"] == 3
    assert "not JSON" in found[2]["error"]


def test_options(file, monkeypatch, capsys):
    code, found = decided(file, monkeypatch, capsys, kinds.ROWS[:2], "--among", "mail")
    assert code == 0
    assert {one["arm_name"] for one in found} == {"mail"}
    code, found = decided(file, monkeypatch, capsys, [kinds.ROWS[2]], "--strict")
    assert code == 1
    assert "strict" in found[0]["error"]
    assert main([str(file), "--about"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"] == ["age", "income", "city", "member"]


def test_images_by_their_paths(monkeypatch, capsys, tmp_path):
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "photo.png")
    rows = [str(tmp_path / "photo.png"), str(tmp_path / "nowhere.png")]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(row) + "\n" for row in rows)))
    daband.export(kinds.trained("daband-images")[0], tmp_path / "p", arm_names=["none", "mail", "call"])
    assert main([str(tmp_path / "p")]) == 1
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["arm_name"] in ("none", "mail", "call")
    assert "nowhere.png cannot be read" in second["error"]


def test_names_are_written_as_they_are(tmp_path):
    policy = daband.Constant(context_shape=(1,), n_arms=2, alpha=0.0, seed=0)
    policy.update([[0.0]] * 4, [0, 0, 1, 1], [0, 0, 1, 1])
    daband.export(policy, tmp_path / "p.daband", arm_names=["Brief", "Bündel"])
    command = [sys.executable, "-m", "daband.serving", str(tmp_path / "p.daband")]
    done = subprocess.run(
        command, input=b"[0.0]\n", capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    assert done.returncode == 0, done.stderr
    assert '"Bündel"' in done.stdout.decode("utf-8")


def test_an_unknown_arm_is_told_once(file, capsys):
    assert main([str(file), "--among", "fax"]) == 2
    said = capsys.readouterr()
    assert "--among: 'fax' is no arm" in said.err
    assert not said.out


def test_a_reader_that_leaves_is_no_traceback(file):
    command = [sys.executable, "-m", "daband.serving", str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        _, said = child.communicate(lines(kinds.ROWS).encode())
    assert b"Traceback" not in said


def test_a_file_that_is_none(capsys, tmp_path):
    assert main([str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs."""
    folder = tmp_path_factory.mktemp("runs")
    given = ["--set", "pair_options.tiny=true", "--set", "episodes=2", "--set", "episode_length=10"]
    for seed in ("0", "1"):
        done = CliRunner().invoke(app, ["run", "synthetic", "--seed", seed, "--out", str(folder), *given])
        assert done.exit_code == 0, done.output
    return folder


class TestExport:
    def test_a_run(self, runs, tmp_path):
        run = sorted(path.parent for path in runs.glob("*/done"))[0]
        (run / "assessment.json").write_text(json.dumps({"accuracy": 0.8}))
        done = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "p.daband")])
        assert done.exit_code == 0, done.output
        assert "p.daband" in done.output
        deployed = daband.load_deployed(tmp_path / "p.daband")
        policy = daband.load(run / "policy.safetensors")
        assert deployed.domain == "target"
        assert deployed.arm_names == ("arm 0", "arm 1", "arm 2")
        assert deployed.assessment == {"accuracy": 0.8}
        pair = daband.domains.load("synthetic", tiny=True)
        contexts = pair.target.read([0, 1, 2])
        found = deployed.decide(contexts, round_number=policy.rounds_decided)
        assert found.arm.tolist() == policy.decide(contexts, "target").arm.tolist()
        assert not deployed.monitor().alarm

    def test_without_its_data(self, runs, tmp_path):
        run = sorted(path.parent for path in runs.glob("*/done"))[1]
        done = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "p"), "--no-data", "--domain", "source"])
        assert done.exit_code == 0, done.output
        deployed = daband.load_deployed(tmp_path / "p")
        assert deployed.reference is None
        assert deployed.domain == "source"
        assert deployed.arm_names == ("arm 0", "arm 1", "arm 2")

    def test_one_of_several_must_be_named(self, runs, tmp_path):
        done = CliRunner().invoke(app, ["export", str(runs), str(tmp_path / "p")])
        assert isinstance(done.exception, daband.InvalidInput)
        assert "2 finished runs" in str(done.exception)


def test_numbers_may_be_texts(file, monkeypatch, capsys):
    """As tools that turn CSV into JSON write them; an empty text is a missing value."""
    rows = [{"age": 41, "income": None, "city": "Oslo", "member": "true"}]
    texts = [{"age": "41", "income": "", "city": "Oslo", "member": "true"}]
    (code, typed), (again, found) = (decided(file, monkeypatch, capsys, given) for given in (rows, texts))
    assert code == again == 0
    assert typed == found
    code, found = decided(file, monkeypatch, capsys, [{**texts[0], "age": "old"}])
    assert code == 1
    assert "'age' must be a number" in found[0]["error"]
