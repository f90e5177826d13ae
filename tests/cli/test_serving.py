"""``daband export`` of a choice and of a saved policy."""

import daband as library
from tests.cli.test_audit import save_choice


def test_a_choice(daband, tmp_path):
    folder = save_choice(tmp_path, "market")
    done = daband("export", "market", "p.daband")
    assert done.returncode == 0, done.stderr
    assert "p.daband" in done.stdout
    deployed = library.load_deployed(tmp_path / "p.daband")
    choice = library.Choice.load(folder)
    assert deployed.domain == "target"
    assert deployed.arm_names == ("card", "loan")
    assert deployed.assessment == choice.assessment.as_dict()
    contexts = choice.options.read().target.read([0, 1, 2])
    found = deployed.decide(contexts, round_number=choice.policy.rounds_decided)
    assert found.arm.tolist() == choice.policy.decide(contexts, "target").arm.tolist()
    assert not deployed.monitor().alarm


def test_without_its_data(daband, tmp_path):
    folder = save_choice(tmp_path, "market")
    for policy in ("market", str(folder / "policy.safetensors")):
        done = daband("export", policy, "p", "--no-data", "--domain", "source")
        assert done.returncode == 0, done.stderr
        deployed = library.load_deployed(tmp_path / "p")
        assert deployed.reference is None
        assert deployed.domain == "source"
        assert deployed.arm_names == ("card", "loan")


def test_a_folder_without_a_choice(daband, tmp_path):
    (tmp_path / "runs").mkdir()
    done = daband("export", "runs", "p")
    assert done.returncode == 2
    assert "runs is not the folder of a choice" in done.stderr
