"""``daband export`` of finished runs."""

import json

import pytest
from typer.testing import CliRunner

import daband
from daband.cli._main import app


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs."""
    folder = tmp_path_factory.mktemp("runs")
    given = ["--set", "pair_options.tiny=true", "--set", "episodes=2", "--set", "episode_length=10"]
    for seed in ("0", "1"):
        done = CliRunner().invoke(
            app, ["run", "synthetic", "--seed", seed, "--out", str(folder), *given]
        )
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
        done = CliRunner().invoke(
            app, ["export", str(run), str(tmp_path / "p"), "--no-data", "--domain", "source"]
        )
        assert done.exit_code == 0, done.output
        deployed = daband.load_deployed(tmp_path / "p")
        assert deployed.reference is None
        assert deployed.domain == "source"
        assert deployed.arm_names == ("arm 0", "arm 1", "arm 2")

    def test_one_of_several_must_be_named(self, runs, tmp_path):
        done = CliRunner().invoke(app, ["export", str(runs), str(tmp_path / "p")])
        assert isinstance(done.exception, daband.InvalidInput)
        assert "2 finished runs" in str(done.exception)
