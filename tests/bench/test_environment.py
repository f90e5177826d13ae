"""Every run's folder says with which versions and hardware it was made."""

import json

import pytest

import daband
from daband.bench import Experiment
from daband.bench._run import execute_run


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
