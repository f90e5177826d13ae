"""Every run's folder says with which versions and hardware it was made."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import daband
from daband.bench._run import execute_run
from daband.bench._settings import Experiment


@pytest.mark.parametrize("method", ["random", "nlinucb"])
def test_a_run_names_versions_and_device(tmp_path, method):
    experiment = Experiment(
        pair="synthetic", pair_options={"tiny": True}, episodes=2, episode_length=8, seeds=(0,)
    )
    (spec,) = experiment.runs([method])
    record = execute_run(spec, tmp_path)
    about = json.loads((tmp_path / record["folder"] / "environment.json").read_text())
    assert about["daband"] == daband.__version__
    assert about["device"] == "cpu"
    assert (tmp_path / record["folder"] / "done").exists()


@pytest.mark.slow
def test_the_commit_is_recorded_where_there_is_no_git_directory(tmp_path):
    package = Path(daband.__file__).parent
    shutil.copytree(
        package,
        tmp_path / "src" / "daband",
        ignore=shutil.ignore_patterns("embedded", "__pycache__"),
    )
    code = "from daband.bench._environment import _find_commit; print(_find_commit())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "DABAND_COMMIT": "0123abc"}
    for told, expected in (
        (environment, "0123abc"),
        ({**environment, "DABAND_COMMIT": ""}, "None"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=told,
            cwd=tmp_path,
            check=True,
        )
        assert done.stdout.strip() == expected
